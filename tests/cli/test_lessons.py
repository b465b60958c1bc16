"""What the curve of a run says of its policies and episodes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from agent_env.cli.lessons import failures_told, lessons_told


def idle(why: str) -> dict[str, Any]:
    return {"policies": {"p": {"groups": 0, "flat": 0, "singletons": 0, "idle": why}}}


def test_why_a_policy_learned_nothing_is_what_the_last_update_says() -> None:
    curve = [idle("of the 8 episodes none"), idle("of the 9 episodes none")]
    assert lessons_told(curve) == [
        "p: nothing in the last 2 updates taught it anything: in the last of them, of the 9 episodes none"
    ]
    assert lessons_told(curve[:1]) == ["p: nothing in the last update taught it anything: of the 8 episodes none"]


def test_the_kinds_of_failures_add_up_and_none_is_said_twice() -> None:
    def told(failures: dict[str, int]) -> str:
        failed = sum(failures.values())
        (said,) = failures_told([{"failed": failed, "episodes": 60, "failures": failures}], Path("runs/a"))
        begin, end = f"{failed} of 60 episodes failed: ", "; to see them: agent-env episodes list runs/a --failed"
        assert said.startswith(begin) and said.endswith(end), said
        return said.removeprefix(begin).removesuffix(end)

    assert told({"deadline deadline_exceeded": 3, "agent agent_failed": 2, "program KeyError": 1}) == (
        "deadline_exceeded (3), agent_failed (2), program KeyError (1)"
    )
    assert told({f"program Error{number}": 9 - number for number in range(7)}) == (
        "program Error0 (9), program Error1 (8), program Error2 (7), program Error3 (6), program Error4 (5), "
        "and otherwise (7)"
    )
    assert failures_told([{"failed": 2, "episodes": 4}], Path("runs/a")) == [
        "2 of 4 episodes failed; to see them: agent-env episodes list runs/a --failed"
    ]
