"""How much one comparison may do: counted steps, so that the answer is the same on a slow machine and a fast one.

Schemas come from strangers' cards, and a comparison that never ends would stop whoever looks for a peer.
"""

from __future__ import annotations

from collections.abc import Generator
from contextlib import contextmanager
from contextvars import ContextVar

PROOF_STEPS = 60_000
SEARCH_STEPS = 20_000


class TooLarge(Exception):
    """The comparison takes more steps than it is given."""


class _Steps:
    __slots__ = ("left",)

    def __init__(self, left: int) -> None:
        self.left = left


_current: ContextVar[_Steps | None] = ContextVar("steps", default=None)


@contextmanager
def limited(steps: int) -> Generator[None]:
    """Gives what runs inside a number of steps, about a microsecond each."""
    token = _current.set(_Steps(steps))
    try:
        yield
    finally:
        _current.reset(token)


def spend(steps: int = 1) -> None:
    """Counts steps before they are made; raises `TooLarge` when none are left."""
    current = _current.get()
    if current is not None:
        current.left -= steps
        if current.left < 0:
            raise TooLarge
