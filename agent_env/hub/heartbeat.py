"""Keeps one instance listed for as long as it serves."""

from __future__ import annotations

import logging
from collections.abc import AsyncGenerator, Callable, Mapping
from contextlib import asynccontextmanager
from typing import Any

import anyio

from agent_env.errors import AgentEnvError, LeaseLost
from agent_env.hub.hub import Hub
from agent_env.hub.records import Lease
from agent_env_cards import EnvironmentCard

_log = logging.getLogger(__name__)

_GOODBYE_SECONDS = 2.0


class Heartbeat:
    """The registration of one instance and the task that keeps it: `lease` is the current one, None when superseded.

    Made by `heartbeat`.
    """

    def __init__(self, hub: Hub, register: Callable[[], Any], load: Callable[[], int], seconds: float | None) -> None:
        self._hub = hub
        self._register = register
        self._load = load
        self._seconds = seconds
        self.lease: Lease | None = None

    async def _start(self) -> None:
        self.lease = await self._register()

    async def _beat(self) -> None:
        trouble = False
        while self.lease is not None:
            await anyio.sleep(self._seconds if self._seconds is not None else self.lease.renew_seconds)
            try:
                await self._renew()
            except AgentEnvError as error:
                # The hub may be down for a while, and this instance serves on; it is listed again once the hub is up.
                if not trouble:
                    _log.warning("%s cannot be renewed in the hub %s: %s", self.lease.url, self._hub.location, error)
                trouble = True
            else:
                trouble = False

    async def _renew(self) -> None:
        assert self.lease is not None
        try:
            await self._hub.renew(self.lease, self._load())
        except LeaseLost as error:
            if error.data.get("superseded"):
                _log.warning("another release is served at %s now; it is listed in place of this one", self.lease.url)
                self.lease = None
            else:
                self.lease = await self._register()

    async def _stop(self) -> None:
        if self.lease is None:
            return
        with anyio.move_on_after(_GOODBYE_SECONDS, shield=True):
            try:
                await self._hub.release(self.lease)
            except AgentEnvError as error:
                _log.warning("%s stays listed in the hub until its lease lapses: %s", self.lease.url, error)


@asynccontextmanager
async def heartbeat(
    hub: Hub,
    card: EnvironmentCard,
    url: str,
    *,
    capacity: int | None = None,
    load: Callable[[], int] = lambda: 0,
    source: str | None = None,
    launch: Mapping[str, Any] | None = None,
    launch_id: str | None = None,
    seconds: float | None = None,
) -> AsyncGenerator[Heartbeat, None]:
    """Registers an instance, renews its lease in the background, and releases it at the end.

    The arguments are those of `Hub.register`; `load` is asked before each renewal. A lost lease is registered anew,
    and a hub that cannot be reached is tried again at each beat; only the first registration raises. `seconds`
    between renewals are the lease's own unless given.

        async with heartbeat(hub, card, "http://127.0.0.1:8000", load=lambda: sessions.open):
            await serve()
    """

    async def register() -> Lease:
        return await hub.register(
            card, url, capacity=capacity, load=load(), source=source, launch=launch, launch_id=launch_id
        )

    beat = Heartbeat(hub, register, load, seconds)
    await beat._start()  # pyright: ignore[reportPrivateUsage]
    try:
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(beat._beat)  # pyright: ignore[reportPrivateUsage]
            yield beat
            tasks.cancel_scope.cancel()
    finally:
        await beat._stop()  # pyright: ignore[reportPrivateUsage]
