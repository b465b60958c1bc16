"""References: how one environment names another, `[namespace/]name[@range][#sha256:digest]`."""

from __future__ import annotations

import re
from dataclasses import dataclass

from agent_env_cards.names import name_fault
from agent_env_cards.problems import CardError, Problem
from agent_env_cards.versions import VersionRange, is_draft, parse_version

_DIGEST = re.compile(r"sha256:[0-9a-f]{64}")


class InvalidReference(CardError):
    """A text is not a reference; the message has the remedy."""


@dataclass(frozen=True, slots=True)
class Reference:
    """Which environment is meant: a name, a version range and a digest, the last two optional.

    Without a range the highest release is meant, and a draft only where there is no release. A digest pins the
    contents. Raises `InvalidReference` when a part is malformed.

    Example:
        >>> from agent_env_cards import parse_ref
        >>> reference = parse_ref("agent-b@>=1.2,<2")
        >>> reference.name, reference.accepts("1.9.0"), reference.accepts("2.0.0")
        ('agent-b', True, False)
    """

    name: str
    range: str | None = None
    digest: str | None = None

    def __post_init__(self) -> None:
        faults: list[tuple[str, str]] = []
        if fault := name_fault(self.name):
            faults.append((fault, "EC-40"))
        if self.range is not None:
            try:
                VersionRange(self.range)
            except ValueError as error:
                faults.append((str(error), "EC-42"))
        if self.digest is not None and not _DIGEST.fullmatch(self.digest):
            faults.append((digest_fault(self.digest), "EC-44"))
        if faults:
            text = _join(self.name, self.range, self.digest)
            problems = [Problem("", message, clause) for message, clause in faults]
            raise InvalidReference(f"{text!r} is not a reference: " + "; ".join(fault for fault, _ in faults), problems)

    @property
    def version(self) -> str | None:
        """The one version that is meant, None if the reference has no range or one that is not a single version."""
        return None if self.range is None else VersionRange(self.range).exact

    @property
    def namespace(self) -> str | None:
        """The part of the name before the slash, None without one."""
        return self.name.rpartition("/")[0] or None

    def accepts(self, version: str) -> bool:
        """Tells whether a release with this version may be meant.

        A range takes prereleases only when it names one of the same MAJOR.MINOR.PATCH, no range takes a draft. Without
        a range every release that is no prerelease is taken. Raises `ValueError` if `version` is not a version.
        """
        if self.range is not None:
            return VersionRange(self.range).accepts(version)
        return not parse_version(version).prerelease and not is_draft(version)

    def __str__(self) -> str:
        return format_ref(self)


def digest_fault(digest: str) -> str:
    """Says what is wrong with a digest."""
    return f"the digest {digest!r} is not sha256: and 64 lower-case hexadecimal digits"


def parse_ref(text: str) -> Reference:
    """Reads a reference; `format_ref` is its inverse.

    Raises `InvalidReference` with the remedy in its message.
    """
    if "://" in text:
        raise InvalidReference(
            f"{text!r} is an address, not a reference; write a name such as 'agent-b@1.0.0'",
            [Problem("", f"{text!r} is an address", "EC-40")],
        )
    head, hash_sign, digest = text.partition("#")
    name, at_sign, version = head.partition("@")
    return Reference(name, version if at_sign else None, digest if hash_sign else None)


def format_ref(reference: Reference) -> str:
    """Writes a reference; `parse_ref` is its inverse."""
    return _join(reference.name, reference.range, reference.digest)


def _join(name: str, version: str | None, digest: str | None) -> str:
    return name + ("" if version is None else f"@{version}") + ("" if digest is None else f"#{digest}")
