"""Peers for a served agent: paired by their cards, or named by the owner."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal

from agent_env.client.environment import Environment
from agent_env.client.resolution import Seated
from agent_env.context import Peer, PeerSource
from agent_env.errors import AgentEnvError, NeedUnmet, TransportError
from agent_env.hub import Entry, shared_hub
from agent_env.hub.snapshot import snapshot
from agent_env.matchmaking import Candidate, Pairing, choose, matchmaker_of
from agent_env.net import Keyring
from agent_env.runtime.definition import Definition
from agent_env_cards import EnvironmentCard, Need


def peer_source(
    definition: Definition,
    named: Mapping[str, object],
    *,
    auth: Keyring,
    hub: str | Path | Literal[False] | None,
    card: Callable[[], EnvironmentCard],
) -> PeerSource | None:
    """Makes what fills an environment's needs; None when it has none and names no peers."""
    if not definition.needs and not named:
        return None
    return Peers(definition.needs, named, auth, hub, card)


class Peers:
    """Opens one peer a seat for each new session."""

    def __init__(
        self,
        needs: Sequence[Need],
        named: Mapping[str, object],
        auth: Keyring,
        hub: str | Path | Literal[False] | None,
        card: Callable[[], EnvironmentCard],
    ) -> None:
        self._needs = needs
        self._named = named
        self._auth = auth
        self._rest = auth.without(named)
        self._hub = hub
        self._card = card
        self._paired: tuple[Sequence[Entry], Mapping[str, tuple[Pairing, dict[str, Any]]]] | None = None

    async def open(self) -> Sequence[Peer]:
        """Opens the peers; see `PeerSource.open`."""
        paired = await self._pair()
        peers: list[Peer] = []
        try:
            for seat in dict.fromkeys([*(need.seat for need in self._needs), *self._named]):
                if seat in self._named:
                    peers.append(await self._peer(seat, [self._named[seat]], {"seat": seat, "named": True}))
                else:
                    pairing, reasons = paired[seat]
                    peers.append(await self._peer(seat, self._places(pairing), reasons))
        except BaseException:
            for peer in peers:
                await peer.aclose()
            raise
        return peers

    async def _pair(self) -> Mapping[str, tuple[Pairing, dict[str, Any]]]:
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
            chosen = choose(self._card(), needs, await matchmaker_of(hub), auth=self._held)
            self._paired = entries, {seat: (pairing, _reasons(pairing)) for seat, pairing in chosen.items()}
        return self._paired[1]

    def _places(self, pairing: Pairing) -> Sequence[object]:
        """Where the chosen release is: an instance, then its reference, by which others are found or one launched."""
        release, instances = pairing.candidate.source.release, pairing.candidate.source.current
        if pairing.candidate.card.auth is not None:
            # Where a token is bound to an origin, only the instances there will let us in.
            instances = [one for one in instances if self._rest.token(one.url, one.name) is not None] or instances
        instance = shared_hub(self._target).choose(instances)
        reference = f"{release.name}@{release.version}"
        return [reference] if instance is None else [instance, reference]

    def _held(self, candidate: Candidate) -> Sequence[str]:
        """What there is to authenticate with at a candidate: a token by its name, or at where an instance of it is."""
        entry: Entry = candidate.source
        places = [None, *(instance.url for instance in entry.current)]
        held = any(self._rest.token(place, entry.release.name) is not None for place in places)
        return ("bearer",) if held else ()

    @property
    def _target(self) -> str | Path | None:
        return None if isinstance(self._hub, bool) else self._hub

    async def _peer(self, seat: str, places: Sequence[object], pairing: Mapping[str, Any]) -> Peer:
        return self._bound(await self._initialized(seat, places), seat, places, pairing)

    def _bound(self, environment: Environment, seat: str, places: Sequence[object], pairing: Mapping[str, Any]) -> Peer:
        card = environment.card

        async def ask(message: str) -> str:
            result = await environment.call_tool("chat", {"message": message})
            return result.text or ("" if result.data is None else json.dumps(result.data, ensure_ascii=False))

        async def fork() -> Peer:
            if environment.session_id is None:  # nobody has talked to it, so there is nothing that it remembers
                return await self._peer(seat, places, pairing)
            if card.session is None or not card.session.fork:
                why = f"{card.ref} cannot copy a conversation"
            else:
                try:
                    copy = await environment.fork()
                    own = ", ".join(map(repr, copy.afresh))
                    told = f"{card.ref} remembers, and its own peers {own} begin afresh" if own else None
                    return replace(self._bound(copy, seat, places, pairing), afresh=told)
                except AgentEnvError as error:
                    why = f"{card.ref} did not copy the conversation: {error.message}"
            return replace(await self._peer(seat, places, pairing), afresh=why)

        return Peer(
            seat=seat,
            name=card.ref,
            description=card.description or f"Talk to {card.name}.",
            ask=ask,
            aclose=environment.release,
            pairing={**pairing, "peer": card.ref},
            fork=fork,
        )

    async def _initialized(self, seat: str, places: Sequence[object]) -> Environment:
        first, *others = places
        environment = self._environment(seat, first)
        try:
            return await environment.initialize()
        except AgentEnvError as error:
            if others and isinstance(error, TransportError):
                return await self._initialized(seat, others)
            raise NeedUnmet(
                f"the peer for {seat!r} cannot be reached: {error.message}", seat=seat, error=error.to_wire()
            ) from error

    def _environment(self, seat: str, place: object) -> Environment:
        # A token by seat is for whom the owner put there; whoever was chosen for a seat gets none by its name.
        auth = (self._auth.at(seat) if seat in self._named else None) or self._rest
        if isinstance(place, Environment):
            return place.seated(seat, auth=auth)
        return Environment(Seated(place), auth=auth, seat=seat, hub=self._target)


def _reasons(pairing: Pairing) -> dict[str, Any]:
    """What the episode tells of a pairing: who, how well, and what each rule said."""
    told = pairing.reasons
    rules = {found["rule"]: found["result"] for found in told["rules"]}
    return {**told, "rules": rules}
