"""A server of HTTP that answers as a test says, and remembers what it was asked."""

from __future__ import annotations

import contextlib
import json
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

#: A status, and what goes out as JSON or as it is; further headers where there are some.
Answer = tuple[int, Any] | tuple[int, Any, dict[str, str]]


@dataclass
class Asked:
    method: str
    path: str
    body: bytes
    headers: dict[str, str]

    def json(self) -> Any:
        return json.loads(self.body)


@dataclass
class Script:
    url: str
    asked: list[Asked] = field(default_factory=list)

    def count(self, method: str, path: str = "") -> int:
        return sum(asked.method == method and asked.path.startswith(path) for asked in self.asked)


@contextlib.contextmanager
def scripted(answer: Callable[[Asked], Answer]) -> Iterator[Script]:
    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def respond(self) -> None:
            body = self.rfile.read(int(self.headers.get("content-length") or 0))
            while self.headers.get("transfer-encoding") == "chunked":
                size = int(self.rfile.readline(), 16)
                body += self.rfile.read(size)
                self.rfile.readline()
                if size == 0:
                    break
            asked = Asked(self.command, self.path, body, {name.lower(): value for name, value in self.headers.items()})
            script.asked.append(asked)
            status, content, *more = answer(asked)
            data = content if isinstance(content, bytes) else json.dumps(content).encode()
            self.send_response(status)
            for name, value in (more[0] if more else {}).items():
                self.send_header(name, value)
            self.send_header("content-type", "application/json")
            self.send_header("content-length", str(len(data)))
            self.end_headers()
            self.wfile.write(data)

        do_GET = do_POST = do_PUT = do_PATCH = do_DELETE = respond

        def log_message(self, format: str, *args: object) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        script = Script(f"http://127.0.0.1:{server.server_address[1]}")
        thread = threading.Thread(target=server.serve_forever, args=(0.01,))
        thread.start()
        try:
            yield script
        finally:
            server.shutdown()
            thread.join()
