"""benchmarks/rows.py as a program: the form of what it says, and never a time."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

BENCHMARK = Path(__file__).parents[2] / "benchmarks" / "rows.py"
TINY = ("--turns", "8", "--episodes", "4", "--repeats", "2")


def said(*options: str) -> str:
    return subprocess.run(
        [sys.executable, BENCHMARK, *TINY, *options], capture_output=True, text=True, timeout=60, check=True
    ).stdout


def test_every_kind_of_episodes_is_measured_with_its_size() -> None:
    found = json.loads(said("--json"))
    assert found["how"] == {"repeats": 2}
    assert [(row["what"], row["prompt_tokens"], row["longest_row"], row["rows"]) for row in found["rows"]] == [
        ("2 turns", 80, 80, 1),
        ("4 turns", 320, 160, 1),
        ("8 turns", 1280, 320, 1),
        ("8 turns, forked", 1280, 320, 3),
        ("4 episodes", 2800, 320, 12),
    ]
    for row in found["rows"]:
        assert row["of_reading"] == row["cut_ms"] / row["read_ms"]
        assert round(row["ns_a_token"] * row["prompt_tokens"]) == round(row["cut_ms"] * 1e6)


def test_the_table_says_what_a_figure_is() -> None:
    text = said()
    assert "CPU time of cutting rows, medians of 2" in text
    assert "8 turns, forked" in text and "4 episodes" in text
