"""Calls as a budget: what a turn may spend, and how it is shared among the calls that the turn makes."""

from __future__ import annotations

import asyncio
import threading
from dataclasses import dataclass

from agent_env.errors import BudgetExhausted


@dataclass(slots=True)
class Grant:
    """A share of a budget that one call holds until it answers."""

    calls: int | None


class Budget:
    """The calls that one turn may still make, its own and its descendants'.

    Calls that start in the same step of the event loop share equally; a call that starts alone gets everything; one
    that starts while others hold everything waits for what they give back. `None` is no bound. A synchronous agent
    makes its calls in threads, each with an event loop of its own, so a budget is shared by several loops.
    """

    def __init__(self, calls: int | None) -> None:
        self._free = calls
        self._held = 0
        self._lock = threading.Lock()
        self._waiting: list[asyncio.Future[Grant]] = []
        self._scheduled = False

    @property
    def left(self) -> int | None:
        """Calls that nobody holds; what the turn gives back to its own caller when it ends."""
        return self._free

    async def take(self) -> Grant:
        """Takes the share of one call, which itself counts as one; raises `BudgetExhausted` when nothing is left."""
        if self._free is None:
            return Grant(None)
        loop = asyncio.get_running_loop()
        waiter: asyncio.Future[Grant] = loop.create_future()
        with self._lock:
            self._waiting.append(waiter)
            self._schedule(loop)
        try:
            return await waiter
        except asyncio.CancelledError:
            if waiter.done() and not waiter.cancelled() and waiter.exception() is None:
                self.give_back(waiter.result(), spent=0)
            else:
                with self._lock:
                    if waiter in self._waiting:
                        self._waiting.remove(waiter)
            raise

    def give_back(self, grant: Grant, *, spent: int | None = None, left: int | None = None) -> None:
        """Returns what a call did not use: `left` is what the callee reports, `spent` what is known here.

        Without either the whole share counts as used, since a callee that vanished may have used it.
        """
        if self._free is None or grant.calls is None:
            return
        unused = 0
        if left is not None:
            unused = max(0, min(left, grant.calls))
        elif spent is not None:
            unused = max(0, grant.calls + 1 - spent)
        with self._lock:
            self._free += unused
            self._held -= 1
            if self._waiting:
                self._schedule(asyncio.get_running_loop())

    def _schedule(self, loop: asyncio.AbstractEventLoop) -> None:
        if not self._scheduled:
            self._scheduled = True
            loop.call_soon(self._share)

    def _share(self) -> None:
        with self._lock:
            self._scheduled = False
            assert self._free is not None
            waiting = [waiter for waiter in self._waiting if not waiter.done()]
            self._waiting = []
            served = waiting[: self._free]
            late = waiting[self._free :]
            grants: list[Grant] = []
            if served:
                calls, extra = divmod(self._free - len(served), len(served))
                self._free = 0
                self._held += len(served)
                grants = [Grant(calls + (index < extra)) for index in range(len(served))]
            if late and self._held:
                self._waiting, late = late, []
        for waiter, grant in zip(served, grants, strict=True):
            self._tell(waiter, grant)
        for waiter in late:
            self._tell(waiter, None)

    def _tell(self, waiter: asyncio.Future[Grant], grant: Grant | None) -> None:
        """Settles a call that waits, in its own event loop."""
        home = waiter.get_loop()
        if home is asyncio.get_running_loop():
            self._settle(waiter, grant)
            return
        try:
            home.call_soon_threadsafe(self._settle, waiter, grant)
        except RuntimeError:  # its loop was closed, and nobody waits any more
            if grant is not None:
                self.give_back(grant, spent=0)

    def _settle(self, waiter: asyncio.Future[Grant], grant: Grant | None) -> None:
        if waiter.done():
            if grant is not None:
                self.give_back(grant, spent=0)
        elif grant is None:
            waiter.set_exception(BudgetExhausted("the calls granted to this turn are used up; raise the budget"))
        else:
            waiter.set_result(grant)
