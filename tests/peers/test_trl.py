"""TRL's `GRPOTrainer` itself, on a tiny Llama, against served agents: by `rollout_func` and by `environment_factory`."""

from __future__ import annotations

import json
import math
import subprocess
from collections.abc import Callable
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any, TypeAlias

import pytest
from programs import ROOT, finished, started, stopped, with_metadata

pytestmark = [pytest.mark.peers, pytest.mark.timeout(900)]

EXAMPLE = ROOT / "examples" / "multiagent" / "trl"
WAYS = ("rollout_func", "environment_factory")

SPECIALISTS = ["specialist-ann@1.0.0", "specialist-bob@1.0.0", "specialist-eve@1.0.0"]


Start: TypeAlias = Callable[..., AbstractContextManager[subprocess.Popen[str]]]


@pytest.fixture
def metadata(tmp_path: Path) -> Path:
    return with_metadata(tmp_path)


@pytest.fixture
def start(peer_python: Callable[[str], Path], metadata: Path, tmp_path: Path) -> Start:
    """Starts the example's program, which keeps its runs in `tmp_path / "runs"`."""
    command = (peer_python("trl"), EXAMPLE / "train.py", "--runs", tmp_path / "runs")
    return lambda *flags: started(*command, *flags, metadata=metadata)


def test_trl_trains_the_manager_of_served_specialists_both_ways(
    run_peer: Callable[..., dict[str, Any]], metadata: Path, tmp_path: Path
) -> None:
    told = run_peer("trl", "trl_training.py", metadata, tmp_path, seconds=800)
    for way in WAYS:
        seen = told[way]
        assert seen["trl"].startswith("trl.")
        assert len(seen["loss"]) == 20 and all(math.isfinite(value) for value in seen["loss"] + seen["grad_norm"])
        assert seen["changed"] == seen["weights"] > 0
        rewards = seen["reward"]
        # The whole curve goes from about 0.5 to 0.95; so much of it is beyond chance.
        assert sum(rewards[:4]) / 4 < 0.7, rewards
        assert sum(rewards[-4:]) / 4 > sum(rewards[:4]) / 4 + 0.08, rewards
    # By `environment_factory` nearly each rollout calls one tool, which TRL counts itself.
    assert sum(told["environment_factory"]["tools/call_frequency"]) / 20 > 0.8
    assert max(told["rollout_func"]["episodes/without_reward"]) == 0
    # By `rollout_func` each of the trainer's completions is an episode that agents played, with the weights of its step.
    episodes = told["episodes"]
    assert episodes["count"] == episodes["ok"] == 20 * 128
    assert episodes["asked"] == SPECIALISTS and episodes["calls"] > 0.8 * episodes["count"]
    assert episodes["versions"] == list(range(20))
    # What the gateway recorded of the first step are the logprobs of the trainer's model, as it was.
    assert episodes["off"] < 1e-3
    # Where the environment scores, there are no reward functions: TRL trains on what it gave for each of two batches.
    scored = told["scored"]
    given = [sum(scored["given"][start : start + 32]) / 32 for start in (0, 32)]
    assert len(scored["given"]) == 64 and 0 < sum(given) < 2
    assert scored["reward"] == pytest.approx(given)
    assert scored["changed"] == seen["weights"] and all(math.isfinite(loss) for loss in scored["loss"])


def test_the_program_trains_both_ways_and_shows_them_side_by_side(start: Start, tmp_path: Path) -> None:
    with start("--steps", "2", "--evaluated", "48") as process:
        shown = finished(process)
    (folder,) = (tmp_path / "runs").iterdir()
    check_both_ways(folder, shown, steps=2)
    for way in WAYS:
        assert [f"{way} step {step}:" in shown for step in (1, 2, 3)] == [True, True, False]


def test_a_training_by_trl_that_was_stopped_goes_on_and_its_curve_with_it(start: Start, tmp_path: Path) -> None:
    runs, steps = tmp_path / "runs", 4
    told: list[str] = []
    reached: dict[str, list[dict[str, Any]]] = {}
    for way in WAYS:
        # Stopped in each of the ways: of the second start the first way goes on, and then the second begins.
        with start(*(("--resume",) if told else ("--steps", str(steps), "--evaluated", "48"))) as process:
            told.append(stopped(process, runs, f"*/{way}/checkpoint-1/trainer_state.json"))
        (folder,) = runs.iterdir()
        assert f"stopped; go on with --resume {folder}" in told[-1]
        reached[way] = logged(folder / way)
        assert 1 <= len(reached[way]) < steps
    with start("--resume") as process:
        told.append(finished(process))
    (folder,) = runs.iterdir()
    check_both_ways(folder, told[-1], steps=steps)
    first, second = WAYS
    for way, starts in ((first, told[:2]), (second, told[1:])):
        # What was logged before it was stopped is what was logged; each step is played once, or was no whole one.
        assert logged(folder / way)[: len(reached[way])] == reached[way]
        went_on = [step for step in range(1, steps + 1) if f"{way} step {step}:" in starts[1]]
        assert went_on == [*range(len(reached[way]) + 1, steps + 1)]
    # The way that was finished is read, and not played again.
    assert f"{first} step" not in told[2] and f"{second} step" not in told[0]


def check_both_ways(folder: Path, shown: str, *, steps: int) -> None:
    """Looks at what a run leaves and prints at its end: a curve each way, with no step twice and none missing, and a
    table with the figures that are kept."""
    kept = json.loads((folder / "run.json").read_text())
    assert kept["finished"]
    for way in WAYS:
        curve = logged(folder / way)
        assert [line["step"] for line in curve] == [*range(1, steps + 1)]
        assert kept[way]["curve"] == [line["reward"] for line in curve]
        assert kept[way]["before"] == kept[f"{way} before"]
        (line,) = [line for line in shown.splitlines() if line.split()[:1] == [way] and " step " not in line]
        (sampled, greedy), (sampled_after, greedy_after) = kept[way]["before"], kept[way]["after"]
        figures = [f"{figure:.3f}" for figure in (sampled, sampled_after, greedy, greedy_after)]
        assert line.split()[1:5] == figures
    assert (folder / "curve.png").read_bytes().startswith(b"\x89PNG")


def logged(folder: Path) -> list[dict[str, Any]]:
    """What the newest whole checkpoint of a way has logged of its steps."""
    found = {path.parent.name: json.loads(path.read_text()) for path in folder.glob("checkpoint-*/trainer_state.json")}
    newest = max(found, key=lambda name: int(name.rpartition("-")[2]))
    return [line for line in found[newest]["log_history"] if "reward" in line]
