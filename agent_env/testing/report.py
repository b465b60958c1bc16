"""What a check of an environment found."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any, Literal, TypeAlias

Outcome: TypeAlias = Literal["ok", "failed", "skipped"]


@dataclass(frozen=True, slots=True)
class Check:
    """One clause of `cards/README.md`, held against an environment on one lane.

    `lane` is empty for what is checked once. `why` says what was wrong, or why nothing could be said.
    """

    clause: str
    name: str
    outcome: Outcome
    why: str = ""
    lane: str = ""

    def __str__(self) -> str:
        where = f" over {self.lane}" if self.lane else ""
        return f"{self.clause} {self.name}{where}: {self.outcome}{f', {self.why}' if self.why else ''}"


@dataclass(frozen=True, slots=True)
class Report:
    """Everything that was checked of one environment."""

    environment: str
    checks: Sequence[Check]

    @property
    def ok(self) -> bool:
        """Whether nothing failed; what was skipped counts for nothing."""
        return not self.failed

    @property
    def failed(self) -> list[Check]:
        """The checks that failed."""
        return [check for check in self.checks if check.outcome == "failed"]

    def summary(self) -> str:
        """One line: how many checks passed, failed and were skipped."""
        counts = Counter(check.outcome for check in self.checks)
        clauses = sorted({check.clause for check in self.failed})
        broken = f" ({', '.join(clauses)})" if clauses else ""
        return (
            f"{self.environment}: {counts['ok']} checks passed, {counts['failed']} failed{broken}, "
            f"{counts['skipped']} were skipped"
        )

    def to_json(self) -> dict[str, Any]:
        """The report as JSON."""
        return {"environment": self.environment, "ok": self.ok, "checks": [asdict(check) for check in self.checks]}


class ContractBroken(AssertionError):
    """An environment breaks its contract; the message names each clause, `report` has everything."""

    def __init__(self, report: Report) -> None:
        super().__init__("\n".join([report.summary(), *(f"  {check}" for check in report.failed)]))
        self.report = report
