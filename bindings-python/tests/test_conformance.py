"""What every provider does, asked from Python: for threads and for event loops."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Iterator
from typing import Any

import pytest
import sandhold

from faces import Stage, gathered, rule

# ---- acquire


@rule
async def callers_of_one_key_at_once_get_one_sandbox(stage: Stage) -> None:
    host = stage.host()
    all_of_them = await asyncio.gather(*(host.acquire(stage.key) for _ in range(8)))
    assert len({sandbox.provider_id for sandbox in all_of_them}) == 1
    assert {sandbox.outcome for sandbox in all_of_them} <= {"created", "connected"}
    assert len(await stage.provider.find_key(stage.key)) == 1


@rule
async def an_owner_has_keys_of_its_own(stage: Stage) -> None:
    sandbox = await stage.sandbox()
    other = await stage.host(owner="somebody-else").acquire(stage.key)
    try:
        assert other.provider_id != sandbox.provider_id and other.owner == "somebody-else"
    finally:
        await other.destroy()
    assert (await stage.sandbox()).provider_id == sandbox.provider_id


@rule
async def a_value_of_the_sandbox_before_never_reaches_the_one_that_took_its_place(stage: Stage) -> None:
    host = stage.host()
    old = await host.acquire(stage.key)
    await stage.provider.destroy(old.provider_id)
    new = await host.acquire(stage.key)
    assert new.facts.replaced == old.provider_id and new.facts.replaced_because == "gone"
    for call in (old.shell("true"), old.write_bytes("x", b""), old.info()):
        with pytest.raises(sandhold.SandboxError) as refused:
            await call
        assert refused.value.kind in ("gone", "stale")
    assert await new.list(".") == []


@rule
async def a_value_that_may_reacquire_goes_on_in_the_next_sandbox(stage: Stage) -> None:
    sandbox = await stage.sandbox(on_gone="reacquire")
    await stage.provider.destroy(sandbox.provider_id)
    assert (await sandbox.shell("echo again")).stdout.text() == "again\n"


@rule
async def an_id_that_is_not_there_is_gone_and_makes_nothing(stage: Stage) -> None:
    with pytest.raises(sandhold.SandboxError) as refused:
        await stage.sandbox(provider_id="sb-none", replace_when_gone="fail")
    assert refused.value.kind in ("gone", "ownership", "invalid_argument")
    assert await stage.host().find(stage.key) is None


@rule
async def a_spec_that_cannot_be_is_refused_before_anything_is_made(stage: Stage) -> None:
    for options in ({"kind": sandhold.Kind.gpu("h100")}, {"mounts": [sandhold.Mount.volume("/mnt", "data")]}):
        with pytest.raises(sandhold.UnsupportedError):
            await stage.sandbox(**options)
    assert await stage.host().find(stage.key) is None


@rule
async def a_key_is_found_stopped_and_destroyed_without_waking_it(stage: Stage) -> None:
    host = stage.host()
    assert await host.find(stage.key) is None and await host.stop(stage.key) == "no_sandbox"
    sandbox = await host.acquire(stage.key)
    assert await host.stop(stage.key) == "paused" and await host.stop(stage.key) == "already_paused"
    assert (await host.find(stage.key)).state == "paused"
    again = await stage.host().acquire(stage.key)
    assert again.facts.how == "resumed" and again.facts.resumed == "kept" and again.provider_id == sandbox.provider_id
    assert await host.destroy(stage.key) == "destroyed" and await host.destroy(stage.key) == "already_gone"


# ---- commands


@rule
async def an_exit_code_is_a_result(stage: Stage) -> None:
    exit = (await (await stage.sandbox()).shell("exit 42")).exit
    assert (exit.code, exit.signal, exit.success, exit.timed_out) == (42, None, False, False)


@rule
async def a_death_by_signal_has_its_own_field(stage: Stage) -> None:
    exit = (await (await stage.sandbox()).shell("kill -SEGV $$")).exit
    assert (exit.code, exit.signal, exit.success) == (None, signal.SIGSEGV, False)


@rule
async def stdin_is_closed_unless_it_is_given(stage: Stage) -> None:
    sandbox = await stage.sandbox()
    assert (await sandbox.exec(["cat"])).exit.success
    large = bytes(range(256)) * 8192
    assert (await sandbox.exec(["cat"], stdin=large, output_limit=4 << 20)).stdout.bytes == large
    process = await sandbox.start("cat; exec sleep 1000", stdin="open")
    await process.write("é")
    await process.close_stdin()
    await process.close_stdin()
    assert (await anext(process)).data == "é".encode() and await process.kill()
    assert [piece async for piece in process] == [] and process.exit.signal == signal.SIGKILL


@rule
async def what_cannot_be_run_is_the_callers_error(stage: Stage) -> None:
    sandbox = await stage.sandbox()
    cases: list[tuple[list[str], dict[str, Any], str]] = [
        (["no-such-program"], {}, "no-such-program"),
        (["true"], {"cwd": "/no/such/place"}, "/no/such/place"),
        (["echo", "bad\0arg"], {}, "bad"),
        (["true"], {"env": {"BAD=NAME": "x"}}, "BAD=NAME"),
        (["true"], {"env": {"": "x"}}, '""'),
    ]
    for command, options, named in cases:
        with pytest.raises(sandhold.InvalidArgumentError) as refused:
            await sandbox.exec(command, **options)
        assert named in str(refused.value)
    with pytest.raises(sandhold.UnauthenticatedError):
        await sandbox.exec(["true"], user="nobody-of-that-name")


STRANGE = ["'", '"', "$(id)", "`id`", "a\nb", "\\n", "%s", "-n", "-e", "", "😀 é", "x" * 100_000]


@rule
async def arguments_and_variables_arrive_byte_for_byte(stage: Stage) -> None:
    sandbox = await stage.sandbox(env={"OF_ALL": "sandbox", "MINE": "sandbox"})
    output = await sandbox.exec(["printf", "%s\\0", *STRANGE])
    assert output.stdout.bytes == b"".join(value.encode() + b"\0" for value in STRANGE)
    env = {f"V{number}": value for number, value in enumerate(STRANGE)}
    seen = (await sandbox.exec(["env", "-0"], env={**env, "MINE": "process"})).stdout.bytes.split(b"\0")
    assert {f"{name}={value}".encode() for name, value in env.items()} <= set(seen)
    assert b"OF_ALL=sandbox" in seen and b"MINE=process" in seen and b"MINE=sandbox" not in seen


@rule
async def output_is_whole_before_the_exit_and_its_streams_are_told_apart(stage: Stage) -> None:
    sandbox = await stage.sandbox()
    script = "head -c 2000000 /dev/zero; echo err >&2; exit 7"
    outputs = await asyncio.gather(*(sandbox.shell(script, output_limit=4 << 20) for _ in range(8)))
    assert {(len(output.stdout.bytes), output.stderr.bytes, output.exit.code) for output in outputs} == {(2_000_000, b"err\n", 7)}


@rule
async def a_background_child_holds_up_nobody(stage: Stage) -> None:
    output = await (await stage.sandbox()).shell("sleep 1000 & echo hi", timeout=60)
    assert output.stdout.text() == "hi\n" and output.exit.code == 0


@rule
async def a_deadline_ends_the_whole_tree_and_keeps_the_output(stage: Stage) -> None:
    sandbox = await stage.sandbox()
    script = 'echo begun; trap "" TERM; sleep 12321 & sleep 12321 & wait'
    output = await sandbox.shell(script, timeout=0.3, grace=0.1)
    assert output.exit.timed_out and output.stdout.text() == "begun\n"
    assert not (await sandbox.shell("pgrep -f 'sleep [1]2321'")).exit.success


# ---- processes


@rule
async def a_process_is_found_again_by_pid_and_by_tag(stage: Stage) -> None:
    sandbox = await stage.sandbox()
    process = await sandbox.start("echo kept; read line; echo got $line; exit 3", tag="job", retain=1 << 16, stdin="open")
    listed = [info for info in await sandbox.processes() if info.tag == "job"]
    assert [info.pid for info in listed] == [process.pid] and listed[0].exit is None
    with pytest.raises(sandhold.SandboxError) as running:
        await sandbox.release("job")
    assert running.value.kind == "invalid_state"
    follower = await sandbox.attach(process.pid, replay=True)
    await (await sandbox.attach("job")).write("it\n")
    assert b"".join([piece.data async for piece in follower]) == b"kept\ngot it\n" and follower.exit.code == 3
    replayed = await sandbox.attach("job", stdout=5)
    assert [(piece.data, piece.offset) async for piece in replayed] == [(b"got it\n", 5)]
    assert await sandbox.release("job") and not await sandbox.release("job")
    for unknown in (process.pid, "job", 999_999):
        with pytest.raises(sandhold.NotFoundError):
            await sandbox.attach(unknown)


@rule
async def kept_output_has_a_cap_and_counts_what_it_dropped(stage: Stage) -> None:
    sandbox = await stage.sandbox()
    everything = "".join(f"{number}\n" for number in range(20_000)).encode()
    process = await sandbox.start(["seq", "0", "19999"], retain=30_000)
    await process.wait()
    pieces = [piece async for piece in await sandbox.attach(process.pid, replay=True)]
    tail = b"".join(piece.data for piece in pieces)
    assert 0 < len(tail) <= 30_000 and everything.endswith(tail)
    assert sum(piece.dropped for piece in pieces) == pieces[0].offset == len(everything) - len(tail)


@rule
async def a_signal_reaches_the_whole_tree(stage: Stage) -> None:
    sandbox = await stage.sandbox()
    process = await sandbox.start("sleep 23432 & sleep 23432", tag="tree")
    assert await sandbox.signal("tree", signal.SIGTERM)
    assert (await process.wait()).signal == signal.SIGTERM and not await process.kill()
    assert not (await sandbox.shell("pgrep -f 'sleep [2]3432'")).exit.success


# ---- files

NAMES = ["with space", "-n", "quo'te\"", "$(id)", "a\nb", "%2e%2e", "漢😀", "a+b&c=d?e#f", "back\\slash"]


@rule
async def a_file_is_read_as_it_was_written_whatever_its_name(stage: Stage) -> None:
    sandbox = await stage.sandbox()
    for name in NAMES:
        await sandbox.write(f"/tmp/strange/{name}", name)
        assert await sandbox.read_text(f"/tmp/strange/{name}") == name
    assert [entry.name for entry in await sandbox.list("/tmp/strange")] == sorted(NAMES, key=str.encode)
    content = bytes(range(256)) * 20_000
    await sandbox.write("long", content)
    await sandbox.write("long", content[:70_000])
    async with await sandbox.read("long") as download:
        assert download.size == 70_000 and b"".join([piece async for piece in download]) == content[:70_000]
    for offset, length in ((0, 0), (0, 1), (69_999, 5), (70_000, 1), (300, 65_536)):
        got = b"".join([piece async for piece in await sandbox.read("long", offset=offset, length=length)])
        assert got == content[:70_000][offset : offset + length]


@rule
async def what_is_not_there_or_of_another_kind_is_said_by_kind(stage: Stage) -> None:
    sandbox = await stage.sandbox()
    await sandbox.write("dir/file", b"x")
    missing = [sandbox.read_bytes("none"), sandbox.stat("none"), sandbox.list("none"), sandbox.rename("none", "x"), sandbox.watch("none")]
    assert await gathered(*missing) == ["not_found"] * 5
    wrong = [sandbox.read_bytes("dir"), sandbox.write("dir", b""), sandbox.list("dir/file"), sandbox.stat("bad\0name")]
    assert await gathered(*wrong) == ["invalid_argument"] * 4
    assert await gathered(sandbox.make_dir("dir"), sandbox.remove("none")) == ["already_exists", None]
    assert await gathered(sandbox.stat("dir", user="nobody-of-that-name")) == ["unauthenticated"]


@rule
async def a_body_that_breaks_fails_the_write_with_its_own_error(stage: Stage) -> None:
    sandbox = await stage.sandbox()
    await sandbox.write("kept", b"before")

    def broken() -> Iterator[bytes]:
        yield b"half"
        raise OSError("torn")

    with pytest.raises(sandhold.SandboxError) as failed:
        await sandbox.write("kept", broken())
    causes: list[type[BaseException]] = []
    cause: BaseException | None = failed.value
    while cause is not None:
        causes.append(type(cause))
        cause = cause.__cause__
    assert OSError in causes


@rule
async def a_watch_sees_what_happens_below_where_that_is_asked_for(stage: Stage) -> None:
    sandbox = await stage.sandbox()
    await sandbox.make_dir("watched")
    plain = await sandbox.watch("watched")
    async with await sandbox.watch("watched", recursive=True, include_entry=True) as watch:
        await sandbox.write("watched/deep/file", b"x")
        async for event in watch:
            if event.name == "deep/file" and event.kind == "write":
                break
        await sandbox.remove("watched/deep")
        async for event in watch:
            if event.name == "deep" and event.kind == "remove":
                break
    seen = []
    async for event in plain:
        seen.append((event.name, event.kind))
        if event.kind == "remove":
            break
    plain.close()
    assert ("deep", "create") in seen and not any("/" in name for name, _ in seen)


# ---- errors


@rule
async def a_destroyed_sandbox_is_gone_for_every_call(stage: Stage) -> None:
    sandbox = await stage.sandbox()
    await stage.provider.destroy(sandbox.provider_id)
    calls = [
        sandbox.info(), sandbox.exec(["true"]), sandbox.start("true"), sandbox.read_bytes("/etc/passwd"), sandbox.write("x", b""),
        sandbox.list("/"), sandbox.watch("/"), sandbox.processes(), sandbox.pause(), sandbox.resume(), sandbox.set_lease(60.0),
    ]  # fmt: skip
    assert await gathered(*calls) == ["gone"] * len(calls)
    assert await sandbox.destroy() == "already_gone"


@rule
async def a_destroy_ends_what_waits_with_gone(stage: Stage) -> None:
    sandbox = await stage.sandbox()
    process = await sandbox.start("sleep 1000")
    watch = await sandbox.watch("/tmp")
    waiting: list[Any] = [asyncio.ensure_future(sandbox.exec("exec sleep 34543", timeout=0)) for _ in range(6)]
    while (await sandbox.exec("pgrep -c -f 'sleep [3]4543'")).stdout.text().strip() != "6":
        await asyncio.sleep(0.01)
    waiting += [asyncio.ensure_future(process.wait()), asyncio.ensure_future(anext(watch))]
    await stage.provider.destroy(sandbox.provider_id)
    assert await gathered(*waiting) == ["gone"] * 8


@rule
async def an_error_tells_what_may_be_done_about_it(stage: Stage) -> None:
    sandbox = await stage.sandbox()
    with pytest.raises(sandhold.NotFoundError) as missing:
        await sandbox.read_bytes("none")
    error = missing.value
    assert isinstance(error, sandhold.SandboxError) and (error.kind, error.provider, error.operation) == ("not_found", "local", "read")
    assert (error.retryable, error.retry_after, error.outcome) == (False, None, "not_started")
    assert "none" in error.message and error.kind in str(error) and isinstance(error.context, dict)
