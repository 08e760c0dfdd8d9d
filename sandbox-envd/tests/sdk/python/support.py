"""Both clients of the SDK, judged by the same bodies.

A body is written once as a coroutine: `settle` awaits what the asynchronous client returns and passes on what
the synchronous one did. Each class of bodies is then bound to both clients by `both`, or to those it names.
"""

import asyncio
import inspect
import logging
import os
import secrets
import unittest

from e2b import AsyncSandbox, Sandbox

# The synchronous client blocks the loop that runs the bodies, and asyncio's debug mode would tell every time.
logging.getLogger("asyncio").setLevel(logging.ERROR)

#: A process id that no kernel gives out by default.
NO_PID = 4_194_300

#: Where the SDK looks for the daemon: in debug mode an address of its own, else a server of many sandboxes.
ENVD = os.environ.get("E2B_SANDBOX_URL", "http://localhost:49983")


async def settle(value):
    """Returns the value, awaited if it has to be."""
    return await value if inspect.isawaitable(value) else value


class Case(unittest.IsolatedAsyncioTestCase):
    """A sandbox, and a directory of its own under the user's home."""

    client: type

    @property
    def is_async(self):
        return self.client is AsyncSandbox

    async def made(self):
        """Returns the sandbox to judge."""
        return await settle(self.client.create())

    async def asyncSetUp(self):
        self.sandbox = await self.made()
        self.commands, self.files, self.pty = self.sandbox.commands, self.sandbox.files, self.sandbox.pty
        self.dir = f"/home/user/py-{secrets.token_hex(6)}"
        self.assertIs(await settle(self.files.make_dir(self.dir)), True)

    async def asyncTearDown(self):
        await settle(self.files.remove(self.dir))
        self.assertIs(await settle(self.sandbox.kill()), True)

    @property
    def routing(self):
        """Returns what tells a server of many sandboxes which one is meant."""
        if "E2B_SANDBOX_URL" not in os.environ:
            return {}
        token = self.sandbox._envd_access_token
        return {"E2b-Sandbox-Id": self.sandbox.sandbox_id, "E2b-Sandbox-Port": "49983", "X-Access-Token": token}

    async def run_command(self, cmd, **options):
        """Runs a command to its end and returns its result."""
        return await settle(self.commands.run(cmd, **options))

    async def stdout(self, cmd, **options):
        return (await self.run_command(cmd, **options)).stdout

    async def raises(self, kind, value, matching=""):
        """Asserts that the call fails, and returns the error; a synchronous call is passed as a function."""
        with self.assertRaisesRegex(kind, matching) as caught:
            await settle(value() if callable(value) else value)
        return caught.exception

    async def gone(self, pid):
        """Waits inside the sandbox until a process is gone, for ten seconds at most."""
        await self.run_command(f"for i in $(seq 200); do [ -d /proc/{pid} ] || exit 0; sleep 0.05; done; exit 1")


class Collected:
    """Collects what a callback is given, and lets a test wait until it is enough."""

    def __init__(self):
        self.items = []
        self._changed = asyncio.Event()

    def __call__(self, item):
        self.items.append(item)
        self._changed.set()

    async def until(self, enough):
        try:
            async with asyncio.timeout(15):
                while not enough(self.items):
                    self._changed.clear()
                    await self._changed.wait()
        except TimeoutError:
            raise AssertionError(f"not enough: {self.items}") from None


def bound_to(*clients):
    """Binds a class of bodies to clients, under a name of its own in its module for each."""

    def bind(bodies):
        module = inspect.getmodule(bodies)
        for client in clients:
            name = f"{bodies.__name__}Of{client.__name__}"
            bound = type(name, (bodies, Case), {"client": client, "__module__": bodies.__module__})
            setattr(module, name, bound)
        return bodies

    return bind


both = bound_to(Sandbox, AsyncSandbox)
