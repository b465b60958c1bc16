"""TRL AsyncGRPO: its trainer needs a kernel for GPUs, so what stands before it is run - protocol, queue, packing."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from agent_env.episodes import EpisodeReader
from agent_env.training.exports import trl_async

ROOT = Path(__file__).parents[2]
GOLDEN = ROOT / "tests" / "training" / "exports" / "golden.jsonl"
POLICIES = ("boss", "hand", "player")

pytestmark = [pytest.mark.peers, pytest.mark.timeout(900)]


def test_the_rows_of_the_golden_tree_pass_the_queue_the_planners_and_the_packing_of_trl(
    run_peer: Callable[..., dict[str, Any]], tmp_path: Path
) -> None:
    exported = tmp_path / "trl.jsonl"
    assert trl_async.write(EpisodeReader(GOLDEN), exported, policies=POLICIES).episodes == 4
    seen = run_peer("trl", "trl_async_packing.py", GOLDEN, exported)
    assert seen["methods"] == ["check_health", "start", "stop", "update_model_version"]
    assert (seen["rows"], seen["trained"], seen["groups"]) == (10, 44, 4)
    # Beginnings that samples share are forwarded once: the rows have 116 tokens.
    assert seen["packed_tokens"] == 75
    assert seen["budgeted"] == [75, 75, 75]
    assert seen["played"] == 2.0


def test_the_lines_of_the_page_run(run_peer: Callable[..., dict[str, Any]], tmp_path: Path) -> None:
    trl_async.write(EpisodeReader(GOLDEN), tmp_path / "rows.jsonl", policies=POLICIES)
    page = ROOT / "docs" / "trainers.md"
    assert run_peer("trl", "page_lines.py", page, "TRL AsyncGRPOTrainer", folder=tmp_path) == {"blocks": 1}
