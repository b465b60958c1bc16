"""benchmarks/lanes.py as a program: the form of what it says, and never a time."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

BENCHMARK = Path(__file__).parents[2] / "benchmarks" / "lanes.py"


def test_every_lane_is_measured_alone_and_side_by_side_next_to_the_floor(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, BENCHMARK, "--calls", "2", "--json"],
        env={**os.environ, "TMPDIR": str(tmp_path)},
        capture_output=True,
        text=True,
        timeout=100,
        check=True,
    )
    rows = json.loads(done.stdout)
    assert [(row["lane"], row["concurrency"]) for row in rows] == [
        (lane, concurrency)
        for lane in ("inprocess", "bare HTTP", "websocket", "http", "mcp", "a2a")
        for concurrency in (1, 32)
    ]
    base = {row["concurrency"]: row["total_us"] for row in rows if row["lane"] == "websocket"}
    for row in rows:
        assert row["calls_per_second"] > 0 and row["total_us"] == row["client_us"] + row["server_us"]
        assert row["ratio"] == pytest.approx(row["total_us"] / base[row["concurrency"]])
    assert list(tmp_path.iterdir()) == [], "its hub stays behind"
