"""What an object is, told by the names in its class's ancestry, so that no framework is imported to find out."""

from __future__ import annotations

from typing import Any


def is_kind(value: object, module: str, name: str) -> bool:
    """Whether the object's class is, or is made from, `name` of `module` or of a module below it."""
    kind: type[Any] = type(value)
    return any(
        made.__qualname__.partition("[")[0] == name and f"{made.__module__}.".startswith(f"{module}.")
        for made in kind.__mro__
    )


def roots(value: object) -> list[str]:
    """The top-level modules of an object's class and of the classes that it is made from."""
    kind: type[Any] = type(value)
    return [made.__module__.partition(".")[0] for made in kind.__mro__]
