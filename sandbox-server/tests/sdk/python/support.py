"""Both clients of the SDK, judged by the same bodies.

A body is written once as a coroutine: `settle` awaits what the asynchronous client returns and passes on what
the synchronous one did. Each class of bodies is bound to both clients by `both`.
"""

import asyncio
import datetime
import inspect
import logging
import os
import secrets
import time
import unittest
import urllib.error
import urllib.request

from e2b import AsyncSandbox, Sandbox, SandboxQuery

# The synchronous client blocks the loop that runs the bodies, and asyncio's debug mode would tell every time.
logging.getLogger("asyncio").setLevel(logging.ERROR)

API = os.environ["E2B_API_URL"]
ENVD = os.environ["E2B_SANDBOX_URL"]

#: A sandbox that nobody has.
UNKNOWN = "izzzzzzzzzzzzzzzzzzzz"


async def settle(value):
    """Returns the value, awaited if it has to be."""
    return await value if inspect.isawaitable(value) else value


def asked(url, body=None, method=None, **headers):
    """Asks as any HTTP client would; returns the status and the body."""
    request = urllib.request.Request(url, body, headers, method=method)
    try:
        with urllib.request.urlopen(request) as answer:
            return answer.status, answer.read()
    except urllib.error.HTTPError as refused:
        return refused.code, refused.read()


def hosted(host, path="/", **headers):
    """Asks the sandboxes' address for another host."""
    return asked(f"{ENVD}{path}", Host=host, **headers)


def about(seconds, expected):
    """Tells whether two times are the same but for what the calls themselves took."""
    return abs(seconds - expected) < 3


def now():
    return datetime.datetime.now(datetime.timezone.utc)


class Case(unittest.IsolatedAsyncioTestCase):
    """Sandboxes that are killed at the end of each test."""

    client: type

    @property
    def is_async(self):
        return self.client is AsyncSandbox

    async def asyncSetUp(self):
        self.mark = f"py-{secrets.token_hex(6)}"
        self.made = []

    async def asyncTearDown(self):
        for sandbox_id in self.made:
            await settle(self.client.kill(sandbox_id))

    def owned(self, sandbox):
        """Has a sandbox killed after the test."""
        self.made.append(sandbox.sandbox_id)
        return sandbox

    async def created(self, template=None, **options):
        return self.owned(await settle(self.client.create(template, **options)))

    async def all(self, paginator):
        """Reads all pages."""
        items = []
        while paginator.has_next:
            items += await settle(paginator.next_items())
        return items

    async def listed(self, metadata, order=None, limit=None, **query):
        items = await self.all(
            self.client.list(SandboxQuery(metadata=metadata, **query), order=order, limit=limit)
        )
        return [item.sandbox_id for item in items]

    async def raises(self, kind, value, matching=""):
        """Asserts that the call fails, and returns the error; a synchronous call is passed as a function."""
        with self.assertRaisesRegex(kind, matching) as caught:
            await settle(value() if callable(value) else value)
        return caught.exception

    async def stdout(self, sandbox, cmd, **options):
        return (await settle(sandbox.commands.run(cmd, **options))).stdout

    async def eventually(self, what, ask):
        """Asks until there is an answer; the bound is a net for what never comes."""
        end = time.monotonic() + 30
        while True:
            answer = await ask()
            if answer:
                return answer
            self.assertLess(time.monotonic(), end, f"this did not happen within 30 s: {what}")
            await asyncio.sleep(0.1)

    async def paused(self, sandbox):
        async def is_paused():
            return (await settle(sandbox.get_info())).state.value == "paused"

        await self.eventually("it pauses", is_paused)


def both(bodies):
    """Binds a class of bodies to both clients, under a name of its own in its module for each."""
    module = inspect.getmodule(bodies)
    for client in (Sandbox, AsyncSandbox):
        name = f"{bodies.__name__}Of{client.__name__}"
        bound = type(name, (bodies, Case), {"client": client, "__module__": bodies.__module__})
        setattr(module, name, bound)
    return bodies

