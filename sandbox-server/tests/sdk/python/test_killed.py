import asyncio
import json

from e2b import SandboxNotFoundException, SandboxNotRunningException, TimeoutException

from support import ENVD, asked, both, hosted, settle


@both
class Killed:
    async def interrupted(self, end):
        """Starts a command that goes on until the sandbox ends, and returns what it then fails with."""
        sandbox = await self.created()
        cmd = "touch /tmp/started; sleep 300"
        if self.is_async:
            running = asyncio.ensure_future(sandbox.commands.run(cmd, timeout=0))
        else:
            running = asyncio.ensure_future(asyncio.to_thread(sandbox.commands.run, cmd, timeout=0))
        wait = "for i in $(seq 200); do [ -e /tmp/started ] && exit 0; sleep 0.05; done; exit 1"
        if self.is_async:
            await sandbox.commands.run(wait)
        else:
            await asyncio.to_thread(sandbox.commands.run, wait)
        await settle(end(sandbox))
        with self.assertRaises(Exception) as caught:
            await running
        return caught.exception

    async def test_a_command_hears_that_its_sandbox_was_killed(self):
        error = await self.interrupted(lambda sandbox: sandbox.kill())
        self.assertIsInstance(error, TimeoutException)
        self.assertRegex(str(error), "killed or reached its end of life")

    async def test_a_command_hears_that_its_sandbox_expired(self):
        error = await self.interrupted(lambda sandbox: sandbox.set_timeout(0))
        self.assertIsInstance(error, TimeoutException)
        self.assertRegex(str(error), "killed or reached its end of life")

    async def test_a_command_is_interrupted_by_a_pause(self):
        error = await self.interrupted(lambda sandbox: sandbox.pause())
        self.assertIsInstance(error, TimeoutException)

    async def test_a_handle_that_waits_hears_of_the_kill(self):
        sandbox = await self.created()
        handle = await settle(sandbox.commands.run("echo up; sleep 300", background=True, timeout=0))
        if self.is_async:
            waiting = asyncio.ensure_future(handle.wait())
        else:
            waiting = asyncio.ensure_future(asyncio.to_thread(handle.wait))
        self.assertIs(await settle(sandbox.kill()), True)
        with self.assertRaisesRegex(SandboxNotRunningException, "killed or reached its end of life"):
            await waiting

    async def test_calls_after_the_kill_fail_as_what_they_are(self):
        sandbox = await self.created()
        await settle(sandbox.kill())
        for call in (
            lambda: sandbox.commands.run("true"),
            lambda: sandbox.commands.list(),
            lambda: sandbox.files.read("x"),
            lambda: sandbox.files.write("x", "y"),
            lambda: sandbox.files.list("/"),
        ):
            await self.raises(SandboxNotRunningException, call)
        await self.raises(SandboxNotFoundException, lambda: self.client.connect(sandbox.sandbox_id))

    async def test_the_answers_for_what_is_not_there_are_e2bs_own(self):
        sandbox = await self.created()
        host = f"4321-{sandbox.sandbox_id}.localhost"
        status, body = hosted(host)
        closed = "The sandbox is running but port is not open"
        expected = {"sandboxId": sandbox.sandbox_id, "message": closed, "port": 4321, "code": 502}
        self.assertEqual((status, json.loads(body)), (502, expected))
        await settle(sandbox.kill())
        gone = {"sandboxId": sandbox.sandbox_id, "message": "The sandbox was not found", "code": 502}
        status, body = hosted(host)
        self.assertEqual((status, json.loads(body)), (502, gone))
        routed = {"E2b-Sandbox-Id": sandbox.sandbox_id, "E2b-Sandbox-Port": "49983"}
        status, body = asked(f"{ENVD}/health", **routed)
        self.assertEqual((status, json.loads(body)), (502, gone))
