"""Values that live as long as one event loop: clients and pools that all code in a loop shares."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable, Hashable
from contextlib import suppress
from typing import Generic, TypeVar

K = TypeVar("K", bound=Hashable)
V = TypeVar("V")


class PerLoop(Generic[K, V]):
    """One value per (running event loop, key), made at its first use and closed when its loop shuts down.

    `make(key)` runs inside the loop and must not wait; `close(value)` runs when the loop shuts its asynchronous
    generators down, as `asyncio.run` and every server do, or sooner in `aclose`.

        pools = PerLoop(lambda url: Pool(url), lambda pool: pool.aclose())
        pool = pools.get("http://127.0.0.1:8000")
    """

    def __init__(self, make: Callable[[K], V], close: Callable[[V], Awaitable[None]]) -> None:
        self._make = make
        self._close = close
        self._open: dict[tuple[asyncio.AbstractEventLoop, K], tuple[V, AsyncGenerator[V, None]]] = {}

    def get(self, key: K) -> V:
        """The value for this key in the running loop."""
        place = asyncio.get_running_loop(), key
        found = self._open.get(place)
        if found is not None:
            return found[0]
        self._forget_dead_loops()
        lifetime = self._lifetime(place)
        value = _first(lifetime.__anext__())
        self._open[place] = value, lifetime
        return value

    async def aclose(self) -> None:
        """Closes the values of the running loop; a later `get` makes new ones."""
        loop = asyncio.get_running_loop()
        for (home, _), (_, lifetime) in list(self._open.items()):
            if home is loop:
                await lifetime.aclose()

    async def _lifetime(self, place: tuple[asyncio.AbstractEventLoop, K]) -> AsyncGenerator[V, None]:
        value = self._make(place[1])
        try:
            yield value
        finally:
            self._open.pop(place, None)
            await self._close(value)

    def _forget_dead_loops(self) -> None:
        """Drops the values of loops that were closed without shutting their generators down."""
        for place in [place for place in self._open if place[0].is_closed()]:
            value, _ = self._open.pop(place)
            # Nothing can be awaited in a closed loop; what a close does before it waits is all that can be done.
            closing = self._close(value).__await__()
            with suppress(StopIteration, RuntimeError):
                next(closing)


def _first(step: Awaitable[V]) -> V:
    """Runs the first step of a generator, which waits for nothing, here and now.

    This step also registers the generator with the running loop, which closes it in the end.
    """
    try:
        next(step.__await__())
    except StopIteration as done:
        value: V = done.value
        return value
    raise RuntimeError("the generator waits before it yields")
