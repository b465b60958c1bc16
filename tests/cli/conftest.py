"""The command line, run as users run it: in a folder of its own, with a hub of its own."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Generator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

AGENTS = '''
def echo(message: str) -> str:
    """Says what it hears."""
    return message


def counter(message: str, history: list) -> str:
    return f"{len(history) // 2 + 1}: {message}"


def broken(message: str) -> str:
    raise ValueError("internal")
'''


@dataclass
class Cli:
    """Runs `agent-env` in one folder."""

    folder: Path
    hub: Path

    @property
    def environment(self) -> dict[str, str]:
        return os.environ | {"AGENT_ENV_HUB": str(self.hub), "PYTHONUNBUFFERED": "1", "COLUMNS": "140"}

    def __call__(self, *arguments: str, code: int = 0, stdin: str = "") -> str:
        """Runs a command to its end; returns what it printed."""
        done = subprocess.run(
            [sys.executable, "-m", "agent_env.cli", *arguments],
            cwd=self.folder,
            check=False,
            env=self.environment,
            input=stdin,
            capture_output=True,
            text=True,
            timeout=60,
        )
        assert done.returncode == code, done.stdout + done.stderr
        assert "Traceback" not in done.stderr
        return done.stdout + done.stderr if code else done.stdout

    def json(self, *arguments: str, code: int = 0) -> Any:
        """Runs a command with --json; returns what it said."""
        return json.loads(self(*arguments, "--json", code=code))

    @contextmanager
    def serving(self, *arguments: str) -> Generator[dict[str, Any]]:
        """Runs `agent-env serve … --json`; gives what it announced."""
        process = subprocess.Popen(
            [sys.executable, "-m", "agent_env.cli", "serve", *arguments, "--json"],
            cwd=self.folder,
            env=self.environment,
            stdout=subprocess.PIPE,
            text=True,
        )
        try:
            assert process.stdout is not None
            lines: list[str] = []
            while not lines or lines[-1].rstrip() != "}":
                line = process.stdout.readline()
                assert line, "the server ended before it was ready"
                lines.append(line)
            yield {**json.loads("".join(lines)), "pid": process.pid}
        finally:
            process.send_signal(signal.SIGINT)
            assert process.wait(20) in (0, -signal.SIGKILL)
            if process.stdout is not None:
                process.stdout.close()


@pytest.fixture
def cli(tmp_path: Path) -> Cli:
    (tmp_path / "agents.py").write_text(AGENTS, "utf-8")
    return Cli(tmp_path, tmp_path / "hub.db")


@pytest.fixture
def hugging_face(tmp_path: Path) -> Path:
    """The folder of a small model of Hugging Face, made here, that knows the words of a game."""
    sys.path.insert(0, str(Path(__file__).parents[1] / "training"))
    from pretrained_models import save_model

    return save_model(tmp_path / "model", ["day", "night", "sun", "moon"])
