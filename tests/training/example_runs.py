"""Examples run as a user runs them: begun, stopped by Ctrl-C in the midst of training, and gone on with."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Generator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from agent_env.episodes import Episode, open_episodes
from agent_env.training.checkpoints import Run

EXAMPLES = Path(__file__).parents[2] / "examples" / "multiagent"
SECONDS = 200
"""How long a start may take."""


@dataclass(frozen=True)
class Shortened:
    """An example at small settings: its flags, the run that is stopped, and how many updates that has."""

    flags: tuple[str, ...]
    run: str
    updates: int
    episodes: int
    learner: str


SHORTENED: Mapping[str, Shortened] = {
    "signals": Shortened(("--arms", "both", "--seeds", "1", "--evaluated", "128"), "both-0", 8, 256, "sender"),
    "delegation": Shortened(("--arms", "manager", "--evaluated", "48"), "manager-0", 8, 256, "manager"),
    "duel": Shortened(
        ("--arms", "baselines", "--seeds", "1", "--warm", "150", "--evaluated", "60"), "baselines-0", 9, 384, "player"
    ),
}


@dataclass(frozen=True)
class Stopped:
    """An example that was stopped and gone on with: what it printed both times, and the curve when it was stopped."""

    name: str
    folder: Path
    before: list[dict[str, Any]]
    stopped: str
    shown: str

    @property
    def settings(self) -> Shortened:
        return SHORTENED[self.name]

    @property
    def run(self) -> Run:
        """The run that was stopped."""
        return Run.read(self.folder / self.settings.run)

    @cached_property
    def episodes(self) -> list[Episode]:
        """All that both starts played."""
        with open_episodes(self.folder) as kept:
            return list(kept.find())


@contextmanager
def started(name: str, *flags: str, runs: Path) -> Generator[subprocess.Popen[str]]:
    """Runs an example, in a group of processes of its own, as a terminal does; ends it with the block."""
    command = [sys.executable, "-W", "error", str(EXAMPLES / name / "train.py"), *flags, "--runs", str(runs)]
    process = subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, start_new_session=True
    )
    try:
        yield process
    finally:
        process.kill()
        process.wait()


def stopped_and_gone_on(name: str, runs: Path) -> Stopped:
    """Runs an example shortened, stops it after its second update, and goes on with it to its end."""
    settings = SHORTENED[name]
    with started(name, *settings.flags, "--updates", str(settings.updates), runs=runs) as process:
        wait_for_lines(process, runs, f"*/{settings.run}/curve.jsonl", 2)
        # As a terminal does at Ctrl-C: to the agents and the gateway as well.
        os.killpg(process.pid, signal.SIGINT)
        stopped, _ = process.communicate(timeout=60)
        assert process.returncode == 1, stopped
    (folder,) = runs.iterdir()
    before = Run.read(folder / settings.run).curve()
    with started(name, "--resume", runs=runs) as process:
        shown, _ = process.communicate(timeout=SECONDS)
        assert process.returncode == 0, shown
    return Stopped(name, folder, before, stopped, shown)


def wait_for_lines(process: subprocess.Popen[str], runs: Path, pattern: str, lines: int) -> None:
    """Waits until the file that a program writes has so many lines."""
    ended = time.monotonic() + SECONDS
    while not (found := [*runs.glob(pattern)]) or found[0].read_bytes().count(b"\n") < lines:
        assert process.poll() is None, process.communicate()[0]
        assert time.monotonic() < ended, f"{pattern} has not {lines} lines"
        time.sleep(0.05)
