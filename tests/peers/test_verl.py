"""verl: what its own agent loop worker, batches, estimator and metrics make of our rows."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from agent_env.episodes import EpisodeReader
from agent_env.training.exports import verl

GOLDEN = Path(__file__).parents[1] / "training" / "exports" / "golden.jsonl"

pytestmark = [pytest.mark.peers, pytest.mark.timeout(900)]


def test_verl_pads_batches_and_credits_the_rows_of_the_golden_tree_as_we_do(
    run_peer: Callable[..., dict[str, Any]], tmp_path: Path
) -> None:
    exported = tmp_path / "verl.jsonl"
    assert verl.write(EpisodeReader(GOLDEN), exported) == 4
    seen = run_peer("verl", "verl_batches.py", GOLDEN, exported)
    assert (seen["rows"], seen["trained"]) == (10, 44)
    assert len(seen["same"]) == 7
