"""JSON values as JSON Schema sees them: their types, when two are equal, and which keywords they satisfy."""

from __future__ import annotations

import json
from fractions import Fraction
from functools import cached_property
from typing import Any

from agent_env_cards.compatibility.patterns import Undecidable, matches
from agent_env_cards.compatibility.work import spend


class Values(list[Any]):
    """The values of an `enum`, with their keys made once."""

    @cached_property
    def keys(self) -> frozenset[str]:
        """The keys of all values."""
        return frozenset(map(key, self))


def kind_of(value: Any) -> str:
    """Names the JSON type of a value; integers are numbers."""
    if value is None:
        return "null"
    if isinstance(value, bool):
        return "boolean"
    if isinstance(value, (int, float)):
        return "number"
    return "string" if isinstance(value, str) else "array" if isinstance(value, list) else "object"


def key(value: Any) -> str:
    """A text that two JSON values share exactly when JSON Schema calls them equal: 1 is 1.0 and is not true."""
    text = json.dumps(_plain(value), sort_keys=True)
    spend(2 + len(text) // 12)
    return text


def is_one_of(value: Any, values: list[Any]) -> bool:
    """Tells whether a value is equal to one of several."""
    keys = values.keys if isinstance(values, Values) else frozenset(map(key, values))
    return key(value) in keys


def _plain(value: Any) -> Any:
    if isinstance(value, float) and value.is_integer():
        return int(value)
    if isinstance(value, list):
        return [_plain(item) for item in value]
    if isinstance(value, dict):
        return {name: _plain(item) for name, item in value.items()}
    return value


def exactly(value: Any) -> dict[str, Any]:
    """The schema of one value, in the keywords of its type."""
    if isinstance(value, str):
        return {"enum": Values([value]), "minLength": len(value), "maxLength": len(value)}
    if isinstance(value, list):
        unique = len({key(item) for item in value}) == len(value)
        size = {"minItems": len(value), "maxItems": len(value), "uniqueItems": unique}
        return {
            "enum": Values([value]),
            "prefixItems": [{"enum": Values([item])} for item in value],
            "items": False,
            **size,
        }
    if isinstance(value, dict):
        properties = {name: {"enum": Values([item])} for name, item in value.items()}
        closed = {"required": list(value), "additionalProperties": False}
        return {"enum": Values([value]), "properties": properties, **closed}
    if isinstance(value, (int, float)) and not isinstance(value, bool):
        return {"enum": Values([value]), "minimum": value, "maximum": value}
    return {"enum": Values([value])}


def admits(piece: dict[str, Any], kind: str, value: Any, *, unsure: bool = True) -> bool:
    """Tells whether a value satisfies the keywords of its own type; of arrays and objects only `type` and `enum`.

    `unsure` is the answer where only a pattern that cannot be tried is left.
    """
    types = piece.get("type")
    whole = kind == "number" and value == int(value)
    if types is not None and kind not in types and not (whole and "integer" in types):
        return False
    if "enum" in piece and not is_one_of(value, piece["enum"]):
        return False
    if kind == "number":
        return (
            not (value < piece.get("minimum", value) or value > piece.get("maximum", value))
            and ("exclusiveMinimum" not in piece or value > piece["exclusiveMinimum"])
            and ("exclusiveMaximum" not in piece or value < piece["exclusiveMaximum"])
            and ("multipleOf" not in piece or divides(piece["multipleOf"], value))
        )
    if kind == "string":
        if not piece.get("minLength", 0) <= len(value) <= piece.get("maxLength", len(value)):
            return False
        return "pattern" not in piece or _perhaps(piece["pattern"], value, unsure)
    return True


def exact(number: float) -> int | Fraction:
    """A number as it is written: 0.1 is a tenth."""
    return number if isinstance(number, int) else Fraction(str(number))


def divides(step: float | Fraction, number: float | Fraction) -> bool:
    """Tells whether a number is a multiple of a step."""
    if isinstance(step, int) and isinstance(number, int):
        return number % step == 0
    one, other = (value if isinstance(value, Fraction) else exact(value) for value in (step, number))
    return other % one == 0


def _perhaps(pattern: str, text: str, unsure: bool) -> bool:
    try:
        return matches(pattern, text)
    except Undecidable:
        return unsure
