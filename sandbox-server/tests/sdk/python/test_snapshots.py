from e2b import SandboxException, SandboxNotFoundException

from support import about, both, now, settle


@both
class Snapshots:
    async def snapshotted(self, sandbox, **options):
        """Takes a snapshot that is deleted when the sandboxes that stand on it are gone."""
        snapshot = await settle(sandbox.create_snapshot(**options))
        self.snapshots.append(snapshot.snapshot_id)
        return snapshot

    async def asyncSetUp(self):
        await super().asyncSetUp()
        self.snapshots = []

    async def asyncTearDown(self):
        await super().asyncTearDown()
        for snapshot_id in self.snapshots:
            await settle(self.client.delete_snapshot(snapshot_id))

    async def text(self, sandbox):
        return await settle(sandbox.files.read("state.txt"))

    async def test_new_sandboxes_start_from_a_snapshot_and_its_source_runs_on(self):
        source = await self.created()
        await settle(source.files.write("state.txt", "one"))
        snapshot = await self.snapshotted(source)
        await settle(source.files.write("state.txt", "two"))
        first = await self.created(snapshot.snapshot_id)
        second = await self.created(snapshot.snapshot_id)
        await settle(first.files.write("state.txt", "three"))
        self.assertEqual(
            [await self.text(source), await self.text(first), await self.text(second)], ["two", "three", "one"]
        )
        self.assertIs(await settle(source.kill()), True)
        later = await self.created(snapshot.snapshot_id)
        self.assertEqual(await self.text(later), "one")

    async def test_snapshots_are_listed_by_source_and_by_name_and_paged(self):
        source = await self.created()
        one = await self.snapshotted(source)
        named = await self.snapshotted(source, name=f"{self.mark}-named")
        self.assertRegex(one.snapshot_id, ":default$")
        self.assertRegex(named.snapshot_id, f"/{self.mark}-named:default$")
        expected = sorted([one.snapshot_id, named.snapshot_id])
        for paginator in (
            source.list_snapshots(),
            source.list_snapshots(limit=1),
            self.client.list_snapshots(sandbox_id=source.sandbox_id),
        ):
            self.assertEqual(sorted(item.snapshot_id for item in await self.all(paginator)), expected)
        by_name = await self.all(self.client.list_snapshots(name=f"{self.mark}-named"))
        self.assertEqual([item.snapshot_id for item in by_name], [named.snapshot_id])
        self.assertEqual(await self.all(self.client.list_snapshots(name=f"{self.mark}-none")), [])

    async def test_a_snapshot_that_is_deleted_is_gone_once(self):
        source = await self.created()
        snapshot = await settle(source.create_snapshot(name=f"{self.mark}-deleted"))
        user = await self.created(snapshot.snapshot_id)
        await self.raises(SandboxException, lambda: self.client.delete_snapshot(snapshot.snapshot_id))
        await settle(user.kill())
        self.assertIs(await settle(self.client.delete_snapshot(snapshot.snapshot_id)), True)
        self.assertIs(await settle(self.client.delete_snapshot(snapshot.snapshot_id)), False)
        await self.raises(SandboxException, lambda: self.client.create(snapshot.snapshot_id))

    async def test_a_name_may_have_a_tag_and_goes_over_to_the_latest(self):
        source = await self.created()
        await settle(source.files.write("state.txt", "one"))
        name = f"{self.mark}-moves"
        first = await self.snapshotted(source, name=name)
        tagged = await self.snapshotted(source, name=f"{name}:v2")
        self.assertRegex(tagged.snapshot_id, f"/{name}:v2$")
        self.assertEqual([first.names, tagged.names], [[first.snapshot_id.removesuffix(":default")]] * 2)
        by_tag = await self.all(self.client.list_snapshots(name=f"{name}:v2"))
        self.assertEqual([item.snapshot_id for item in by_tag], [tagged.snapshot_id])
        await settle(source.files.write("state.txt", "two"))
        await self.snapshotted(source, name=name)
        self.assertEqual(await self.text(await self.created(first.snapshot_id)), "two")
        self.assertEqual(await self.text(await self.created(tagged.snapshot_id)), "one")

    async def test_only_a_running_sandbox_is_snapshotted_and_forked(self):
        sandbox = await self.created()
        await settle(sandbox.pause())
        await self.raises(SandboxNotFoundException, lambda: sandbox.create_snapshot())
        error = await self.raises(SandboxException, lambda: sandbox.fork())
        self.assertEqual(error.status_code, 409)

    async def test_a_fork_has_the_files_and_facts_of_its_source_and_an_end_of_its_own(self):
        metadata = {"mark": self.mark}
        source = await self.created(metadata=metadata, timeout=600)
        await settle(source.files.write("state.txt", "one"))
        before = await settle(source.get_info())
        (fork,) = await settle(source.fork(timeout=100))
        self.owned(fork)
        self.assertNotEqual(fork.sandbox_id, source.sandbox_id)
        self.assertEqual(await self.text(fork), "one")
        await settle(fork.files.write("state.txt", "two"))
        self.assertEqual(await self.text(source), "one")
        self.assertEqual(await self.stdout(fork, "echo $E2B_SANDBOX_ID"), f"{fork.sandbox_id}\n")
        self.assertEqual((await settle(source.get_info())).end_at, before.end_at)
        info = await settle(fork.get_info())
        self.assertEqual(info.metadata, metadata)
        self.assertTrue(about((info.end_at - now()).total_seconds(), 100))

    async def test_several_forks_stand_on_their_own(self):
        source = await self.created()
        await settle(source.files.write("state.txt", "one"))
        forks = await settle(self.client.fork(source.sandbox_id, count=2, timeout=60))
        self.assertEqual(len(forks), 2)
        for fork in forks:
            self.owned(fork)
        await settle(forks[0].files.write("state.txt", "two"))
        self.assertEqual([await self.text(fork) for fork in forks], ["two", "one"])
        self.assertIs(await settle(forks[0].kill()), True)
        await self.raises(SandboxNotFoundException, lambda: forks[0].get_info())
        self.assertIs(await settle(source.is_running()), True)
