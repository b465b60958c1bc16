"""Bounds that hold before anything else is looked at, so that no card can exhaust its reader."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import TypeAlias

from agent_env_cards.pointers import children, pointer

MAX_DEPTH = 64
MAX_SIZE = 1_000_000
MAX_INTEGER = 2**53 - 1

# The way to a place from below: the place above, the token from there, and how deep it is. Few places need a pointer.
_Trail: TypeAlias = "tuple[_Trail, str | int, int] | None"


def excesses(card: object) -> Iterator[tuple[str, str]]:
    """EC-04: a card is 64 levels deep and a million characters long at most, and has a canonical form (RFC 8785)."""
    size = 0
    pending: list[tuple[object, _Trail]] = [(card, None)]
    while pending:
        value, trail = pending.pop()
        size += 1 + (len(value) if isinstance(value, str) else 0)
        if size > MAX_SIZE:
            yield "", f"the card is longer than {MAX_SIZE} characters"
            return
        if fault := _fault(value):
            yield _place(trail), fault
        depth = trail[2] if trail else 0
        for token, member in children(value):
            if depth == MAX_DEPTH:
                yield _place(trail), f"the card is nested more than {MAX_DEPTH} levels deep"
                return
            if isinstance(token, str):
                size += len(token)
                if fault := _fault(token):
                    yield _place(trail), fault
            pending.append((member, (trail, token, depth + 1)))


def _place(trail: _Trail) -> str:
    tokens: list[str | int] = []
    while trail is not None:
        above, token, _ = trail
        tokens.append(token)
        trail = above
    return pointer(*reversed(tokens))


def _fault(value: object) -> str | None:
    if isinstance(value, str) and not value.isascii():
        try:
            value.encode()
        except UnicodeEncodeError:
            return f"{value[:40]!r} is not Unicode text: it has half of a surrogate pair"
    if isinstance(value, int) and abs(value) > MAX_INTEGER:
        return "the integer is outside of ±(2^53-1), where JSON numbers are exact"
    if isinstance(value, float) and not math.isfinite(value):
        return f"{value} is not a JSON number"
    return None
