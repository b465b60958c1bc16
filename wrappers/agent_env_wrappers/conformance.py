"""The contract as a function: plays a wrapper through everything it claims, and shows that it refuses the rest.

    report = await check_wrapper(Subject(make=lambda: MyWrapper(MyAgent()), seen=..., ...))
    print(report)
    assert report.ok

Each check shows a capability, or shows that what the caps deny is refused clearly. A capability that the caps claim
and that the subject gives no words to provoke fails its check: what nobody can see is not there.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, NamedTuple

from agent_env_wrappers.conformance_checks import CHECKS, Check
from agent_env_wrappers.conformance_trial import ConformanceError, Subject, Trial, seen_in
from agent_env_wrappers.registry import wrap

__all__ = [
    "CHECKS",
    "Check",
    "ConformanceError",
    "Outcome",
    "Report",
    "Subject",
    "check_wrapper",
    "run_check",
    "seen_in",
]


class Outcome(NamedTuple):
    """What one check found: the capability was shown, or is absent and refused clearly, or the check failed."""

    check: str
    verdict: Literal["shown", "absent", "failed"]
    note: str


@dataclass(frozen=True, slots=True)
class Report:
    """What all checks found; `str(report)` is a table for people."""

    framework: str
    outcomes: Sequence[Outcome]

    @property
    def ok(self) -> bool:
        """Whether no check failed."""
        return all(outcome.verdict != "failed" for outcome in self.outcomes)

    def __str__(self) -> str:
        lines = [f"{outcome.verdict:7} {outcome.check:28} {outcome.note}" for outcome in self.outcomes]
        return "\n".join([f"wrapper {self.framework!r}", *lines])


async def check_wrapper(subject: Subject, *, seconds: float = 30.0) -> Report:
    """Runs all checks, each on a new agent and at most `seconds` long."""
    outcomes: list[Outcome] = []
    framework = "?"
    for check in CHECKS:
        try:
            note = await run_check(check, subject, seconds=seconds)
            outcomes.append(Outcome(check.__name__, "absent" if note.startswith("absent") else "shown", note))
        except Exception as error:  # noqa: BLE001 - whatever a wrapper raises is what the report must tell
            outcomes.append(Outcome(check.__name__, "failed", f"{type(error).__name__}: {error}"))
    wrapper = wrap(subject.make())
    framework = (await wrapper.describe()).framework
    await wrapper.aclose()
    return Report(framework, outcomes)


async def run_check(check: Check, subject: Subject, *, seconds: float = 30.0) -> str:
    """Runs one check on a new agent and returns its note; raises what it finds wrong."""
    wrapper = wrap(subject.make())
    try:
        async with asyncio.timeout(seconds):
            caps = (await wrapper.describe()).caps
            return await check(Trial(subject, wrapper, caps))
    finally:
        await wrapper.aclose()
