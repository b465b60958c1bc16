"""verl: what its own agent loop worker, batches, estimator and metrics make of our rows."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from agent_env.episodes import EpisodeReader
from agent_env.training.exports import verl

ROOT = Path(__file__).parents[2]
GOLDEN = ROOT / "tests" / "training" / "exports" / "golden.jsonl"
POLICIES = ("boss", "hand", "player")

pytestmark = [pytest.mark.peers, pytest.mark.timeout(900)]


def test_verl_pads_batches_and_credits_the_rows_of_the_golden_tree_as_we_do(
    run_peer: Callable[..., dict[str, Any]], tmp_path: Path
) -> None:
    exported = tmp_path / "verl.jsonl"
    assert verl.write(EpisodeReader(GOLDEN), exported, policies=POLICIES).episodes == 4
    seen = run_peer("verl", "verl_batches.py", GOLDEN, exported)
    assert (seen["rows"], seen["trained"]) == (10, 44)
    assert len(seen["same"]) == 7


def test_the_lines_of_the_page_run(run_peer: Callable[..., dict[str, Any]], tmp_path: Path) -> None:
    verl.write(EpisodeReader(GOLDEN), tmp_path / "rows.jsonl", policies=POLICIES)
    page = ROOT / "docs" / "trainers.md"
    assert run_peer("verl", "page_lines.py", page, "verl", folder=tmp_path) == {"blocks": 1}
