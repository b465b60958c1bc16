"""Other projects' packages, each in a virtual environment of its own."""

from __future__ import annotations

import fcntl
import hashlib
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
REQUIREMENTS = Path(__file__).parent / "requirements"
MINUTES_TO_INSTALL = 10


@pytest.fixture(scope="session")
def peer_python() -> Callable[[str], Path]:
    """Gives the Python of a virtual environment: `peer_python("mcp1")` has what `requirements/mcp1.txt` pins.

    It is made at its first use and kept in `.venvs/` until the file changes. The file names every package, and pip
    installs these and no others: trainers drag stacks for GPUs behind them that no test uses. It is pip, since that is
    told where the CPU build of torch lies on a machine that has one.
    """
    return _python


def _python(name: str) -> Path:
    requirements = REQUIREMENTS / f"{name}.txt"
    wanted = hashlib.sha256(requirements.read_bytes() + sys.version.encode()).hexdigest()
    home = ROOT / ".venvs" / name
    python, made = home / "bin" / "python", home / "made-from"
    home.parent.mkdir(exist_ok=True)
    # Test processes that run side by side make it once.
    with (home.parent / f"{name}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not made.exists() or made.read_text("utf-8") != wanted:
            shutil.rmtree(home, ignore_errors=True)
            _run(sys.executable, "-m", "venv", str(home))
            _run(str(python), "-m", "pip", "install", "--quiet", "--no-deps", "--requirement", str(requirements))
            made.write_text(wanted, "utf-8")
    return python


def _run(*command: str) -> None:
    done = subprocess.run(command, capture_output=True, text=True, timeout=60 * MINUTES_TO_INSTALL, check=False)
    if done.returncode:
        pytest.fail(f"{' '.join(command)} failed:\n{done.stderr}", pytrace=False)
