import json

from e2b import AuthenticationException

from support import ENVD, asked, both, settle


@both
class Secure:
    async def test_the_daemon_asks_for_the_token_of_its_own_sandbox(self):
        one, other = await self.created(), await self.created()
        await settle(one.files.write("secret.txt", "mine"))
        url = f"{ENVD}/files?path=/home/user/secret.txt"
        routed = {"E2b-Sandbox-Id": one.sandbox_id, "E2b-Sandbox-Port": "49983"}
        for token in ({}, {"X-Access-Token": "wrong"}, {"X-Access-Token": other._envd_access_token}):
            status, body = asked(url, **routed, **token)
            self.assertEqual((status, json.loads(body)["code"]), (401, 401))
        token = {"X-Access-Token": one._envd_access_token}
        self.assertEqual(asked(url, **routed, **token), (200, b"mine"))

    async def test_connecting_gives_the_same_token_again_also_after_a_pause(self):
        sandbox = await self.created()
        await settle(sandbox.pause())
        same = await settle(self.client.connect(sandbox.sandbox_id))
        self.assertEqual(same._envd_access_token, sandbox._envd_access_token)
        self.assertEqual(await self.stdout(same, "echo in"), "in\n")

    async def test_signed_addresses_need_no_header_to_name_their_sandbox(self):
        sandboxes = [await self.created() for _ in range(3)]
        for at, sandbox in enumerate(sandboxes):
            await settle(sandbox.files.write("which.txt", str(at)))
        for at, sandbox in enumerate(sandboxes):
            self.assertEqual(asked(sandbox.download_url("which.txt")), (200, str(at).encode()))
            limited = sandbox.download_url("which.txt", use_signature_expiration=120)
            self.assertEqual(asked(limited), (200, str(at).encode()))
        late = sandboxes[0].download_url("which.txt", use_signature_expiration=-60)
        status, body = asked(late)
        expired = {"code": 401, "message": "signature is already expired"}
        self.assertEqual((status, json.loads(body)), (401, expired))

    async def test_a_signed_address_uploads_to_its_sandbox(self):
        sandbox, other = await self.created(), await self.created()
        address = sandbox.upload_url("up.txt", use_signature_expiration=60)
        octets = {"Content-Type": "application/octet-stream"}
        status, body = asked(address, b"up", **octets)
        told = [{"path": "/home/user/up.txt", "name": "up.txt", "type": "file"}]
        self.assertEqual((status, json.loads(body)), (200, told))
        self.assertEqual(await settle(sandbox.files.read("up.txt")), "up")
        self.assertIs(await settle(other.files.exists("up.txt")), False)

    async def test_ports_without_public_traffic_have_a_token(self):
        sandbox = await self.created(network={"allow_public_traffic": False})
        self.assertIsInstance(sandbox.traffic_access_token, str)
        self.assertEqual(await self.stdout(sandbox, "echo in"), "in\n")
        self.assertIsNone((await self.created()).traffic_access_token)

    async def test_another_key_opens_nothing(self):
        sandbox = await self.created()
        key = "e2b_" + "f" * 40
        await self.raises(
            AuthenticationException, lambda: self.client.connect(sandbox.sandbox_id, api_key=key)
        )
