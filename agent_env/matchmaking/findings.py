"""What a rule found, and how well a candidate fits in the end."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from enum import IntEnum
from typing import Any, Literal, TypeAlias

Result: TypeAlias = Literal["yes", "partial", "unknown", "no"]


class Degree(IntEnum):
    """How well a candidate fits, the better the higher.

    | degree | meaning |
    |---|---|
    | `EXACT` | every rule holds, the skills are the ones asked for, and the schemas are the same on both sides |
    | `FITS` | every rule holds |
    | `PARTIAL` | some calls fit the schemas and others do not: only for a need with `allow_partial` |
    | `UNKNOWN` | no rule is broken, but not all could be decided |
    | `FAIL` | a rule is broken |
    """

    FAIL = 0
    UNKNOWN = 1
    PARTIAL = 2
    FITS = 3
    EXACT = 4

    def __str__(self) -> str:
        return self.name.lower()


@dataclass(frozen=True, slots=True)
class Finding:
    """What one rule says of one candidate.

    `why` is the reason; `change` is what would turn a "no" into a "yes"; `pointer` leads (as a JSON Pointer) to the
    place in a message where a schema breaks. `exact` tells that a "yes" could not be better. `rule` is the rule's name
    and `fit` whether it speaks of what the candidate does, and not only of how it is reached; the rule fills them in.
    """

    result: Result
    why: str
    change: str = ""
    pointer: str = ""
    exact: bool = True
    rule: str = ""
    fit: bool = True

    def to_json(self) -> dict[str, Any]:
        """The finding as JSON, without what is not said."""
        found = {"rule": self.rule, "result": self.result, "why": self.why}
        more = {"change": self.change, "pointer": self.pointer}
        return found | {name: value for name, value in more.items() if value}


def degree_of(findings: Iterable[Finding]) -> Degree:
    """The degree that all findings together make."""
    degree = Degree.EXACT
    for finding in findings:
        if finding.result == "no":
            return Degree.FAIL
        if not finding.fit:
            continue
        if finding.result == "unknown":
            degree = min(degree, Degree.UNKNOWN)
        elif finding.result == "partial":
            degree = min(degree, Degree.PARTIAL)
        elif not finding.exact:
            degree = min(degree, Degree.FITS)
    return degree
