"""Who may fill a seat: a card, and what is known now of where it runs."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal, TypeAlias

from agent_env.hub import Entry
from agent_env_cards import EnvironmentCard, is_draft, parse_version

Liveness: TypeAlias = Literal["up", "suspect", "launchable", "unreachable"]
"""What a caller can expect: an instance that is up, one that may be, one that can be started, or none."""

LIVE: Mapping[Liveness | None, int] = {"up": 4, "suspect": 3, "launchable": 2, None: 1, "unreachable": 0}
"""The order of liveness, the better the higher."""


@dataclass(frozen=True, slots=True)
class Candidate:
    """An environment that may fill a seat.

    | field | meaning |
    |---|---|
    | `liveness` | whether it can be reached; None: nobody said |
    | `free` | sessions that it can still take; None: no bound is known |
    | `yanked` | why the release was taken out of ranges, None if it was not |
    | `newest` | the version that its name alone stands for, filled in by the matchmaker |
    | `source` | what the candidate was made from, such as the hub's entry |
    """

    card: EnvironmentCard
    liveness: Liveness | None = None
    free: int | None = None
    yanked: str | None = None
    newest: str | None = None
    source: Any = None

    @property
    def ref(self) -> str:
        """The candidate's reference, `name@version`."""
        return self.card.ref


def candidate_of(source: Candidate | EnvironmentCard | Entry) -> Candidate:
    """Makes a candidate of a card or of an entry of a hub.

    Of an entry the card is that of an instance, where there is one: only it tells how that instance is reached. The
    free sessions are those of all instances that are up.
    """
    if isinstance(source, Candidate):
        return source
    if isinstance(source, EnvironmentCard):
        return Candidate(source)
    up = [instance for instance in source.current if instance.up]
    card = next((instance.card for instance in up or source.current), source.card)
    return Candidate(card, source.liveness, _free(source), source.release.yanked, source=source)


def _free(entry: Entry) -> int | None:
    up = [instance for instance in entry.instances if instance.up] or entry.instances
    bounds = [instance.capacity - instance.load for instance in up if instance.capacity is not None]
    return sum(max(0, bound) for bound in bounds) if bounds and len(bounds) == len(up) else None


def distinct(candidates: Iterable[Candidate]) -> list[Candidate]:
    """One candidate a release: of several, such as one found and one listed by hand, the one that is reached best."""
    found: dict[str, Candidate] = {}
    for candidate in candidates:
        known = found.setdefault(candidate.ref, candidate)
        if LIVE[candidate.liveness] > LIVE[known.liveness]:
            found[candidate.ref] = candidate
    return list(found.values())


def with_newest(candidates: Iterable[Candidate]) -> Sequence[Candidate]:
    """Fills in which version each name stands for.

    It is the highest that is neither yanked nor a prerelease, and a draft only where there is no release.
    """
    found = list(candidates)
    newest: dict[str, tuple[tuple[bool, bool, Any], str]] = {}
    for candidate in found:
        card = candidate.card
        if candidate.yanked is None:
            here = (_precedence(card.version), card.version)
            newest[card.name] = max(here, newest.get(card.name, here))
    return [replace(one, newest=newest[one.card.name][1] if one.card.name in newest else None) for one in found]


def _precedence(version: str) -> tuple[bool, bool, Any]:
    try:
        parsed = parse_version(version)
    except ValueError:
        return False, False, parse_version("0.0.0")
    return not is_draft(version), not parsed.prerelease, parsed
