"""How agents get peers: the needs on a card, filled by the offers of others."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace

from agent_env.errors import MatchError, NeedUnmet
from agent_env.hub import Entry, Hub
from agent_env.hub.snapshot import snapshot
from agent_env.matchmaking.candidate import Candidate, candidate_of
from agent_env.matchmaking.matchmaker import Matchmaker
from agent_env.matchmaking.query import Credentials
from agent_env.matchmaking.report import Explanation, Pairing
from agent_env.net import PerLoop
from agent_env_cards import EnvironmentCard, Need

MOST_LISTED = 5
"""Candidates in the message of a refusal, the nearest first; its `data` has more."""

MOST_TOLD = 50


def choose(
    card: EnvironmentCard,
    needs: Iterable[Need],
    candidates: Matchmaker | Iterable[Candidate | EnvironmentCard | Entry],
    *,
    auth: Credentials = (),
) -> Mapping[str, Pairing]:
    """Fills the needs of an environment: seat to who was chosen and why.

    No agent sits twice. Raises `NeedUnmet` when a need cannot be filled; the message lists the rule at which each
    candidate failed, or the seats that compete, and `data` has the same for programs.
    """
    matchmaker = candidates if isinstance(candidates, Matchmaker) else Matchmaker(candidates)
    wanted = {need.seat: need for need in needs}
    try:
        team = matchmaker.team(wanted, caller=card, auth=auth, limit=1)
    except MatchError as error:
        raise _unmet(card, wanted, matchmaker, auth, error) from error
    return {seat: team[seat] for seat in wanted}


async def matchmaker_of(hub: Hub) -> Matchmaker:
    """The matchmaker over what a hub lists now: one a hub and event loop, whose index follows the hub."""
    return await _followers.get(hub).current()


class _Follower:
    """Keeps a matchmaker up to date with a hub."""

    def __init__(self, hub: Hub) -> None:
        self._hub = hub
        self._entries: Sequence[Entry] | None = None
        self._matchmaker = Matchmaker([])
        self._cards: dict[str, EnvironmentCard] = {}

    async def current(self) -> Matchmaker:
        entries = await snapshot(self._hub).entries()
        if entries is not self._entries:
            candidates = [self._same(candidate_of(entry)) for entry in entries]
            self._cards = {candidate.ref: candidate.card for candidate in candidates}
            self._matchmaker.observe(candidates)
            self._entries = entries
        return self._matchmaker

    def _same(self, candidate: Candidate) -> Candidate:
        # An instance is read anew each time; where its card says the same it stays the same object, and the index.
        known = self._cards.get(candidate.ref)
        return replace(candidate, card=known) if known is not None and known == candidate.card else candidate

    async def aclose(self) -> None:
        self._entries = None


async def _close(follower: _Follower) -> None:
    await follower.aclose()


_followers: PerLoop[Hub, _Follower] = PerLoop(_Follower, _close)


def _unmet(
    card: EnvironmentCard,
    needs: Mapping[str, Need],
    matchmaker: Matchmaker,
    auth: Credentials,
    error: MatchError,
) -> NeedUnmet:
    seat = error.data.get("seat")
    if seat is None:
        return NeedUnmet(f"{card.ref} cannot be given its peers: {error.message}", **error.data)
    report = matchmaker.pair(needs[seat], caller=card, auth=auth)
    rejected = sorted(report.rejected, key=lambda explanation: (len(explanation.failed), explanation.ref))
    listed = "; ".join(_line(explanation) for explanation in rejected[:MOST_LISTED])
    more = f"; and {len(rejected) - MOST_LISTED} more" if len(rejected) > MOST_LISTED else ""
    told = f". Each of them: {listed}{more}" if listed else "; serve an agent that offers what the need asks for"
    return NeedUnmet(
        f"{card.ref}: {report.summary}{told}",
        seat=seat,
        fell=dict(report.fell),
        candidates=[
            {"candidate": explanation.ref, "failed": [finding.to_json() for finding in explanation.failed]}
            for explanation in rejected[:MOST_TOLD]
        ],
    )


def _line(explanation: Explanation) -> str:
    return f"{explanation.ref} fails at " + ", ".join(f"{found.rule} ({found.why})" for found in explanation.failed)
