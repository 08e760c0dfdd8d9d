import time

from e2b import (
    AsyncSandbox,
    FileNotFoundException,
    FilesystemEventType,
    FileType,
    InvalidArgumentException,
    Sandbox,
    SandboxException,
    TimeoutException,
)

from support import Collected, both, bound_to, settle

CHMOD, CREATE, REMOVE, RENAME, WRITE = (
    FilesystemEventType.CHMOD,
    FilesystemEventType.CREATE,
    FilesystemEventType.REMOVE,
    FilesystemEventType.RENAME,
    FilesystemEventType.WRITE,
)


class Watch:
    """A watch of either client: the asynchronous one is called, the synchronous one asks."""

    def __init__(self, handle, events):
        self.handle = handle
        self.events = events

    async def until(self, kind, name):
        """Waits for an event of that kind and name; returns the last one."""

        def last(items):
            matching = [event for event in items if (event.type, event.name) == (kind, name)]
            return matching[-1] if matching else None

        if hasattr(self.handle, "get_new_events"):
            limit = time.monotonic() + 15
            while last(self.events.items) is None:
                assert time.monotonic() < limit, f"not enough: {self.events.items}"
                for event in self.handle.get_new_events():
                    self.events(event)
        await self.events.until(last)
        return last(self.events.items)

    def told(self):
        """Kinds and names, with what repeats told once: the kernel may report one write as several."""
        pairs = [(event.type, event.name) for event in self.events.items]
        return [pair for at, pair in enumerate(pairs) if at == 0 or pair != pairs[at - 1]]


class Watching:
    """What the bodies of watches share."""

    async def watch(self, path=None, **options):
        events = Collected()
        if self.is_async:
            options["on_event"] = events
        return Watch(await settle(self.files.watch_dir(path or self.dir, **options)), events)

    async def write(self, name, data="x"):
        await settle(self.files.write(f"{self.dir}/{name}", data))


@both
class Watches(Watching):
    async def test_what_is_written_over_is_told_as_a_write_first(self):
        await self.write("kept")
        watch = await self.watch()
        await self.write("kept", "y")
        await watch.until(WRITE, "kept")
        self.assertEqual(watch.told()[0], (WRITE, "kept"))
        await settle(watch.handle.stop())

    async def test_each_change_is_told_in_its_order(self):
        watch = await self.watch()
        script = ": > a; echo x > a; chmod 600 a; mv a b; rm b; mkdir d; rmdir d"
        await self.run_command(script, cwd=self.dir)
        await watch.until(REMOVE, "d")
        expected = [(CREATE, "a"), (WRITE, "a"), (CHMOD, "a"), (RENAME, "a"), (CREATE, "b"), (REMOVE, "b")]
        self.assertEqual(watch.told(), expected + [(CREATE, "d"), (REMOVE, "d")])
        await settle(watch.handle.stop())

    async def test_a_file_written_through_the_sdk_is_created_then_written(self):
        watch = await self.watch()
        await self.write("new.txt")
        await watch.until(WRITE, "new.txt")
        self.assertEqual(watch.told()[0], (CREATE, "new.txt"))
        await settle(watch.handle.stop())

    async def test_without_recursion_what_is_below_is_not_told(self):
        watch = await self.watch()
        await self.run_command("mkdir sub; echo x > sub/below; echo x > last", cwd=self.dir)
        await watch.until(WRITE, "last")
        self.assertNotIn("sub/below", [name for _, name in watch.told()])
        await settle(watch.handle.stop())

    async def test_with_recursion_new_directories_lose_no_event(self):
        watch = await self.watch(recursive=True)
        script = "mkdir -p a/b/c && echo x > a/b/c/file && echo y > a/near"
        await self.run_command(script, cwd=self.dir)
        for name in ("a", "a/b", "a/b/c", "a/b/c/file", "a/near"):
            await watch.until(CREATE, name)
        await self.write("a/b/c/later")
        await watch.until(WRITE, "a/b/c/later")
        await settle(self.files.remove(f"{self.dir}/a"))
        for name in ("a/b/c/file", "a/b/c", "a/b", "a"):
            await watch.until(REMOVE, name)
        await settle(watch.handle.stop())

    async def test_the_entry_comes_along_when_asked_for(self):
        watch = await self.watch(include_entry=True)
        await self.run_command("umask 022; mkdir d; printf hello > f; chmod 640 f; rm f", cwd=self.dir)
        entry = (await watch.until(CREATE, "d")).entry
        self.assertEqual(
            (entry.name, entry.type, entry.path, entry.mode, entry.permissions, entry.owner, entry.group),
            ("d", FileType.DIR, f"{self.dir}/d", 0o755, "drwxr-xr-x", "user", "user"),
        )
        self.assertIsNone((await watch.until(REMOVE, "f")).entry)
        await settle(watch.handle.stop())

    async def test_no_entry_comes_along_unasked(self):
        watch = await self.watch()
        await self.write("f")
        self.assertIsNone((await watch.until(WRITE, "f")).entry)
        await settle(watch.handle.stop())

    async def test_network_mounts_may_be_allowed_where_there_are_none(self):
        watch = await self.watch(allow_network_mounts=True)
        await self.write("f")
        await watch.until(WRITE, "f")
        await settle(watch.handle.stop())

    async def test_a_directory_that_is_not_there_cannot_be_watched(self):
        await self.raises(FileNotFoundException, lambda: self.watch(f"{self.dir}/missing"))

    async def test_a_file_cannot_be_watched(self):
        await self.write("file")
        await self.raises(InvalidArgumentException, lambda: self.watch(f"{self.dir}/file"))

    async def test_a_stopped_watch_tells_nothing_more(self):
        watch = await self.watch()
        await settle(watch.handle.stop())
        other = await self.watch()
        await self.write("f")
        await other.until(WRITE, "f")
        self.assertEqual(watch.events.items, [])
        if not self.is_async:
            await self.raises(SandboxException, watch.handle.get_new_events, "already stopped")
        await settle(other.handle.stop())


@bound_to(Sandbox)
class PolledWatches(Watching):
    async def test_a_poll_takes_what_is_new_and_nothing_twice(self):
        watch = await self.watch()
        self.assertEqual(watch.handle.get_new_events(), [])
        await self.write("one")
        await watch.until(WRITE, "one")
        await self.write("two")
        await watch.until(WRITE, "two")
        creations = [event.name for event in watch.events.items if event.type == CREATE]
        self.assertEqual(creations, ["one", "two"])
        watch.handle.stop()


@bound_to(AsyncSandbox)
class StreamedWatches(Watching):
    async def test_a_watch_past_its_time_ends_with_a_timeout(self):
        ends = Collected()
        await self.files.watch_dir(self.dir, on_event=lambda _: None, on_exit=ends, timeout=0.3)
        await ends.until(lambda items: len(items) == 1)
        self.assertIsInstance(ends.items[0], TimeoutException)

    async def test_the_end_of_a_stopped_watch_is_told(self):
        ends = Collected()
        watch = await self.watch(on_exit=ends)
        await self.write("f")
        await watch.until(WRITE, "f")
        await watch.handle.stop()
        self.assertEqual(ends.items, [None])
