"""Schemas by chance, for properties that must hold for all of them."""

from __future__ import annotations

import copy
import random
from collections.abc import Iterator
from typing import Any

import pytest

NAMES = ["a", "b", "c"]
PATTERNS = ["^a", "b$", "^[a-z]+$", "^[0-9]{2}$"]
LOOSENABLE = [
    *("minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum", "multipleOf", "minLength", "maxLength", "pattern"),
    *("format", "minItems", "maxItems", "uniqueItems", "contains", "propertyNames", "minProperties", "maxProperties"),
    *("dependentRequired", "dependentSchemas", "not"),
]
VALUES: list[Any] = [
    *(None, True, False, 0, 1, 2, 3, -1, 0.5, 1.5, 2.5, 5, 6, 10, 11, 100),
    *("", "a", "b", "ab", "zz", "aaaaaa", "12", "2020-01-01", "a@b"),
    *([], [1], [1, 1], ["a"], ["a", 1], [None, True], [1, 2, 3], ["a", "b", "a"], {}),
]


class Schemas:
    """Makes schemas, and schemas that allow more or something else than another one."""

    def __init__(self, rng: random.Random) -> None:
        self.rng = rng

    def any(self, depth: int = 0) -> Any:
        roll = self.rng.random()
        if depth >= 3 or roll < 0.55:
            return self.leaf()
        if roll < 0.75:
            return self.object(depth)
        if roll < 0.85:
            return self.array(depth)
        if roll < 0.91:
            return {"anyOf": [self.any(depth + 1) for _ in range(self.rng.randint(2, 3))]}
        if roll < 0.94:
            return {"allOf": [self.any(depth + 1) for _ in range(2)]}
        if roll < 0.96:
            return {"oneOf": [self.any(depth + 1) for _ in range(2)]}
        if roll < 0.97:
            return {"not": self.any(depth + 2)}
        if roll < 0.98:
            return {keyword: self.any(depth + 2) for keyword in ("if", "then", "else")}
        return self.rng.choice([True, False, {}, {"type": ["string", "null"]}])

    def leaf(self) -> Any:
        rng = self.rng
        kind = rng.choice(["string", "integer", "number", "boolean", "null", "enum", "const", "several"])
        if kind == "enum":
            return {"enum": rng.sample([1, 2, 3, "a", "b", None, True, 0, 1.5, [1], {"a": 1}], rng.randint(1, 4))}
        if kind == "const":
            return {"const": rng.choice([1, "a", None, False, [], {"a": "b"}])}
        if kind == "several":
            kinds = ["string", "integer", "number", "boolean", "null", "array", "object"]
            return {"type": rng.sample(kinds, rng.randint(1, 3))}
        schema: dict[str, Any] = {"type": kind}
        if kind in ("integer", "number"):
            self._sometimes(schema, 0.4, rng.choice(["minimum", "exclusiveMinimum"]), [-1, 0, 1, 2, 0.5])
            self._sometimes(schema, 0.4, rng.choice(["maximum", "exclusiveMaximum"]), [3, 5, 10, 2.5])
            self._sometimes(schema, 0.2, "multipleOf", [1, 2, 3, 0.5, 6])
        if kind == "string":
            self._sometimes(schema, 0.3, "minLength", range(4))
            self._sometimes(schema, 0.3, "maxLength", range(1, 6))
            self._sometimes(schema, 0.2, "pattern", PATTERNS)
            self._sometimes(schema, 0.06, "format", ["date", "email"])
        return schema

    def object(self, depth: int) -> Any:
        rng = self.rng
        schema: dict[str, Any] = {"type": "object"}
        names = rng.sample(NAMES, rng.randint(0, 3))
        if names:
            schema["properties"] = {name: self.any(depth + 1) for name in names}
        if rng.random() < 0.6:
            schema["required"] = rng.sample(NAMES, rng.randint(1, 2))
        roll = rng.random()
        if roll < 0.45:
            schema["additionalProperties"] = False if roll < 0.3 else self.any(depth + 1)
        if rng.random() < 0.12:
            schema["patternProperties"] = {rng.choice(PATTERNS): self.any(depth + 1)}
        self._sometimes(schema, 0.08, "propertyNames", [{"maxLength": 1}, {"enum": ["a", "b"]}, {"pattern": "^a"}])
        self._sometimes(schema, 0.08, "minProperties", [1, 2])
        self._sometimes(schema, 0.08, "maxProperties", [1, 2, 3])
        self._sometimes(schema, 0.05, "unevaluatedProperties", [False])
        if rng.random() < 0.08:
            schema["dependentRequired"] = {rng.choice(NAMES): [rng.choice(NAMES)]}
        if rng.random() < 0.05:
            schema["dependentSchemas"] = {rng.choice(NAMES): self.any(depth + 2)}
        return schema

    def array(self, depth: int) -> Any:
        rng = self.rng
        schema: dict[str, Any] = {"type": "array"}
        if rng.random() < 0.7:
            schema["items"] = self.any(depth + 1)
        if rng.random() < 0.25:
            schema["prefixItems"] = [self.any(depth + 1) for _ in range(rng.randint(1, 2))]
        self._sometimes(schema, 0.25, "minItems", range(3))
        self._sometimes(schema, 0.25, "maxItems", [1, 2, 3])
        self._sometimes(schema, 0.15, "uniqueItems", [True])
        if rng.random() < 0.1:
            schema["contains"] = self.any(depth + 1)
        return schema

    def _sometimes(self, schema: dict[str, Any], chance: float, keyword: str, values: Any) -> None:
        if self.rng.random() < chance:
            schema[keyword] = self.rng.choice(list(values))

    def looser(self, schema: Any) -> Any:
        """A schema that allows everything that this one allows, as far as each step of it goes."""
        rng = self.rng
        if isinstance(schema, bool):
            return schema if schema or rng.random() < 0.5 else self.any(2)
        schema = copy.deepcopy(schema)
        present = [keyword for keyword in LOOSENABLE if keyword in schema]
        if present and rng.random() < 0.5:
            del schema[rng.choice(present)]
        if "enum" in schema and rng.random() < 0.5:
            schema["enum"].append("zz")
        if "type" in schema and rng.random() < 0.3:
            kinds = schema["type"] if isinstance(schema["type"], list) else [schema["type"]]
            schema["type"] = list(dict.fromkeys([*kinds, rng.choice(["null", "string", "number"])]))
        if "required" in schema and rng.random() < 0.4:
            schema["required"] = schema["required"][1:]
        if "properties" in schema and rng.random() < 0.6:
            name = rng.choice(list(schema["properties"]))
            schema["properties"][name] = self.looser(schema["properties"][name])
        if "items" in schema and rng.random() < 0.5:
            schema["items"] = self.looser(schema["items"])
        if "anyOf" in schema and rng.random() < 0.6:
            schema["anyOf"].append(self.any(3))
        return {"anyOf": [schema, self.any(3)]} if rng.random() < 0.15 else schema

    def other(self, schema: Any) -> Any:
        """A schema that is near to this one."""
        rng = self.rng
        if rng.random() < 0.5 or isinstance(schema, bool):
            return self.looser(self.looser(schema))
        schema = copy.deepcopy(schema)
        if rng.random() < 0.5:
            schema["type"] = rng.choice(["string", "object", "integer", "number"])
        elif schema.get("properties"):
            schema["properties"][rng.choice(list(schema["properties"]))] = self.any(3)
        elif rng.random() < 0.5:
            schema["required"] = [rng.choice(NAMES)]
        else:
            schema |= {"minimum": 1, "minLength": 1}
        return schema

    def pairs(self, count: int) -> Iterator[tuple[Any, Any]]:
        """Pairs to compare: six of ten loosened copies, two near ones, two that have nothing to do with each other."""
        for _ in range(count):
            left, roll = self.any(), self.rng.random()
            yield left, self.looser(left) if roll < 0.6 else self.other(left) if roll < 0.8 else self.any()

    def values(self, count: int) -> list[Any]:
        """Values to try schemas on."""
        rng, found = self.rng, list(VALUES)
        for _ in range(count):
            names = rng.sample([*NAMES, "d", "ab", "12"], rng.randint(1, 4))
            found.append({name: rng.choice(found[-60:] + VALUES) for name in names})
            found.append([rng.choice(found[-60:] + VALUES) for _ in range(rng.randint(1, 3))])
        return found


@pytest.fixture(scope="session")
def schemas() -> type[Schemas]:
    return Schemas
