"""Versions and ranges: strict Semantic Versioning 2.0.0, and npm's range grammar."""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import cached_property

from semantic_version import NpmSpec, Version  # type: ignore[import-untyped]

DRAFT_VERSION = "0.0.0-dev"
"""The version of every draft: mutable, the newest wins, no range ever matches it."""

_LONGEST = 100
_OPERATOR = re.compile(r"^(?:\^|~|>=|<=|>|<|=)")


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
        for alternative in self.text.split("||"):
            for bound in alternative.split(","):
                _check_bound(bound, self.text)

    @cached_property
    def _alternatives(self) -> list[tuple[NpmSpec, frozenset[tuple[int, int, int]]]]:
        return [
            (NpmSpec(alternative.replace(",", " ")), frozenset(_prerelease_triples(alternative)))
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
        triple = _triple(candidate)
        return any(
            specification.match(candidate) and (not candidate.prerelease or triple in triples)
            for specification, triples in self._alternatives
        )


def _check_bound(bound: str, text: str) -> None:
    operand = _OPERATOR.sub("", bound)
    if operand[:1] in {"v", "V"}:
        raise ValueError(f"the range {text!r} has a version that starts with a letter; write {operand[1:]!r}")
    if "+" in operand:
        raise ValueError(f"the range {text!r} has build metadata, which does not order; leave out what follows the +")
    try:
        if not bound or not bound.isascii():
            raise ValueError(bound)
        NpmSpec(bound)
    except ValueError:
        raise ValueError(
            f"the range {text!r} has {bound!r}, which is not a bound; write ranges such as ^1, ~1.2, >=1.2,<2 or 1.0.0"
        ) from None


def _prerelease_triples(alternative: str) -> list[tuple[int, int, int]]:
    operands = [_OPERATOR.sub("", bound) for bound in alternative.split(",")]
    versions = [Version(operand) for operand in operands if _is_version(operand)]
    return [_triple(version) for version in versions if version.prerelease]


def _triple(version: Version) -> tuple[int, int, int]:
    return int(version.major or 0), int(version.minor or 0), int(version.patch or 0)
