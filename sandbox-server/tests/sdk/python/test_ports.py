import asyncio
import json
from urllib.parse import urlsplit

from support import ENVD, asked, both, hosted, settle

#: Tells what it was asked, and echoes after an upgrade.
SERVER = """
import http.server
class Handler(http.server.BaseHTTPRequestHandler):
    protocol_version = 'HTTP/1.1'
    def do_POST(self):
        body = self.rfile.read(int(self.headers['Content-Length']))
        self.answer(f'{self.command} {self.path} {self.headers["Host"]} {len(body)}'.encode())
    def do_GET(self):
        if self.headers.get('Upgrade') == 'echo':
            self.wfile.write(b'HTTP/1.1 101 Switching Protocols\\r\\nConnection: Upgrade\\r\\nUpgrade: echo\\r\\n\\r\\n')
            while data := self.connection.recv(65536):
                self.connection.sendall(data)
            return
        self.answer(f'{self.command} {self.path} {self.headers["Host"]}'.encode())
    def answer(self, body):
        self.send_response(203)
        self.send_header('X-Own', 'kept')
        self.send_header('Content-Length', str(len(body)))
        self.end_headers()
        self.wfile.write(body)
    def log_message(self, *_): pass
http.server.ThreadingHTTPServer(('127.0.0.1', 3000), Handler).serve_forever()
"""


@both
class Ports:
    async def serving(self, **options):
        """Makes a sandbox with a server on port 3000, and returns it with the host of that port."""
        sandbox = await self.created(**options)
        await settle(sandbox.files.write("server.py", SERVER))
        await settle(sandbox.commands.run("python3 server.py", background=True, timeout=0))
        host = f"3000-{sandbox.sandbox_id}.localhost"
        token = sandbox.traffic_access_token
        headers = {"E2B-Traffic-Access-Token": token} if token else {}

        async def answers():
            return hosted(host, **headers)[0] == 203

        await self.eventually("the server answers", answers)
        return sandbox, host

    async def test_a_host_names_a_port_of_a_sandbox_and_everything_passes_through(self):
        sandbox, host = await self.serving()
        self.assertEqual(hosted(host, "/a%20b?c=d"), (203, f"GET /a%20b?c=d {host}".encode()))
        status, body = asked(f"{ENVD}/up", b"x" * 300_000, Host=host)
        self.assertEqual((status, body), (203, f"POST /up {host} 300000".encode()))
        named = await settle(sandbox.get_host(3000))
        self.assertEqual(named, f"3000-{sandbox.sandbox_id}.{sandbox.sandbox_domain}")
        # The name that the SDK gives leads there by its left-most label, whatever the domain is.
        self.assertEqual(hosted(named), (203, f"GET / {named}".encode()))

    async def test_headers_name_a_port_where_the_host_does_not(self):
        sandbox, _ = await self.serving()
        routed = {"E2b-Sandbox-Id": sandbox.sandbox_id, "E2b-Sandbox-Port": "3000"}
        status, body = asked(f"{ENVD}/by-header", **routed)
        self.assertEqual((status, body), (203, f"GET /by-header {urlsplit(ENVD).netloc}".encode()))

    async def test_an_upgraded_connection_carries_bytes_both_ways(self):
        _, host = await self.serving()
        address = urlsplit(ENVD)
        reader, writer = await asyncio.open_connection(address.hostname, address.port)
        writer.write(f"GET /ws HTTP/1.1\r\nHost: {host}\r\nConnection: Upgrade\r\nUpgrade: echo\r\n\r\n".encode())
        head = await asyncio.wait_for(reader.readuntil(b"\r\n\r\n"), 30)
        self.assertRegex(head, rb"^HTTP/1\.1 101 ")
        writer.write(b"over and back")
        self.assertEqual(await asyncio.wait_for(reader.readexactly(13), 30), b"over and back")
        writer.close()

    async def test_a_port_that_is_not_public_asks_for_the_traffic_token(self):
        sandbox, host = await self.serving(network={"allow_public_traffic": False})
        for headers in ({}, {"E2B-Traffic-Access-Token": "wrong"}):
            status, body = hosted(host, **headers)
            told = json.loads(body)
            self.assertEqual((status, told["code"], told["sandboxId"]), (403, 403, sandbox.sandbox_id))
        token = {"E2B-Traffic-Access-Token": sandbox.traffic_access_token}
        self.assertEqual(hosted(host, **token), (203, f"GET / {host}".encode()))

    async def test_a_server_inside_answers_before_and_after_a_pause(self):
        sandbox, host = await self.serving()
        self.assertIs(await settle(sandbox.pause()), True)
        gone = {"sandboxId": sandbox.sandbox_id, "message": "The sandbox was not found", "code": 502}
        status, body = hosted(host)
        self.assertEqual((status, json.loads(body)), (502, gone))
        await settle(sandbox.connect())
        self.assertEqual(hosted(host), (203, f"GET / {host}".encode()))

    async def test_an_address_that_makes_no_sense_is_refused_as_e2b_does(self):
        for headers in (
            {"E2b-Sandbox-Id": "iabc"},
            {"E2b-Sandbox-Port": "3000"},
            {"E2b-Sandbox-Id": "i../etc", "E2b-Sandbox-Port": "3000"},
            {"E2b-Sandbox-Id": "iabc", "E2b-Sandbox-Port": "99999"},
            {"E2b-Sandbox-Id": "iabc", "E2b-Sandbox-Port": "x"},
        ):
            status, body = hosted("localhost", "/health", **headers)
            self.assertEqual(status, 400, headers)
            self.assertFalse(body.startswith(b"{"), body)
