"""Callers that go away, or do not read: what is done for them ends."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Coroutine
from contextlib import suppress
from typing import Any, TypeVar

from agent_env.errors import TransportError
from agent_env.gateway.http import Receive

R = TypeVar("R")

_LAST_SECONDS = 5.0
"""How long a caller that does not read may keep a call whose answer is whole, or failed."""


async def while_there(receive: Receive, waiting: Coroutine[Any, Any, R]) -> R:
    """What a call waits for, as long as its caller does; raises `TransportError` when that has gone away."""
    task = asyncio.ensure_future(waiting)
    watcher = asyncio.ensure_future(until_gone(receive, task))
    try:
        await asyncio.wait({task})
        if task.cancelled():
            raise TransportError("the caller went away while its call was held")
        return task.result()
    finally:
        task.cancel()
        watcher.cancel()


async def in_time(sending: Awaitable[None]) -> None:
    """Sends what ends a call; a caller that does not read is let go."""
    with suppress(TimeoutError):
        async with asyncio.timeout(_LAST_SECONDS):
            await sending


async def until_gone(receive: Receive, task: asyncio.Task[Any]) -> None:
    """Cancels the task once the caller has gone away."""
    while (await receive())["type"] != "http.disconnect":
        pass
    task.cancel()
