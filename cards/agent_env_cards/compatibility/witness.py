"""Values that may be counter-examples: near the bounds of both sides, and as small as they can be.

Nothing here is trusted. What comes out is shown to a validator, so a sample may miss; it must only be cheap.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from fractions import Fraction
from itertools import islice
from typing import Any

from agent_env_cards.compatibility.alternatives import ABSENT, Alternative, Space
from agent_env_cards.compatibility.dialect import Schema
from agent_env_cards.compatibility.facts import UNBOUNDED, Numbers
from agent_env_cards.compatibility.patterns import Undecidable, matches, matching
from agent_env_cards.compatibility.values import divides, exact, exactly, key, kind_of
from agent_env_cards.compatibility.work import spend

MAX_DEPTH = 8
MAX_LENGTH = 400

_FORMATTED = {
    "date": "2024-02-29",
    "date-time": "2024-02-29T12:00:00Z",
    "time": "12:00:00Z",
    "duration": "P1D",
    "email": "a@example.com",
    "hostname": "example.com",
    "ipv4": "127.0.0.1",
    "ipv6": "::1",
    "uri": "https://example.com/",
    "uri-reference": "/a",
    "uuid": "123e4567-e89b-42d3-a456-426614174000",
    "json-pointer": "/a",
    "regex": "a",
}
_TEXTS = ("", "a", "b", "z", "0", "A", " ", "-", "ab", "aaaaa", "12", "a1", "Ab 1")
_NUMERIC_KEYS = ("minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum", "multipleOf")
_COUNT_KEYS = ("minLength", "maxLength", "minItems", "maxItems", "minProperties", "maxProperties")
_INSIDE = ("allOf", "anyOf", "oneOf", "not", "if", "then", "else")


class Samples:
    """Makes values of alternatives."""

    def __init__(self, space: Space, satisfies: Callable[[Alternative, Schema], bool]) -> None:
        self._space = space
        self._satisfies = satisfies

    def near(self, left: Alternative, right: Schema) -> Iterator[Any]:
        """Values of an alternative close to what the right side speaks of."""
        yield from self._of(left, list(islice(_hints(right), 24)), 0)

    def extremes(self, schemas: Sequence[Schema]) -> Iterator[Any]:
        """A small value of the schemas, and of objects one with all properties that are declared."""
        for left in self._space.alternatives(schemas)[:1]:
            yield from islice(self._of(left, [], 0), 1)
            if left.kind == "object":
                values = ((name, self._first(left.objects.value(name), 0)) for name in sorted(left.objects.named))
                yield from self.objects(left, {name: value for name, value in values if value is not ABSENT})

    def meeting(self, left: Alternative, schemas: Sequence[Schema]) -> Iterator[Any]:
        """Values of an alternative that satisfy one of the schemas too."""
        for schema in schemas:
            for both in self._space.narrowed(left, schema):
                yield from self._of(both, [], 0)

    def objects(self, left: Alternative, forced: Mapping[str, Any], depth: int = 0) -> Iterator[Any]:
        """The smallest object of an alternative that has the forced properties."""
        objects = left.objects
        spend(5 + len(objects.named) // 4 + len(forced))
        built = dict(forced)
        optional = (name for name in (*sorted(objects.named), *self.fresh(left, (), 64)) if name not in built)
        needed = [name for name in sorted(objects.required) if name not in built]
        for name in (*needed, *optional):
            if name not in objects.required and len(built) >= objects.least:
                break
            if name not in built:
                value = self._first(objects.value(name), depth)
                if value is not ABSENT:
                    built[name] = value
                elif name in objects.required:
                    return
        yield built

    def named(self, left: Alternative, name: str) -> Iterator[Any]:
        """Objects of an alternative that have a property of this name."""
        for value in islice(self._values(left.objects.value(name), 1), 1):
            yield from self.objects(left, {name: value})

    def arrays(self, left: Alternative, forced: Mapping[int, Any], length: int, depth: int = 0) -> Iterator[Any]:
        """An array of an alternative, at least `length` long, that has the forced items."""
        arrays = left.arrays
        length = int(min(max(length, arrays.least), arrays.most, 64))
        wanted = [schema for schema, least, _ in arrays.contains for _ in range(min(least, 8))]
        built: list[Any] = []
        used: set[str] = {key(item) for item in forced.values()}
        for index in range(length):
            if index in forced:
                built.append(forced[index])
                continue
            extra = (wanted.pop(),) if wanted else ()
            for item in self._values((*arrays.item(index), *extra), depth + 1):
                if not arrays.unique or key(item) not in used:
                    built.append(item)
                    used.add(key(item))
                    break
            else:
                return
        yield built

    def holding(self, left: Alternative, index: int, item: Any) -> Iterator[Any]:
        """An array of an alternative that has the item at the index."""
        return self.arrays(left, {index: item}, index + 1)

    def fresh(self, left: Alternative, taken: Iterable[str], count: int = 2) -> list[str]:
        """Names that no schema mentions."""
        known = {*left.objects.named, *taken}
        words = [name for schema in left.objects.names for name in islice(self._values((schema,), MAX_DEPTH), 8)]
        words += [f"other{index or ''}" for index in range(count)]
        words += [name for pattern in sorted(left.objects.patterns) for name in matching(pattern)]
        return [name for name in words if isinstance(name, str) and name not in known] or ["other"]

    def _first(self, schemas: Iterable[Schema], depth: int) -> Any:
        return next(self._values(tuple(schemas), depth + 1), ABSENT)

    def _values(self, schemas: Iterable[Schema], depth: int) -> Iterator[Any]:
        if depth <= MAX_DEPTH:
            for alternative in self._space.alternatives(schemas):
                yield from self._of(alternative, [], depth)

    def _of(self, left: Alternative, hints: list[Any], depth: int) -> Iterator[Any]:
        unwanted = [piece["not"] for piece in left.pieces if "not" in piece]
        for value in self._typed(left, hints, depth):
            spend(10)
            this = Alternative(kind_of(value), (exactly(value),), value)
            if not any(self._satisfies(this, schema) for schema in unwanted):
                yield value

    def _typed(self, left: Alternative, hints: list[Any], depth: int) -> Iterator[Any]:
        if left.value is not ABSENT:
            yield left.value
        elif left.kind == "number":
            yield from _numbers(left.numbers, [hint for hint in hints if isinstance(hint, (int, float))])
        elif left.kind == "string":
            yield from _texts(left, hints)
        elif left.kind == "array":
            yield from self._arrays(left, [hint for hint in hints if isinstance(hint, int)], depth)
        else:
            yield from self._objects(left, [hint for hint in hints if isinstance(hint, str)], depth)

    def _arrays(self, left: Alternative, hints: list[int], depth: int) -> Iterator[Any]:
        least = left.arrays.least
        near = [size for hint in hints for size in (hint + 1, hint, hint - 1)]
        for size in dict.fromkeys((least, *near, least + 1, least + 2)):
            if least <= size <= left.arrays.most:
                yield from self.arrays(left, {}, size, depth)
        if left.arrays.most >= 2 and not left.arrays.unique:
            for item in islice(self._values(left.arrays.item(1), depth + 1), 3):
                yield from self.arrays(left, {0: item, 1: item}, 2, depth)
        if left.arrays.most >= 1:
            for item in islice(self._values(left.arrays.item(0), depth + 1), 1, 6):
                yield from self.arrays(left, {0: item}, 1, depth)

    def _objects(self, left: Alternative, hints: list[str], depth: int) -> Iterator[Any]:
        yield from self.objects(left, {}, depth)
        everything: dict[str, Any] = {}
        names = [*sorted(left.objects.named), *hints, *self.fresh(left, (), 3)]
        for name in dict.fromkeys(names[:12]):
            value = self._first(left.objects.value(name), depth)
            if value is not ABSENT:
                everything[name] = value
                yield from self.objects(left, {name: value}, depth)
                yield from self.objects(left, everything, depth)
        if depth < 2:
            for name in sorted(left.objects.named)[:8]:
                for value in islice(self._values(left.objects.value(name), depth + 1), 1, 4):
                    yield from self.objects(left, {name: value}, depth)


def _numbers(facts: Numbers, hints: list[Any]) -> Iterator[Any]:
    pool: list[Any] = [bound for bound in (facts.low, facts.high) if abs(bound) != UNBOUNDED]
    pool += [near for hint in hints for near in (hint - 1, hint + 1, hint, hint - 0.5, hint + 0.5, hint * 1.5)]
    pool += [bound + shift for bound in pool[:2] for shift in (1, -1, 0.5, -0.5)]
    if facts.step is not None and facts.low != -UNBOUNDED:
        pool += [facts.low + index * facts.step for index in range(20)]
    elif facts.step is not None:
        pool += [index * facts.step for index in range(20)]
    if facts.low != -UNBOUNDED and facts.high != UNBOUNDED:
        pool.append((exact_or(facts.low) + exact_or(facts.high)) / 2)
    pool += [0, 1, -1, 0.5, -0.5, 2, 7, 1000, -1000]
    seen: set[Any] = set()
    for value in pool:
        if facts.step is not None and not divides(facts.step, value):
            value = math.ceil(exact_or(value) / Fraction(facts.step)) * facts.step
        inside = facts.low <= value <= facts.high
        edge = (facts.low_open and value == facts.low) or (facts.high_open and value == facts.high)
        if inside and not edge and value not in seen:
            seen.add(value)
            yield int(value) if value == int(value) else float(value)


def exact_or(value: Any) -> Fraction:
    """A number as a fraction."""
    return value if isinstance(value, Fraction) else Fraction(exact(value))


def _texts(left: Alternative, hints: list[Any]) -> Iterator[str]:
    facts = left.texts
    if facts.formats:
        pool: list[str] = [_FORMATTED[name] for name in facts.formats if name in _FORMATTED]
    else:
        sizes = [size for hint in hints if isinstance(hint, int) for size in (hint - 1, hint + 1, hint)]
        sizes += [facts.least, *([int(facts.most)] if facts.most != UNBOUNDED else []), facts.least + 1]
        pool = [text for pattern in sorted(facts.patterns) for text in matching(pattern, 8)]
        pool += ["a" * size for size in dict.fromkeys(sizes) if 0 <= size <= MAX_LENGTH]
        pool += [text for hint in hints if isinstance(hint, str) for text in (hint, hint + "a")]
        pool += _TEXTS
    for text in dict.fromkeys(pool):
        try:
            if facts.least <= len(text) <= facts.most and all(matches(one, text) for one in facts.patterns):
                yield text
        except Undecidable:
            continue


def _hints(right: Schema, depth: int = 0) -> Iterator[Any]:
    if isinstance(right, bool) or depth > 3:
        return
    yield from (right[name] for name in _NUMERIC_KEYS + _COUNT_KEYS if name in right)
    yield from right.get("enum", ())
    yield from right.get("required", ())
    yield from right.get("properties", ())
    yield from right.get("dependentRequired", ())
    yield from right.get("dependentSchemas", ())
    for name in _INSIDE:
        inner = right.get(name, ())
        for part in inner if isinstance(inner, list) else [inner] if inner != () else []:
            yield from _hints(part, depth + 1)
