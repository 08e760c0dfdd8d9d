"""One rule for both faces: a rule is written for event loops, and the face for threads is called as its twin is."""

from __future__ import annotations

import asyncio
import functools
from collections.abc import Awaitable, Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

import pytest
import sandhold
from sandhold import AsyncLocalProvider, AsyncSandboxes, LocalProvider, Sandboxes

#: What is a plain call in both faces.
AT_ONCE = {"detach", "clone_with", "close"}


class Turned:
    """A value for threads whose calls are awaited, each on a thread."""

    def __init__(self, value: Any) -> None:
        self._value = value

    def __getattr__(self, name: str) -> Any:
        found = getattr(self._value, name)
        if not callable(found):
            return found
        if name in AT_ONCE:
            return lambda *args, **options: turned(found(*args, **options))

        async def call(*args: Any, **options: Any) -> Any:
            return turned(await asyncio.to_thread(found, *args, **options))

        return call

    def __aiter__(self) -> Turned:
        return self

    async def __anext__(self) -> Any:
        none = object()
        item = await asyncio.to_thread(next, self._value, none)
        if item is none:
            raise StopAsyncIteration
        return turned(item)

    async def __aenter__(self) -> Turned:
        self._value.__enter__()
        return self

    async def __aexit__(self, *raised: Any) -> None:
        self._value.__exit__(*raised)


TURNED = (sandhold.Sandboxes, sandhold.Sandbox, sandhold.Process, sandhold.Download, sandhold.Watch, sandhold.Events, sandhold.Items, sandhold.Provider)


def turned(value: Any) -> Any:
    return Turned(value) if isinstance(value, TURNED) else value


@dataclass
class Stage:
    """Where a rule plays. What is made here is typed loosely: it is of either face."""

    key: str
    provider: Any
    hosts: Callable[..., Any]

    def host(self, **options: Any) -> Any:
        return turned(self.hosts(self.provider._value if isinstance(self.provider, Turned) else self.provider, **options))

    async def sandbox(self, **options: Any) -> Any:
        return await self.host().acquire(self.key, **options)


async def gathered(*calls: Awaitable[Any]) -> list[Any]:
    """What became of calls that run at once, by kind where they failed."""
    ended = await asyncio.gather(*calls, return_exceptions=True)
    return [end.kind if isinstance(end, sandhold.SandboxError) else end for end in ended]


def rule(body: Callable[[Stage], Awaitable[None]]) -> Callable[..., None]:
    """Has a rule tried with both faces."""

    @pytest.mark.parametrize("face", ["threads", "event_loops"])
    @functools.wraps(body)
    def tried(face: str, provider: LocalProvider, key: str) -> None:
        if face == "threads":
            stage = Stage(key, Turned(provider), Sandboxes)
        else:
            stage = Stage(key, AsyncLocalProvider(home=provider.home), AsyncSandboxes)

        async def with_threads() -> None:
            # As many as a rule has calls at once.
            asyncio.get_running_loop().set_default_executor(ThreadPoolExecutor(40))
            await body(stage)

        asyncio.run(with_threads())

    # pytest looks for the arguments of what it runs.
    del tried.__dict__["__wrapped__"]
    return tried
