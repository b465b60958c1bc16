"""What a proof could not show, and where a counter-example may be found."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import Any, TypeAlias

Values: TypeAlias = Callable[[], Iterator[Any]]


@dataclass(slots=True)
class Failure:
    """What could not be proven: where (from the value's root), why, and values that may be counter-examples."""

    path: tuple[str, ...]
    why: str
    values: Values

    def inside(self, token: str, wrap: Callable[[Any], Iterator[Any]]) -> Failure:
        """The same failure, seen from the value around: `wrap` puts an inner value into outer ones."""
        inner = self.values
        return Failure((token, *self.path), self.why, lambda: (whole for part in inner() for whole in wrap(part)))


def nearest_of(failures: Sequence[Failure], values: Values) -> Failure:
    """One failure for several alternatives that all failed: the one that came deepest into the value."""
    if not failures:
        return Failure((), "nothing is allowed here", values)
    nearest = max(failures, key=lambda failure: len(failure.path))
    why = (
        nearest.why if len(failures) == 1 else f"none of {len(failures)} alternatives allows it; nearest: {nearest.why}"
    )
    return Failure(nearest.path, why, lambda: chain(*(failure.values() for failure in failures), values()))


def nothing() -> Iterator[Any]:
    """No values."""
    return iter(())
