"""Measures the Python package against its bounds: what a call costs over Rust, what of Rust's rate of output is left, and how it
stands beside the official SDK on one server. Everything in one run; values are medians. `run.sh` builds and starts it."""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from sandhold import AsyncSandboxes, E2bProvider, LocalProvider, Sandboxes

KEY = "e2b_" + "0" * 40
ROWS: list[tuple[str, float, str, float | None, bool | None]] = []


def row(name: str, value: float, unit: str, at_least: float | None = None, at_most: float | None = None) -> None:
    bound = at_least if at_least is not None else at_most
    met = None if bound is None else (value >= bound if at_least is not None else value <= bound)
    ROWS.append((name, value, unit, bound, met))
    sign = "" if bound is None else (">= " if at_least is not None else "<= ") + f"{bound:g}"
    print(f"{name:<44} {value:>10.3f} {unit:<6} {sign:>9}  {'' if met is None else 'yes' if met else 'NO'}", flush=True)


def seconds(work: Callable[[], object]) -> float:
    begin = time.perf_counter()
    work()
    return time.perf_counter() - begin


def overhead(home: Path, calls: int) -> None:
    """A stream that is closed answers at once: what is left is the way into Rust and back."""
    host = Sandboxes(LocalProvider(home=home))
    events = host.events()
    events.close()

    def through() -> None:
        for _ in range(calls):
            next(events, None)

    def around() -> None:
        nothing = iter(())
        for _ in range(calls):
            next(nothing, None)

    rounds = [(seconds(through) - seconds(around)) / calls * 1e6 for _ in range(7)]
    row("a call that does nothing, over Rust", statistics.median(rounds), "us", at_most=10)

    async def awaited() -> float:
        events = await AsyncSandboxes(LocalProvider(home=home)).events()
        events.close()
        begin = time.perf_counter()
        for _ in range(calls // 10):
            await anext(events, None)
        return (time.perf_counter() - begin) / (calls // 10) * 1e6

    row("the same, awaited by an event loop", statistics.median(asyncio.run(awaited()) for _ in range(5)), "us")


def rust(program: Path, home: Path, quick: bool) -> float:
    """The rate of the library itself, in MiB/s."""
    command = [program, "--json", "--only", "stdout", "--home", home, *(["--quick"] if quick else [])]
    report = json.loads(subprocess.run(command, check=True, stdout=subprocess.PIPE).stdout)
    return float(next(found["value"] for found in report["rows"] if found["name"] == "1 GiB of stdout"))


def stdout(home: Path, program: Path, mebibytes: int, rounds: int, quick: bool) -> None:
    sandbox = Sandboxes(LocalProvider(home=home)).acquire("stdout")

    def read() -> None:
        received = 0
        for piece in sandbox.start(["head", "-c", str(mebibytes << 20), "/dev/zero"]):
            received += len(piece.data)
        assert received == mebibytes << 20

    # Rust before and after, so that what else the machine does hits both.
    rates = [rust(program, home, quick)]
    ours = mebibytes / statistics.median(seconds(read) for _ in range(rounds))
    rates.append(rust(program, home, quick))
    sandbox.destroy()
    row("stdout in Rust", statistics.mean(rates), "MiB/s")
    row("stdout in Python", ours, "MiB/s")
    row("stdout, Python / Rust", ours / statistics.mean(rates), "x", at_least=0.7)


def beside_the_sdk(server: Path, helper: Path | None, mebibytes: int, rounds: int, commands: int) -> None:
    home = tempfile.mkdtemp()
    environment = {**os.environ, "SANDHOLD_API_KEY": KEY, "SANDHOLD_LOG": "warn"}
    if helper is not None:
        environment["SANDHOLD_HELPER"] = str(helper)
    program = subprocess.Popen([server, "--listen", "127.0.0.1:0", "--home", home], env=environment, stdout=subprocess.PIPE, text=True)
    try:
        assert program.stdout is not None
        url = program.stdout.readline().strip().removeprefix("listening on ")
        for name in list(os.environ):
            if name.lower().startswith("e2b_") or name.lower().endswith("_proxy"):
                del os.environ[name]
        os.environ.update(E2B_API_KEY=KEY, E2B_API_URL=url, E2B_SANDBOX_URL=url)
        from e2b import Sandbox

        ours = Sandboxes(E2bProvider(public_traffic="everybody")).acquire("bench", lease=3600.0)
        assert ours.provider_id is not None
        theirs = Sandbox.connect(ours.provider_id)
        size = mebibytes << 20
        ours.shell(f"head -c {size} /dev/urandom > noise")

        def pieces() -> Iterator[bytes]:
            piece = b"\x5a" * (1 << 20)
            return (piece for _ in range(mebibytes))

        def exactly(received: int) -> None:
            assert received == size, f"{received} of {size}"

        def their_stdout() -> None:
            received = 0

            def count(data: Any) -> None:
                nonlocal received
                received += len(data)

            line = f"dd if=/dev/zero bs=1M count={mebibytes} status=none"
            theirs.commands.run(line, on_stdout=count, retain_output=False, timeout=0, request_timeout=0)
            exactly(received)

        def our_stdout() -> None:
            line = f"dd if=/dev/zero bs=1M count={mebibytes} status=none"
            exactly(sum(len(piece.data) for piece in ours.start(line)))

        def their_download() -> None:
            stream = theirs.files.read("noise", format="stream", request_timeout=0)
            exactly(sum(len(piece) for piece in stream))

        orders: dict[str, tuple[Callable[[], object], Callable[[], object], float]] = {
            "exec round trip": (
                lambda: [ours.exec(["/bin/bash", "-l", "-c", "true"]) for _ in range(commands)],
                lambda: [theirs.commands.run("true") for _ in range(commands)],
                1e3 / commands,
            ),
            "stdout": (our_stdout, their_stdout, 1.0),
            "download": (lambda: exactly(sum(map(len, ours.read("noise")))), their_download, 1.0),
            "upload": (
                lambda: exactly(ours.write("big", pieces()).size),
                lambda: theirs.files.write("big", pieces(), request_timeout=0),
                1.0,
            ),
        }
        for name, (we, they, scale) in orders.items():
            ratios, mine, other = [], [], []
            for turn in range(rounds + 1):
                # Either is first as often.
                taken = [seconds(work) for work in ((we, they) if turn % 2 else (they, we))]
                mine_now, other_now = taken if turn % 2 else taken[::-1]
                if turn > 0:
                    ratios.append(other_now / mine_now)
                    mine.append(mine_now)
                    other.append(other_now)
            unit = "ms" if scale != 1.0 else "s"
            row(f"{name}, ours", statistics.median(mine) * scale, unit)
            row(f"{name}, e2b", statistics.median(other) * scale, unit)
            row(f"{name}, times as fast", statistics.median(ratios), "x", at_least=2)
        ours.destroy()
    finally:
        program.terminate()
        program.wait()


def main() -> None:
    arguments = argparse.ArgumentParser(description=__doc__)
    arguments.add_argument("--local", type=Path, help="the program that measures the library in Rust")
    arguments.add_argument("--server", type=Path, help="the server that both SDKs are tried on")
    arguments.add_argument("--helper", type=Path, help="the helper that the server runs")
    arguments.add_argument("--quick", action="store_true", help="small sizes, to see that it runs")
    given = arguments.parse_args()
    print(f"python {sys.version.split()[0]}, load {os.getloadavg()[0]:.2f}")
    with tempfile.TemporaryDirectory() as home:
        overhead(Path(home), 2_000 if given.quick else 100_000)
        if given.local:
            stdout(Path(home), given.local, 64 if given.quick else 1024, 1 if given.quick else 5, given.quick)
        if given.server:
            beside_the_sdk(given.server, given.helper, 16 if given.quick else 512, 1 if given.quick else 5, 5 if given.quick else 100)
    print(f"load {os.getloadavg()[0]:.2f}")
    sys.exit(any(met is False for *_, met in ROWS))


main()
