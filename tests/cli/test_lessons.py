"""What the curve of a run says of its policies and episodes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from agent_env.cli.lessons import failures_told, lessons_told
from agent_env.cli.training import _report, _tell_finished
from agent_env.training.checkpoints import Run


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


@pytest.mark.parametrize("reward", [{}, {"p": 0.5}])
def test_a_run_is_summed_up_with_the_rewards_there_are_and_the_updates_it_made(
    reward: dict[str, float], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with Run.create(tmp_path, name="a") as run:
        run.record({"update": 1, "reward": reward, "policies": {}, "episodes": 4, "failed": 0})
        _report(run, tmp_path, stopped=True, as_json=False)
        said = capsys.readouterr().out
        assert ("no seat got a reward in a\n" in said, "mean reward" in said) == (not reward, bool(reward))
        assert "stopped after 1 update; to go on:" in said
        _tell_finished(run, tmp_path, 1)
        assert "it has made its one update; to train further:" in capsys.readouterr().out.replace("\n", " ")
        run.record({"update": 2, "reward": reward, "policies": {}, "episodes": 4, "failed": 0})
        _report(run, tmp_path, stopped=True, as_json=False)
        assert "stopped after 2 updates; to go on:" in capsys.readouterr().out
