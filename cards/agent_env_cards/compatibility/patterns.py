"""Regular expressions in schemas: tried on texts within bounds, and turned into a few texts that match."""

from __future__ import annotations

import re
import string
import warnings
from collections.abc import Iterator
from functools import lru_cache
from itertools import islice
from typing import Any

from pydantic_core import SchemaError, SchemaValidator, core_schema

from agent_env_cards.compatibility.work import spend

MAX_PATTERN = 512
MAX_TEXT = 4_096
MAX_TRIES = 100_000
_FEW_TRIES = 1_000
_MAX_COPIES = 256

_TOKEN = re.compile(r"\\.|\[\^?\]?(?:\\.|[^\]\\])*\]|\(\?|\)?(?:[*+?]|\{(\d*)(,?)(\d*)\})|\|", re.DOTALL)
# Flags are Python's alone, and a wide class without case takes it long to read.
_FLAGS = re.compile(r"\(\?(?!P)[A-Za-z-]")
_BACKWARD = re.compile(r"\\[1-9]|\(\?P=|\(\?\(")
# What the linear engine reads in another way than Python's, or not at all.
_FOREIGN = re.compile(r"\(\?[^:]|\\[^dwsDWS.\-/+*?()\[\]{}|^$\\ntr]|[*+?}]\+|\[\^?\]|\[(?:\\.|[^\]\\])*(?:\[|&&|--|~~)")
# The linear engine tries these on printable ASCII alone, where they mean the same and stay small.
_ASCII = {
    r"\d": "[0-9]",
    r"\D": "[^0-9]",
    r"\w": "[0-9A-Za-z_]",
    r"\W": "[^0-9A-Za-z_]",
    r"\s": "[ ]",
    r"\S": "[^ ]",
}
_CLASSES = {
    "d": string.digits,
    "w": string.ascii_lowercase + string.ascii_uppercase + string.digits + "_",
    "s": " \t\n",
}
_PRINTABLE = string.ascii_letters + string.digits + " _-.,:;/@#!?+*=()[]{}<>|~^$%&'\"`\\"


class Undecidable(Exception):
    """A pattern cannot be tried on a text here."""


class _Plan:
    """How a pattern is tried: with Python's engine where it has few ways to go back, else with one that never does."""

    def __init__(self, pattern: str) -> None:
        if _FLAGS.search(pattern):
            raise Undecidable
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")  # of what Python may read as sets of characters some day
                self._python = re.compile(pattern)
        except (re.error, OverflowError, RecursionError):
            raise Undecidable from None
        self._pattern = pattern
        self._anchored = pattern.startswith("^") and "|" not in pattern
        self._nested = _BACKWARD.search(pattern) is not None
        self._optional = self._repeats = 0
        self._copies = 1
        for token in _TOKEN.finditer(pattern):
            text = token[0]
            if text[0] in "\\[" or text == "(?":
                continue
            if text.endswith("}"):
                least, comma, most = token.groups()
                self._copies *= max(int(most or 0), int(least or 0), 1)
                self._repeats += bool(comma)
            elif text[-1] in "*+":
                self._repeats += 1
            else:
                self._optional += 1
            self._nested = self._nested or (text[0] == ")" and text[-1] != "?")
        self._linear = self._linear_engine()
        self.steps = 1 + len(pattern) // 2 + (0 if self._linear is None else self._copies)

    def tries(self, length: int) -> int:
        """A bound on how many ways Python's engine may go through a text before it gives up."""
        if self._nested or self._optional > 20 or self._repeats > 6:
            return MAX_TRIES + 1
        each = 1 + min(length, len(self._pattern)) // 8
        ways: int = (length + 1) ** (self._repeats + (not self._anchored)) * 2**self._optional
        return ways * each

    @property
    def risky(self) -> bool:
        """Whether Python's engine may take more steps than a small multiple of the length of a text."""
        starts = not self._anchored and (self._repeats or self._optional)
        return self._nested or self._repeats + bool(starts) > 1 or self._optional > 4

    def found_in(self, text: str) -> bool:
        tries = self.tries(len(text))
        if tries > _FEW_TRIES and self._linear is not None and text.isascii() and text.isprintable():
            spend(len(text) * self._copies // 64)
            return bool(self._linear.isinstance_python(text))
        if tries > MAX_TRIES:
            raise Undecidable
        spend(tries // 32)
        return self._python.search(text) is not None

    def _linear_engine(self) -> Any:
        if self._copies > _MAX_COPIES or _BACKWARD.search(self._pattern) or _FOREIGN.search(self._pattern):
            return None
        pattern = re.sub(r"\\.", lambda escape: _ASCII.get(escape[0], escape[0]), self._pattern)
        try:
            return SchemaValidator(core_schema.str_schema(pattern=pattern, regex_engine="rust-regex"))
        except SchemaError:
            return None


@lru_cache(maxsize=1_024)
def _plan(pattern: str) -> _Plan | None:
    try:
        return _Plan(pattern)
    except Undecidable:
        return None


def is_risky(pattern: str) -> bool:
    """Tells whether trying a pattern with Python's engine may take more steps than a text has characters."""
    plan = _plan(pattern) if len(pattern) <= MAX_PATTERN else None
    return plan is None or plan.risky


def matches(pattern: str, text: str) -> bool:
    """Searches a pattern as JSON Schema does.

    Raises `Undecidable` for what is no regular expression in Python, and for what may take too many steps on this
    text: patterns and texts come from strangers' cards.
    """
    if len(pattern) > MAX_PATTERN or len(text) > 100 * MAX_TEXT:
        raise Undecidable
    plan = _plan(pattern)
    spend(len(pattern) if plan is None else plan.steps)
    if plan is None:
        raise Undecidable
    return plan.found_in(text)


def matching(pattern: str, limit: int = 4) -> list[str]:
    """A few texts that match a pattern; none for a pattern with parts that are not understood here."""
    found: list[str] = []
    if len(pattern) > MAX_PATTERN:
        return found
    spend(4 * len(pattern))
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
            if max(map(len, found), default=0) > MAX_TEXT:
                raise ValueError
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
        if least > 200 or max(map(len, options), default=0) * (least + 2) > MAX_TEXT:
            raise ValueError
        counts = dict.fromkeys((least, min(most, least + 2)))
        return [option * count for count in counts for option in options]
