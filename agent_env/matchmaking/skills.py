"""How well the skills on a card cover the skills asked for."""

from __future__ import annotations

from collections.abc import Iterator
from enum import IntEnum

from agent_env.matchmaking.candidate import Candidate
from agent_env.matchmaking.findings import Finding
from agent_env.matchmaking.query import Query
from agent_env.matchmaking.verdicts import Verdicts
from agent_env_cards import Offer


class Cover(IntEnum):
    """How a skill asked for is covered, the better the higher.

    | cover | for "math.algebra" asked, the card |
    |---|---|
    | `EXACT` | offers "math.algebra", or a skill with that id in a taxonomy |
    | `WHOLE` | offers "math", which it is a part of |
    | `PART` | offers "math.algebra.linear", a part of it |
    | `TAG` | has the tag "math.algebra" or "algebra", and offers no such skill: whether that is enough is unknown |
    | `NONE` | says nothing of the kind |
    """

    NONE = 0
    TAG = 1
    PART = 2
    WHOLE = 3
    EXACT = 4


def separator_of(skill: str) -> str:
    """What stands between a skill and a part of it: ids in taxonomies have slashes, `oasf@1.0/reasoning/math`."""
    return "/" if "@" in skill else "."


def wholes_of(skill: str) -> list[str]:
    """The skills that a skill is a part of, the nearest first; a taxonomy as such is none."""
    separator = separator_of(skill)
    parts = skill.split(separator)
    first = 2 if separator == "/" else 1
    return [separator.join(parts[:count]) for count in range(len(parts) - 1, first - 1, -1)]


def words_of(skill: str) -> tuple[str, str]:
    """The tags that hint at a skill: its id, and the last label of it."""
    return skill, skill.rpartition(separator_of(skill))[2]


def ids_of(offer: Offer) -> Iterator[str]:
    """All ids that an offer's skills are known by."""
    for skill in offer.skills:
        yield skill.id
        yield from skill.taxonomy


def cover_of(wanted: str, offer: Offer) -> tuple[Cover, str]:
    """How an offer covers one skill, and by which of its ids or tags."""
    ids = list(ids_of(offer))
    if wanted in ids:
        return Cover.EXACT, wanted
    for whole in wholes_of(wanted):
        if whole in ids:
            return Cover.WHOLE, whole
    for found in ids:
        if wanted in wholes_of(found):
            return Cover.PART, found
    tags = {*offer.tags, *(tag for skill in offer.skills for tag in skill.tags)}
    for word in words_of(wanted):
        if word in tags:
            return Cover.TAG, word
    return Cover.NONE, ""


def skills_rule(query: Query, candidate: Candidate, verdicts: Verdicts) -> Finding:
    """It offers every skill asked for, a skill that it is a part of, or a part of it."""
    wanted = query.criteria.skills
    if not wanted:
        return Finding("yes", "no skills are asked for")
    offer = candidate.card.offers
    covers = [(skill, *cover_of(skill, offer)) for skill in wanted]
    why = "; ".join(_told(*cover) for cover in covers)
    missing = [skill for skill, cover, _ in covers if cover is Cover.NONE]
    if missing:
        named = ", ".join(map(repr, missing))
        offered = ", ".join(skill.id for skill in offer.skills) or "nothing"
        return Finding("no", f"{why}; it offers {offered}", f"offer {named}, or ask for fewer skills")
    lowest = min(cover for _, cover, _ in covers)
    return Finding("yes" if lowest >= Cover.PART else "unknown", why, exact=lowest is Cover.EXACT)


def _told(wanted: str, cover: Cover, found: str) -> str:
    match cover:
        case Cover.EXACT:
            return f"offers {wanted}"
        case Cover.WHOLE:
            return f"offers {found}, which {wanted} is a part of"
        case Cover.PART:
            return f"offers {found}, a part of {wanted}"
        case Cover.TAG:
            return f"has the tag {found!r}, and does not offer {wanted}"
        case _:
            return f"does not offer {wanted}"
