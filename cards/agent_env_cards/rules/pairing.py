"""Rules about what pairs environments: needs and offers."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from agent_env_cards.names import name_fault, seat_fault, skill_fault, taxonomy_fault
from agent_env_cards.pointers import select, strings
from agent_env_cards.versions import VersionRange

Found = Iterator[tuple[str, str]]

FEWEST_SAMPLES = 2
MOST_SAMPLES = 5
MOST_TAGS = 32
LONGEST_TAG = 64
_WISHES = ("requires", "prefers")
_MEDIA_TYPE = re.compile(r"[a-z0-9][a-z0-9!#$&^_.+-]{0,126}/(?:\*|[a-z0-9][a-z0-9!#$&^_.+-]{0,126})(?:; ?[^\s]+)?")


def seats_are_unique(card: Mapping[str, Any]) -> Found:
    """EC-25: a seat is a lower-case word, and no two needs have the same."""
    yield from _unique(card, seat_fault, "needs", "*", "seat")


def skills_are_unique(card: Mapping[str, Any]) -> Found:
    """EC-26: skill ids are lower-case labels, offered once each; taxonomy ids have their version; tags are few."""
    yield from _unique(card, skill_fault, "offers", "skills", "*", "id")
    yield from _unique(card, skill_fault, "offers", "skills", "*")
    for at, entry in strings(card, "offers", "skills", "*", "taxonomy", "*"):
        if fault := taxonomy_fault(entry):
            yield at, fault
    for wish in _WISHES:
        for at, skill in strings(card, "needs", "*", wish, "skills", "*"):
            fault = taxonomy_fault(skill) if "@" in skill else skill_fault(skill)
            if fault:
                yield at, fault
    places = (("offers",), ("offers", "skills", "*"), *(("needs", "*", wish) for wish in _WISHES))
    for place in places:
        for at, tags in select(card, *place, "tags"):
            found = list(strings(tags, "*"))
            if len(found) > MOST_TAGS:
                yield at, f"there are {len(found)} tags; write at most {MOST_TAGS}"
            for inner, tag in found:
                if not tag.strip() or tag != tag.strip() or len(tag) > LONGEST_TAG:
                    yield at + inner, f"the tag {tag!r} must be 1 to {LONGEST_TAG} characters with no space around"


def samples_are_few(card: Mapping[str, Any]) -> Found:
    """EC-27: an offer has none or two to five sample requests, a need at most five; each says something."""
    for at, samples in select(card, "offers", "examples"):
        if isinstance(samples, list) and samples and not FEWEST_SAMPLES <= len(samples) <= MOST_SAMPLES:
            yield at, f"there are {len(samples)} sample requests; write {FEWEST_SAMPLES} to {MOST_SAMPLES}, or none"
    for wish in _WISHES:
        for at, samples in select(card, "needs", "*", wish, "examples"):
            if isinstance(samples, list) and len(samples) > MOST_SAMPLES:
                yield at, f"there are {len(samples)} sample requests; write at most {MOST_SAMPLES}"
    for place in (("offers",), *(("needs", "*", wish) for wish in _WISHES)):
        for path in ((*place, "examples", "*"), (*place, "examples", "*", "request")):
            for at, request in strings(card, *path):
                if not request.strip():
                    yield at, "the sample request is empty; write what a caller would say"
    offered = {skill for path in (("*",), ("*", "id")) for _, skill in strings(card, "offers", "skills", *path)}
    for at, skill in strings(card, "offers", "examples", "*", "skill"):
        if skill not in offered:
            yield at, f"the skill {skill!r} is not offered; offered are {sorted(offered)}"


def modes_are_media_types(card: Mapping[str, Any]) -> Found:
    """EC-28: modes are media types (RFC 6838 §4.2), and an offer has at least one each way."""
    for member in ("inputModes", "outputModes"):
        for place in (("offers",), *(("needs", "*", wish) for wish in _WISHES)):
            for at, mode in strings(card, *place, member, "*"):
                if not _MEDIA_TYPE.fullmatch(mode):
                    yield at, f"the mode {mode!r} is not a lower-case media type such as 'text/plain'"
        for at, modes in select(card, "offers", member):
            if modes == []:
                yield at, "an offer reads and writes at least one kind of content; name it, or leave the member out"


def ranges_are_readable(card: Mapping[str, Any]) -> Found:
    """EC-29: the version that a need asks for is a range in npm's grammar, as in references."""
    for wish in _WISHES:
        for at, text in strings(card, "needs", "*", wish, "version"):
            try:
                VersionRange(text)
            except ValueError as error:
                yield at, str(error)


def callers_are_names(card: Mapping[str, Any]) -> Found:
    """EC-30: a name that a need asks for, and one that an offer accepts, is a name, or all of a namespace."""
    for wish in _WISHES:
        for at, name in strings(card, "needs", "*", wish, "name"):
            if fault := name_fault(name):
                yield at, fault
    for at, name in strings(card, "offers", "accepts", "names", "*"):
        if fault := name_fault(name.removesuffix("/*")):
            yield at, fault


def _unique(card: Mapping[str, Any], fault_of: Callable[[str], str | None], *path: str) -> Found:
    seen: dict[str, str] = {}
    for at, text in strings(card, *path):
        if fault := fault_of(text):
            yield at, fault
        if text in seen:
            yield at, f"{text!r} is there already, at {seen[text]}"
        seen.setdefault(text, at)
