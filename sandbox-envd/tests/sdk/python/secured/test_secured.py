"""A daemon that was given an access token: the token and signatures as both clients make them."""

import json
import sys
import urllib.error
import urllib.request
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))

from e2b import AuthenticationException  # noqa: E402
from e2b.connection_config import ConnectionConfig  # noqa: E402
from packaging.version import Version  # noqa: E402

from support import ENVD, both, settle  # noqa: E402

#: The token of E2B's published vector.
TOKEN = "0tQG31xiMp0IOQfaz9dcwi72L1CPo8e0"


def asked(url, body=None, **headers):
    """Asks as any HTTP client would; returns the status and the body."""
    try:
        with urllib.request.urlopen(urllib.request.Request(url, body, headers)) as answer:
            return answer.status, answer.read()
    except urllib.error.HTTPError as refused:
        return refused.code, refused.read()


@both
class Secured:
    def sandbox_of(self, token):
        headers = {"E2b-Sandbox-Id": "debug_sandbox_id", "E2b-Sandbox-Port": "49983"}
        if token is not None:
            headers["X-Access-Token"] = token
        return self.client(
            sandbox_id="debug_sandbox_id",
            sandbox_domain=None,
            envd_version=Version("99.99.99"),
            envd_access_token=token,
            connection_config=ConnectionConfig(debug=True, extra_sandbox_headers=headers),
        )

    async def made(self):
        body = json.dumps({"accessToken": TOKEN, "defaultUser": "user"}).encode()
        self.assertEqual(asked(f"{ENVD}/init", body), (204, b""))
        return self.sandbox_of(TOKEN)

    async def test_with_the_token_everything_works(self):
        self.assertEqual(await self.stdout("echo in"), "in\n")
        await settle(self.files.write(f"{self.dir}/f", "x"))
        self.assertEqual(await settle(self.files.read(f"{self.dir}/f")), "x")

    async def test_without_the_token_or_with_a_wrong_one_nothing_does(self):
        for token in (None, "wrong"):
            other = self.sandbox_of(token)
            await self.raises(AuthenticationException, lambda: other.commands.run("true"))
            await self.raises(AuthenticationException, lambda: other.commands.list())
            await self.raises(AuthenticationException, lambda: other.files.list("/"))
            await self.raises(AuthenticationException, lambda: other.files.read(f"{self.dir}/f"))
            await self.raises(AuthenticationException, lambda: other.files.write(f"{self.dir}/f", "x"))
            self.assertIs(await settle(other.is_running()), True)

    async def test_signed_addresses_work_until_their_end(self):
        path = f"{self.dir}/signed file.txt"
        address = self.sandbox.upload_url(path, user="user", use_signature_expiration=60)
        octets = {"Content-Type": "application/octet-stream"}
        status, body = asked(address, b"up", **octets)
        told = [{"path": path, "name": "signed file.txt", "type": "file"}]
        self.assertEqual((status, json.loads(body)), (200, told))
        self.assertEqual(asked(self.sandbox.download_url(path)), (200, b"up"))
        self.assertEqual(asked(self.sandbox.download_url(path, user="root")), (200, b"up"))
        late = self.sandbox.download_url(path, use_signature_expiration=-60)
        status, body = asked(late)
        expected = {"code": 401, "message": "signature is already expired"}
        self.assertEqual((status, json.loads(body)), (401, expected))
