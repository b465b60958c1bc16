"""Names: what an environment, a seat, a skill and a tool may be called."""

from __future__ import annotations

import re
import unicodedata

_LABEL = re.compile(r"[a-z0-9](?:[a-z0-9-]{0,61}[a-z0-9])?")
_SEAT = re.compile(r"[a-z][a-z0-9_-]{0,62}")
_SKILL = re.compile(r"[a-z0-9][a-z0-9_-]*(?:\.[a-z0-9][a-z0-9_-]*)*")
_TOOL = re.compile(r"[A-Za-z0-9_-]{1,64}")
_TAXONOMY_ID = re.compile(r"[a-z0-9][a-z0-9._-]*@[0-9A-Za-z.-]+/[^\s/]+(?:/[^\s/]+)*")


def slug(text: str) -> str:
    """The nearest legal name to a text, empty if nothing of it can be kept.

    Example:
        >>> slug("My Agent_B!")
        'my-agent-b'
    """
    plain = unicodedata.normalize("NFKD", text).encode("ascii", "ignore").decode()
    words = re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "-", plain) if not plain.isupper() else plain
    return re.sub(r"[^a-z0-9]+", "-", words.lower())[:63].strip("-")


def name_fault(name: str) -> str | None:
    """Says what is wrong with an environment's name, with the corrected form; None if nothing is.

    A name is `[namespace/]name`; each half is a lower-case DNS label (RFC 1123 §2.1). It is refused, never folded:
    two spellings of one name would belong to two owners.
    """
    labels = name.split("/")
    if len(labels) <= 2 and all(_LABEL.fullmatch(label) for label in labels):
        return None
    corrected = "/".join(part for part in (slug(label) for label in labels[-2:]) if part)
    remedy = f"write {corrected!r}" if corrected else "write one such as 'agent-b'"
    return (
        f"the name {name!r} is not [namespace/]name with lower-case letters, digits and inner hyphens, "
        f"at most 63 each; {remedy}"
    )


def seat_fault(seat: str) -> str | None:
    """Says what is wrong with a seat's name; None if nothing is."""
    if _SEAT.fullmatch(seat):
        return None
    return f"the seat {seat!r} must start with a lower-case letter and go on with at most 62 of a-z, 0-9, '_' and '-'"


def skill_fault(skill: str) -> str | None:
    """Says what is wrong with a skill's id; None if nothing is."""
    if _SKILL.fullmatch(skill) and len(skill) <= 100:
        return None
    return f"the skill id {skill!r} must be lower-case labels of a-z, 0-9, '_' and '-' with dots between, at most 100"


def taxonomy_fault(entry: str) -> str | None:
    """Says what is wrong with an id in a public taxonomy; None if nothing is."""
    if _TAXONOMY_ID.fullmatch(entry) and len(entry) <= 200:
        return None
    return f"the taxonomy id {entry!r} must be <taxonomy>@<version>/<path>, such as 'oasf@1.0/reasoning/math'"


def tool_fault(name: str, what: str = "tool") -> str | None:
    """Says what is wrong with the name of a tool, function or reward; None if nothing is.

    Every protocol and model vendor takes the names that are right.
    """
    if _TOOL.fullmatch(name):
        return None
    return f"the {what} name {name!r} must be 1 to 64 letters, digits, '_' and '-'"
