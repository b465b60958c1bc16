"""The proof that everything the left side allows is allowed on the right, keyword by keyword.

The right schema is taken apart; each of its keywords must follow from the facts of each left alternative. What cannot
be proven comes back as a `Failure` with values that may show why, for a validator to judge: a failed proof alone
is no "no". Recursion is coinductive: while a pair is being proven it may be used for values further inside, and the
assumption is dropped when its proof closes.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from functools import partial
from itertools import chain
from typing import Any

from agent_env_cards.compatibility.alternatives import ABSENT, Alternative, Space
from agent_env_cards.compatibility.combinators import combined
from agent_env_cards.compatibility.dialect import Document, Schema
from agent_env_cards.compatibility.facts import UNBOUNDED
from agent_env_cards.compatibility.failure import Failure, nothing
from agent_env_cards.compatibility.keywords import brief, formatted, typed
from agent_env_cards.compatibility.values import admits
from agent_env_cards.compatibility.witness import Samples
from agent_env_cards.compatibility.work import TooLarge, spend

MAX_DEPTH = 150
MAX_SPLITS = 2
MAX_DOUBTS = 3


class Prover:
    """Comparisons with one left side: what is proven, and what is assumed now."""

    def __init__(self, space: Space) -> None:
        self.space = space
        self.samples = Samples(space, lambda left, right: self.entails(left, right) is None)
        self.begin()

    def begin(self, *documents: Document) -> None:
        """Starts a comparison of other documents; what was proven for good stays known."""
        self.space.take(*documents)
        self._assumed: dict[tuple[frozenset[int], int], int] = {}
        self._depth = self._splits = self._doubts = 0
        self._used = UNBOUNDED

    def subset(self, left: Sequence[Schema], right: Schema) -> Failure | None:
        """Proves that what satisfies all left schemas satisfies the right one.

        To be called for values inside of the one that is looked at only (or at the root): what is assumed of a pair
        while it is being proven is assumed of smaller values.
        """
        followed = self.space.followed
        right = followed(right)
        if right is True:
            return None
        left = [followed(schema) for schema in left]
        name = (frozenset([id(schema) for schema in left if schema is not True]), id(right))
        if name in self.space.proven:
            return None
        if name in self._assumed:
            self._used = min(self._used, self._assumed[name])
            return None
        self._assumed[name] = index = len(self._assumed)
        outer, self._used = self._used, UNBOUNDED
        try:
            failure = self.every(self.space.alternatives(left), right)
        finally:
            del self._assumed[name]
        if failure is None and self._used >= index:
            self.space.proven.add(name)
        self._used = min(outer, self._used if self._used < index else UNBOUNDED)
        return failure

    def every(self, alternatives: Iterable[Alternative], right: Schema) -> Failure | None:
        """Proves that every value of several alternatives satisfies a schema."""
        rest, failure = iter(alternatives), None
        for one in rest:
            failure = self.entails(one, right)
            if failure is not None:
                break
        if failure is None:
            return None
        # The first alternative may hold less than its structure tells, so the others are asked for values as well.
        first, others = failure.values, (other for one in rest if (other := self.entails(one, right)) is not None)
        return Failure(failure.path, failure.why, lambda: chain(first(), *(other.values() for other in others)))

    def near(self, left: Sequence[Schema], right: Schema) -> Iterator[Any]:
        """Values of the left schemas that may not satisfy the right one, whatever failed."""
        for alternative in self.space.alternatives(left):
            yield from self.samples.near(alternative, right)

    def entails(self, left: Alternative, right: Schema) -> Failure | None:
        """Proves that every value of an alternative satisfies a schema."""
        spend(10)
        if right is True:
            return None
        for piece in left.pieces:
            if piece is right:
                return None
        if self._depth > MAX_DEPTH:
            raise TooLarge
        self._depth += 1
        try:
            failure = self._keywords(left, right)
            if failure is not None and self._split_proves(left, right):
                return None
            return None if failure is None or self._contradictory(left) else failure
        finally:
            self._depth -= 1

    def disjoint(self, left: Alternative, right: Schema) -> bool:
        """Proves that no value of an alternative satisfies a schema."""
        return all(self._contradictory(both) for both in self.space.narrowed(left, right))

    def _contradictory(self, left: Alternative) -> bool:
        if left.void is None:
            left.void = False
            if self._doubts < MAX_DOUBTS and any("not" in piece for piece in left.pieces):
                outer, self._used = self._used, UNBOUNDED
                self._doubts += 1
                found = any("not" in piece and self.entails(left, piece["not"]) is None for piece in left.pieces)
                self._doubts -= 1
                # What was found with an assumption holds no longer than the assumption.
                left.void = found if self._used == UNBOUNDED else None
                self._used = min(outer, self._used)
                return found
        return left.void

    def _split_proves(self, left: Alternative, right: Schema) -> bool:
        if not isinstance(right, dict) or not right.keys() & {"anyOf", "oneOf", "enum", "not", "if"}:
            return False
        if self._splits == MAX_SPLITS:
            return False
        self._splits += 1
        try:
            parts = list(self._parts(left))
            return len(parts) > 1 and self.every(parts, right) is None
        finally:
            self._splits -= 1

    def _parts(self, left: Alternative) -> Iterator[Alternative]:
        """A few narrower alternatives that cover one: numbers one by one, objects by a property with few values."""
        if left.kind == "number" and left.value is ABSENT and (left.numbers.count() or 99) <= 16:
            low, step = left.numbers.low, left.numbers.step
            for index in range(left.numbers.count() or 0):
                value = low + index * (step or 1)
                value = value if isinstance(value, int) else float(value)
                yield from self.space.narrowed(left, {"enum": [value]})
        elif left.kind == "object":
            for name in sorted(left.objects.required):
                options = self.space.alternatives(left.objects.value(name))
                values = [option.value for option in options]
                if 1 < len(values) <= 16 and ABSENT not in values:
                    for value in values:
                        yield from self.space.narrowed(left, {"properties": {name: {"enum": [value]}}})
                    return

    def _keywords(self, left: Alternative, right: Schema) -> Failure | None:
        values = partial(self.samples.near, left, right)
        if isinstance(right, bool):
            return Failure((), "nothing is allowed here", values)
        if left.value is not ABSENT and left.kind not in ("array", "object"):
            if not admits(right, left.kind, left.value, unsure=False):
                return Failure((), f"{left.value!r} is not allowed: {brief(right)}", values)
        else:
            failure = typed(self, left, right, values)
            if failure is not None:
                return failure
        if "format" in right and not formatted(left, right["format"]):
            return Failure((), f"whether it has the format {right['format']!r} is not known", nothing)
        return combined(self, left, right, values)
