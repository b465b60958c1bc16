"""Regular expressions in schemas: tried on texts within bounds, and turned into a few texts that match."""

from __future__ import annotations

import re
import string
from collections.abc import Iterator
from itertools import islice

_REPEAT = re.compile(r"[*+{]")
_REPEATED_GROUP = re.compile(r"\)[*+{]|\\[1-9]|\(\?P=")
_CLASSES = {
    "d": string.digits,
    "w": string.ascii_lowercase + string.ascii_uppercase + string.digits + "_",
    "s": " \t\n",
}
_PRINTABLE = string.ascii_letters + string.digits + " _-.,:;/@#!?+*=()[]{}<>|~^$%&'\"`\\"


class Undecidable(Exception):
    """A pattern cannot be tried on a text here."""


def is_risky(pattern: str) -> bool:
    """Tells whether trying a pattern on a text may take more steps than the square of its length."""
    return _REPEATED_GROUP.search(pattern) is not None or len(_REPEAT.findall(pattern)) > 2


def matches(pattern: str, text: str) -> bool:
    """Searches a pattern as JSON Schema does.

    Raises `Undecidable` for what is no regular expression in Python, and for what may take too many steps on this
    text: patterns and texts come from strangers' cards.
    """
    if len(text) > 12 and (_REPEATED_GROUP.search(pattern) or len(text) ** len(_REPEAT.findall(pattern)) > 1_000_000):
        raise Undecidable
    try:
        return re.search(pattern, text) is not None
    except (re.error, OverflowError, RecursionError):
        raise Undecidable from None


def matching(pattern: str, limit: int = 4) -> list[str]:
    """A few texts that match a pattern; none for a pattern with parts that are not understood here."""
    found: list[str] = []
    try:
        for text in islice(_Reader(pattern).choices(), 64):
            if text not in found and matches(pattern, text):
                found.append(text)
            if len(found) == limit:
                break
    except (Undecidable, ValueError, IndexError, RecursionError):
        pass  # what was found so far is right, and no promise is made to find more
    return found


class _Reader:
    """Reads literals, classes, groups, alternatives and repeats; anything else is a `ValueError`."""

    def __init__(self, pattern: str) -> None:
        self._pattern = pattern
        self._at = 0

    def choices(self) -> Iterator[str]:
        options = self._alternatives()
        if self._at < len(self._pattern):
            raise ValueError
        yield from options

    def _peek(self) -> str:
        return self._pattern[self._at] if self._at < len(self._pattern) else ""

    def _next(self) -> str:
        self._at += 1
        return self._pattern[self._at - 1]

    def _alternatives(self) -> list[str]:
        found = self._sequence()
        while self._peek() == "|":
            self._next()
            found += self._sequence()
        return found[:32]

    def _sequence(self) -> list[str]:
        found = [""]
        while self._peek() not in ("", "|", ")"):
            part = self._repeated(self._atom())
            found = [one + other for other in part[:4] for one in found[:8]]
        return found

    def _atom(self) -> list[str]:
        symbol = self._next()
        if symbol in "^$":
            return [""]
        if symbol == "(":
            if self._peek() == "?":
                self._next()
                if self._next() != ":":
                    raise ValueError
            found = self._alternatives()
            if self._next() != ")":
                raise ValueError
            return found
        if symbol == "[":
            return self._one_of(self._class())
        if symbol == ".":
            return ["a", "0"]
        if symbol == "\\":
            return self._one_of(self._escaped())
        if symbol in "*+?{":
            raise ValueError
        return [symbol]

    def _one_of(self, characters: str) -> list[str]:
        if not characters:
            raise ValueError
        return list(dict.fromkeys((characters[0], characters[-1], characters[len(characters) // 2])))

    def _escaped(self) -> str:
        symbol = self._next()
        if symbol in _CLASSES:
            return _CLASSES[symbol]
        if symbol.lower() in _CLASSES:
            return "".join(one for one in _PRINTABLE if one not in _CLASSES[symbol.lower()])
        if symbol in "tnr":
            return {"t": "\t", "n": "\n", "r": "\r"}[symbol]
        if symbol.isalnum():
            raise ValueError
        return symbol

    def _class(self) -> str:
        negated = self._peek() == "^"
        if negated:
            self._next()
        found = ""
        while self._peek() != "]" or not found:
            symbol = self._next()
            characters = self._escaped() if symbol == "\\" else symbol
            if self._peek() == "-" and self._pattern[self._at + 1 : self._at + 2] not in ("]", ""):
                self._next()
                last = self._next()
                characters = "".join(map(chr, range(ord(characters), min(ord(last), ord(characters) + 255) + 1)))
            found += characters
        self._next()
        return "".join(one for one in _PRINTABLE if one not in found) if negated else found

    def _repeated(self, options: list[str]) -> list[str]:
        symbol = self._peek()
        least, most = 1, 1
        if symbol and symbol in "*+?":
            self._next()
            least, most = {"*": (0, 2), "+": (1, 3), "?": (0, 1)}[symbol]
        elif symbol == "{":
            end = self._pattern.index("}", self._at)
            low, comma, high = self._pattern[self._at + 1 : end].partition(",")
            self._at = end + 1
            least = int(low or 0)
            most = int(high) if high else least + 2 if comma else least
        else:
            return options
        if self._peek() == "?":
            self._next()
        if least > 200:
            raise ValueError
        counts = dict.fromkeys((least, min(most, least + 2)))
        return [option * count for count in counts for option in options]
