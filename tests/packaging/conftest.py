"""The wheel as users get it: built from the checkout, installed in a clean virtual environment outside of it."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


def run(*command: str | Path, cwd: Path, **environment: str) -> str:
    """Runs a command that must succeed and returns what it printed."""
    done = subprocess.run(
        [str(part) for part in command],
        cwd=cwd,
        check=False,
        env=os.environ | environment,
        capture_output=True,
        text=True,
        timeout=400,
    )
    assert done.returncode == 0, f"{command}: {done.stdout}{done.stderr}"
    return done.stdout


@pytest.fixture(scope="session")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("dist")
    run(sys.executable, "-m", "build", "--wheel", "--installer=uv", "--outdir", folder, ROOT, cwd=ROOT)
    (built,) = folder.glob("*.whl")
    return built


@pytest.fixture(scope="session")
def clean_python(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("clean") / "venv"
    uv = Path(sys.executable).with_name("uv")
    run(uv, "venv", "--quiet", "--python", sys.executable, folder, cwd=folder.parent)
    python = folder / "bin" / "python"
    run(uv, "pip", "install", "--quiet", "--python", python, wheel, cwd=folder.parent)
    return python
