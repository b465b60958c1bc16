"""benchmarks/gateway.py as a program: the form of what it says, and never a time."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

BENCHMARK = Path(__file__).parents[2] / "benchmarks" / "gateway.py"
TINY = ("--calls", "6", "--rounds", "2", "--concurrency", "2", "--check")
NEVER = ("cpu_us=-1", "slower=-2", "later_ms=-1e9")
ALWAYS = ("cpu_us=1e9", "slower=1e9", "later_ms=1e9")


def ran(*options: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, BENCHMARK, *options], capture_output=True, text=True, timeout=120, check=False
    )


def test_a_figure_over_its_bar_ends_the_program_with_1_and_the_json_says_which() -> None:
    done = ran(*TINY, "--json", "--bars", *NEVER[:2], ALWAYS[2])
    assert done.returncode == 1, done.stderr
    said: dict[str, Any] = json.loads(done.stdout)
    assert {bar["figure"]: (bar["bar"], bar["ok"]) for bar in said["bars"]} == {
        "cpu_us": (-1, False),
        "slower": (-2, False),
        "later_ms": (1e9, True),
    }
    rows = {row["server"]: row for row in said["rows"]}
    assert [(row["server"], row["calls"]) for row in said["rows"]] == [
        ("0 ms", 6),
        ("50 ms", 3),
        ("50 ms, streamed", 1),
    ]
    for bar in said["bars"]:
        figure = rows[bar["server"]][bar["figure"]]
        assert bar["measured"] == figure["median"] and figure["low"] <= figure["median"] <= figure["high"]
    # The servers took as long as they were asked to, on both ways.
    assert all(rows["50 ms"][way]["low"] > 45 for way in ("direct_ms", "gateway_ms"))
    assert said["how"].items() >= {"rounds": 2, "concurrency": 2, "together": False}.items()


def test_figures_within_their_bars_are_a_line_each_below_a_table_that_says_how_they_were_measured() -> None:
    done = ran(*TINY, "--together", "--bars", *ALWAYS)
    assert done.returncode == 0, done.stdout + done.stderr
    lines = done.stdout.splitlines()
    assert [line.split(":")[0] for line in lines[-3:]] == ["cpu_us", "slower", "later_ms"]
    assert all(": ok - " in line and ", bar " in line for line in lines[-3:])
    assert "medians of 2 rounds of 6 calls" in " ".join(done.stdout.split())


@pytest.mark.parametrize("bar", ["slow=1", "slower=little"])
def test_a_bar_that_there_is_not_is_refused(bar: str) -> None:
    done = ran("--bars", bar)
    assert done.returncode == 2 and "--bars" in done.stderr
