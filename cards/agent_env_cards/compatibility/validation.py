"""The validator that witnesses are shown to: JSON Schema's own, within the steps and patterns of a comparison."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, TypeAlias

from jsonschema import Draft202012Validator
from jsonschema.exceptions import ValidationError
from jsonschema.validators import extend

from agent_env_cards.compatibility.patterns import matches
from agent_env_cards.compatibility.values import is_one_of, key
from agent_env_cards.compatibility.work import spend

_Check: TypeAlias = Callable[[Any, Any, Any, Any], Iterator[ValidationError] | None]

KEYWORD_STEPS = 10
"""What one keyword of one value costs."""


def _pattern(_: Any, pattern: str, value: Any, __: Any) -> Iterator[ValidationError]:
    if isinstance(value, str) and not matches(pattern, value):
        yield ValidationError("pattern")


def _pattern_properties(validator: Any, patterns: dict[str, Any], value: Any, _: Any) -> Iterator[ValidationError]:
    if isinstance(value, dict):
        for pattern, schema in patterns.items():
            for name, item in value.items():
                if matches(pattern, name):
                    yield from validator.descend(item, schema)


def _additional(validator: Any, rest: Any, value: Any, schema: dict[str, Any]) -> Iterator[ValidationError]:
    if isinstance(value, dict):
        properties, patterns = schema.get("properties", {}), schema.get("patternProperties", {})
        for name, item in value.items():
            if name not in properties and not any(matches(pattern, name) for pattern in patterns):
                yield from validator.descend(item, rest)


def _enum(_: Any, values: list[Any], value: Any, __: Any) -> Iterator[ValidationError]:
    if not is_one_of(value, values):
        yield ValidationError("enum")


def _unique(_: Any, unique: bool, value: Any, __: Any) -> Iterator[ValidationError]:
    if unique and isinstance(value, list) and len({key(item) for item in value}) < len(value):
        yield ValidationError("uniqueItems")


def _counted(check: _Check) -> _Check:
    sized = check is not _enum

    def counted(validator: Any, wanted: Any, value: Any, schema: Any) -> Iterator[ValidationError] | None:
        spend(KEYWORD_STEPS + (len(wanted) if sized and isinstance(wanted, (list, dict)) else 0))
        return check(validator, wanted, value, schema)

    return counted


_OWN: dict[str, _Check] = {
    "pattern": _pattern,
    "patternProperties": _pattern_properties,
    "additionalProperties": _additional,
    "enum": _enum,
    "uniqueItems": _unique,
}

Validator: Any = extend(  # type: ignore[no-untyped-call]
    Draft202012Validator,
    {keyword: _counted(check) for keyword, check in {**Draft202012Validator.VALIDATORS, **_OWN}.items()},
)
