"""Rules about who an environment is and the text that it says of itself."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any

from agent_env_cards.names import name_fault
from agent_env_cards.pointers import children, pointer, strings
from agent_env_cards.versions import parse_version

LONGEST_TEXT = 20_000
# Control characters but for tab, line feed and carriage return; and what turns the direction of text around, which can
# make a description read as something else than it says.
_FORBIDDEN = re.compile("[\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069]")

Found = Iterator[tuple[str, str]]


def names_are_labels(card: Mapping[str, Any]) -> Found:
    """EC-10: a name is `[namespace/]name` of lower-case DNS labels."""
    for at, name in strings(card, "name"):
        if fault := name_fault(name):
            yield at, fault


def versions_are_semantic(card: Mapping[str, Any]) -> Found:
    """EC-11: a version is strict Semantic Versioning without build metadata."""
    for at, version in strings(card, "version"):
        try:
            parse_version(version)
        except ValueError as error:
            yield at, str(error)


def descriptions_are_given(card: Mapping[str, Any]) -> Found:
    """EC-13: a card says in a sentence what the environment is."""
    description = card.get("description")
    if description is None or (isinstance(description, str) and not description.strip()):
        yield pointer("description"), "the description is missing; say in a sentence what the environment is"


def texts_are_plain(card: Mapping[str, Any]) -> Found:
    """EC-14: text has no control or direction-changing characters and is at most 20,000 characters long."""
    pending: list[tuple[str, object]] = [("", card)]
    while pending:
        at, value = pending.pop()
        if isinstance(value, str) and (fault := _text_fault(value)):
            yield at, fault
        for token, member in children(value):
            if isinstance(token, str) and (fault := _text_fault(token)):
                yield at + pointer(token), f"the name of the member: {fault}"
            if token != "children_environments" or at:
                pending.append((at + pointer(token), member))


def _text_fault(text: str) -> str | None:
    if len(text) > LONGEST_TEXT:
        return f"the text is {len(text)} characters long; write at most {LONGEST_TEXT}"
    found = _FORBIDDEN.search(text)
    return f"the text has the character U+{ord(found[0]):04X}; leave it out" if found else None
