"""Peers for a served agent: paired by their cards, or named by the owner."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

from agent_env.client.environment import Environment
from agent_env.context import Peer, PeerSource
from agent_env.errors import AgentEnvError, NeedUnmet
from agent_env.hub import Hub, shared_hub
from agent_env.hub.snapshot import snapshot
from agent_env.runtime.definition import Definition
from agent_env_cards import EnvironmentCard, Need


def peer_source(
    definition: Definition,
    named: Mapping[str, object],
    *,
    hub: str | Path | Literal[False] | None,
    card: Callable[[], EnvironmentCard],
) -> PeerSource | None:
    """Makes what fills an environment's needs; None when it has none and names no peers."""
    if not definition.needs and not named:
        return None
    return Peers(definition.needs, named, hub, card)


class Peers:
    """Opens one peer a seat for each new session."""

    def __init__(
        self,
        needs: Sequence[Need],
        named: Mapping[str, object],
        hub: str | Path | Literal[False] | None,
        card: Callable[[], EnvironmentCard],
    ) -> None:
        self._needs = needs
        self._named = named
        self._hub = hub
        self._card = card

    async def open(self) -> Sequence[Peer]:
        """Opens the peers; see `PeerSource.open`."""
        chosen = await self._pair([need for need in self._needs if need.seat not in self._named])
        peers: list[Peer] = []
        seats = dict.fromkeys([need.seat for need in self._needs] + list(self._named))
        try:
            for seat in seats:
                if seat in self._named:
                    pairing: dict[str, Any] = {"seat": seat, "named": True}
                    peers.append(await self._peer(seat, self._named[seat], pairing))
                else:
                    ref, pairing = chosen[seat]
                    peers.append(await self._peer(seat, ref, pairing))
        except BaseException:
            for peer in peers:
                await peer.aclose()
            raise
        return peers

    async def _pair(self, needs: Sequence[Need]) -> Mapping[str, tuple[object, dict[str, Any]]]:
        if not needs:
            return {}
        if isinstance(self._hub, bool):
            seats = ", ".join(repr(need.seat) for need in needs)
            raise NeedUnmet(f"the needs {seats} cannot be filled without a hub; name them in peers={{…}}")
        return await pair(self._card(), needs, shared_hub(self._hub))

    async def _peer(self, seat: str, ref: object, pairing: Mapping[str, Any]) -> Peer:
        environment = Environment(ref, seat=seat, hub=None if isinstance(self._hub, bool) else self._hub)
        try:
            await environment.initialize()
        except AgentEnvError as error:
            raise NeedUnmet(
                f"the peer for {seat!r} cannot be reached: {error.message}", seat=seat, error=error.to_wire()
            ) from error
        card = environment.card

        async def ask(message: str) -> str:
            result = await environment.call_tool("chat", {"message": message})
            return result.text

        return Peer(
            seat=seat,
            name=card.ref,
            description=card.description or f"Talk to {card.name}.",
            ask=ask,
            aclose=environment.release,
            pairing={**pairing, "peer": card.ref},
        )


async def pair(
    card: EnvironmentCard, needs: Sequence[Need], hub: Hub
) -> Mapping[str, tuple[object, dict[str, Any]]]:
    """Pairs the needs of a card with the offers in the hub: seat to whom, and the reasons."""
    entries = await snapshot(hub).entries()
    chosen: dict[str, tuple[object, dict[str, Any]]] = {}
    for need in needs:
        fitting = [
            entry
            for entry in entries
            if entry.card.name != card.name
            and {skill.id for skill in entry.card.offers.skills} >= set(need.requires.skills)
            and entry.instances
        ]
        if not fitting:
            raise NeedUnmet(f"nobody meets the need {need.seat!r}")
        best = max(fitting, key=lambda entry: (len(entry.card.offers.tags), entry.card.name))
        instance = hub.choose(best.instances)
        chosen[need.seat] = (instance, {"seat": need.seat})
    return chosen
