"""Faults that users of other SDKs reported, tried here. SANDHOLD_FULL_SIZE=1 tries them at the size of the reports."""

from __future__ import annotations

import asyncio
import codecs
import gc
import hashlib
import os
import subprocess
import sys
import threading
import weakref
from collections.abc import Iterator
from pathlib import Path

import pytest
import sandhold
from sandhold import AsyncSandboxes, LocalProvider, Sandbox, Sandboxes

FULL = os.environ.get("SANDHOLD_FULL_SIZE") == "1"
PYTHON = Path("/usr/bin/python3")


def resident() -> int:
    """What this process has in memory, in bytes."""
    with open("/proc/self/statm") as facts:
        return int(facts.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def settled() -> dict[str, int]:
    """What this process holds open."""
    gc.collect()
    links = [os.readlink(f"/proc/self/fd/{fd}") for fd in os.listdir("/proc/self/fd") if os.path.lexists(f"/proc/self/fd/{fd}")]
    return {"fds": len(links), "inotify": sum("inotify" in link for link in links), "threads": threading.active_count()}


@pytest.mark.skipif(not PYTHON.exists(), reason="needs /usr/bin/python3 inside of sandboxes")
def a_character_that_is_split_between_pieces_is_whole_as_text(sandbox: Sandbox) -> None:
    writer = (
        "import os\n"
        "data = ('é漢😀' * 50_000).encode() + b'\\xff' + 'é'.encode()[:1]\n"
        "at = 0\n"
        "while at < len(data):\n"
        "    at += os.write(1, data[at:at + 1 + at % 4])\n"
    )
    expected = ("é漢😀" * 50_000).encode() + b"\xff" + "é".encode()[:1]
    decoder = codecs.getincrementaldecoder("utf-8")("replace")
    text: list[str] = []
    pieces: list[bytes] = []

    def hear(stream: str, data: bytes) -> None:
        pieces.append(data)
        text.append(decoder.decode(data))

    output = sandbox.exec([str(PYTHON), "-c", writer], on_output=hear, timeout=300)
    text.append(decoder.decode(b"", final=True))
    assert output.exit.success and output.stdout.bytes == expected == b"".join(pieces)
    # A byte that is no text is one U+FFFD, and so is what is left of a character at the end.
    assert "".join(text) == output.stdout.text() == "é漢😀" * 50_000 + "\ufffd\ufffd"
    process = sandbox.start([str(PYTHON), "-c", writer])
    assert b"".join(piece.data for piece in process) == expected


def every_watch_and_every_command_gives_back_what_it_held(sandbox: Sandbox) -> None:
    rounds = 10_000 if FULL else 200
    for _ in range(20):
        sandbox.watch("/home/user").close()
        sandbox.exec(["true"])
    before = settled()
    for _ in range(rounds):
        with sandbox.watch("/home/user", recursive=True):
            pass
        assert sandbox.exec(["true"]).exit.success
    after = settled()
    assert all(abs(after[what] - before[what]) <= 5 for what in before), (before, after)


def every_loop_and_every_thread_leaves_the_descriptors_as_they_were(provider: LocalProvider, key: str) -> None:
    host = AsyncSandboxes(provider)

    async def use() -> str:
        sandbox = await host.acquire(key)
        async with await sandbox.watch("/home/user"):
            return (await sandbox.shell("echo ran")).stdout.text()

    assert asyncio.run(use()) == "ran\n"
    before = settled()
    assert {asyncio.run(use()) for _ in range(50)} == {"ran\n"}
    said: list[str] = []
    threads = [threading.Thread(target=lambda: said.extend(asyncio.run(use()) for _ in range(3))) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert said == ["ran\n"] * 24
    after = settled()
    assert abs(after["fds"] - before["fds"]) <= 8, (before, after)


def a_long_upload_and_a_long_download_stay_out_of_memory(sandbox: Sandbox) -> None:
    mebibytes = 4096 if FULL else 96
    sent, got = hashlib.sha256(), hashlib.sha256()
    most = 0

    def body() -> Iterator[bytes]:
        nonlocal most
        for number in range(mebibytes):
            piece = number.to_bytes(4, "big") * (1 << 18)
            sent.update(piece)
            most = max(most, resident())
            yield piece

    before = resident()
    assert sandbox.write("long", body()).size == mebibytes << 20
    with sandbox.read("long") as download:
        for piece in download:
            got.update(piece)
            most = max(most, resident())
    sandbox.remove("long")
    assert got.hexdigest() == sent.hexdigest()
    assert most - before <= 64 << 20


@pytest.mark.parametrize("face", ["threads", "event loops"])
def a_hundred_thousand_calls_do_not_grow_the_memory(provider: LocalProvider, key: str, sandbox: Sandbox, face: str) -> None:
    calls = 100_000 if FULL else 2_000

    def in_turn(number: int) -> None:
        for _ in range(number // 4):
            assert sandbox.exists("/home/user")
            sandbox.stat("/home/user")
            with pytest.raises(sandhold.NotFoundError):
                sandbox.stat("/missing")
            sandbox.write_bytes("f", b"x" * 100)

    async def at_once(number: int) -> None:
        other = await AsyncSandboxes(provider).acquire(key)
        for _ in range(number // 40):
            assert all(await asyncio.gather(*(other.exists("/home/user") for _ in range(20))))
            await asyncio.gather(*(other.stat("/home/user") for _ in range(20)))

    def run(number: int) -> None:
        in_turn(number) if face == "threads" else asyncio.run(at_once(number))

    run(min(calls, 2_000))
    gc.collect()
    before = resident()
    run(calls)
    gc.collect()
    assert resident() - before < 20 << 20


def a_callback_that_is_called_often_does_not_grow_the_memory(sandbox: Sandbox) -> None:
    lines = 100_000 if FULL else 5_000
    script = f"i=0; while [ $i -lt {lines} ]; do echo $i; i=$((i+1)); done"
    told = 0

    def hear(stream: str, data: bytes) -> None:
        nonlocal told
        told += data.count(b"\n")

    sandbox.exec(script, on_output=hear, timeout=300)
    before = resident()
    told = 0
    sandbox.exec(script, on_output=hear, timeout=300)
    assert told == lines and resident() - before < 20 << 20


def a_callback_that_blocks_holds_up_nobody_else(provider: LocalProvider, key: str, sandbox: Sandbox) -> None:
    blocked, free = threading.Event(), threading.Event()

    def block(stream: str, data: bytes) -> None:
        blocked.set()
        free.wait(60)

    outputs: list[str] = []
    slow = threading.Thread(target=lambda: outputs.append(sandbox.exec("echo x", on_output=block).stdout.text()))
    slow.start()
    assert blocked.wait(30)

    async def meanwhile() -> None:
        other = await AsyncSandboxes(provider).acquire(key)
        assert [(await other.exec("echo y")).stdout.text() for _ in range(20)] == ["y\n"] * 20

    asyncio.run(meanwhile())
    assert [sandbox.shell("echo z").stdout.text() for _ in range(20)] == ["z\n"] * 20
    assert outputs == []
    free.set()
    slow.join()
    assert outputs == ["x\n"]


def a_callback_lives_as_long_as_its_call_and_no_longer(provider: LocalProvider, key: str, sandbox: Sandbox) -> None:
    class Heard:
        def __init__(self) -> None:
            self.data = b""

        def hear(self, stream: str, data: bytes) -> None:
            gc.collect()
            self.data += data

        def __call__(self, event: object) -> None:
            pass

    def run() -> weakref.ref[Heard]:
        heard = Heard()
        # Nobody but the call holds the bound method.
        sandbox.exec("for i in 1 2 3; do echo $i; done", on_output=heard.hear)
        assert heard.data == b"1\n2\n3\n"
        Sandboxes(provider, on_event=heard).acquire(key)
        return weakref.ref(heard)

    left = run()
    # The listener's last event may be on its way.
    waited = threading.Event()
    for _ in range(1000):
        gc.collect()
        sandbox.exists("/")
        if left() is None:
            break
        waited.wait(0.01)
    assert left() is None


ENDINGS: dict[str, str] = {
    "listeners": (
        "host = Sandboxes(provider, on_event=lambda event: None, on_stop=lambda sandbox: None)\n"
        "sandbox = host.acquire(key)\n"
        "watch, events, process = sandbox.watch('/home/user'), host.events(), sandbox.start('sleep 1000')\n"
        "sandbox.exec('echo x', on_output=lambda stream, data: None)\n"
    ),
    "threads that wait": (
        "import threading\n"
        "sandbox = Sandboxes(provider).acquire(key)\n"
        "begun = threading.Barrier(6)\n"
        "def wait():\n"
        "    process = sandbox.start('echo begun; exec sleep 1000')\n"
        "    next(process)\n"
        "    begun.wait()\n"
        "    process.wait()\n"
        "for _ in range(5): threading.Thread(target=wait, daemon=True).start()\n"
        "begun.wait()\n"
    ),
    "a loop that is left": (
        "import asyncio\n"
        "from sandhold import AsyncSandboxes\n"
        "async def main():\n"
        "    sandbox = await AsyncSandboxes(provider).acquire(key)\n"
        "    loose = [asyncio.ensure_future(sandbox.exec('sleep 1000', timeout=0)) for _ in range(5)]\n"
        "    await sandbox.exec('true')\n"
        "asyncio.run(main())\n"
    ),
}


@pytest.mark.parametrize("ending", ENDINGS)
def a_program_ends_by_itself_whatever_is_open(home: Path, key: str, sandbox: Sandbox, ending: str) -> None:
    program = "import sys\nfrom sandhold import LocalProvider, Sandboxes\nprovider, key = LocalProvider(home=sys.argv[1]), sys.argv[2]\n"
    program += ENDINGS[ending] + "print('done', flush=True)\n"
    for _ in range(100 if FULL else 3):
        done = subprocess.run([sys.executable, "-c", program, home, key], capture_output=True, text=True, timeout=60)
        assert (done.returncode, done.stdout, done.stderr) == (0, "done\n", "")
    sandbox.shell("pkill sleep")


@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
def a_child_that_is_forked_before_the_first_call_works(home: Path, key: str) -> None:
    program = (
        "import os, sys\nfrom sandhold import LocalProvider, Sandboxes\n"
        "host = Sandboxes(LocalProvider(home=sys.argv[1]))\n"
        "child = os.fork()\n"
        "print(host.acquire(sys.argv[2]).shell('echo ran').stdout.text(), end='', flush=True)\n"
        "if child: assert os.waitpid(child, 0)[1] == 0\n"
    )
    done = subprocess.run([sys.executable, "-c", program, home, key], capture_output=True, text=True)
    assert (done.returncode, done.stdout, done.stderr) == (0, "ran\nran\n", "")


def a_stop_of_a_task_group_ends_every_call_of_it(provider: LocalProvider, key: str) -> None:
    async def main() -> None:
        sandbox = await AsyncSandboxes(provider).acquire(key)
        tasks = [asyncio.ensure_future(sandbox.exec("exec sleep 98765", timeout=0)) for _ in range(20)]
        process = await sandbox.start("read line", stdin="open")
        tasks.append(asyncio.ensure_future(process.wait()))  # type: ignore[arg-type]
        watch = await sandbox.watch("/home/user")
        tasks.append(asyncio.ensure_future(anext(watch)))  # type: ignore[arg-type]
        while (await sandbox.exec("pgrep -c -f 'sleep [9]8765'")).stdout.text().strip() != "20":
            await asyncio.sleep(0.01)
        for task in tasks:
            task.cancel()
        ended = await asyncio.gather(*tasks, return_exceptions=True)
        assert {type(end) for end in ended} == {asyncio.CancelledError}
        while (await sandbox.exec("pgrep -f 'sleep [9]8765'")).exit.success:
            await asyncio.sleep(0.01)
        await process.write("go\n")
        assert (await process.wait()).success

    asyncio.run(main())
