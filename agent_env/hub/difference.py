"""What differs between two JSON values, each place with its pointer (RFC 6901)."""

from __future__ import annotations

from typing import Any

_ABSENT = object()
_MOST = 50


def difference(before: Any, after: Any) -> list[dict[str, Any]]:
    """Lists the places that differ as `{pointer, published?, offered?}`, at most fifty; a side that lacks the place
    has no key."""
    found: list[dict[str, Any]] = []
    _compare(before, after, "", found)
    return found


def _compare(before: Any, after: Any, pointer: str, found: list[dict[str, Any]]) -> None:
    if len(found) >= _MOST:
        return
    if isinstance(before, dict) and isinstance(after, dict):
        for key in [*before, *(key for key in after if key not in before)]:
            step = str(key).replace("~", "~0").replace("/", "~1")
            _compare(before.get(key, _ABSENT), after.get(key, _ABSENT), f"{pointer}/{step}", found)
    elif isinstance(before, list) and isinstance(after, list):
        for index in range(max(len(before), len(after))):
            left = before[index] if index < len(before) else _ABSENT
            right = after[index] if index < len(after) else _ABSENT
            _compare(left, right, f"{pointer}/{index}", found)
    elif type(before) is not type(after) or before != after:
        sides = {"published": before, "offered": after}
        found.append({"pointer": pointer, **{side: value for side, value in sides.items() if value is not _ABSENT}})


def summary(places: list[dict[str, Any]]) -> str:
    """The first few pointers, for a message."""
    pointers = [place["pointer"] or "/" for place in places]
    more = f" and {len(pointers) - 3} more" if len(pointers) > 3 else ""
    return ", ".join(pointers[:3]) + more
