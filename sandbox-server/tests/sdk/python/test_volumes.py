"""Volumes and secrets, by both clients of the SDK."""

import io
import os

# The content of volumes is at the same address as everything else.
os.environ["E2B_VOLUME_API_URL"] = os.environ["E2B_API_URL"]

from e2b import (  # noqa: E402
    AsyncSandbox,
    AsyncSecret,
    AsyncVolume,
    SandboxException,
    Secret,
    SecretException,
    SecretNotFoundException,
    Volume,
    VolumeException,
    VolumeNotFoundException,
    VolumePathNotFoundException,
)

from support import API, asked, both, settle  # noqa: E402


@both
class Volumes:
    async def asyncSetUp(self):
        await super().asyncSetUp()
        self.volume = AsyncVolume if self.client is AsyncSandbox else Volume
        self.volumes = []

    async def asyncTearDown(self):
        await super().asyncTearDown()
        for volume_id in self.volumes:
            await settle(self.volume.destroy(volume_id))

    async def volume_of(self, name):
        """Makes a volume that is destroyed when the sandboxes that use it are gone."""
        volume = await settle(self.volume.create(f"{self.mark}-{name}"))
        self.volumes.append(volume.volume_id)
        return volume

    async def paths(self, volume, path, **options):
        return [entry.path for entry in await settle(volume.list(path, **options))]

    async def test_volumes_are_made_found_listed_and_destroyed(self):
        made = await self.volume_of("life")
        self.assertEqual(made.name, f"{self.mark}-life")
        found = await settle(self.volume.connect(made.volume_id))
        self.assertEqual((found.name, found.token), (made.name, made.token))
        listed = [one for one in await settle(self.volume.list()) if one.name.startswith(self.mark)]
        self.assertEqual([(one.volume_id, one.name) for one in listed], [(made.volume_id, made.name)])
        info = await settle(self.volume.get_info(made.volume_id))
        self.assertEqual((info.volume_id, info.name, info.token), (made.volume_id, made.name, made.token))
        await self.raises(VolumeException, lambda: self.volume.create(made.name))
        for bad in ("", "a/b", "..", "x" * 200):
            await self.raises(VolumeException, lambda: self.volume.create(bad))
        self.assertIs(await settle(self.volume.destroy(made.volume_id)), True)
        self.assertIs(await settle(self.volume.destroy(made.volume_id)), False)
        await self.raises(VolumeNotFoundException, lambda: self.volume.get_info(made.volume_id))
        await self.raises(VolumeNotFoundException, lambda: self.volume.connect(made.volume_id))

    async def test_the_content_of_a_volume_is_read_and_written_without_a_sandbox(self):
        made = await self.volume_of("content")
        written = await settle(made.write_file("/notes/first.txt", "hello", mode=0o640))
        facts = (written.name, written.type.value, written.path, written.size, written.mode)
        self.assertEqual(facts, ("first.txt", "file", "/notes/first.txt", 5, 0o640))
        info = await settle(made.get_info("/notes/first.txt"))
        self.assertEqual((info.name, info.size, info.mtime), ("first.txt", 5, written.mtime))
        self.assertEqual(await settle(made.read_file("/notes/first.txt")), "hello")
        await settle(made.write_file("/notes/first.txt", bytes([0, 255])))
        self.assertEqual(await settle(made.read_file("/notes/first.txt", format="bytes")), bytes([0, 255]))
        await settle(made.write_file("/empty", b""))
        self.assertEqual(await settle(made.read_file("/empty")), "")
        large = os.urandom(3_000_000)
        await settle(made.write_file("/large", io.BytesIO(large)))
        stream = await settle(made.read_file("/large", format="stream"))
        if self.is_async:
            parts = [part async for part in stream]
        else:
            parts = list(stream)
        self.assertTrue(b"".join(parts) == large)
        await settle(made.make_dir("/a/b/c", force=True))
        await self.raises(VolumePathNotFoundException, lambda: made.make_dir("/no/parent"))
        await self.raises(VolumeException, lambda: made.make_dir("/a"))
        self.assertEqual(await self.paths(made, "/"), ["/a", "/empty", "/large", "/notes"])
        deep = ["/a", "/a/b", "/a/b/c", "/empty", "/large", "/notes", "/notes/first.txt"]
        self.assertEqual(await self.paths(made, "/", depth=3), deep)
        changed = await settle(made.update_metadata("/notes/first.txt", mode=0o600))
        self.assertEqual((changed.mode, changed.size), (0o600, 2))
        self.assertIs(await settle(made.exists("/notes")), True)
        await settle(made.remove("/notes"))
        self.assertIs(await settle(made.exists("/notes/first.txt")), False)
        await self.raises(VolumePathNotFoundException, lambda: made.remove("/notes"))
        await self.raises(VolumePathNotFoundException, lambda: made.read_file("/none"))
        for path in ("../up", "/a/../../up", "/.."):
            await self.raises(VolumeException, lambda: made.read_file(path))

    async def test_a_volume_opens_by_its_own_token_alone(self):
        one, other = await self.volume_of("one"), await self.volume_of("other")
        await settle(one.write_file("/secret.txt", "one"))
        url = f"{API}/volumecontent/{one.volume_id}/file?path=/secret.txt"
        for token in (other.token, "", "x", f"{one.token}x"):
            self.assertEqual(asked(url, Authorization=f"Bearer {token}")[0], 401, token)
        self.assertEqual(asked(url, Authorization=f"Bearer {one.token}"), (200, b"one"))

    async def test_sandboxes_share_a_volume_and_it_outlives_them(self):
        made = await self.volume_of("shared")
        await settle(made.write_file("/from-outside.txt", "outside"))
        mounts = {"/mnt/data": made}
        one, other = await self.created(volume_mounts=mounts), await self.created(volume_mounts=mounts)
        info = await settle(one.get_info())
        self.assertEqual(info.volume_mounts, [{"name": made.name, "path": "/mnt/data"}])
        self.assertEqual(await settle(one.files.read("/mnt/data/from-outside.txt")), "outside")
        await settle(one.commands.run("mkdir /mnt/data/inside && echo one > /mnt/data/inside/one.txt"))
        self.assertEqual(await settle(other.files.read("/mnt/data/inside/one.txt")), "one\n")
        await settle(other.commands.run("echo other >> /mnt/data/inside/one.txt"))
        self.assertEqual(await settle(made.read_file("/inside/one.txt")), "one\nother\n")
        await self.raises(VolumeException, lambda: self.volume.destroy(made.volume_id))
        # What a sandbox makes of links stays in the volume.
        await settle(one.commands.run("ln -s /etc/passwd /mnt/data/passwd && ln -s ../../../etc/hostname /mnt/data/up"))
        for path in ("/passwd", "/up"):
            await self.raises(VolumePathNotFoundException, lambda: made.read_file(path))
        await settle(one.kill())
        await settle(other.kill())
        # By its name as well as by the volume itself.
        later = await self.created(volume_mounts={"/mnt/data": made.name})
        self.assertEqual(await settle(later.files.read("/mnt/data/inside/one.txt")), "one\nother\n")
        none = {"/mnt/x": f"{self.mark}-none"}
        error = await self.raises(SandboxException, lambda: self.client.create(volume_mounts=none))
        self.assertEqual(error.status_code, 400)
        self.assertIn(f"{self.mark}-none", str(error))


@both
class Secrets:
    async def asyncSetUp(self):
        await super().asyncSetUp()
        self.secret = AsyncSecret if self.client is AsyncSandbox else Secret

    async def test_secrets_are_kept_listed_in_pages_and_never_shown(self):
        names = [f"{self.mark}-{name}" for name in "abc"]
        for name in names:
            await settle(self.secret.create(name, f"value-of-{name}", metadata={"for": name}))
        info = await settle(self.secret.get_info(names[0]))
        self.assertEqual((info.name, info.version, info.metadata), (names[0], 1, {"for": names[0]}))
        listed = [one.name for one in await self.all(self.secret.list(limit=1)) if one.name in names]
        self.assertEqual(sorted(listed), names)
        updated = await settle(self.secret.update(info.secret_id, "another"))
        self.assertEqual((updated.version, updated.metadata), (2, {"for": names[0]}))
        status, body = asked(f"{API}/secrets/{info.secret_id}", **{"X-API-KEY": os.environ["E2B_API_KEY"]})
        self.assertEqual(status, 200)
        self.assertTrue(b"another" not in body and b"value-of" not in body, body)
        await self.raises(SecretException, lambda: self.secret.create(names[0], "again"))
        for name in names:
            self.assertIs(await settle(self.secret.destroy(name)), True)
        self.assertIs(await settle(self.secret.destroy(names[0])), False)
        self.assertIs(await settle(self.secret.exists(names[1])), False)
        await self.raises(SecretNotFoundException, lambda: self.secret.update(names[2], "x"))
