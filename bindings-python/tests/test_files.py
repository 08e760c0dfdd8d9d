"""Files, streams and watches."""

from __future__ import annotations

import asyncio
import hashlib
import io
import stat
import threading
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest
import sandhold
from sandhold import AsyncSandboxes, LocalProvider, Sandbox


def a_file_comes_back_as_it_was_written(sandbox: Sandbox) -> None:
    everything = bytes(range(256)) * 40
    entry = sandbox.write("deep/down/file.bin", everything, metadata={"who": "me"})
    assert (entry.name, entry.size, entry.file_type, entry.owner) == ("file.bin", 10240, "file", "user")
    assert sandbox.read_bytes("deep/down/file.bin") == everything
    assert sandbox.stat("deep/down/file.bin").metadata == {"who": "me"}
    sandbox.write("text", "é\n")
    assert sandbox.read_text("text") == "é\n"
    with pytest.raises(sandhold.InvalidArgumentError, match="UTF-8"):
        sandbox.read_text("deep/down/file.bin")


def a_directory_is_listed_renamed_and_removed(sandbox: Sandbox) -> None:
    assert sandbox.make_dir("d/e").file_type == "directory"
    with pytest.raises(sandhold.AlreadyExistsError):
        sandbox.make_dir("d/e")
    sandbox.write_bytes("d/f", b"")
    assert [entry.name for entry in sandbox.list("d")] == ["e", "f"]
    sandbox.write_bytes("d/e/g", b"1")
    assert [entry.path for entry in sandbox.list("d", depth=2)] == [f"/home/user/d/{name}" for name in ("e", "e/g", "f")]
    assert sandbox.rename("d/f", "moved/f").path == "/home/user/moved/f"
    assert not sandbox.exists("d/f") and sandbox.exists("moved/f")
    sandbox.remove("d")
    sandbox.remove("d")
    assert not sandbox.exists("d")
    entry = sandbox.stat("moved/f")
    assert stat.S_IMODE(entry.mode) == 0o644 and entry.modified_at is not None and entry.modified_at.tzinfo is not None


def a_part_of_a_file_is_read_as_a_stream(sandbox: Sandbox) -> None:
    sandbox.write("long", b"0123456789" * 100_000)
    with sandbox.read("long") as download:
        assert download.size == 1_000_000
        assert b"".join(download) == b"0123456789" * 100_000
    assert b"".join(sandbox.read("long", offset=5, length=7)) == b"5678901"
    with pytest.raises(sandhold.NotFoundError):
        sandbox.read("missing")


def a_body_comes_from_files_and_iterables_of_either_kind(provider: LocalProvider, key: str, sandbox: Sandbox, tmp_path: Path) -> None:
    content = b"x" * 3_000_000
    (tmp_path / "source").write_bytes(content)
    with open(tmp_path / "source", "rb") as source:
        assert sandbox.write("from-file", source).size == len(content)
    assert sandbox.write("from-memory", io.BytesIO(content)).size == len(content)

    def pieces() -> Iterator[bytes | str]:
        yield b"one "
        yield "two"

    sandbox.write("from-iterable", pieces())
    assert sandbox.read_text("from-iterable") == "one two"

    async def later() -> AsyncIterator[bytes]:
        for number in range(5):
            await asyncio.sleep(0)
            yield str(number).encode()

    async def main() -> None:
        other = await AsyncSandboxes(provider).acquire(key)
        await other.write("from-async", later())
        assert await other.read_bytes("from-async") == b"01234"
        assert b"".join([piece async for piece in await other.read("from-file")]) == content

    asyncio.run(main())


def a_body_that_breaks_is_the_cause_and_leaves_no_file(sandbox: Sandbox) -> None:
    def broken() -> Iterator[bytes]:
        yield b"half"
        raise OSError("the disk is on fire")

    with pytest.raises(sandhold.SandboxError) as failed:
        sandbox.write("half", broken())
    causes = []
    cause: BaseException | None = failed.value
    while cause is not None:
        causes.append(type(cause))
        cause = cause.__cause__
    assert OSError in causes
    assert not sandbox.exists("half")
    with pytest.raises(TypeError, match="body"):
        sandbox.write("half", 3)  # type: ignore[arg-type]


def a_long_body_is_not_gathered_in_memory(sandbox: Sandbox) -> None:
    def pieces() -> Iterator[bytes]:
        for number in range(64):
            yield bytes([number]) * (1 << 20)

    def resident() -> int:
        with open("/proc/self/statm") as facts:
            return int(facts.read().split()[1]) * 4096

    before = resident()
    assert sandbox.write("long", pieces()).size == 64 << 20
    hashed = hashlib.sha256()
    for piece in sandbox.read("long"):
        hashed.update(piece)
    expected = hashlib.sha256(b"".join(pieces())).hexdigest() if resident() - before < 48 << 20 else "memory grew"
    assert hashed.hexdigest() == expected


def a_watch_tells_what_happens_until_it_is_closed(sandbox: Sandbox) -> None:
    sandbox.make_dir("watched/below")
    watch = sandbox.watch("watched", recursive=True, include_entry=True)
    sandbox.write("watched/below/new", b"1")
    event = next(event for event in watch if event.kind == "write")
    assert event.name == "below/new" and event.entry is not None and event.entry.path.endswith("watched/below/new")
    closer = threading.Timer(0.05, watch.close)
    closer.start()
    assert [event.kind for event in watch if event.kind == "remove"] == []
    closer.join()
    assert list(watch) == []
    with pytest.raises(sandhold.NotFoundError):
        sandbox.watch("missing")


def a_watch_is_awaited_by_event_loops(provider: LocalProvider, key: str) -> None:
    async def main() -> None:
        sandbox = await AsyncSandboxes(provider).acquire(key)
        await sandbox.make_dir("watched")
        async with await sandbox.watch("watched") as watch:
            await sandbox.write("watched/a", b"")
            assert (await anext(watch)).name == "a"
        assert [event async for event in watch] == []

    asyncio.run(main())
