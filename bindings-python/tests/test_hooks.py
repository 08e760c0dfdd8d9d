"""Hooks that are functions and coroutines, and what they may do."""

from __future__ import annotations

import asyncio
import threading
import time
from typing import Any

import pytest
import sandhold
from sandhold import AsyncSandbox, AsyncSandboxes, Event, FreshFile, LocalProvider, Sandbox, Sandboxes, Start


def a_start_hook_sets_a_new_sandbox_up_before_anybody_gets_it(provider: LocalProvider, key: str) -> None:
    told: list[Start[Sandbox]] = []

    def setup(start: Start[Sandbox]) -> None:
        told.append(start)
        start.sandbox.write("setup", "done")

    host = Sandboxes(provider, on_start=setup)
    assert host.acquire(key).read_text("setup") == "done"
    assert host.acquire(key).outcome == "connected"
    assert [(start.outcome, start.setup, start.facts.how) for start in told] == [("created", "needed", "fresh")]


def a_coroutine_runs_on_the_loop_that_uses_its_sandbox(provider: LocalProvider, key: str) -> None:
    loops: list[object] = []

    async def setup(start: Start[AsyncSandbox]) -> None:
        loops.append(asyncio.get_running_loop())
        await start.sandbox.write("setup", "done")

    async def ending(sandbox: AsyncSandbox) -> None:
        loops.append(asyncio.get_running_loop())
        assert await sandbox.read_text("setup") == "done"

    host = AsyncSandboxes(provider, on_start=setup, on_stop=ending)

    async def acquire() -> AsyncSandbox:
        sandbox = await host.acquire(key)
        assert loops == [asyncio.get_running_loop()]
        return sandbox

    async def stop(sandbox: AsyncSandbox) -> None:
        assert await sandbox.stop() == "paused"
        assert loops[1] is asyncio.get_running_loop()

    sandbox = asyncio.run(acquire())
    asyncio.run(stop(sandbox))


def a_coroutine_gets_a_loop_of_its_own_where_none_runs(provider: LocalProvider, key: str) -> None:
    async def setup(start: Start[AsyncSandbox]) -> None:
        await start.sandbox.write("setup", "done")

    assert Sandboxes(provider).acquire(key, on_start=setup).read_text("setup") == "done"


def a_function_under_an_event_loop_may_block_and_call(provider: LocalProvider, key: str) -> None:
    ticks = 0

    def setup(start: Start[Sandbox]) -> None:
        before = ticks
        while ticks < before + 5:
            time.sleep(0.001)
        start.sandbox.write("setup", "done")

    async def tick() -> None:
        nonlocal ticks
        while True:
            ticks += 1
            await asyncio.sleep(0.001)

    async def main() -> None:
        ticking = asyncio.ensure_future(tick())
        sandbox = await AsyncSandboxes(provider).acquire(key, on_start=setup)
        assert await sandbox.read_text("setup") == "done"
        ticking.cancel()

    asyncio.run(main())


def a_hook_that_raises_is_the_cause_and_runs_again(provider: LocalProvider, key: str) -> None:
    class Broken(Exception):
        pass

    def broken(start: Start[Sandbox]) -> None:
        raise Broken("no network")

    with pytest.raises(sandhold.UnexpectedError) as failed:
        Sandboxes(provider).acquire(key, on_start=broken)
    assert failed.value.reason == "hook" and failed.value.context["hook"] == "on_start"
    assert isinstance(failed.value.__cause__, Broken)
    sandbox = Sandboxes(provider).acquire(key, on_start=lambda start: start.sandbox.write("setup", "done"))
    assert sandbox.facts is not None and sandbox.facts.how == "unfinished" and sandbox.read_text("setup") == "done"


def an_error_of_a_sandbox_goes_through_its_hook_as_it_is(provider: LocalProvider, key: str) -> None:
    with pytest.raises(sandhold.NotFoundError, match="missing"):
        Sandboxes(provider).acquire(key, on_start=lambda start: start.sandbox.read_text("missing"))


@pytest.mark.parametrize("kind", ["function", "coroutine", "foreign loop"])
def a_hook_that_acquires_its_own_key_is_refused_at_once(provider: LocalProvider, key: str, kind: str) -> None:
    host, loops = Sandboxes(provider), AsyncSandboxes(provider)
    hooks: dict[str, Any] = {"function": lambda start: host.acquire(key)}

    async def again(start: Start[AsyncSandbox]) -> None:
        await loops.acquire(key)

    async def main() -> None:
        await loops.acquire(key, on_start=again)

    with pytest.raises(sandhold.ConflictError) as refused:
        if kind == "function":
            host.acquire(key, on_start=hooks[kind])
        elif kind == "coroutine":
            asyncio.run(main())
        else:
            async_host = loops

            def elsewhere(start: Start[Sandbox]) -> None:
                async def nested() -> None:
                    await async_host.acquire(key)

                asyncio.run(nested())

            async def outer() -> None:
                await loops.acquire(key, on_start=elsewhere)

            asyncio.run(outer())
    assert refused.value.reason == "reentrant"


def a_hook_that_overruns_its_deadline_is_left_behind(provider: LocalProvider, key: str) -> None:
    ended = threading.Event()

    def endless(start: Start[Sandbox]) -> None:
        ended.wait(60)

    cancelled = threading.Event()

    async def endless_coroutine(start: Start[AsyncSandbox]) -> None:
        try:
            await asyncio.sleep(1000)
        except asyncio.CancelledError:
            cancelled.set()
            raise

    async def main() -> None:
        with pytest.raises(sandhold.TimeoutError) as late:
            await AsyncSandboxes(provider).acquire(key, on_start=endless_coroutine, hook_deadline=0.1)
        assert late.value.reason == "hook"
        while not cancelled.is_set():
            await asyncio.sleep(0.001)

    with pytest.raises(sandhold.TimeoutError) as late:
        Sandboxes(provider).acquire(key, on_start=endless, hook_deadline=0.1)
    assert late.value.context["hook"] == "on_start" and isinstance(late.value, TimeoutError)
    ended.set()
    asyncio.run(main())


def a_resume_hook_refreshes_files(provider: LocalProvider, key: str) -> None:
    memories: list[str] = []

    def fresh(sandbox: Sandbox, memory: str) -> list[FreshFile]:
        memories.append(memory)
        return [FreshFile("/home/user/token", b"new", mode=0o640)]

    sandbox = Sandboxes(provider).acquire(key, on_resume=fresh)
    sandbox.pause()
    assert sandbox.shell("cat token; stat -c %a token").stdout.text() == "new640\n"
    assert memories == ["kept"]


def every_verb_has_its_hook(provider: LocalProvider, key: str) -> None:
    seen: list[str] = []
    sandbox = Sandboxes(provider).acquire(
        key,
        on_stop=lambda sandbox: seen.append("stop" + sandbox.read_text("x")),
        on_destroy=lambda sandbox: seen.append("destroy" + sandbox.read_text("x")),
    )
    sandbox.write("x", "!")
    sandbox.stop()
    sandbox.destroy()
    assert seen == ["stop!", "destroy!"]


def the_events_of_a_host_are_told_in_order(provider: LocalProvider, key: str) -> None:
    seen: list[str] = []
    all_seen = threading.Event()

    def hear(event: Event) -> None:
        seen.append(event.kind)
        if event.kind == "destroyed":
            all_seen.set()

    host = Sandboxes(provider, on_event=hear)
    with host.events() as events:
        sandbox = host.acquire(key)
        sandbox.stop()
        sandbox.destroy()
        told = []
        for event in events:
            assert event.key == key and event.owner == "default" and event.at.tzinfo is not None
            told.append(event)
            if event.kind == "destroyed":
                break
    kinds = ["starting", "started", "paused", "stopped", "destroyed"]
    assert [event.kind for event in told] == kinds
    assert told[1].details == {"outcome": "created", "how": "fresh"} and told[3].details == {"outcome": "paused"}
    assert told[1].id == sandbox.provider_id
    assert all_seen.wait(30) and seen == kinds


def a_listener_that_is_too_slow_is_told_so(provider: LocalProvider, key: str) -> None:
    async def main() -> None:
        host = AsyncSandboxes(provider, event_capacity=2)
        events = await host.events()
        for _ in range(3):
            await host.acquire(key)
        first = await anext(events)
        assert first.kind == "lagged" and first.details == {"missed": 4}
        assert (await anext(events)).kind == "starting"
        events.close()
        assert [event async for event in events] == []

    asyncio.run(main())


def the_instructions_say_what_the_spec_says(provider: LocalProvider) -> None:
    sandbox = Sandboxes(provider).lazy("never-made", user="root", home="/root", workdir="/srv", network="none")
    for word in ("root", "/srv", "no network"):
        assert word in sandbox.instructions


@pytest.mark.parametrize("kind", ["function", "coroutine"])
def a_secret_is_in_place_before_the_start_hook_runs(provider: LocalProvider, key: str, kind: str) -> None:
    files = [FreshFile("/home/user/token", b"hush", mode=0o600)]

    async def later(sandbox: AsyncSandbox) -> list[FreshFile]:
        return files

    seen: list[str] = []
    secrets = later if kind == "coroutine" else lambda sandbox: files
    Sandboxes(provider).acquire(
        key, secrets=secrets, on_start=lambda start: seen.append(start.sandbox.shell("cat token; stat -c %a token").stdout.text())
    )
    assert seen == ["hush600\n"]
