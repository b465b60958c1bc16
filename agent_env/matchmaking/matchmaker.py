"""The matchmaker: reads cards, and pairs who needs with who offers."""

from __future__ import annotations

import heapq
from collections.abc import Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any, Self, cast

from agent_env.errors import ConfigurationError, MatchError
from agent_env.hub import Entry, Hub
from agent_env.hub.snapshot import snapshot
from agent_env.matchmaking.candidate import Candidate, candidate_of, distinct, with_newest
from agent_env.matchmaking.findings import Degree, degree_of
from agent_env.matchmaking.index import Bits, Index, members
from agent_env.matchmaking.query import Caller, Credentials, Query
from agent_env.matchmaking.report import Explanation, PairingReport, Scores, Team, order_of
from agent_env.matchmaking.rules import RULE, RULES
from agent_env.matchmaking.skills import Cover, cover_of
from agent_env.matchmaking.teams import seated
from agent_env.matchmaking.text import need_words
from agent_env.matchmaking.verdicts import Verdicts
from agent_env_cards import EnvironmentCard, Need

NEAREST = 3
MAX_TEAMS = 1_000


class Matchmaker:
    """Pairs needs with candidates: filter by rules, then order, and say why.

        matchmaker = Matchmaker([EnvironmentCard.parse(text), ...])     # or: await Matchmaker.of(hub)
        report = matchmaker.pair(Need("solver", skills=["math"]))
        print(report.summary)
        solver = report.require().candidate

    Every rule answers yes, no or unknown for a candidate; together they make its degree. Candidates are ordered by
    (degree, skills covered, preferences met, nearness of the text, liveness, free sessions, name), where a later one
    counts only between candidates that are equal in all before. Cards are indexed once; `observe` takes over what
    changes from moment to moment.
    """

    def __init__(self, candidates: Iterable[Candidate | EnvironmentCard | Entry]) -> None:
        if isinstance(candidates, Hub):
            raise ConfigurationError("a hub is read asynchronously; write `await Matchmaker.of(hub)`")
        self.verdicts = Verdicts()
        self._index = Index(with_newest(distinct(map(candidate_of, candidates))), self.verdicts)
        self._teams: dict[object, tuple[object, Team]] = {}

    @classmethod
    async def of(cls, hub: Hub) -> Self:
        """Makes a matchmaker of everything that a hub lists now."""
        return cls(await snapshot(hub).entries())

    @property
    def candidates(self) -> Sequence[Candidate]:
        """All candidates."""
        return self._index.candidates

    def observe(self, candidates: Iterable[Candidate | EnvironmentCard | Entry]) -> None:
        """Takes over candidates: cheap where only liveness and free sessions differ, else they are indexed anew."""
        found = distinct(map(candidate_of, candidates))
        before = self._index.candidates
        self._teams.clear()
        same = len(found) == len(before) and all(
            one.card is other.card and one.yanked == other.yanked for one, other in zip(found, before, strict=True)
        )
        if same:
            newest = (known.newest for known in before)
            self._index.observe([replace(one, newest=version) for one, version in zip(found, newest, strict=True)])
        else:
            self._index = Index(with_newest(found), self.verdicts)

    def pair(
        self,
        subject: Need | EnvironmentCard,
        *,
        seat: str | None = None,
        caller: EnvironmentCard | None = None,
        auth: Credentials = (),
        speaks: Mapping[str, frozenset[str]] | None = None,
        limit: int = 10,
    ) -> PairingReport:
        """Ranks the candidates for a need, the first `limit` of them explained.

        A card asks with its own need (`seat` says which, where it has several) and is the caller. `auth` is what the
        caller can authenticate with, `speaks` its transports and their versions (default: what `Environment` speaks).
        Raises `MatchError` for a card without such a need; a need that nobody meets is a report like any other.
        """
        need, card = _asked(subject, seat, caller)
        return self._report(Query.of(need, _caller(card, auth, speaks)), limit)

    def explain(
        self,
        subject: Need | EnvironmentCard,
        peer: Candidate | EnvironmentCard | Entry | str,
        *,
        caller: EnvironmentCard | None = None,
        auth: Credentials = (),
        speaks: Mapping[str, frozenset[str]] | None = None,
    ) -> tuple[Explanation, ...]:
        """Explains one pair, known to the matchmaker or not: one explanation for each need of the subject.

        A card that needs nothing is explained as a caller that asks for nothing. `peer` may be the reference of a
        candidate. Raises `MatchError` for a reference that is not among the candidates.
        """
        candidate = self._known(peer) if isinstance(peer, str) else candidate_of(peer)
        needs: Sequence[Need]
        if isinstance(subject, EnvironmentCard):
            needs, caller = subject.needs or [Need("peer")], subject
        else:
            needs = [subject]
        asking = _caller(caller, auth, speaks)
        return tuple(self._explained(Query.of(need, asking), candidate) for need in needs)

    def team(
        self,
        seats: Mapping[str, Need] | Iterable[Need] | EnvironmentCard,
        *,
        caller: EnvironmentCard | None = None,
        auth: Credentials = (),
        speaks: Mapping[str, frozenset[str]] | None = None,
        optional: Iterable[str] = (),
        allow_reuse: bool = False,
        limit: int = 10,
    ) -> Team:
        """Fills all seats at once, so that the team as a whole is best and no agent sits twice.

        Best is: the fewest `optional` seats empty, then the best sum over the seats of what ranks candidates, part
        by part in that order. With `allow_reuse` an agent may sit as often as it has free sessions. Raises `MatchError`
        when a seat cannot be filled, or when seats compete for too few agents: `data["seats"]` names them.
        """
        wanted, card = _seats(seats, caller)
        asking = _caller(card, auth, speaks)
        # Sessions open by the hundred between two changes of the candidates, and ask for the same team.
        name = (
            None if card is None else (card.name, *card.offers.tags),
            tuple((seat, id(need)) for seat, need in wanted.items()),
            (_named(auth), None if speaks is None else tuple(speaks.items())),
            (frozenset(optional), allow_reuse, limit),
        )
        if name not in self._teams:
            enough = max(limit, len(wanted))
            reports = {seat: self._report(Query.of(need, asking), enough) for seat, need in wanted.items()}
            if len(self._teams) >= MAX_TEAMS:
                self._teams.clear()
            # The needs are kept, so that their ids stay theirs.
            self._teams[name] = (wanted, seated(reports, frozenset(optional), allow_reuse))
        return self._teams[name][1]

    # ── one need over all candidates ───────────────────────────────────────────────────────────────────────────

    def _report(self, query: Query, limit: int) -> PairingReport:
        index = self._index
        left = index.everyone
        unknown = partial = inexact = 0
        fell: dict[str, int] = {}
        failing: list[Bits] = []
        for rule in RULES:
            # The last rule costs most, so only those that are left are held against it.
            swept = index.sweep(rule, query, left if rule is RULES[-1] else index.everyone)
            failing.append(swept.no)
            if lost := swept.no & left:
                fell[rule.name] = lost.bit_count()
            left &= ~swept.no
            if rule.fit:
                unknown |= swept.unknown
                partial |= swept.partial
                inexact |= swept.inexact
        if not left:
            failing[-1] = index.sweep(RULES[-1], query, index.everyone).no
        ranked = self._ranked(query, left, unknown, partial, inexact, limit)
        candidates = index.candidates
        rejected = index.everyone & ~left
        return PairingReport(
            need=query.need,
            considered=len(candidates),
            fitting=left.bit_count(),
            ranked=tuple(self._explained(query, candidates[at], text) for at, text in ranked),
            fell=fell,
            faults={rule.name: rule.fault for rule in RULES},
            nearest=() if left else self._nearest(query, failing),
            _rejected=lambda: [self._explained(query, candidates[at]) for at in members(rejected)],
        )

    def _ranked(
        self, query: Query, among: Bits, unknown: Bits, partial: Bits, inexact: Bits, limit: int
    ) -> list[tuple[int, float]]:
        if not among:
            return []
        # Sets first: who is equal in degree, skills and wishes. Texts are read only of those that may be listed.
        index, candidates = self._index, self._index.candidates
        skills = [index.covered(skill) for skill in query.criteria.skills]
        wishes = [{1: bits} for bits in self._wishes(query, among)]
        most = Cover.EXACT * len(skills)
        asked = need_words(query.need)
        found: list[tuple[int, float]] = []
        for degree, group in _by_degree(among, unknown, partial, inexact):
            for cover, covering in _by_sum(group, skills):
                for met, equals in _by_sum(covering, wishes):
                    texts = index.corpus.scores(asked, members(equals))

                    def rank(at: int, degree: Degree = degree, cover: float = cover / most if most else 1.0) -> Any:
                        one = candidates[at]
                        return order_of(degree, cover, met, texts[at], one.liveness, one.free), one.ref  # noqa: B023

                    best = heapq.nsmallest(limit - len(found), texts, key=rank)
                    found += [(at, texts[at]) for at in best]
                    if len(found) == limit:
                        return found
        return found

    def _wishes(self, query: Query, among: Bits) -> list[Bits]:
        found: list[Bits] = []
        for name, wish in query.wishes:
            swept = self._index.sweep(RULE[name], wish, among)
            found.append(among & ~(swept.no | swept.unknown | swept.partial))
        return found

    def _nearest(self, query: Query, failing: Sequence[Bits]) -> tuple[Explanation, ...]:
        """The candidates that the fewest rules reject, the best first."""
        layers: list[Bits] = [self._index.everyone] + [0] * len(failing)
        for bits in failing:
            for count in range(len(failing), 0, -1):
                layers[count] |= layers[count - 1] & bits
        layers.append(0)
        for count in range(1, len(layers) - 1):
            if found := layers[count] & ~layers[count + 1]:
                ranked = self._ranked(query, found, 0, 0, 0, NEAREST)
                return tuple(self._explained(query, self._index.candidates[at], text) for at, text in ranked)
        return ()

    # ── one candidate ──────────────────────────────────────────────────────────────────────────────────────────

    def _explained(self, query: Query, candidate: Candidate, text: float | None = None) -> Explanation:
        findings = tuple(rule.apply(query, candidate, self.verdicts) for rule in RULES)
        wanted = query.criteria.skills
        covers = [cover_of(skill, candidate.card.offers)[0] for skill in wanted]
        met = [RULE[name].apply(wish, candidate, self.verdicts).result == "yes" for name, wish in query.wishes]
        if text is None:
            text = self._index.corpus.score(need_words(query.need), candidate.card)
        scores = Scores(
            skills=sum(map(int, covers)) / (Cover.EXACT * len(covers)) if covers else 1.0,
            wishes=sum(met),
            wished=len(met),
            text=text,
            live=candidate.liveness,
            free=candidate.free,
        )
        return Explanation(query.need, candidate, degree_of(findings), findings, scores)

    def _known(self, ref: str) -> Candidate:
        named = [candidate for candidate in self.candidates if ref in (candidate.ref, candidate.card.name)]
        # A bare name is its newest release, as in the hub.
        found = max(named, key=lambda candidate: candidate.card.version == candidate.newest, default=None)
        if found is None:
            names = ", ".join(sorted({candidate.ref for candidate in self.candidates})[:12]) or "nobody"
            raise MatchError(f"{ref!r} is not among the candidates; they are {names}")
        return found


def _by_degree(among: Bits, unknown: Bits, partial: Bits, inexact: Bits) -> Iterator[tuple[Degree, Bits]]:
    """A set cut by degree, the better part first."""
    yield Degree.EXACT, among & ~(unknown | partial | inexact)
    yield Degree.FITS, among & inexact & ~(unknown | partial)
    yield Degree.PARTIAL, among & partial & ~unknown
    yield Degree.UNKNOWN, among & unknown


def _by_sum(among: Bits, parts: Iterable[Mapping[Any, Bits]]) -> Iterator[tuple[int, Bits]]:
    """A set cut by the sum of what each part gives to its members, the higher first."""
    sums: dict[int, Bits] = {0: among}
    for part in parts:
        grown: dict[int, Bits] = {}
        for total, group in sums.items():
            for worth, bits in part.items():
                if inside := group & bits:
                    grown[total + int(worth)] = grown.get(total + int(worth), 0) | inside
                    group &= ~bits
            if group:
                grown[total] = grown.get(total, 0) | group
        sums = grown
    for total in sorted(sums, reverse=True):
        if sums[total]:
            yield total, sums[total]


def _named(auth: Credentials) -> Hashable:
    if callable(auth):
        return auth
    scopes = auth.items() if isinstance(auth, Mapping) else ((name, None) for name in auth)
    return frozenset((name, None if granted is None else frozenset(granted)) for name, granted in scopes)


def _caller(card: EnvironmentCard | None, auth: Credentials, speaks: Mapping[str, frozenset[str]] | None) -> Caller:
    return Caller(card, auth) if speaks is None else Caller(card, auth, speaks)


def _asked(
    subject: Need | EnvironmentCard, seat: str | None, caller: EnvironmentCard | None
) -> tuple[Need, EnvironmentCard | None]:
    if isinstance(subject, Need):
        return subject, caller
    named = [need for need in subject.needs if seat in (None, need.seat)]
    if len(named) == 1:
        return named[0], subject
    seats = ", ".join(repr(need.seat) for need in subject.needs)
    if not subject.needs:
        raise MatchError(f"{subject.ref} needs nobody; pass a Need, or give its card needs=[Need(...)]")
    if seat is None:
        raise MatchError(f"{subject.ref} has the needs {seats}; say which (seat=...), or fill all of them with team()")
    raise MatchError(f"{subject.ref} has no need {seat!r}; it has {seats}")


def _at(seat: str, need: Need) -> Need:
    return need if need.seat == seat else need.model_copy(update={"seat": seat})


def _seats(
    seats: Mapping[str, Need] | Iterable[Need] | EnvironmentCard, caller: EnvironmentCard | None
) -> tuple[dict[str, Need], EnvironmentCard | None]:
    if isinstance(seats, EnvironmentCard):
        return {need.seat: need for need in seats.needs}, seats
    if isinstance(seats, Mapping):
        named = cast("Mapping[str, Need]", seats)
        return {seat: _at(seat, need) for seat, need in named.items()}, caller
    found: dict[str, Need] = {}
    for need in seats:
        if need.seat in found:
            raise MatchError(f"two needs have the seat {need.seat!r}; give each a seat of its own")
        found[need.seat] = need
    return found, caller
