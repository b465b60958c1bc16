"""Other projects' packages, each in a virtual environment of its own."""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeAlias

import pytest

ROOT = Path(__file__).parents[2]
REQUIREMENTS = Path(__file__).parent / "requirements"
MINUTES_TO_INSTALL = 10
SECONDS_TO_RUN = 300

RunPeer: TypeAlias = Callable[..., dict[str, Any]]


@pytest.fixture(scope="session")
def peer_python() -> Callable[[str], Path]:
    """Gives the Python of a virtual environment: `peer_python("mcp1")` has what `requirements/mcp1.txt` pins.

    uv makes it at its first use, and it is kept in `.venvs/` until the file changes. The file names every package, and
    these are installed and no others: trainers drag stacks for GPUs behind them that no test uses. Only torch comes
    with what it needs, which is little for its CPU build. pip installs them, since it is told where such a build lies.
    """
    return _python


@pytest.fixture
def run_peer(peer_python: Callable[[str], Path]) -> RunPeer:
    """Runs a program of this folder in a virtual environment, with the product on its path, and gives the JSON that it
    prints last: `run_peer("verl", "verl_batches.py", file)`. What it asserts itself fails the test."""

    def run(
        name: str,
        program: str,
        *arguments: Path | str,
        folder: Path | None = None,
        seconds: float = SECONDS_TO_RUN,
    ) -> dict[str, Any]:
        environment = os.environ | {
            "PYTHONPATH": os.pathsep.join(str(ROOT / part) for part in ("", "cards", "wrappers")),
            "HF_HUB_OFFLINE": "1",
            "RAY_AUTH_MODE": "disabled",
            "TRL_EXPERIMENTAL_SILENCE": "1",
        }
        ran = subprocess.run(
            [peer_python(name), Path(__file__).parent / program, *arguments],
            capture_output=True,
            text=True,
            timeout=seconds,
            check=False,
            env=environment,
            cwd=folder,
        )
        if ran.returncode:
            pytest.fail(f"{program} failed:\n{ran.stdout}{ran.stderr}", pytrace=False)
        said: dict[str, Any] = json.loads(ran.stdout.splitlines()[-1])
        return said

    return run


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
            _run(sys.executable, "-m", "uv", "venv", "--quiet", "--seed", "--python", sys.executable, str(home))
            install = (str(python), "-m", "pip", "install", "--quiet")
            torch = [line for line in requirements.read_text("utf-8").splitlines() if line.startswith("torch==")]
            if torch:
                _run(*install, *torch)
            _run(*install, "--no-deps", "--requirement", str(requirements))
            made.write_text(wanted, "utf-8")
    return python


def _run(*command: str) -> None:
    done = subprocess.run(command, capture_output=True, text=True, timeout=60 * MINUTES_TO_INSTALL, check=False)
    if done.returncode:
        pytest.fail(f"{' '.join(command)} failed:\n{done.stderr}", pytrace=False)
