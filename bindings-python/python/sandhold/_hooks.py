"""How hooks run: on a thread of their own, or as coroutines on an event loop."""

from __future__ import annotations

import asyncio
import concurrent.futures
import contextvars
import inspect
from collections.abc import AsyncIterator, Callable
from typing import Any

# The hooks that a context is inside of: a call from there must not wait for itself.
SCOPE: contextvars.ContextVar[Any] = contextvars.ContextVar("sandhold_hook_scope")


def is_async(function: Callable[..., Any]) -> bool:
    """Tells whether a callable is a coroutine function."""
    return inspect.iscoroutinefunction(function) or inspect.iscoroutinefunction(
        getattr(function, "__call__", None)
    )


def run(function: Callable[..., Any], arguments: tuple[Any, ...], scope: Any) -> Any:
    """Calls it on this thread; what is to be awaited gets an event loop of its own."""

    def called() -> Any:
        SCOPE.set(scope)
        result = function(*arguments)
        return asyncio.run(_awaited(result)) if inspect.isawaitable(result) else result

    return contextvars.copy_context().run(called)


def begin(
    function: Callable[..., Any],
    arguments: tuple[Any, ...],
    scope: Any,
    loop: asyncio.AbstractEventLoop,
    done: Callable[[Any], None],
) -> concurrent.futures.Future[Any]:
    """Has a loop that runs elsewhere call and await it."""

    async def called() -> Any:
        SCOPE.set(scope)
        return await function(*arguments)

    future = asyncio.run_coroutine_threadsafe(called(), loop)
    future.add_done_callback(done)
    return future


def begin_next(
    items: AsyncIterator[Any], loop: asyncio.AbstractEventLoop, done: Callable[[Any], None]
) -> concurrent.futures.Future[Any]:
    """Has a loop that runs elsewhere take the next item; None is the end."""

    async def called() -> Any:
        return await anext(items, None)

    future = asyncio.run_coroutine_threadsafe(called(), loop)
    future.add_done_callback(done)
    return future


async def _awaited(result: Any) -> Any:
    return await result
