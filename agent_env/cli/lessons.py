"""What the curve of a run says of its policies and episodes, in sentences: what taught them nothing, and what failed."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

_KINDS = 5
"""How many kinds of failures are named, the most frequent first."""


def lessons_told(curve: Sequence[Mapping[str, Any]]) -> list[str]:
    """Of each policy: how many groups of attempts taught it nothing, or why it was compared with none."""
    found: list[str] = []
    for name in dict.fromkeys(name for line in curve for name in line["policies"]):
        lessons = [line["policies"][name] for line in curve if name in line["policies"]]
        groups, flat, alone = (sum(lesson[key] for lesson in lessons) for key in ("groups", "flat", "singletons"))
        why = lessons[-1].get("idle")
        updates, last = ("update", "") if len(curve) == 1 else (f"{len(curve)} updates", "in the last of them, ")
        if groups:
            found.append(
                f"{name}: {flat + alone} of {groups} groups of the last {updates} taught it nothing "
                f"({flat} got the same throughout, {alone} of one attempt alone)"
            )
        elif why is not None:
            found.append(f"{name}: nothing in the last {updates} taught it anything: {last}{why}")
    return found


def failures_told(curve: Sequence[Mapping[str, Any]], folder: Path) -> list[str]:
    """How many episodes failed, why, and where to see more; nothing where none did."""
    failed = sum(line["failed"] for line in curve)
    if not failed:
        return []
    # Runs of an earlier release do not tell why.
    kinds = sum((Counter(line.get("failures", {})) for line in curve), Counter[str]())
    named = [(kind_told(*kind.split(" ", 1)), count) for kind, count in kinds.most_common(_KINDS)]
    others = kinds.total() - sum(count for _, count in named)
    why = ", ".join(f"{kind} ({count})" for kind, count in named) + (f", and otherwise ({others})" if others else "")
    played = sum(line["episodes"] for line in curve)
    return [
        f"{failed} of {played} episodes failed{why and f': {why}'}; to see them: agent-env episodes list {folder} --failed"
    ]


def kind_told(boundary: str, code: str) -> str:
    """A boundary and a code; a code that says the boundary itself, as `deadline_exceeded` does, alone."""
    return code if code.startswith(boundary) else f"{boundary} {code}"
