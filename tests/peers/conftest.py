"""Other projects' packages, each in a virtual environment of its own."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeAlias

import pytest

sys.path.insert(0, str(Path(__file__).parent))

from venvs import python_of

ROOT = Path(__file__).parents[2]
SECONDS_TO_RUN = 300

RunPeer: TypeAlias = Callable[..., dict[str, Any]]


@pytest.fixture(scope="session")
def peer_python() -> Callable[[str], Path]:
    """Gives the Python of a virtual environment: `peer_python("mcp1")` has what `venvs.toml` pins under that name."""
    return python_of


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
