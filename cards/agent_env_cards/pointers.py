"""JSON Pointers (RFC 6901): where in a card something is."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any, cast


def pointer(*tokens: str | int) -> str:
    """Writes a pointer from its unescaped tokens.

    Example:
        >>> pointer("capabilities", "tools", 0, "a/b")
        '/capabilities/tools/0/a~1b'
    """
    return "".join("/" + str(token).replace("~", "~0").replace("/", "~1") for token in tokens)


def select(value: Any, *tokens: str, at: str = "") -> Iterator[tuple[str, Any]]:
    """Yields the places that a path leads to, each as its pointer and its value.

    The token "*" stands for every element of an array or every member of an object. A place that is absent, or that
    lies inside something of another type, is left out: what has the wrong type is reported elsewhere.
    """
    if not tokens:
        yield at, value
        return
    token, rest = tokens[0], tokens[1:]
    for key, member in children(value):
        if token in ("*", key):
            yield from select(member, *rest, at=at + pointer(key))


def children(value: Any) -> Iterable[tuple[str | int, Any]]:
    """The members of an object or the elements of an array with their tokens; nothing for other values."""
    if isinstance(value, Mapping):
        return cast("Mapping[str, Any]", value).items()
    if isinstance(value, list):
        return enumerate(value)
    return ()


def strings(value: Any, *tokens: str) -> Iterator[tuple[str, str]]:
    """The places that a path leads to where there is a string."""
    return ((at, text) for at, text in select(value, *tokens) if isinstance(text, str))


def objects(value: Any, *tokens: str) -> Iterator[tuple[str, Mapping[str, Any]]]:
    """The places that a path leads to where there is an object."""
    return (
        (at, cast("Mapping[str, Any]", found)) for at, found in select(value, *tokens) if isinstance(found, Mapping)
    )
