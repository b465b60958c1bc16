"""verifiers v1: its own classes read our episodes, and what they write makes the same rows."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from agent_env.episodes import EpisodeReader
from agent_env.training.exports import verifiers

ROOT = Path(__file__).parents[2]
GOLDEN = ROOT / "tests" / "training" / "exports" / "golden.jsonl"

pytestmark = [pytest.mark.peers, pytest.mark.timeout(900)]


def test_verifiers_reads_the_golden_tree_and_its_branches_are_our_rows(
    run_peer: Callable[..., dict[str, Any]], tmp_path: Path
) -> None:
    exported = tmp_path / "verifiers.jsonl"
    assert verifiers.write(EpisodeReader(GOLDEN), exported) == 5
    seen = run_peer("verifiers", "verifiers_episodes.py", GOLDEN, exported)
    assert seen["agents"] == {"manager": 1, "worker": 2, "judge": 1}
    assert seen["frozen"] == ["judge"]
    assert (seen["branches"], seen["turns"], seen["truncated"]) == (2, 4, True)
    assert seen["roles"][:4] == ["user", "assistant", "tool", "tool"]
    assert seen["unscored"] == ["style"]
    assert seen["failed_traces"] == ["agent_failed"]
    assert (seen["errors"], seen["timeout"]) == (["agent_failed", "deadline_exceeded"], True)
    assert (seen["spans"], seen["tokens"]) == ([[3, 4], [3, 4]], [16, 12])


def test_the_lines_of_the_page_run(run_peer: Callable[..., dict[str, Any]], tmp_path: Path) -> None:
    verifiers.write(EpisodeReader(GOLDEN), tmp_path / "rows.jsonl")
    page = ROOT / "docs" / "trainers.md"
    assert run_peer("verifiers", "page_lines.py", page, "verifiers", folder=tmp_path) == {"blocks": 1}
