"""The WebSocket lane: one socket a peer, shared by all conversations of this process with it.

The protocol is in `agent_env.net.frames`.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Any, ClassVar, NamedTuple

from agent_env.client.lanes.connection import Connection
from agent_env.client.lanes.contract import OnEvent, Outgoing
from agent_env.net.loops import PerLoop

LINGER_SECONDS = 20.0
"""How long a socket that nobody uses stays open for the next one."""


class Peer(NamedTuple):
    """Whom a socket leads to: its address, the token that opens it, and the release that must answer there."""

    url: str
    token: str | None
    digest: str | None


class _Slot:
    """The socket to one peer: opened again when it was lost, closed when nobody has used it for a while."""

    def __init__(self, peer: Peer) -> None:
        self._peer = peer
        self._connection: Connection | None = None
        self._users = 0
        self._idle: asyncio.TimerHandle | None = None

    @property
    def connection(self) -> Connection:
        if self._connection is None or self._connection.lost:
            self._connection = Connection(*self._peer)
        return self._connection

    def borrow(self) -> None:
        self._users += 1
        if self._idle is not None:
            self._idle.cancel()
            self._idle = None

    def give_back(self) -> None:
        self._users -= 1
        if not self._users and self._connection is not None:
            self._idle = asyncio.get_running_loop().call_later(LINGER_SECONDS, self._connection.close)

    async def aclose(self) -> None:
        if self._idle is not None:
            self._idle.cancel()
        if self._connection is not None:
            await self._connection.aclose()


_slots: PerLoop[Peer, _Slot] = PerLoop(_Slot, _Slot.aclose)


async def close_sockets() -> None:
    """Closes the sockets of the running loop; the next call opens new ones."""
    await _slots.aclose()


class WebSocketLane:
    """Calls an environment over its multiplexed WebSocket; `digest` is the release that must answer."""

    name: ClassVar[str] = "websocket"

    def __init__(self, url: str, token: str | None = None, digest: str | None = None) -> None:
        self._peer = Peer(url, token, digest)
        self._slot: _Slot | None = None

    async def perform(
        self, verb: str, arguments: Mapping[str, Any], outgoing: Outgoing, on_event: OnEvent | None = None
    ) -> Mapping[str, Any]:
        """Performs a verb; see `Lane.perform`."""
        if self._slot is None:
            self._slot = _slots.get(self._peer)
            self._slot.borrow()
        return await self._slot.connection.call(verb, arguments, outgoing, on_event)

    async def aclose(self) -> None:
        """Gives the socket back."""
        slot, self._slot = self._slot, None
        if slot is not None:
            slot.give_back()
