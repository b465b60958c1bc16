"""The clauses of the Environment Card protocol that one card can break, each as a function over its JSON.

A rule yields a pointer and a message for each place that breaks it, and leaves alone what has the wrong type: the
models report that. So every problem of a card is found at once. Rules marked `reading` are held against cards that
are read; all of them are held against cards that are written.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, TypeAlias

from agent_env_cards.pointers import objects
from agent_env_cards.problems import Problem
from agent_env_cards.rules import addresses, bounds, conduct, identity, pairing, tools

Check: TypeAlias = Callable[[Mapping[str, Any]], Iterator[tuple[str, str]]]


@dataclass(frozen=True, slots=True)
class Rule:
    """A clause and its check."""

    clause: str
    check: Check
    reading: bool = False


RULES = (
    Rule("EC-10", identity.names_are_labels),
    Rule("EC-11", identity.versions_are_semantic, reading=True),
    Rule("EC-13", identity.descriptions_are_given),
    Rule("EC-14", identity.texts_are_plain),
    Rule("EC-15", tools.names_are_unique),
    Rule("EC-16", tools.parameters_are_described),
    Rule("EC-17", tools.schemas_are_closed),
    Rule("EC-18", tools.agents_chat),
    Rule("EC-20", addresses.urls_are_paths_or_absolute),
    Rule("EC-22", addresses.hosts_can_be_reached),
    Rule("EC-25", pairing.seats_are_unique),
    Rule("EC-26", pairing.skills_are_unique),
    Rule("EC-27", pairing.samples_are_few),
    Rule("EC-28", pairing.modes_are_media_types),
    Rule("EC-29", pairing.ranges_are_readable, reading=True),
    Rule("EC-30", pairing.callers_are_names),
    Rule("EC-31", conduct.rewards_are_bounded),
    Rule("EC-32", conduct.turns_are_counted),
    Rule("EC-33", conduct.sessions_have_room),
    Rule("EC-34", conduct.schemes_are_complete),
)


def broken(card: object, *, reading: bool = False) -> Iterator[Problem]:
    """Yields the clauses that a card breaks, its children's too; with `reading` only those that stop a reader."""
    excess = [Problem(at, message, "EC-04") for at, message in bounds.excesses(card)]
    yield from excess or _broken(card, reading=reading, root="")


def _broken(card: object, *, reading: bool, root: str) -> Iterator[Problem]:
    for _, members in objects(card):
        for rule in RULES:
            if rule.reading or not reading:
                yield from (Problem(root + at, message, rule.clause) for at, message in rule.check(members))
        for at, child in objects(members, "children_environments", "*"):
            yield from _broken(child, reading=reading, root=root + at)
