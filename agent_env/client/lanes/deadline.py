"""The deadline of a call, on lanes whose SDK knows none."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable
from typing import TypeVar

from agent_env.client.lanes.contract import Outgoing
from agent_env.errors import DeadlineExceeded
from agent_env.net.http import shown

T = TypeVar("T")


async def in_time(work: Awaitable[T], outgoing: Outgoing, verb: str, url: str) -> T:
    """Awaits the work of a call for as long as its context allows; raises `DeadlineExceeded`."""
    bound = asyncio.timeout(outgoing.context.seconds_left())
    try:
        async with bound:
            return await work
    except TimeoutError:
        if not bound.expired():
            raise
        raise DeadlineExceeded(f"{shown(url)} did not answer {verb} before the deadline") from None
