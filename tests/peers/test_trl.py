"""TRL's `GRPOTrainer` itself, on a tiny Llama, against served agents: by `rollout_func` and by `environment_factory`."""

from __future__ import annotations

import math
from collections.abc import Callable
from importlib.metadata import distribution
from pathlib import Path
from typing import Any

import pytest

pytestmark = [pytest.mark.peers, pytest.mark.timeout(900)]

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
