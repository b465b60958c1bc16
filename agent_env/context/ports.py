"""What a running turn needs from outside, as protocols: the runtime knows neither the network nor a store."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol, TypeAlias

Record: TypeAlias = Mapping[str, Any]
"""A turn or edge record in its JSON form; `agent_env.episodes.records` names the fields."""


class Recorder(Protocol):
    """Takes records of what agents did."""

    async def record(self, records: Sequence[Record]) -> None:
        """Keeps the records; when it returns, they are safe. Raises `TransportError` if they could not be kept."""
        ...


@dataclass(frozen=True, slots=True)
class Peer:
    """An agent that fills a need of another one, bound to one session of its own.

    `ask(message)` sends one message in that session and returns the reply's text. `pairing` says in JSON how the
    peer was chosen; it goes into the episode. `fork()` opens a peer for a copy of the conversation: one that goes on
    from what this one remembers or, where that cannot be, one that begins afresh and whose `afresh` says why.
    """

    seat: str
    name: str
    description: str
    ask: Callable[[str], Awaitable[str]]
    aclose: Callable[[], Awaitable[None]]
    pairing: Mapping[str, Any]
    fork: Callable[[], Awaitable[Peer]] | None = None
    afresh: str | None = None


class PeerSource(Protocol):
    """Finds peers for the needs of an environment."""

    async def open(self) -> Sequence[Peer]:
        """Opens one peer a need for one new session; raises `NeedUnmet` with every candidate's failed rule."""
        ...
