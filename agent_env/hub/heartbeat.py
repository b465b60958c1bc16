"""Keeps one instance listed for as long as it serves."""

from __future__ import annotations

import asyncio
import logging
import os
from collections.abc import Callable, Mapping
from contextlib import suppress
from functools import partial
from types import TracebackType
from typing import Any, Self

import anyio

from agent_env.errors import AgentEnvError, LeaseLost
from agent_env.hub.hub import Hub
from agent_env.hub.location import LAUNCH_VARIABLE
from agent_env.hub.records import Lease
from agent_env_cards import EnvironmentCard

_log = logging.getLogger(__name__)

_GOODBYE_SECONDS = 2.0


class Heartbeat:
    """Registers an instance at its start, renews the lease in the background, and releases it at its end.

    The arguments are those of `Hub.register`; `load` is asked before each renewal, and `launch_id` is what the launcher
    put into AGENT_ENV_LAUNCH_ID unless given. A lost lease is registered anew,
    and a hub that cannot be reached is tried again at each beat; only the first registration raises. `seconds`
    between renewals are the lease's own unless given. `lease` is the current one, None before the start and once
    another release is served at the same URL.

        async with Heartbeat(hub, card, "http://127.0.0.1:8000", load=lambda: len(sessions)):
            await serve()
    """

    def __init__(
        self,
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
    ) -> None:
        self._hub = hub
        self._url = url
        self._load = load
        self._register = partial(
            hub.register,
            card,
            url,
            capacity=capacity,
            source=source,
            launch=launch,
            launch_id=launch_id or os.environ.get(LAUNCH_VARIABLE),
        )
        self._seconds = seconds
        self._task: asyncio.Task[None] | None = None
        self.lease: Lease | None = None

    async def __aenter__(self) -> Self:
        self.lease = await self._register(load=self._load())
        self._task = asyncio.create_task(self._beat(), name=f"heartbeat of {self._url}")
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        assert self._task is not None
        self._task.cancel()
        with suppress(asyncio.CancelledError):
            await self._task
        with anyio.move_on_after(_GOODBYE_SECONDS, shield=True):
            await self._goodbye()

    async def _beat(self) -> None:
        trouble = False
        while self.lease is not None:
            await anyio.sleep(self._seconds if self._seconds is not None else self.lease.renew_seconds)
            try:
                await self._renew(self.lease)
            except AgentEnvError as error:
                # The hub may be down for a while and this instance serves on; it is listed again when the hub is up.
                if not trouble:
                    _log.warning("%s cannot be renewed in the hub %s: %s", self._url, self._hub.location, error)
                trouble = True
            else:
                trouble = False

    async def _renew(self, lease: Lease) -> None:
        try:
            await self._hub.renew(lease, self._load())
        except LeaseLost as error:
            if error.data.get("superseded"):
                _log.warning("another release is served at %s now and is listed in place of this one", self._url)
                self.lease = None
            else:
                self.lease = await self._register(load=self._load())

    async def _goodbye(self) -> None:
        if self.lease is None:
            return
        try:
            await self._hub.release(self.lease)
        except AgentEnvError as error:
            _log.warning("%s stays listed in the hub until its lease lapses: %s", self._url, error)
        self.lease = None
