"""Work that was cancelled and runs on all the same: how much of it one environment bears."""

from __future__ import annotations

import asyncio
import logging
import threading
from collections.abc import Coroutine
from typing import Any, TypeVar

from agent_env.errors import AtCapacity
from agent_env_wrappers.threads import watched

log = logging.getLogger("agent_env.runtime")

T = TypeVar("T")

CANCEL_GRACE = 1.0
"""Seconds that cancelled work has to clean up before it is left behind."""

RETRY_SECONDS = 1.0
"""Seconds after which a turn may be tried again that there was no room for."""


class Abandoned:
    """Counts what an environment left behind: tasks that swallow their cancellation, threads that nothing can stop.

    Threads tell of themselves, so it is counted under a lock.
    """

    def __init__(self, most: int) -> None:
        self._most = most
        self._lock = threading.Lock()
        self._count = 0

    def __len__(self) -> int:
        return self._count

    def check(self, agent: str) -> None:
        """Raises `AtCapacity` when there is so much of it that nothing new may begin."""
        if self._count >= self._most:
            raise AtCapacity(
                f"{self._count} cancelled calls of {agent} still run, as many as it may leave behind; wait until they "
                "end. Its owner mends that by letting cancellation through, and by timeouts on calls that block",
                agent=agent,
                retry_after=RETRY_SECONDS,
            )

    def left(self) -> None:
        """Notes that something was left behind."""
        with self._lock:
            self._count += 1

    def ended(self) -> None:
        """Notes that something that was left behind has ended."""
        with self._lock:
            self._count -= 1

    async def wait(self, work: asyncio.Task[T], seconds: float | None, agent: str) -> bool:
        """Waits until work ends, or for so long; tells whether it did.

        It is cancelled when the time is over, or the waiter is, and left behind when it does not heed that.
        """
        try:
            done, _ = await asyncio.wait({work}, timeout=seconds)
        except asyncio.CancelledError:
            await self._stop(work, agent)
            raise
        if not done:
            await self._stop(work, agent)
        return bool(done)

    def start(self, work: Coroutine[Any, Any, T]) -> asyncio.Task[T]:
        """Starts work in a task of its own, so that it can be left behind; its threads are counted here."""
        with watched(self):
            return asyncio.get_running_loop().create_task(work)

    async def _stop(self, work: asyncio.Task[T], agent: str) -> None:
        work.cancel()
        # Whatever it still does, nobody will ask for its result.
        work.add_done_callback(_ignore)
        # Whoever waits may be cancelled again meanwhile, so the count does not depend on them.
        noting = asyncio.get_running_loop().call_later(CANCEL_GRACE, self._leave, work, agent)
        work.add_done_callback(lambda _: noting.cancel())
        await asyncio.wait({work}, timeout=CANCEL_GRACE)

    def _leave(self, work: asyncio.Task[T], agent: str) -> None:
        self.left()
        work.add_done_callback(lambda _: self.ended())
        log.warning("%s ignores its cancellation; its turn is left behind", agent)


def _ignore(task: asyncio.Task[T]) -> None:
    if not task.cancelled():
        task.exception()
