"""Every block of the README and of the docs runs, as a reader would run it."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
LONG = ("hub", "pretrained")
"""Pages whose blocks take tens of seconds."""


@pytest.mark.timeout(300)
@pytest.mark.parametrize(
    "page", [pytest.param(page, id=page.stem, marks=[pytest.mark.long] * (page.stem in LONG)) for page in PAGES]
)
def test_every_block_of_the_page_runs(page: Path, tmp_path: Path) -> None:
    ran = subprocess.run(
        [sys.executable, "-W", "error::DeprecationWarning:agent_env", ROOT / "scripts" / "run_page.py", page],
        cwd=tmp_path,
        check=False,
        capture_output=True,
        text=True,
        timeout=280,
    )
    assert ran.returncode == 0, ran.stdout + ran.stderr
    assert "blocks ran" in ran.stdout
