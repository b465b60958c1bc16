"""Every block of the README and of the docs runs, as a reader would run it."""

from __future__ import annotations

import re
import subprocess
import sys
from importlib.metadata import packages_distributions
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


def test_no_file_of_a_page_hides_a_package_from_the_agents_beside_it() -> None:
    # A module in the working directory goes before every installed one: `agents.py` hides what openai-agents imports.
    taken = {"agents", *packages_distributions(), *sys.stdlib_module_names}
    title = re.compile(r'^```python title="(\w+)\.py"', re.MULTILINE)
    files = {page.name: set(title.findall(page.read_text("utf-8"))) for page in PAGES}
    assert "poets" in files["hub.md"]
    assert {page: names & taken for page, names in files.items() if names & taken} == {}
