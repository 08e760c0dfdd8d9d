import asyncio
import datetime
import secrets

from e2b import (
    AuthenticationException,
    FileNotFoundException,
    SandboxException,
    SandboxNotFoundException,
)

from support import UNKNOWN, about, both, now, settle


@both
class Sandboxes:
    async def test_a_created_sandbox_runs_commands_and_has_an_id_of_twenty_one(self):
        sandbox = await self.created()
        self.assertRegex(sandbox.sandbox_id, "^i[a-z0-9]{20}$")
        self.assertEqual(await self.stdout(sandbox, "echo hi"), "hi\n")
        self.assertIs(await settle(sandbox.is_running()), True)

    async def test_the_facts_of_a_sandbox_are_what_it_was_made_with(self):
        metadata = {"mark": self.mark, "a b": "c&d=é", "empty": ""}
        sandbox = await self.created(metadata=metadata, timeout=120)
        info = await settle(sandbox.get_info())
        self.assertEqual((info.sandbox_id, info.metadata, info.name), (sandbox.sandbox_id, metadata, "base"))
        self.assertEqual(info.state.value, "running")
        self.assertEqual(info.lifecycle, {"on_timeout": "kill", "auto_resume": False})
        self.assertTrue(about((info.end_at - info.started_at).total_seconds(), 120))
        self.assertTrue(about((now() - info.started_at).total_seconds(), 0))
        self.assertGreaterEqual(info.cpu_count, 1)
        self.assertGreater(info.memory_mb, 0)
        self.assertRegex(info.envd_version, r"^0\.6\.\d+$")
        self.assertEqual(await settle(self.client.get_info(sandbox.sandbox_id)), info)

    async def test_a_timeout_that_was_not_asked_for_is_five_minutes(self):
        info = await settle((await self.created()).get_info())
        self.assertTrue(about((info.end_at - info.started_at).total_seconds(), 300))

    async def test_variables_of_the_sandbox_reach_commands(self):
        sandbox = await self.created(envs={"ONE": "1", "SPACED": "a b'\"$HOME", "EMPTY": ""})
        out = await self.stdout(sandbox, 'printf "%s|" "$ONE" "$SPACED" "${EMPTY-unset}"')
        self.assertEqual(out, "1|a b'\"$HOME||")
        self.assertEqual(await self.stdout(sandbox, "echo $ONE", envs={"ONE": "own"}), "own\n")

    async def test_a_sandbox_knows_what_it_is(self):
        sandbox = await self.created()
        template = (await settle(sandbox.get_info())).template_id
        facts = ("E2B_SANDBOX", "E2B_SANDBOX_ID", "E2B_TEMPLATE_ID")
        out = await self.stdout(sandbox, "; ".join(f"echo ${name}; cat /run/e2b/.{name}; echo" for name in facts))
        expected = [fact for fact in ("true", sandbox.sandbox_id, template) for _ in range(2)]
        self.assertEqual(out.splitlines(), expected)

    async def test_root_is_one_word_away_and_python_has_both_of_its_names(self):
        sandbox = await self.created()
        self.assertEqual(await self.stdout(sandbox, "id -un; sudo id -un; sudo echo in"), "user\nroot\nin\n")
        one, other = (await self.stdout(sandbox, "python --version && python3 --version")).splitlines()
        self.assertRegex(one, r"^Python 3\.")
        self.assertEqual(one, other)

    async def test_a_timeout_of_zero_ends_a_sandbox_at_once(self):
        sandbox = await self.created()
        await settle(sandbox.set_timeout(0))

        async def ended():
            return not await settle(sandbox.is_running())

        await self.eventually("the sandbox ends", ended)

    async def test_the_network_policy_can_be_replaced_and_is_told(self):
        sandbox = await self.created(allow_internet_access=False, network={"https_ports": [3000]})
        self.assertIs((await settle(sandbox.get_info())).allow_internet_access, False)
        await settle(sandbox.update_network({"deny_out": ["0.0.0.0/0"], "allow_out": ["1.1.1.1"]}))
        network = (await settle(sandbox.get_info())).network
        self.assertEqual((network["deny_out"], network["allow_out"]), (["0.0.0.0/0"], ["1.1.1.1"]))
        await settle(self.client.update_network(sandbox.sandbox_id, {}))
        info = await settle(sandbox.get_info())
        self.assertEqual((info.allow_internet_access, info.network), (None, {"https_ports": [3000]}))
        error = await self.raises(SandboxException, lambda: sandbox.update_network({"allow_out": ["example.com"]}))
        self.assertEqual(error.status_code, 400)

    async def test_a_template_that_does_not_exist_is_an_error_that_names_it(self):
        error = await self.raises(SandboxException, lambda: self.client.create("no-such-template"))
        self.assertEqual(error.status_code, 404)
        self.assertIn("no-such-template", str(error))

    async def test_base_is_a_template_by_name_and_by_its_id(self):
        sandbox = await self.created("base")
        template = (await settle(sandbox.get_info())).template_id
        again = await self.created(template)
        self.assertEqual((await settle(again.get_info())).template_id, template)

    async def test_a_killed_sandbox_is_gone_everywhere(self):
        metadata = {"mark": self.mark}
        sandbox = await self.created(metadata=metadata)
        self.assertEqual(await self.listed(metadata), [sandbox.sandbox_id])
        self.assertIs(await settle(sandbox.kill()), True)
        self.assertEqual(await self.listed(metadata), [])
        self.assertIs(await settle(sandbox.kill()), False)
        self.assertIs(await settle(self.client.kill(sandbox.sandbox_id)), False)
        self.assertIs(await settle(sandbox.is_running()), False)
        for call in (
            lambda: sandbox.get_info(),
            lambda: sandbox.set_timeout(60),
            lambda: sandbox.pause(),
            lambda: sandbox.connect(),
            lambda: sandbox.create_snapshot(),
            lambda: sandbox.get_metrics(),
            lambda: sandbox.update_network({"allow_internet_access": False}),
            lambda: sandbox.fork(),
        ):
            await self.raises(SandboxNotFoundException, call)

    async def test_what_never_was_is_gone_too(self):
        self.assertIs(await settle(self.client.kill(UNKNOWN)), False)
        await self.raises(SandboxNotFoundException, lambda: self.client.connect(UNKNOWN))
        await self.raises(SandboxNotFoundException, lambda: self.client.pause(UNKNOWN))
        await self.raises(SandboxNotFoundException, lambda: self.client.set_timeout(UNKNOWN, 60))
        await self.raises(SandboxNotFoundException, lambda: self.client.fork(UNKNOWN))
        await self.raises(SandboxNotFoundException, lambda: self.client.get_info(UNKNOWN))

    async def test_connecting_gives_the_same_sandbox_and_its_work(self):
        sandbox = await self.created()
        await settle(sandbox.files.write("work.txt", "kept"))
        same = await settle(self.client.connect(sandbox.sandbox_id))
        self.assertEqual(same.sandbox_id, sandbox.sandbox_id)
        self.assertEqual(await settle(same.files.read("work.txt")), "kept")
        self.assertEqual((await settle(sandbox.connect())).sandbox_id, sandbox.sandbox_id)

    async def test_connecting_never_shortens_and_may_extend(self):
        sandbox = await self.created(timeout=600)
        first = (await settle(sandbox.get_info())).end_at
        await settle(self.client.connect(sandbox.sandbox_id, timeout=10))
        self.assertEqual((await settle(sandbox.get_info())).end_at, first)
        await settle(self.client.connect(sandbox.sandbox_id, timeout=1200))
        longer = (await settle(sandbox.get_info())).end_at
        self.assertTrue(about((longer - now()).total_seconds(), 1200))

    async def test_the_timeout_can_be_set_to_more_and_to_less(self):
        sandbox = await self.created(timeout=60)
        for seconds in (500, 30):
            await settle(sandbox.set_timeout(seconds))
            left = (await settle(sandbox.get_info())).end_at - now()
            self.assertTrue(about(left.total_seconds(), seconds))
        await settle(self.client.set_timeout(sandbox.sandbox_id, 200))
        left = (await settle(sandbox.get_info())).end_at - now()
        self.assertTrue(about(left.total_seconds(), 200))

    async def test_a_sandbox_ends_when_its_time_is_over(self):
        metadata = {"mark": self.mark}
        sandbox = await self.created(metadata=metadata)
        await settle(sandbox.set_timeout(1))

        async def ended():
            return not await settle(sandbox.is_running())

        await self.eventually("the sandbox ends", ended)
        self.assertEqual(await self.listed(metadata), [])
        await self.raises(SandboxNotFoundException, lambda: sandbox.get_info())

    async def test_a_wrong_key_is_no_authentication(self):
        key = "e2b_" + "f" * 40
        await self.raises(AuthenticationException, lambda: self.client.create(api_key=key))
        await self.raises(AuthenticationException, lambda: self.client.kill(UNKNOWN, api_key=key))
        await self.raises(AuthenticationException, lambda: self.client.list(api_key=key).next_items())

    async def test_the_same_idempotency_key_is_the_same_sandbox(self):
        key, metadata = secrets.token_hex(16), {"mark": self.mark}
        one = await self.created(metadata=metadata, idempotency_key=key)
        again = await self.created(metadata=metadata, idempotency_key=key)
        self.assertEqual(again.sandbox_id, one.sandbox_id)
        self.assertEqual(await self.listed(metadata), [one.sandbox_id])
        other = {"mark": self.mark, "other": "1"}
        error = await self.raises(
            SandboxException, lambda: self.client.create(metadata=other, idempotency_key=key)
        )
        self.assertEqual(error.status_code, 422)
        self.assertEqual(await self.listed(metadata), [one.sandbox_id])

    async def test_creates_at_once_with_one_key_are_one_sandbox(self):
        key, metadata = secrets.token_hex(16), {"mark": self.mark}
        if self.is_async:
            calls = [self.client.create(metadata=metadata, idempotency_key=key) for _ in range(6)]
        else:
            create = self.client.create
            calls = [asyncio.to_thread(create, metadata=metadata, idempotency_key=key) for _ in range(6)]
        made = await asyncio.gather(*calls, return_exceptions=True)
        ids = {self.owned(one).sandbox_id for one in made if not isinstance(one, Exception)}
        refused = [one for one in made if isinstance(one, Exception)]
        self.assertEqual(len(ids), 1, made)
        self.assertTrue(all(getattr(one, "status_code", None) == 409 for one in refused), refused)
        self.assertEqual(await self.listed(metadata), list(ids))

    async def test_a_sandbox_has_an_address_for_each_port_and_for_mcp(self):
        sandbox = await self.created()
        host = f"8000-{sandbox.sandbox_id}.{sandbox.sandbox_domain}"
        self.assertEqual(await settle(sandbox.get_host(8000)), host)
        url = await settle(sandbox.get_mcp_url())
        self.assertEqual(url, f"https://{await settle(sandbox.get_host(50005))}/mcp")
        await self.raises(FileNotFoundException, lambda: sandbox.get_mcp_token())
        # What the gateway of a template leaves there is read from there.
        gateway = "mkdir -p /etc/mcp-gateway && printf gate > /etc/mcp-gateway/.token"
        await settle(sandbox.commands.run(gateway, user="root"))
        self.assertEqual(await settle(sandbox.get_mcp_token()), "gate")

    async def test_a_failed_mcp_start_kills_the_sandbox(self):
        metadata = {"mark": self.mark}
        await self.raises(
            Exception, lambda: self.client.create("base", metadata=metadata, mcp={"fetch": {}})
        )
        self.assertEqual(await self.listed(metadata), [])

    async def test_metrics_come_within_bounds(self):
        sandbox = await self.created()

        async def measured():
            return await settle(sandbox.get_metrics())

        metrics = await self.eventually("a measurement", measured)
        for one in metrics:
            self.assertGreaterEqual(one.cpu_count, 1)
            self.assertGreaterEqual(one.cpu_used_pct, 0)
            self.assertTrue(0 <= one.mem_used <= one.mem_total and one.mem_total > 0)
            self.assertTrue(0 <= one.disk_used <= one.disk_total and one.disk_total > 0)
            self.assertLess(abs((now() - one.timestamp).total_seconds()), 60)
        before = metrics[0].timestamp - datetime.timedelta(hours=1)
        end = before + datetime.timedelta(seconds=1)
        self.assertEqual(await settle(sandbox.get_metrics(start=before, end=end)), [])
        self.assertNotEqual(await settle(sandbox.get_metrics(start=before)), [])

    async def test_a_sandbox_as_a_context_is_killed_at_its_end(self):
        metadata = {"mark": self.mark}
        if self.is_async:
            async with await self.client.create(metadata=metadata) as sandbox:
                self.assertEqual(await self.stdout(sandbox, "echo in"), "in\n")
        else:
            with self.client.create(metadata=metadata) as sandbox:
                self.assertEqual(await self.stdout(sandbox, "echo in"), "in\n")
        self.assertEqual(await self.listed(metadata), [])
