"""Candidates by what the rules look at, so that a rule is asked once for all that are alike.

Sets of candidates are integers: bit n stands for the candidate at n, so joining and cutting sets of ten thousand
costs a microsecond.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TypeAlias

from agent_env.matchmaking.calls import gives_of, judged, sides, takes_of
from agent_env.matchmaking.candidate import Candidate
from agent_env.matchmaking.query import Query
from agent_env.matchmaking.rules import Rule, tags_of
from agent_env.matchmaking.skills import Cover, ids_of, wholes_of, words_of
from agent_env.matchmaking.text import Corpus
from agent_env.matchmaking.verdicts import Named, Verdicts

Bits: TypeAlias = int


@dataclass(slots=True)
class Swept:
    """What a rule says of many candidates at once: the sets for which it says less than a plain "yes"."""

    no: Bits = 0
    unknown: Bits = 0
    partial: Bits = 0
    inexact: Bits = 0


class Index:
    """Candidates, and for each rule the groups of those that it cannot tell apart.

    What the cards say is indexed once. What changes from moment to moment, liveness and free sessions, is set by
    `observe`, which costs little.
    """

    def __init__(self, candidates: Sequence[Candidate], verdicts: Verdicts) -> None:
        self.candidates = candidates
        self.everyone: Bits = (1 << len(candidates)) - 1
        self.corpus = Corpus([candidate.card for candidate in candidates])
        self._verdicts = verdicts
        self._names = _Groups()
        self._skills = _Groups()
        self._parts = _Groups()
        self._tags = _Groups()
        self._alike: dict[str, dict[Hashable, tuple[int, _Set]]] = {name: {} for name in _ALIKE}
        self._tools: dict[str, dict[tuple[str, str | None], tuple[Named, Named | None, _Set]]] = defaultdict(dict)
        for at, candidate in enumerate(candidates):
            self._add(at, candidate)
        # What every pairing asks is made now, so that none waits for it.
        for groups in self._tools.values():
            for takes, gives, group in groups.values():
                verdicts.prepare(takes, speaks=False)
                if gives is not None:
                    verdicts.prepare(gives, speaks=True)
                group.bits()
        for kinds in self._alike.values():
            for _, group in kinds.values():
                group.bits()
        self.observe(candidates)

    def observe(self, candidates: Sequence[Candidate]) -> None:
        """Takes over liveness and free sessions from the same candidates, seen anew."""
        self.candidates = candidates
        live, full = _Groups(), _Set()
        for at, candidate in enumerate(candidates):
            live.add(str(candidate.liveness), at)
            if candidate.free is not None and candidate.free <= 0:
                full.add(at)
        live.settle()
        self._live = live
        self._full = full.bits()

    def _add(self, at: int, candidate: Candidate) -> None:
        card = candidate.card
        self._names.add(card.name, at)
        for skill in set(ids_of(card.offers)):
            self._skills.add(skill, at)
            for whole in wholes_of(skill):
                self._parts.add(whole, at)
        for tag in tags_of(candidate):
            self._tags.add(tag, at)
        for name, feature in _ALIKE.items():
            self._alike[name].setdefault(feature(candidate), (at, _Set()))[1].add(at)
        # Of several tools with one name a card means the first.
        for name, tool in {tool.name: tool for tool in reversed(card.capabilities.tools)}.items():
            takes, gives = takes_of(tool, self._verdicts), gives_of(tool, self._verdicts)
            signature = (takes[0], None if gives is None else gives[0])
            self._tools[name].setdefault(signature, (takes, gives, _Set()))[2].add(at)

    # ── rules over all candidates ──────────────────────────────────────────────────────────────────────────────

    def sweep(self, rule: Rule, query: Query, among: Bits) -> Swept:
        """Asks a rule about the candidates in a set; says the same as asking it about each of them."""
        swept = self._sweep(rule, query, among)
        if query.need.strict and rule.told:
            swept = Swept(swept.no | swept.unknown, 0, swept.partial, swept.inexact & ~swept.unknown)
        return Swept(swept.no & among, swept.unknown & among, swept.partial & among, swept.inexact & among)

    def _sweep(self, rule: Rule, query: Query, among: Bits) -> Swept:
        criteria = query.criteria
        match rule.name:
            case "another":
                card = query.caller.card
                return Swept(0 if card is None or criteria.name == card.name else self._names.of(card.name))
            case "name":
                return Swept(0 if criteria.name is None else self.everyone & ~self._names.of(criteria.name))
            case "tags":
                return Swept(self.everyone & ~self._having(criteria.tags))
            case "skills":
                return self._sweep_skills(criteria.skills)
            case "tool":
                return self._sweep_tools(query, among)
            case "reachable":
                return Swept(self._live.of("unreachable"), self._live.of("None"))
            case "capacity":
                return Swept(self._full)
            case "auth" if callable(query.caller.auth):
                return self._sweep_each(rule, query, among)
            case _:
                return self._sweep_alike(rule, query, among)

    def covered(self, wanted: str) -> Mapping[Cover, Bits]:
        """The candidates that cover a skill in each way, every one in the best way only."""
        exact = self._skills.of(wanted)
        whole = self._skills.any(wholes_of(wanted))
        part = self._parts.of(wanted)
        tag = self._tags.any(words_of(wanted))
        return {
            Cover.EXACT: exact,
            Cover.WHOLE: whole & ~exact,
            Cover.PART: part & ~(exact | whole),
            Cover.TAG: tag & ~(exact | whole | part),
        }

    def _having(self, tags: Iterable[str]) -> Bits:
        found = self.everyone
        for tag in tags:
            found &= self._tags.of(tag)
        return found

    def _sweep_skills(self, wanted: Sequence[str]) -> Swept:
        known = sure = exact = self.everyone
        for skill in wanted:
            covered = self.covered(skill)
            exact &= covered[Cover.EXACT]
            offered = covered[Cover.EXACT] | covered[Cover.WHOLE] | covered[Cover.PART]
            sure &= offered
            known &= offered | covered[Cover.TAG]
        return Swept(self.everyone & ~known, known & ~sure, 0, self.everyone & ~exact)

    def _sweep_tools(self, query: Query, among: Bits) -> Swept:
        use = query.criteria.tool
        if use is None:
            return Swept()
        sends, expects = sides(use, self._verdicts)
        swept, having = Swept(), 0
        for takes, gives, group in self._tools.get(use.name, {}).values():
            bits = group.bits()
            having |= bits
            if not bits & among:
                continue
            result, exact = judged(sends, expects, takes, gives, self._verdicts, query.need.allow_partial)
            swept.no |= bits if result == "no" else 0
            swept.unknown |= bits if result == "unknown" else 0
            swept.partial |= bits if result == "partial" else 0
            swept.inexact |= 0 if exact else bits
        swept.no |= self.everyone & ~having
        return swept

    def _sweep_each(self, rule: Rule, query: Query, among: Bits) -> Swept:
        """Asks a rule about each candidate of those groups that do not pass for whoever asks."""
        nobody = replace(query, caller=replace(query.caller, auth=()))
        left = self._sweep_alike(rule, nobody, among).no & among
        asked = ((at, rule.judge(query, self.candidates[at], self._verdicts)) for at in members(left))
        return Swept(bits_of(at for at, finding in asked if finding.result == "no"))

    def _sweep_alike(self, rule: Rule, query: Query, among: Bits) -> Swept:
        swept = Swept()
        for at, group in self._alike[rule.name].values():
            bits = group.bits()
            if not bits & among:
                continue
            finding = rule.judge(query, self.candidates[at], self._verdicts)
            swept.no |= bits if finding.result == "no" else 0
            swept.unknown |= bits if finding.result == "unknown" else 0
        return swept


_ALIKE: Mapping[str, Callable[[Candidate], Hashable]] = {
    "version": lambda one: (one.card.version, one.newest == one.card.version, one.newest, one.yanked is None),
    "modes": lambda one: (tuple(one.card.offers.input_modes), tuple(one.card.offers.output_modes)),
    "accepts": lambda one: (tuple(one.card.offers.accepts.names), tuple(one.card.offers.accepts.tags)),
    "interface": lambda one: tuple((way.transport, *way.protocol_versions) for way in one.card.interfaces),
    "auth": lambda one: None if one.card.auth is None else one.card.auth.model_dump_json(),
}


class _Set:
    """A set of candidates that is being gathered."""

    __slots__ = ("_bits", "_members")

    def __init__(self) -> None:
        self._members: set[int] = set()
        self._bits: Bits | None = None

    def add(self, at: int) -> None:
        self._members.add(at)
        self._bits = None

    def bits(self) -> Bits:
        if self._bits is None:
            self._bits = bits_of(self._members)
        return self._bits


class _Groups:
    """Sets of candidates by a word."""

    def __init__(self) -> None:
        self._sets: dict[str, _Set] = {}

    def add(self, word: str, at: int) -> None:
        self._sets.setdefault(word, _Set()).add(at)

    def settle(self) -> None:
        """Makes all sets now, where each will be asked for."""
        for found in self._sets.values():
            found.bits()

    def of(self, word: str) -> Bits:
        found = self._sets.get(word)
        return 0 if found is None else found.bits()

    def any(self, words: Iterable[str]) -> Bits:
        found = 0
        for word in words:
            found |= self.of(word)
        return found


def bits_of(members: Iterable[int]) -> Bits:
    """The set of these candidates."""
    found = sorted(members)
    if not found:
        return 0
    field = bytearray(found[-1] // 8 + 1)
    for at in found:
        field[at // 8] |= 1 << at % 8
    return int.from_bytes(field, "little")


def members(bits: Bits) -> Iterator[int]:
    """The candidates in a set, in order."""
    digits = bin(bits)[:1:-1]
    at = digits.find("1")
    while at >= 0:
        yield at
        at = digits.find("1", at + 1)
