"""Versions and ranges: strict Semantic Versioning 2.0.0, and npm's range grammar."""

from __future__ import annotations

import operator
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cached_property
from itertools import takewhile
from typing import Any, TypeAlias

from semantic_version import Version  # type: ignore[import-untyped]

DRAFT_VERSION = "0.0.0-dev"
"""The version of every draft: mutable, the newest wins, no range ever matches it."""

_LONGEST = 100
_NUMBER = r"(?:0|[1-9][0-9]*)"
_PARTIAL = re.compile(rf"({_NUMBER})(?:\.({_NUMBER}|[xX*])(?:\.({_NUMBER}|[xX*]))?)?")
_SIGNS = ("^", "~", ">=", "<=", ">", "<", "=", "")

Comparator: TypeAlias = tuple[Callable[[Any, Any], bool], Version]


def parse_version(text: str) -> Version:
    """Reads a strict semantic version; raises `ValueError` with the remedy in its message.

    Build metadata is refused: two builds of a version have the same precedence, so no range could choose one.
    """
    if text.lower() in {"latest", ""}:
        raise ValueError(f"the version {text!r} is not a version; write one such as 1.0.0, or leave it out for a draft")
    if len(text) > _LONGEST:
        raise ValueError(f"the version is {len(text)} characters long; write at most {_LONGEST}")
    if "+" in text:
        raise ValueError(f"the version {text!r} has build metadata, which does not order; write {text.split('+')[0]!r}")
    if text[0] in "vV" and _is_version(text[1:]):
        raise ValueError(f"the version {text!r} starts with a letter; write {text[1:]!r}")
    if not _is_version(text):
        raise ValueError(f"the version {text!r} is not MAJOR.MINOR.PATCH with an optional -prerelease, such as 1.0.0")
    return Version(text)


def _is_version(text: str) -> bool:
    # The library's pattern lets a newline end the text and takes digits of other scripts.
    if not text.isascii() or any(character.isspace() for character in text):
        return False
    try:
        Version(text)
    except ValueError:
        return False
    return True


def is_draft(version: str) -> bool:
    """Tells whether this is the version of drafts."""
    return version == DRAFT_VERSION


@dataclass(frozen=True)
class VersionRange:
    """A range in npm's grammar, written without spaces: "^1", "~1.2", "1.x", ">=1.2,<2", "^1||^3", "1.0.0", "*".

    A comma joins bounds that all hold; `||` joins alternatives. Raises `ValueError` with the remedy in its message if
    the text is not a range.
    """

    text: str

    def __post_init__(self) -> None:
        if self.text.lower() == "latest":
            raise ValueError(f"the range {self.text!r} is not a range; leave it out for the highest release")
        if len(self.text) > _LONGEST:
            raise ValueError(f"the range is {len(self.text)} characters long; write at most {_LONGEST}")
        if any(character.isspace() for character in self.text):
            raise ValueError(f"the range {self.text!r} has spaces; join bounds with a comma, as in >=1.2,<2")
        _ = self._alternatives

    @cached_property
    def _alternatives(self) -> list[list[Comparator]]:
        return [
            [comparator for bound in alternative.split(",") for comparator in _comparators(bound, self.text)]
            for alternative in self.text.split("||")
        ]

    @property
    def exact(self) -> str | None:
        """The only version in the range, or None if it is not written as one version."""
        text = self.text.removeprefix("=")
        return text if _is_version(text) else None

    def accepts(self, version: str) -> bool:
        """Tells whether the version is in the range.

        A prerelease is in a range only if an alternative that holds names a prerelease of the same MAJOR.MINOR.PATCH
        (npm's rule). The draft version is only in the range that is exactly it.
        """
        candidate = parse_version(version)
        if is_draft(version):
            return self.exact == DRAFT_VERSION
        return any(
            all(compare(candidate, version) for compare, version in comparators)
            and (not candidate.prerelease or _core(candidate) in map(_core, _prereleases(comparators)))
            for comparators in self._alternatives
        )


def _prereleases(comparators: list[Comparator]) -> Iterator[Version]:
    return (version for _, version in comparators if version.prerelease)


def _core(version: Version) -> str:
    return str(version.truncate())


def _comparators(bound: str, text: str) -> Iterator[Comparator]:
    """What a bound such as ^1.2 means: comparisons that all hold. Raises `ValueError` if it means nothing."""
    sign = next(sign for sign in _SIGNS if bound.startswith(sign))
    operand = bound.removeprefix(sign)
    if operand[:1] in ("v", "V"):
        raise ValueError(f"the range {text!r} has a version that starts with a letter; write {operand[1:]!r}")
    if "+" in operand:
        raise ValueError(f"the range {text!r} has build metadata, which does not order; leave out what follows the +")
    if bound in ("*", "x", "X"):
        return
    full = Version(operand) if _is_version(operand) else None
    given = _numbers(_core(full) if full else operand)
    if not given:
        raise ValueError(
            f"the range {text!r} has {bound!r}, which is not a bound; write ranges such as ^1, ~1.2, >=1.2,<2 or 1.0.0"
        )
    lowest = full or _version(given)
    match sign:
        case "^":
            # Up to the next change of the leftmost number that is not zero.
            kept = next((index for index, number in enumerate(given) if number), len(given) - 1)
            yield from ((operator.ge, lowest), (operator.lt, _after(given, kept)))
        case "~":
            yield from ((operator.ge, lowest), (operator.lt, _after(given, min(1, len(given) - 1))))
        case ">=":
            yield operator.ge, lowest
        case "<":
            yield operator.lt, full or _version(given, "-0")
        case ">" if full:
            yield operator.gt, full
        case "<=" if full:
            yield operator.le, full
        case ">":
            yield operator.ge, _after(given, len(given) - 1, "")
        case "<=":
            yield operator.lt, _after(given, len(given) - 1)
        case _ if full:
            yield operator.eq, full
        case _:
            yield from ((operator.ge, lowest), (operator.lt, _after(given, len(given) - 1)))


def _numbers(operand: str) -> list[int]:
    """The numbers of a partial version up to its first wildcard: [1] for 1 and 1.x; none if it is no such version."""
    partial = _PARTIAL.fullmatch(operand)
    groups = partial.groups() if partial else ()
    return [int(group) for group in takewhile(lambda group: group not in (None, "x", "X", "*"), groups)]


def _after(given: list[int], index: int, prerelease: str = "-0") -> Version:
    """The version after all that have `given` up to the index; -0 is its lowest prerelease, so that none of them is in."""
    return _version([*given[:index], given[index] + 1], prerelease)


def _version(numbers: list[int], prerelease: str = "") -> Version:
    return Version(".".join(map(str, [*numbers, 0, 0][:3])) + prerelease)
