"""The events of a running turn, taken in batches."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from contextlib import suppress

from agent_env_wrappers.contract import Event

BATCH_SECONDS = 0.02
"""What comes within this time goes out together: the SDK copies the whole task for each update."""


class Feed:
    """Takes the events of one turn and gives them out again, several at once when they come fast."""

    def __init__(self) -> None:
        self._pending: list[Event] = []
        self._wake = asyncio.Event()
        self._ended = asyncio.Event()

    async def put(self, event: Event) -> None:
        """Takes one event."""
        self._pending.append(event)
        self._wake.set()

    def end(self) -> None:
        """Says that no event comes any more."""
        self._ended.set()
        self._wake.set()

    async def batches(self) -> AsyncGenerator[list[Event]]:
        """Yields the events in order, never an empty batch, until the turn ends."""
        while True:
            await self._wake.wait()
            self._wake.clear()
            batch, self._pending = self._pending, []
            if batch:
                yield batch
            if not self._ended.is_set():
                with suppress(TimeoutError):
                    async with asyncio.timeout(BATCH_SECONDS):
                        await self._ended.wait()
            elif not self._pending:
                return
