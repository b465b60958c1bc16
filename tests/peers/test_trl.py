"""TRL's `GRPOTrainer` itself, on a tiny Llama, against served agents: by `rollout_func` and by `environment_factory`."""

from __future__ import annotations

import json
import math
import os
import signal
import subprocess
import time
from collections.abc import Callable
from importlib.metadata import distribution
from pathlib import Path
from typing import Any

import pytest

pytestmark = [pytest.mark.peers, pytest.mark.timeout(900)]

ROOT = Path(__file__).parents[2]
EXAMPLE = ROOT / "examples" / "multiagent" / "trl"
STEPS = 4
SECONDS = 240

SPECIALISTS = ["trl-ann@1.0.0", "trl-bob@1.0.0", "trl-eve@1.0.0"]


@pytest.fixture
def metadata(tmp_path: Path) -> Path:
    """What tells an environment of its own where the product's wrappers are, as an installation does."""
    folder = tmp_path / "metadata" / "agent_env-0.dist-info"
    folder.mkdir(parents=True)
    for name in ("METADATA", "entry_points.txt"):
        (folder / name).write_text(distribution("agent-env").read_text(name) or "", "utf-8")
    return folder.parent


def test_trl_trains_the_manager_of_served_specialists_both_ways(
    run_peer: Callable[..., dict[str, Any]], metadata: Path, tmp_path: Path
) -> None:
    told = run_peer("trl", "trl_training.py", metadata, tmp_path, seconds=800)
    for way in ("rollout_func", "environment_factory"):
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


@pytest.mark.parametrize("way", ["rollout_func", "environment_factory"])
def test_a_training_by_trl_that_was_stopped_goes_on_and_its_curve_with_it(
    way: str, peer_python: Callable[[str], Path], metadata: Path, tmp_path: Path
) -> None:
    paths = [ROOT, ROOT / "cards", ROOT / "wrappers", metadata]
    own = {"PYTHONPATH": os.pathsep.join(map(str, paths)), "AGENT_ENV_HUB": str(tmp_path / "hub.db")}
    command = [str(peer_python("trl")), str(EXAMPLE / "train.py"), "--runs", str(tmp_path / "runs")]

    def start(*flags: str) -> subprocess.Popen[str]:
        return subprocess.Popen(
            [*command, *flags],
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            env=os.environ | own,
            start_new_session=True,
        )

    def steps(folder: Path) -> dict[int, list[dict[str, Any]]]:
        """What each whole checkpoint of a run has logged."""
        found = {path.parent: json.loads(path.read_text()) for path in folder.glob("*/checkpoint-*/trainer_state.json")}
        return {
            int(at.name.rpartition("-")[2]): [line for line in state["log_history"] if "reward" in line]
            for at, state in found.items()
        }

    with start("--ways", way, "--steps", str(STEPS)) as process:
        try:
            ended = time.monotonic() + SECONDS
            while not [*(tmp_path / "runs").glob(f"*/{way}/checkpoint-1/trainer_state.json")]:
                assert process.poll() is None, process.communicate()[0]
                assert time.monotonic() < ended, "no first step"
                time.sleep(0.05)
            os.killpg(process.pid, signal.SIGINT)  # as a terminal does at Ctrl-C
            stopped, _ = process.communicate(timeout=60)
        finally:
            process.kill()
    (folder,) = (tmp_path / "runs").iterdir()
    assert process.returncode == 1 and f"stopped; go on with --resume {folder}" in stopped, stopped
    assert "Traceback" not in stopped
    before = steps(folder)
    reached = max(before)
    assert 1 <= reached < STEPS and len(before[reached]) == reached
    with start("--resume") as process:
        try:
            shown, _ = process.communicate(timeout=SECONDS)
        finally:
            process.kill()
    assert process.returncode == 0, shown
    curve = steps(folder)[STEPS]
    assert [line["step"] for line in curve] == list(range(1, STEPS + 1)) and curve[:reached] == before[reached]
    assert [step for step in range(1, STEPS + 1) if f"{way} step {step}:" in shown] == [*range(reached + 1, STEPS + 1)]
    kept = json.loads((folder / "run.json").read_text())
    assert kept["finished"] and kept[way]["curve"] == [line["reward"] for line in curve]
    assert kept[way]["before"] == kept[f"{way} before"] and f"{kept[way]['after'][0]:.3f}" in shown
    assert (folder / "curve.png").read_bytes().startswith(b"\x89PNG")
