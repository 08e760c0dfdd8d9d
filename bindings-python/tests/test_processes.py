"""Commands and processes."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
import threading
from pathlib import Path

import pytest
import sandhold
from sandhold import AsyncSandbox, AsyncSandboxes, LocalProvider, Sandbox


def a_command_tells_its_output_byte_for_byte_and_its_exit(sandbox: Sandbox) -> None:
    output = sandbox.exec(["sh", "-c", "printf 'a\\377'; echo no >&2; exit 3"])
    assert output.stdout.bytes == b"a\xff" and output.stdout.text() == "a\ufffd" and bytes(output.stdout) == b"a\xff"
    assert str(output.stderr) == "no\n"
    assert (output.exit.code, output.exit.signal, output.exit.success) == (3, None, False)


def a_list_is_no_line_of_shell(sandbox: Sandbox) -> None:
    assert str(sandbox.exec(["echo", "$HOME; exit 1"]).stdout) == "$HOME; exit 1\n"
    assert sandbox.exec("exit 4").exit.code == sandbox.shell("exit 4").exit.code == 4
    with pytest.raises(sandhold.InvalidArgumentError, match="command"):
        sandbox.exec([])


def a_command_gets_its_surroundings_and_input(sandbox: Sandbox) -> None:
    output = sandbox.exec("echo $NAME; pwd; cat", env={"NAME": "value"}, cwd="/tmp", stdin="typed é")
    assert output.stdout.text() == "value\n/tmp\ntyped é"
    assert sandbox.exec(["id", "-un"], user="root").stdout.text() == "root\n"


def a_command_that_takes_too_long_is_ended_and_its_output_kept(sandbox: Sandbox) -> None:
    output = sandbox.exec("echo begun; sleep 1000", timeout=0.5, grace=0.1)
    assert output.exit.timed_out and output.stdout.text() == "begun\n"


def an_output_above_the_limit_keeps_its_tail(sandbox: Sandbox) -> None:
    output = sandbox.exec("printf 0123456789", output_limit=4)
    assert (output.stdout.bytes, output.stdout.dropped) == (b"6789", 6)


def a_callback_gets_the_output_as_it_comes(sandbox: Sandbox) -> None:
    pieces: list[tuple[str, bytes]] = []
    output = sandbox.exec("echo one; echo two >&2", on_output=lambda stream, data: pieces.append((stream, data)))
    assert b"".join(data for stream, data in pieces if stream == "stdout") == output.stdout.bytes == b"one\n"
    assert ("stderr", b"two\n") in pieces


def a_callback_that_raises_ends_its_command_and_is_the_cause(sandbox: Sandbox) -> None:
    def refuse(stream: str, data: bytes) -> None:
        raise LookupError("enough")

    with pytest.raises(sandhold.UnexpectedError) as raised:
        sandbox.exec("echo x; sleep 1000", on_output=refuse, timeout=0)
    assert isinstance(raised.value.__cause__, LookupError)
    assert sandbox.shell("true").exit.success


def the_output_of_a_process_is_iterated_and_then_its_exit_is_known(sandbox: Sandbox) -> None:
    process = sandbox.start(["sh", "-c", "echo out; echo err >&2; exit 5"])
    assert process.exit is None
    pieces = list(process)
    assert b"".join(piece.data for piece in pieces if piece.stream == "stdout") == b"out\n"
    assert b"".join(piece.data for piece in pieces if piece.stream == "stderr") == b"err\n"
    assert process.exit is not None and process.exit.code == 5 == process.wait().code
    assert list(process) == []


def an_open_input_takes_what_is_written_until_it_is_closed(sandbox: Sandbox) -> None:
    process = sandbox.start(["cat"], stdin="open")
    process.write(b"bytes ")
    process.write("text é")
    process.close_stdin()
    assert b"".join(piece.data for piece in process) == "bytes text é".encode()
    assert process.wait().success


def a_killed_process_tells_its_signal(sandbox: Sandbox) -> None:
    process = sandbox.start("sleep 1000")
    assert process.kill()
    assert process.wait().signal == signal.SIGKILL
    assert not process.kill()
    other = sandbox.start(["sleep", "1000"], tag="other")
    assert sandbox.signal("other", signal.SIGINT)
    assert other.wait().signal == signal.SIGINT


def a_terminal_has_its_size_and_takes_keys(sandbox: Sandbox) -> None:
    process = sandbox.start(["sh"], pty=(132, 43))
    process.write("stty size\n")
    seen = b""
    for piece in process:
        assert piece.stream == "pty"
        seen += piece.data
        if b"43 132" in seen:
            break
    process.resize(80, 24)
    process.write("stty size; exit 6\n")
    for piece in process:
        seen += piece.data
    assert b"24 80" in seen and process.exit is not None and process.exit.code == 6
    with pytest.raises(sandhold.InvalidArgumentError, match="rows"):
        process.resize(80, 0)


def a_process_is_found_again_by_pid_and_tag_with_its_output_from_the_start(sandbox: Sandbox) -> None:
    process = sandbox.start("echo kept; read line; echo got $line", tag="job", retain=1 << 20, stdin="open")
    pid = process.pid
    del process
    again = sandbox.attach("job", replay=True)
    assert again.pid == pid and again.tag == "job"
    first = next(again)
    assert (first.data, first.offset) == (b"kept\n", 0)
    sandbox.attach(pid).write("it\n")
    assert b"".join(piece.data for piece in again) == b"got it\n"
    assert sandbox.attach(pid, stdout=5).wait().success
    assert sandbox.release("job") and not sandbox.release("job")
    with pytest.raises(sandhold.NotFoundError):
        sandbox.attach("job")


def a_cancelled_task_kills_its_command_and_leaves_the_sandbox(provider: LocalProvider, key: str) -> None:
    async def main() -> None:
        sandbox = await AsyncSandboxes(provider).acquire(key)
        began = asyncio.Event()
        loop = asyncio.get_running_loop()

        def seen(stream: str, data: bytes) -> None:
            loop.call_soon_threadsafe(began.set)

        command = asyncio.ensure_future(sandbox.exec("echo $$; exec sleep 54321", timeout=0, on_output=seen))
        await began.wait()
        command.cancel()
        with pytest.raises(asyncio.CancelledError):
            await command
        while (await sandbox.exec("pgrep -f 'sleep [5]4321'")).exit.success:
            await asyncio.sleep(0.01)

    asyncio.run(main())


def a_cancelled_wait_leaves_its_process_alone(provider: LocalProvider, key: str) -> None:
    async def main() -> None:
        sandbox = await AsyncSandboxes(provider).acquire(key)
        process = await sandbox.start("read line; exit 7", stdin="open")
        with pytest.raises(asyncio.TimeoutError):
            await asyncio.wait_for(process.wait(), 0.05)
        await process.write("go\n")
        assert (await process.wait()).code == 7

    asyncio.run(main())


def every_piece_reaches_an_event_loop(provider: LocalProvider, key: str) -> None:
    async def count(sandbox: AsyncSandbox, number: int) -> int:
        process = await sandbox.start(["seq", str(number)])
        return sum([piece.data.count(b"\n") async for piece in process])

    async def main() -> None:
        async with await AsyncSandboxes(provider).acquire(key) as sandbox:
            assert await asyncio.gather(*(count(sandbox, 1000 * n) for n in range(1, 9))) == [1000 * n for n in range(1, 9)]

    asyncio.run(main())


def an_interrupt_ends_a_waiting_call_and_kills_its_command(home: Path, provider: LocalProvider, key: str, sandbox: Sandbox) -> None:
    program = (
        "import sys\nfrom sandhold import LocalProvider, Sandboxes\n"
        "sandbox = Sandboxes(LocalProvider(home=sys.argv[1])).acquire(sys.argv[2])\n"
        "try:\n"
        "    sandbox.exec('echo begun; exec sleep 65432', timeout=0, on_output=lambda *_: print('begun', flush=True))\n"
        "except KeyboardInterrupt:\n"
        "    print('interrupted', sandbox.shell('true').exit.code)\n"
    )
    command = [sys.executable, "-c", program, str(home), key]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as host:
        assert host.stdout is not None and host.stderr is not None and host.stdout.readline() == "begun\n"
        os.kill(host.pid, signal.SIGINT)
        assert (host.stdout.read(), host.stderr.read()) == ("interrupted 0\n", "") and host.wait() == 0
    ended = threading.Event()
    while not ended.wait(0.01):
        if not sandbox.exec("pgrep -f 'sleep [6]5432'").exit.success:
            ended.set()


def a_command_reached_from_a_wrong_type_names_the_argument(sandbox: Sandbox) -> None:
    with pytest.raises(TypeError, match="command"):
        sandbox.exec(3)  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="stdin"):
        sandbox.exec("true", stdin=3)  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="process"):
        sandbox.attach(None)  # type: ignore[arg-type]
