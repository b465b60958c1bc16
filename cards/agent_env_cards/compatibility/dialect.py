"""Schemas of every dialect in use, rewritten to one: JSON Schema 2020-12 with references into their own document.

The rewriting keeps the meaning exactly (OpenAPI's `nullable`, array-form `items`, `dependencies`, boolean
`exclusiveMinimum`, `const`, siblings of a draft-07 `$ref`) and drops what asserts nothing, such as titles.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, TypeAlias
from urllib.parse import unquote

from jsonschema import Draft202012Validator

from agent_env_cards.compatibility.patterns import Undecidable, is_risky
from agent_env_cards.compatibility.validation import Validator
from agent_env_cards.compatibility.values import Values
from agent_env_cards.compatibility.values import key as key_of

Schema: TypeAlias = bool | dict[str, Any]

TYPES = ("null", "boolean", "number", "string", "array", "object")
MAX_DEPTH = 40
FORMATS = Draft202012Validator.FORMAT_CHECKER

_SUBSCHEMA = frozenset(
    (
        "items",
        "additionalItems",
        "additionalProperties",
        "contains",
        "propertyNames",
        "not",
        "if",
        "then",
        "else",
        "unevaluatedItems",
        "unevaluatedProperties",
    )
)
_SUBSCHEMA_LIST = frozenset(("allOf", "anyOf", "oneOf", "prefixItems"))
_SUBSCHEMA_MAP = frozenset(("properties", "patternProperties", "dependentSchemas"))
_NUMBER = frozenset(("minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum", "multipleOf"))
_COUNT = frozenset(
    f"{bound}{what}" for bound in ("min", "max") for what in ("Length", "Items", "Contains", "Properties")
)
_SIMPLEST = _NUMBER | _COUNT | {"type", "enum", "pattern", "format", "uniqueItems"}
_TEXT = frozenset(("pattern", "format"))


class Malformed(ValueError):
    """A schema is not one, or is beyond the bounds of what is compared; `pointer` says where."""

    def __init__(self, pointer: str, message: str) -> None:
        super().__init__(f"{pointer or '/'}: {message}")
        self.pointer = pointer


@dataclass
class Document:
    """One rewritten schema.

    `targets` maps the id of each schema with a `$ref` to what it refers to, None where that lies outside of the
    document. `closed` says that all references were found, so that a validator can run. `speaking` has the ids of
    all schemas of a document whose values have declared properties only.
    """

    root: Schema = True
    targets: dict[int, Schema | None] = field(default_factory=dict[int, "Schema | None"])
    closed: bool = True
    speaking: set[int] = field(default_factory=set[int])

    @cached_property
    def definitions(self) -> str:
        """What its references may lead to, as a text."""
        return key_of(self.root.get("$defs", {}) if isinstance(self.root, dict) else {})

    @cached_property
    def _plain(self) -> Any:
        return Validator(self.root)

    @cached_property
    def _with_formats(self) -> Any:
        return Validator(self.root, format_checker=FORMATS)

    def holds(self, value: Any, *, formats: bool = False) -> bool | None:
        """Validates a value, with formats asserted or not; None where that cannot be decided here."""
        if not self.closed:
            return None
        try:
            return bool((self._with_formats if formats else self._plain).is_valid(value))
        except (Undecidable, RecursionError, OverflowError, re.error):
            return None


@dataclass
class Pool:
    """What schemas that are read with one pool have in common, each once, by its text.

    `simple` are schemas inside of others, so that what was proven of one is known of all; `parts` are what whole
    schemas are taken apart into.
    """

    simple: dict[str, Schema] = field(default_factory=dict[str, "Schema"])
    parts: dict[str, Document] = field(default_factory=dict[str, Document])


def read(schema: Any, *, declared_only: bool = False, pool: Pool | None = None) -> Document:
    """Rewrites a schema; raises `Malformed`."""
    return _Reader(schema, declared_only, pool or Pool()).document


class _Reader:
    def __init__(self, raw: Any, declared_only: bool, pool: Pool) -> None:
        self._raw = raw
        self._simple = pool.simple
        self._declared_only = declared_only
        dialect = raw.get("$schema", "") if isinstance(raw, dict) else ""
        self._lone_refs = any(draft in str(dialect) for draft in ("draft-04", "draft-06", "draft-07"))
        self._named: dict[int, tuple[str, Any]] = {}
        self._pending: list[tuple[dict[str, Any], str, bool]] = []
        self.document = Document()
        root = self._schema(raw, "", 0, False)
        self.document.root = root
        definitions: dict[str, Schema] = {}
        while self._pending:
            node, reference, foreign = self._pending.pop()
            target = None if foreign else self._find(reference)
            if target is None:
                self.document.targets[id(node)] = None
                self.document.closed = False
                if "://" not in reference:
                    node["$ref"] = f"?{reference}"
            elif target is raw:
                node["$ref"] = "#"
                self.document.targets[id(node)] = root
            else:
                # Held by the map, so that the id stays its own.
                name, _ = self._named.setdefault(id(target), (f"r{len(self._named)}", target))
                if name not in definitions:
                    definitions[name] = self._schema(target, reference.lstrip("#"), 1, False)
                node["$ref"] = f"#/$defs/{name}"
                self.document.targets[id(node)] = definitions[name]
        if definitions and isinstance(root, dict):
            root["$defs"] = definitions

    def _find(self, reference: str) -> Any | None:
        if not reference.startswith("#"):
            return None
        fragment = unquote(reference[1:])
        if fragment and not fragment.startswith("/"):
            return self._anchors.get(fragment)
        target: Any = self._raw
        for part in fragment.split("/")[1:]:
            part = part.replace("~1", "/").replace("~0", "~")
            if isinstance(target, dict) and part in target:
                target = target[part]
            elif isinstance(target, list) and part.isdecimal() and int(part) < len(target):
                target = target[int(part)]
            else:
                return None
        return target

    @cached_property
    def _anchors(self) -> dict[str, Any]:
        """What has an `$anchor`, by its name; of two with one name the first."""
        found: dict[str, Any] = {}
        rest = [self._raw]
        while rest:
            raw = rest.pop()
            if isinstance(raw, dict):
                if isinstance(raw.get("$anchor"), str):
                    found.setdefault(raw["$anchor"], raw)
                raw = list(raw.values())
            if isinstance(raw, list):
                rest += reversed(raw)
        return found

    def _schema(self, raw: Any, path: str, depth: int, embedded: bool) -> Schema:
        if isinstance(raw, bool):
            return raw
        if not isinstance(raw, dict):
            raise Malformed(path, f"a schema is an object or a boolean, not {raw!r}")
        if depth > MAX_DEPTH:
            raise Malformed(path, f"the schema is nested more than {MAX_DEPTH} deep")
        # An inner $id starts a document of its own, against which its references resolve.
        embedded = embedded or (depth > 0 and "$id" in raw)
        if self._lone_refs and "$ref" in raw:
            raw = {"$ref": raw["$ref"]}
        out: dict[str, Any] = {}
        for key, value in raw.items():
            below = f"{path}/{key}"

            def inner(item: Any, name: object, below: str = below) -> Schema:
                return self._schema(item, f"{below}/{name}", depth + 1, embedded)

            if key in _SUBSCHEMA and not (key == "items" and isinstance(value, list)):
                out[key] = self._schema(value, below, depth + 1, embedded)
            elif key in _SUBSCHEMA_LIST or key == "items":
                out[key] = [inner(item, index) for index, item in enumerate(_a(list, value, below))]
            elif key in _SUBSCHEMA_MAP:
                out[key] = {name: inner(item, name) for name, item in _a(dict, value, below).items()}
                # For `unevaluatedProperties` the validator tries these patterns itself.
                if key == "patternProperties" and any(map(is_risky, value)):
                    self.document.closed = False
            elif key == "dependencies":
                if raw.keys() & {"dependentRequired", "dependentSchemas"}:
                    raise Malformed(below, "cannot stand beside the keywords that replaced it")
                _dependencies(_a(dict, value, below), out, inner, below)
            elif key in _SIMPLE:
                out[key] = _SIMPLE[key](value, below)
        return self._settled(out, raw, path, depth, embedded)

    def _settled(self, out: dict[str, Any], raw: dict[str, Any], path: str, depth: int, embedded: bool) -> Schema:
        _settle_items(out)
        _settle_bounds(out, raw, path)
        if "const" in out:
            constant = out.pop("const")
            if "enum" in out:
                out.setdefault("allOf", []).append({"enum": out["enum"]})
            out["enum"] = Values([constant])
        if "if" not in out or ("then" not in out and "else" not in out):
            for key in ("if", "then", "else"):
                out.pop(key, None)
        if "contains" not in out:
            out.pop("minContains", None)
            out.pop("maxContains", None)
        if raw.get("nullable") is True and out:
            if "type" in out and not out.keys() & {"enum", "$ref", "allOf", "anyOf", "oneOf", "not", "if"}:
                out["type"] = list(dict.fromkeys([*out["type"], "null"]))
            else:
                self._finish(out, embedded)
                return {"anyOf": [out, {"type": ["null"]}]}
        self._finish(out, embedded)
        if depth and out and out.keys() <= _SIMPLEST:
            return self._simple.setdefault(json.dumps(out, sort_keys=True), out)
        return out or True

    def _finish(self, out: dict[str, Any], embedded: bool) -> None:
        # What is simple says nothing of properties, and may give way to what is in the pool: its id would go on.
        if self._declared_only and not out.keys() <= _SIMPLEST:
            self.document.speaking.add(id(out))
        if "$dynamicRef" in out:
            out["$ref"] = out.pop("$dynamicRef")
            self._pending.append((out, "", True))
        elif "$ref" in out:
            self._pending.append((out, out["$ref"], embedded))


def _settle_items(out: dict[str, Any]) -> None:
    rest = out.pop("additionalItems", None)
    if isinstance(out.get("items"), list):
        out["prefixItems"] = out.pop("items")
        if rest is not None:
            out["items"] = rest
    if not out.get("prefixItems", True):
        del out["prefixItems"]


def _settle_bounds(out: dict[str, Any], raw: dict[str, Any], path: str) -> None:
    for limit, exclusive in (("minimum", "exclusiveMinimum"), ("maximum", "exclusiveMaximum")):
        if isinstance(out.get(exclusive), bool) and out.pop(exclusive) and limit in out:
            out[exclusive] = out.pop(limit)
    if out.get("multipleOf", 1) <= 0:
        raise Malformed(f"{path}/multipleOf", f"must be above 0, not {raw['multipleOf']!r}")


def _dependencies(value: dict[str, Any], out: dict[str, Any], inner: Callable[[Any, object], Schema], at: str) -> None:
    for name, item in value.items():
        if isinstance(item, list):
            out.setdefault("dependentRequired", {})[name] = _names(item, at)
        else:
            out.setdefault("dependentSchemas", {})[name] = inner(item, name)


def _a(kind: type, value: Any, at: str) -> Any:
    if not isinstance(value, kind):
        raise Malformed(at, f"must be {'an object' if kind is dict else 'a list'}, not {value!r}")
    return value


def _types(value: Any, at: str) -> list[str]:
    names = [value] if isinstance(value, str) else value
    if not isinstance(names, list) or not all(name in TYPES or name == "integer" for name in names):
        raise Malformed(at, f"must name JSON types, not {value!r}")
    return [name for name in names if not (name == "integer" and "number" in names)]


def _number(value: Any, at: str) -> Any:
    if isinstance(value, bool) and at.rpartition("/")[2].startswith("exclusive"):
        return value
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not math.isfinite(value):
        raise Malformed(at, f"must be a number, not {value!r}")
    return value


def _count(value: Any, at: str) -> int:
    number = _number(value, at)
    if number < 0 or number != int(number):
        raise Malformed(at, f"must be a whole number from 0, not {value!r}")
    return int(number)


def _text(value: Any, at: str) -> str:
    if not isinstance(value, str):
        raise Malformed(at, f"must be a text, not {value!r}")
    return value


def _flag(value: Any, at: str) -> bool:
    if not isinstance(value, bool):
        raise Malformed(at, f"must be true or false, not {value!r}")
    return value


def _names(value: Any, at: str) -> list[str]:
    if not isinstance(value, list) or not all(isinstance(name, str) for name in value):
        raise Malformed(at, f"must be a list of names, not {value!r}")
    return value


def _name_map(value: Any, at: str) -> dict[str, list[str]]:
    return {name: _names(item, f"{at}/{name}") for name, item in _a(dict, value, at).items()}


def _finite(value: Any, at: str) -> Any:
    try:
        json.dumps(value, allow_nan=False)
    except (TypeError, ValueError, RecursionError):
        raise Malformed(at, "must hold JSON values") from None
    return value


_SIMPLE: dict[str, Callable[[Any, str], Any]] = {
    "type": _types,
    "enum": lambda value, at: Values(_a(list, _finite(value, at), at)),
    "const": _finite,
    "$ref": _text,
    "$dynamicRef": _text,
    "uniqueItems": _flag,
    "required": _names,
    "dependentRequired": _name_map,
    **dict.fromkeys(_NUMBER, _number),
    **dict.fromkeys(_COUNT, _count),
    **dict.fromkeys(_TEXT, _text),
}
