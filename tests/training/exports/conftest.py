"""The golden call tree: the episodes in golden.jsonl, which make_golden.py makes."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from agent_env.episodes import Episode, EpisodeReader
from agent_env.training.learning import credit_rows
from agent_env.training.rows import Row

sys.path.insert(0, str(Path(__file__).parent))

GOLDEN = Path(__file__).parent / "golden.jsonl"


@pytest.fixture
def golden() -> list[Episode]:
    return list(EpisodeReader(GOLDEN))


@pytest.fixture
def golden_rows(golden: list[Episode]) -> list[Row]:
    return credit_rows(golden)[0]
