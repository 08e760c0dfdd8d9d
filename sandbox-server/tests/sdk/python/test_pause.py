import asyncio

from e2b import SandboxNotFoundException

from support import about, both, hosted, now, settle


@both
class Pauses:
    async def test_files_processes_variables_and_the_id_outlive_a_pause(self):
        sandbox = await self.created(envs={"KEPT": "yes"})
        handle = await settle(
            sandbox.commands.run("while :; do sleep 0.1; done", background=True, timeout=0)
        )
        await settle(sandbox.files.write("kept.txt", "before"))
        self.assertIs(await settle(sandbox.pause()), True)
        self.assertIs(await settle(sandbox.pause()), False)
        self.assertIs(await settle(sandbox.is_running()), False)
        self.assertEqual((await settle(sandbox.get_info())).state.value, "paused")
        same = await settle(self.client.connect(sandbox.sandbox_id))
        self.assertEqual(same.sandbox_id, sandbox.sandbox_id)
        self.assertEqual(await settle(same.files.read("kept.txt")), "before")
        self.assertEqual(await self.stdout(same, "echo $KEPT"), "yes\n")
        self.assertIn(handle.pid, [one.pid for one in await settle(same.commands.list())])
        self.assertIs(await settle(same.commands.kill(handle.pid)), True)

    async def test_a_command_that_sleeps_over_the_pause_ends_after_it(self):
        sandbox = await self.created()
        cmd = "sleep 1; echo done > done.txt"
        handle = await settle(sandbox.commands.run(cmd, background=True, timeout=0))
        self.assertIs(await settle(sandbox.pause()), True)
        await settle(sandbox.connect())
        followed = await settle(sandbox.commands.connect(handle.pid, timeout=0))
        self.assertEqual((await settle(followed.wait())).exit_code, 0)
        self.assertEqual(await settle(sandbox.files.read("done.txt")), "done\n")

    async def test_connects_at_once_to_a_paused_sandbox_all_get_it(self):
        sandbox = await self.created()
        await settle(sandbox.files.write("kept.txt", "before"))
        await settle(sandbox.pause())
        if self.is_async:
            calls = [self.client.connect(sandbox.sandbox_id) for _ in range(6)]
        else:
            calls = [asyncio.to_thread(self.client.connect, sandbox.sandbox_id) for _ in range(6)]
        for same in await asyncio.gather(*calls):
            self.assertEqual(await settle(same.files.read("kept.txt")), "before")

    async def test_no_round_of_pause_and_resume_loses_a_file(self):
        sandbox = await self.created()
        for turn in range(6):
            await settle(sandbox.files.write(f"made-{turn}", f"round {turn}"))
            await settle(sandbox.files.write("overwritten", f"round {turn}"))
            cmd = f"echo {turn} >> appended; mv made-{turn} renamed-{turn}; chmod 60{turn} renamed-{turn}"
            await self.stdout(sandbox, cmd)
            if turn > 1:
                await settle(sandbox.files.remove(f"renamed-{turn - 2}"))
            self.assertIs(await settle(sandbox.pause()), True)
            sandbox = await settle(self.client.connect(sandbox.sandbox_id))
            kept = [f"renamed-{at}" for at in range(max(0, turn - 1), turn + 1)]
            lines = "".join(f"{at}\n" for at in range(turn + 1))
            out = await self.stdout(
                sandbox, f"ls renamed-*; cat overwritten; echo; cat appended; stat -c %a renamed-{turn}"
            )
            self.assertEqual(out, "\n".join(kept) + f"\nround {turn}\n{lines}60{turn}\n")

    async def test_a_pause_that_keeps_only_the_files_is_a_new_start(self):
        sandbox = await self.created()
        boot = "/proc/sys/kernel/random/boot_id"
        await settle(sandbox.files.write("kept.txt", "before"))
        handle = await settle(sandbox.commands.run("sleep 1000", background=True, timeout=0))
        first = await settle(sandbox.files.read(boot))
        self.assertIs(await settle(sandbox.pause(mode="filesystem")), True)
        await settle(sandbox.connect())
        self.assertEqual(await settle(sandbox.files.read("kept.txt")), "before")
        self.assertNotIn(handle.pid, [one.pid for one in await settle(sandbox.commands.list())])
        self.assertNotEqual(await settle(sandbox.files.read(boot)), first)

    async def test_a_reboot_at_resume_keeps_the_files_alone(self):
        sandbox = await self.created()
        await settle(sandbox.files.write("kept.txt", "before"))
        handle = await settle(sandbox.commands.run("sleep 1000", background=True, timeout=0))
        self.assertIs(await settle(sandbox.pause()), True)
        await settle(self.client.connect(sandbox.sandbox_id, on_resume="reboot"))
        self.assertEqual(await settle(sandbox.files.read("kept.txt")), "before")
        self.assertNotIn(handle.pid, [one.pid for one in await settle(sandbox.commands.list())])

    async def test_a_resume_gives_the_time_that_was_asked_for_or_five_minutes(self):
        sandbox = await self.created(timeout=3000)
        for options, expected in (({"timeout": 100}, 100), ({}, 300)):
            await settle(sandbox.pause())
            await settle(sandbox.connect(**options))
            left = (await settle(sandbox.get_info())).end_at - now()
            self.assertTrue(about(left.total_seconds(), expected), left)

    async def test_a_paused_sandbox_has_no_timeout_to_set_and_can_be_killed(self):
        metadata = {"mark": self.mark}
        sandbox = await self.created(metadata=metadata)
        await settle(sandbox.pause())
        await self.raises(SandboxNotFoundException, lambda: sandbox.set_timeout(60))
        self.assertIs(await settle(sandbox.kill()), True)
        self.assertEqual(await self.listed(metadata), [])
        await self.raises(SandboxNotFoundException, lambda: sandbox.connect())

    async def test_a_sandbox_that_is_to_pause_at_its_end_does_and_connecting_wakes_it(self):
        sandbox = await self.created(timeout=3, lifecycle={"on_timeout": "pause"})
        lifecycle = {"on_timeout": "pause", "auto_resume": False}
        self.assertEqual((await settle(sandbox.get_info())).lifecycle, lifecycle)
        await settle(sandbox.files.write("kept.txt", "before"))
        await self.paused(sandbox)
        self.assertIs(await settle(sandbox.is_running()), False)
        await settle(sandbox.connect(timeout=60))
        self.assertEqual(await settle(sandbox.files.read("kept.txt")), "before")
        self.assertEqual((await settle(sandbox.get_info())).lifecycle, lifecycle)

    async def test_a_sandbox_that_resumes_by_itself_is_woken_by_any_request(self):
        sandbox = await self.created(timeout=60, lifecycle={"on_timeout": "pause", "auto_resume": True})
        await settle(sandbox.files.write("site/index.html", "awake"))
        # No stream may be open: the SDK asks for the sandbox's health when one breaks, and that wakes it too.
        await self.stdout(sandbox, "python3 -m http.server 8000 --directory site > /dev/null 2>&1 &")
        host = f"8000-{sandbox.sandbox_id}.localhost"

        async def answers():
            return hosted(host) == (200, b"awake")

        await self.eventually("the server answers", answers)
        await settle(sandbox.set_timeout(0))
        await self.paused(sandbox)
        self.assertEqual(await self.stdout(sandbox, "echo woken"), "woken\n")
        info = await settle(sandbox.get_info())
        self.assertEqual(info.state.value, "running")
        self.assertGreaterEqual((info.end_at - info.started_at).total_seconds(), 295)
        self.assertIs(await settle(sandbox.pause()), True)
        self.assertEqual(hosted(host), (200, b"awake"))

    async def test_a_sandbox_that_keeps_only_files_at_its_end(self):
        lifecycle = {"on_timeout": {"action": "pause", "mode": "filesystem"}}
        sandbox = await self.created(timeout=2, lifecycle=lifecycle)
        await settle(sandbox.files.write("kept.txt", "before"))
        await self.paused(sandbox)
        await settle(sandbox.connect())
        self.assertEqual(await settle(sandbox.files.read("kept.txt")), "before")
