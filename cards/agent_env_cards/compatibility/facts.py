"""What a conjunction of schemas says about values of one JSON type, gathered over its pieces."""

from __future__ import annotations

import math
from fractions import Fraction
from typing import Any, TypeAlias

from agent_env_cards.compatibility.dialect import Schema
from agent_env_cards.compatibility.patterns import Undecidable, matches
from agent_env_cards.compatibility.values import admits, exact

Pieces: TypeAlias = tuple[dict[str, Any], ...]
Schemas: TypeAlias = tuple[Schema, ...]

UNBOUNDED = math.inf


class Numbers:
    """Bounds, closed unless `*_open`, and the `step` that every value is a multiple of."""

    def __init__(self, pieces: Pieces) -> None:
        self.low: Any = -UNBOUNDED
        self.high: Any = UNBOUNDED
        self.low_open = self.high_open = False
        self.step: int | Fraction | None = None
        for piece in pieces:
            types = piece.get("type")
            if types is not None and "integer" in types and "number" not in types:
                self._stepped(1)
            if "multipleOf" in piece:
                self._stepped(exact(piece["multipleOf"]))
            for name, strict in (("minimum", False), ("exclusiveMinimum", True)):
                if name in piece and (piece[name] > self.low or (piece[name] == self.low and strict)):
                    self.low, self.low_open = piece[name], strict
            for name, strict in (("maximum", False), ("exclusiveMaximum", True)):
                if name in piece and (piece[name] < self.high or (piece[name] == self.high and strict)):
                    self.high, self.high_open = piece[name], strict
        if self.step is not None:
            self._tighten(self.step)

    def _stepped(self, step: int | Fraction) -> None:
        if self.step is None:
            self.step = step
        else:
            one, other = Fraction(self.step), Fraction(step)
            common = Fraction(math.lcm(one.numerator, other.numerator), math.gcd(one.denominator, other.denominator))
            self.step = common.numerator if common.denominator == 1 else common

    def _tighten(self, step: int | Fraction) -> None:
        if self.low != -UNBOUNDED:
            count = math.ceil(exact(self.low) / Fraction(step))
            self.low, self.low_open = (count + (self.low_open and count * step == exact(self.low))) * step, False
        if self.high != UNBOUNDED:
            count = math.floor(exact(self.high) / Fraction(step))
            self.high, self.high_open = (count - (self.high_open and count * step == exact(self.high))) * step, False

    @property
    def empty(self) -> bool:
        """True if no number is left."""
        return self.low > self.high or (self.low == self.high and (self.low_open or self.high_open))

    def count(self) -> int | None:
        """How many values there are, None if not finitely many."""
        if self.step is None or UNBOUNDED in (-self.low, self.high):
            return None
        return int((self.high - self.low) / self.step) + 1


class Texts:
    """Lengths in characters, patterns that are found in every value, and formats."""

    def __init__(self, pieces: Pieces) -> None:
        self.least = max((piece["minLength"] for piece in pieces if "minLength" in piece), default=0)
        self.most = min((piece["maxLength"] for piece in pieces if "maxLength" in piece), default=UNBOUNDED)
        self.patterns = {piece["pattern"] for piece in pieces if "pattern" in piece}
        self.formats = {piece["format"] for piece in pieces if "format" in piece}


class Arrays:
    """Number of items and what each of them satisfies; from index `prefix` on they are all alike."""

    def __init__(self, pieces: Pieces) -> None:
        self._pieces = [piece for piece in pieces if "prefixItems" in piece or "items" in piece]
        self.prefix = max((len(piece.get("prefixItems", ())) for piece in self._pieces), default=0)
        self.least = max((piece["minItems"] for piece in pieces if "minItems" in piece), default=0)
        self.most = min((piece["maxItems"] for piece in pieces if "maxItems" in piece), default=UNBOUNDED)
        self.unique = any(piece.get("uniqueItems") for piece in pieces)
        self.contains: list[tuple[Schema, int, float]] = [
            (piece["contains"], piece.get("minContains", 1), piece.get("maxContains", UNBOUNDED))
            for piece in pieces
            if "contains" in piece
        ]
        self.least = max([self.least, *(least for _, least, _ in self.contains)])
        for index in range(self.prefix + 1):
            if index < self.most and False in _are(self.item(index)):
                self.most = index

    def item(self, index: int) -> Schemas:
        """What the item at an index satisfies."""
        found: list[Schema] = []
        for piece in self._pieces:
            prefix = piece.get("prefixItems", ())
            found.append(prefix[index] if index < len(prefix) else piece.get("items", True))
        return tuple(schema for schema in found if schema is not True)


class Objects:
    """Number of properties, their names, and what each of them satisfies."""

    def __init__(self, pieces: Pieces) -> None:
        self._pieces = [
            piece for piece in pieces if piece.keys() & {"properties", "patternProperties", "additionalProperties"}
        ]
        self._values: dict[str, Schemas] = {}
        self.named = {name for piece in self._pieces for name in piece.get("properties", ())}
        self.patterns = {name for piece in self._pieces for name in piece.get("patternProperties", ())}
        self.names: Schemas = tuple(piece["propertyNames"] for piece in pieces if "propertyNames" in piece)
        self.required = {name for piece in pieces for name in piece.get("required", ())}
        dependent = [item for piece in pieces for item in piece.get("dependentRequired", {}).items()]
        size = -1
        while dependent and size != len(self.required):
            size = len(self.required)
            self.required.update(name for cause, names in dependent if cause in self.required for name in names)
        least = max((piece["minProperties"] for piece in pieces if "minProperties" in piece), default=0)
        most = min((piece["maxProperties"] for piece in pieces if "maxProperties" in piece), default=UNBOUNDED)
        self.finite = self._finite()
        self.listed = sorted(self.finite or ())
        self.least: int = max(least, len(self.required))
        self.most: float = most if self.finite is None else min(most, len(self.finite))

    def _finite(self) -> set[str] | None:
        closed = [
            set(piece.get("properties", ()))
            for piece in self._pieces
            if piece.get("additionalProperties") is False and not piece.get("patternProperties")
        ]
        closed += [
            {value for value in schema["enum"] if isinstance(value, str)}
            for schema in self.names
            if isinstance(schema, dict) and "enum" in schema
        ]
        if not closed:
            return None
        return {name for name in set.intersection(*closed) if False not in _are(self.value(name))}

    def value(self, name: str) -> Schemas:
        """What the property of this name satisfies, if it is there."""
        known = self._values.get(name)
        if known is None:
            known = self._values[name] = self._value(name)
        return known

    def _value(self, name: str) -> Schemas:
        for schema in self.names:
            if not (admits(schema, "string", name) if isinstance(schema, dict) else schema):
                return (False,)
        found: list[Schema] = []
        for piece in self._pieces:
            properties = piece.get("properties")
            if piece.get("patternProperties"):
                found += _applied(piece, name)
            elif properties is not None and name in properties:
                found.append(properties[name])
            else:
                found.append(piece.get("additionalProperties", True))
        return tuple([schema for schema in found if schema is not True])

    def other(self, pattern: str | None, excluded: set[str]) -> list[tuple[Schema, ...]]:
        """For a property that nothing names: of each tuple, it satisfies at least one schema.

        Its name matches `pattern`, and none of `excluded` as far as that is known.
        """
        found: list[tuple[Schema, ...]] = []
        for piece in self._pieces:
            patterns = piece.get("patternProperties", {})
            if pattern is not None and pattern in patterns:
                found.append((patterns[pattern],))
            else:
                left = [schema for name, schema in patterns.items() if name not in excluded]
                found.append((piece.get("additionalProperties", True), *left))
        return [schemas for schemas in found if True not in _are(schemas)]


def _applied(piece: dict[str, Any], name: str) -> list[Schema]:
    properties = piece.get("properties", {})
    found: list[Schema] = [properties[name]] if name in properties else []
    for pattern, schema in piece["patternProperties"].items():
        try:
            if matches(pattern, name):
                found.append(schema)
        except Undecidable:
            found.append(True)
    return found or [piece.get("additionalProperties", True)]


def _are(schemas: Schemas) -> set[bool]:
    return {schema for schema in schemas if isinstance(schema, bool)}
