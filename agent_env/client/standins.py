"""Who answers in the place of an environment, for the code of one episode."""

from __future__ import annotations

from collections.abc import Generator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar

_standing: ContextVar[Sequence[tuple[object, object]]] = ContextVar("agent_env_stand_ins", default=())


@contextmanager
def standing_in(pairs: Sequence[tuple[object, object]]) -> Generator[None]:
    """Has whoever reaches the first of a pair, in the code inside and in all that it starts in this process, reach the
    second: an object is meant by itself, a reference or a URL by its text."""
    token = _standing.set((*pairs, *_standing.get()))
    try:
        yield
    finally:
        _standing.reset(token)


def stand_in(ref: object) -> object:
    """What is reached in the place of `ref`: most often itself."""
    for meant, instead in _standing.get():
        if meant is ref or (isinstance(ref, str) and meant == ref):
            return instead
    return ref
