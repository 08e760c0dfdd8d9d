import io
import urllib.error
import urllib.parse
import urllib.request
from datetime import datetime, timezone

from e2b import (
    AuthenticationException,
    FileNotFoundException,
    FileType,
    InvalidArgumentException,
    SandboxException,
    WriteInfo,
)
from e2b.sandbox.filesystem.filesystem import EntryInfo

from support import ENVD, both, settle


def fetched(path, **headers):
    """Asks for a file as any HTTP client would; returns status, headers and body."""
    url = f"{ENVD}/files?" + urllib.parse.urlencode({"path": path})
    with urllib.request.urlopen(urllib.request.Request(url, headers=headers)) as answer:
        return answer.status, answer.headers, answer.read()


@both
class Files:
    async def write(self, path, data, **options):
        return await settle(self.files.write(path, data, **options))

    async def read(self, path, **options):
        """Reads a file; a stream is drained."""
        content = await settle(self.files.read(path, **options))
        if options.get("format") != "stream":
            return content
        if self.is_async:
            return b"".join([chunk async for chunk in content])
        return b"".join(content)

    async def info(self, path, **options):
        return await settle(self.files.get_info(path, **options))

    async def exists(self, path):
        return await settle(self.files.exists(path))

    async def names(self, path, **options):
        return [entry.name for entry in await settle(self.files.list(path, **options))]

    def chunks(self, *chunks):
        """Returns what the client at hand takes as a stream."""

        async def asynchronous():
            for chunk in chunks:
                yield chunk

        return asynchronous() if self.is_async else iter(chunks)

    async def test_a_written_file_is_told_and_read_back_in_every_format(self):
        path, text = f"{self.dir}/formats/text.txt", "línea\r\n世界 🌍\n"
        told = await self.write(path, text)
        self.assertEqual(told, WriteInfo(name="text.txt", type=FileType.FILE, path=path))
        self.assertEqual(await self.read(path), text)
        self.assertEqual(await self.read(path, format="bytes"), bytearray(text.encode()))
        self.assertEqual(await self.read(path, format="stream"), text.encode())

    async def test_an_empty_file_is_empty_in_every_format(self):
        path = f"{self.dir}/empty"
        await self.write(path, "")
        for gzip in (False, True):
            self.assertEqual(await self.read(path, gzip=gzip), "")
            self.assertEqual(await self.read(path, gzip=gzip, format="bytes"), b"")
            self.assertEqual(await self.read(path, gzip=gzip, format="stream"), b"")

    async def test_every_kind_of_data_can_be_written(self):
        data = bytes(range(256))
        kinds = {
            "bytes": lambda: data,
            "io": lambda: io.BytesIO(data),
            "chunks": lambda: self.chunks(data[:100], data[100:]),
        }
        for kind, make in kinds.items():
            for octets in (False, True, None):
                if kind == "chunks" and octets is False:
                    continue
                path = f"{self.dir}/kinds/{kind}-{octets}"
                await self.write(path, make(), use_octet_stream=octets)
                self.assertEqual(await self.read(path, format="bytes"), data, path)
        await self.write(f"{self.dir}/kinds/text", io.StringIO("tëxt"))
        self.assertEqual(await self.read(f"{self.dir}/kinds/text"), "tëxt")

    async def test_a_large_file_goes_up_and_down_as_a_stream(self):
        path, block = f"{self.dir}/large", bytes((at * 31 >> 3) & 0xFF for at in range(1 << 20))
        await self.write(path, self.chunks(*[block] * 24))
        self.assertEqual(await self.stdout(f"stat -c %s {path}"), f"{24 * len(block)}\n")
        self.assertTrue(await self.read(path, format="stream") == block * 24)

    async def test_a_stream_may_be_left_in_the_middle(self):
        path = f"{self.dir}/partial"
        await self.write(path, b"a" * (8 << 20))
        stream = await settle(self.files.read(path, format="stream"))
        if self.is_async:
            self.assertEqual((await stream.__anext__())[:1], b"a")
            await stream.aclose()
        else:
            self.assertEqual(next(stream)[:1], b"a")
            stream.close()
        self.assertIs(await self.exists(path), True)

    async def test_a_relative_path_lies_in_the_home_of_the_user(self):
        name = self.dir.rsplit("/", 1)[1]
        self.assertEqual((await self.write(f"{name}/f", "x")).path, f"{self.dir}/f")
        self.assertEqual((await self.write(f"{name}/f", "y", user="root")).path, f"/root/{name}/f")
        self.assertEqual(await self.read(f"~/{name}/f"), "x")
        self.assertEqual(await self.read(f"{name}/f", user="root"), "y")
        await settle(self.files.remove(f"/root/{name}"))

    async def test_many_files_are_written_at_once_in_the_root_directory_too(self):
        root = f"/many-{self.dir.rsplit('-', 1)[1]}.txt"
        paths = [f"{self.dir}/many/one.txt", root, f"{self.dir}/many/ünï cödé/three.txt"]
        for octets in (False, True):
            entries = [{"path": path, "data": path} for path in paths]
            told = await settle(self.files.write_files(entries, use_octet_stream=octets))
            names = ["one.txt", root[1:], "three.txt"]
            expected = [WriteInfo(name=n, type=FileType.FILE, path=p) for n, p in zip(names, paths)]
            self.assertEqual(told, expected)
            self.assertEqual([await self.read(path) for path in paths], paths)
            self.assertEqual((await self.info(root)).owner, "user")
            await settle(self.files.remove(root))
        self.assertEqual(await settle(self.files.write_files([])), [])

    async def test_a_file_that_is_not_there_is_not_found(self):
        path = f"{self.dir}/missing"
        for form in ("text", "bytes", "stream"):
            await self.raises(FileNotFoundException, lambda: self.files.read(path, format=form))
        await self.raises(FileNotFoundException, lambda: self.files.get_info(path))
        await self.raises(FileNotFoundException, lambda: self.files.list(path))
        await self.raises(FileNotFoundException, lambda: self.files.rename(path, f"{path}2"))
        self.assertIs(await self.exists(path), False)

    async def test_a_directory_is_no_file(self):
        await self.raises(InvalidArgumentException, lambda: self.files.write(self.dir, "x"))
        await self.raises(InvalidArgumentException, lambda: self.files.read(self.dir))

    async def test_a_user_that_does_not_exist_is_refused(self):
        user = {"user": "nobody-of-that-name"}
        await self.raises(AuthenticationException, lambda: self.files.write("x", "x", **user))
        await self.raises(AuthenticationException, lambda: self.files.read("x", **user))
        await self.raises(AuthenticationException, lambda: self.files.list("/", **user))

    async def test_all_that_is_known_of_a_file(self):
        path = f"{self.dir}/info.txt"
        await self.write(path, "hello", metadata={"Kind": "greeting"})
        await self.run_command(f"touch -d @1700000000.123456 {path}")
        expected = EntryInfo(
            name="info.txt",
            type=FileType.FILE,
            path=path,
            size=5,
            mode=0o644,
            permissions="-rw-r--r--",
            owner="user",
            group="user",
            modified_time=datetime.fromtimestamp(1700000000.123456, timezone.utc),
            symlink_target=None,
            metadata={"kind": "greeting"},
        )
        self.assertEqual(await self.info(path), expected)
        self.assertEqual(await settle(self.files.list(self.dir)), [expected])

    async def test_all_that_is_known_of_a_directory(self):
        info = await self.info(self.dir)
        self.assertEqual(
            (info.name, info.type, info.path, info.mode, info.permissions, info.owner, info.group),
            (self.dir.rsplit("/", 1)[1], FileType.DIR, self.dir, 0o755, "drwxr-xr-x", "user", "user"),
        )
        self.assertEqual((info.symlink_target, info.metadata), (None, None))

    async def test_a_link_tells_of_its_target_and_where_it_is(self):
        await self.write(f"{self.dir}/real.txt", "hello")
        await self.run_command("ln -s real.txt link; ln -s . here; ln -s nowhere broken", cwd=self.dir)
        link = await self.info(f"{self.dir}/link")
        self.assertEqual(
            (link.type, link.path, link.size, link.mode, link.permissions, link.symlink_target),
            (FileType.FILE, f"{self.dir}/link", 8, 0o644, "Lrwxrwxrwx", f"{self.dir}/real.txt"),
        )
        here = await self.info(f"{self.dir}/here")
        self.assertEqual((here.type, here.symlink_target), (FileType.DIR, self.dir))
        broken = await self.info(f"{self.dir}/broken")
        self.assertEqual((broken.type, broken.symlink_target), (None, f"{self.dir}/broken"))
        self.assertEqual(await self.names(self.dir), ["here", "link", "real.txt"])

    async def test_a_list_is_in_order_and_as_deep_as_asked(self):
        await self.run_command("mkdir -p b/c/d e; touch a.txt b/z.txt b/c/d/f.txt b-after", cwd=self.dir)
        self.assertEqual(await self.names(self.dir), ["a.txt", "b", "b-after", "e"])
        two = ["a.txt", "b", "c", "z.txt", "b-after", "e"]
        self.assertEqual(await self.names(self.dir, depth=2), two)
        every = ["a.txt", "b", "c", "d", "f.txt", "z.txt", "b-after", "e"]
        self.assertEqual(await self.names(self.dir, depth=4), every)
        self.assertEqual(await self.names(f"{self.dir}/e"), [])
        await self.raises(InvalidArgumentException, lambda: self.files.list(self.dir, depth=0))
        await self.raises(InvalidArgumentException, lambda: self.files.list(f"{self.dir}/a.txt"))

    async def test_a_directory_is_made_once_with_its_parents(self):
        path = f"{self.dir}/made/with/parents"
        self.assertIs(await settle(self.files.make_dir(path)), True)
        self.assertIs(await settle(self.files.make_dir(path)), False)
        await self.write(f"{self.dir}/file", "")
        await self.raises(InvalidArgumentException, lambda: self.files.make_dir(f"{self.dir}/file"))
        await self.raises(SandboxException, lambda: self.files.make_dir(f"{self.dir}/file/below"))

    async def test_a_rename_tells_the_entry_at_its_new_place(self):
        old, new = f"{self.dir}/old.txt", f"{self.dir}/new/place.txt"
        await self.write(old, "moved", metadata={"kept": "yes"})
        moved = await settle(self.files.rename(old, new))
        self.assertEqual((moved.name, moved.path, moved.size), ("place.txt", new, 5))
        self.assertEqual((moved.type, moved.metadata), (FileType.FILE, {"kept": "yes"}))
        self.assertEqual(moved, await self.info(new))
        self.assertIs(await self.exists(old), False)
        self.assertEqual(await self.read(new), "moved")

    async def test_what_is_removed_is_gone_and_again_is_nothing(self):
        await self.write(f"{self.dir}/tree/a/b", "x")
        await settle(self.files.remove(f"{self.dir}/tree"))
        self.assertIs(await self.exists(f"{self.dir}/tree"), False)
        await settle(self.files.remove(f"{self.dir}/tree"))

    async def test_metadata_is_kept_with_the_file_until_it_is_written_again(self):
        path, lower = f"{self.dir}/meta", {"author": "me", "x-long.key_1": 'a "value"; ~'}
        told = await self.write(path, "1", metadata={"Author": "me", "x-Long.Key_1": 'a "value"; ~'})
        self.assertEqual(told.metadata, lower)
        self.assertEqual((await self.info(path)).metadata, lower)
        await self.write(path, "2", metadata={"other": "2"}, use_octet_stream=True)
        self.assertEqual((await self.info(path)).metadata, {"other": "2"})
        await self.write(path, "3")
        self.assertIsNone((await self.info(path)).metadata)

    async def test_attributes_set_inside_the_sandbox_are_metadata(self):
        path = f"{self.dir}/xattr"
        await self.write(path, "x")
        body = f'import os; os.setxattr("{path}", "user.e2b.late", b"1"); os.setxattr("{path}", "user.z", b"2")'
        await self.run_command(f"/usr/bin/python3 -c '{body}'")
        self.assertEqual((await self.info(path)).metadata, {"late": "1"})

    async def test_metadata_that_does_not_fit_is_refused(self):
        for metadata in ({"big": "x" * 5000}, {"k" * 300: "x"}):
            await self.raises(
                InvalidArgumentException, lambda: self.files.write(f"{self.dir}/x", "x", metadata=metadata)
            )

    async def test_gzip_is_understood_both_ways(self):
        path, text = f"{self.dir}/zipped", "compress me. " * 10_000
        for data in (text, io.BytesIO(text.encode()), self.chunks(text.encode())):
            await self.write(path, data, gzip=True)
            self.assertEqual((await self.info(path)).size, len(text))
            self.assertTrue(await self.read(path, gzip=True) == text)
            self.assertTrue(await self.read(path) == text)
            self.assertTrue(await self.read(path, gzip=True, format="stream") == text.encode())

    async def test_a_download_is_compressed_exactly_when_it_is_asked_for(self):
        path, text = f"{self.dir}/plain.txt", b"compress me. " * 1000
        await self.write(path, text)
        _, headers, body = fetched(path, **self.routing, **{"Accept-Encoding": "gzip"})
        self.assertEqual((headers["Content-Encoding"], body[:2]), ("gzip", b"\x1f\x8b"))
        status, headers, body = fetched(path, **self.routing)
        self.assertEqual((status, headers["Content-Encoding"], body), (200, None, text))
        self.assertEqual(headers["Content-Length"], str(len(text)))
        status, headers, body = fetched(path, **self.routing, Range="bytes=-4")
        self.assertEqual((status, headers["Content-Range"]), (206, f"bytes {len(text) - 4}-{len(text) - 1}/{len(text)}"))
        self.assertEqual(body, text[-4:])

    async def test_names_of_every_kind_survive_the_round_trip(self):
        for name in ("with space", "quo'te", "per%cent", "hash#", "plus+", "ques?tion", "am&per", "日本"):
            path = f"{self.dir}/names/{name}"
            told = await self.write(path, name)
            self.assertEqual((told.path, told.name, await self.read(path)), (path, name, name))
        self.assertEqual(len(await self.names(f"{self.dir}/names")), 8)
