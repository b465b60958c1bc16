"""Programs of the examples in the virtual environments of this folder: run to their end, or stopped by Ctrl-C."""

from __future__ import annotations

import os
import signal
import subprocess
import time
from collections.abc import Generator
from contextlib import contextmanager
from importlib.metadata import distribution
from pathlib import Path

ROOT = Path(__file__).parents[2]
SECONDS = 540
"""How long a start may take on a machine that others use as well."""


def with_metadata(folder: Path) -> Path:
    """Writes what tells an environment of its own where the product's wrappers are, as an installation does."""
    metadata = folder / "metadata" / "agent_env-0.dist-info"
    metadata.mkdir(parents=True)
    for name in ("METADATA", "entry_points.txt"):
        (metadata / name).write_text(distribution("agent-env").read_text(name) or "", "utf-8")
    return metadata.parent


@contextmanager
def started(*command: Path | str, metadata: Path) -> Generator[subprocess.Popen[str]]:
    """Runs a program, in a group of processes of its own, as a terminal does; ends it with the block."""
    paths = [ROOT, ROOT / "cards", ROOT / "wrappers", metadata]
    # Where the tests themselves are run in the background, a shell has them ignore Ctrl-C, which is inherited.
    ours = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        process = subprocess.Popen(
            command,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            env=os.environ | {"PYTHONPATH": os.pathsep.join(map(str, paths)), "HF_HUB_OFFLINE": "1"},
            start_new_session=True,
        )
    finally:
        signal.signal(signal.SIGINT, ours)
    try:
        yield process
    finally:
        process.kill()
        process.wait()


def finished(process: subprocess.Popen[str]) -> str:
    """What a program prints that must end well."""
    shown, _ = process.communicate(timeout=SECONDS)
    assert process.returncode == 0, shown
    return shown


def stopped(process: subprocess.Popen[str], folder: Path, pattern: str) -> str:
    """Stops a program as soon as something is in such a file, as a terminal does at Ctrl-C: its agents and its gateway
    hear it as well. Gives what it printed."""
    ended = time.monotonic() + SECONDS
    while not any(found.stat().st_size for found in folder.glob(pattern)):
        assert process.poll() is None, process.communicate()[0]
        assert time.monotonic() < ended, f"nothing is in {pattern}"
        time.sleep(0.05)
    os.killpg(process.pid, signal.SIGINT)
    shown, _ = process.communicate(timeout=120)
    assert process.returncode == 1 and "Traceback" not in shown, shown
    return shown
