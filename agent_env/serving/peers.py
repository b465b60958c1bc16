"""Peers for a served agent: paired by their cards, or named by the owner."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

from agent_env.client.environment import Environment
from agent_env.context import Peer, PeerSource
from agent_env.errors import AgentEnvError, NeedUnmet
from agent_env.hub import Entry, shared_hub
from agent_env.hub.snapshot import snapshot
from agent_env.matchmaking import Pairing, choose, matchmaker_of
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
        self._paired: tuple[Sequence[Entry], Mapping[str, Pairing]] | None = None

    async def open(self) -> Sequence[Peer]:
        """Opens the peers; see `PeerSource.open`."""
        paired = await self._pair()
        peers: list[Peer] = []
        try:
            for seat in dict.fromkeys([*(need.seat for need in self._needs), *self._named]):
                if seat in self._named:
                    peers.append(await self._peer(seat, self._named[seat], {"seat": seat, "named": True}))
                else:
                    peers.append(await self._peer(seat, self._reach(paired[seat]), _reasons(paired[seat])))
        except BaseException:
            for peer in peers:
                await peer.aclose()
            raise
        return peers

    async def _pair(self) -> Mapping[str, Pairing]:
        """Pairs the needs that nobody was named for; while the hub says the same, the outcome is the same."""
        needs = [need for need in self._needs if need.seat not in self._named]
        if not needs:
            return {}
        if isinstance(self._hub, bool):
            seats = ", ".join(repr(need.seat) for need in needs)
            raise NeedUnmet(f"the needs {seats} cannot be filled without a hub; name peers for them: peers={{…}}")
        hub = shared_hub(self._hub)
        entries = await snapshot(hub).entries()
        if self._paired is None or self._paired[0] is not entries:
            self._paired = entries, choose(self._card(), needs, await matchmaker_of(hub))
        return self._paired[1]

    def _reach(self, pairing: Pairing) -> object:
        """An instance of the chosen release, or its reference where one must be launched first."""
        entry: Entry = pairing.candidate.source
        hub = shared_hub(None if isinstance(self._hub, bool) else self._hub)
        return hub.choose(entry.instances) or f"{entry.release.name}@{entry.release.version}"

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


def _reasons(pairing: Pairing) -> dict[str, Any]:
    """What the episode tells of a pairing: who, how well, and what each rule said."""
    told = pairing.reasons
    rules = {found["rule"]: found["result"] for found in told["rules"]}
    return {**told, "rules": rules}
