"""The command line, run as users run it: in a process of its own, in a folder of its own, with a hub of its own."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Generator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

sys.path.insert(0, str(Path(__file__).parents[1] / "warm"))
from warm_python import WarmPython

AGENTS = '''
def echo(message: str) -> str:
    """Says what it hears."""
    return message


def counter(message: str, history: list) -> str:
    return f"{len(history) // 2 + 1}: {message}"


def broken(message: str) -> str:
    raise ValueError("internal")
'''

COLUMNS = "140"
COMMAND_SECONDS = 110.0
"""How long a command may take: a guard against one that hangs, within a test's own 120 seconds. On a machine that is
busy, `doctor` alone, which imports every SDK that it looks at, has taken more than a minute."""


@dataclass
class Cli:
    """Runs `agent-env` in one folder."""

    folder: Path
    hub: Path
    warm: WarmPython

    @property
    def environment(self) -> dict[str, str]:
        return os.environ | {"AGENT_ENV_HUB": str(self.hub), "PYTHONUNBUFFERED": "1", "COLUMNS": COLUMNS}

    def __call__(self, *arguments: str, code: int = 0, stdin: str = "") -> str:
        """Runs a command to its end; returns what it printed."""
        return self._printed(
            code,
            *self.warm.run(
                *("agent_env.cli", *arguments),
                cwd=self.folder,
                env=self.environment,
                stdin=stdin,
                timeout=COMMAND_SECONDS,
            ),
        )

    def cold(self, *arguments: str, code: int = 0, stdin: str = "") -> str:
        """Does the same with an interpreter that starts from nothing, as a user's does."""
        done = subprocess.run(
            [sys.executable, "-m", "agent_env.cli", *arguments],
            cwd=self.folder,
            check=False,
            env=self.environment,
            input=stdin,
            capture_output=True,
            text=True,
            timeout=COMMAND_SECONDS,
        )
        return self._printed(code, done.returncode, done.stdout, done.stderr)

    @staticmethod
    def _printed(code: int, returncode: int, stdout: str, stderr: str) -> str:
        assert returncode == code, stdout + stderr
        assert "Traceback" not in stderr
        return stdout + stderr if code else stdout

    def json(self, *arguments: str, code: int = 0) -> Any:
        """Runs a command with --json; returns what it said."""
        return json.loads(self(*arguments, "--json", code=code))

    @contextmanager
    def serving(self, *arguments: str) -> Generator[dict[str, Any]]:
        """Runs `agent-env serve … --json`; gives what it announced."""
        process = self.warm.start(
            *("agent_env.cli", "serve", *arguments, "--json"), cwd=self.folder, env=self.environment
        )
        try:
            lines: list[str] = []
            while not lines or lines[-1].rstrip() != "}":
                line = process.stdout.readline()
                assert line, "the server ended before it was ready"
                lines.append(line)
            yield {**json.loads("".join(lines)), "pid": process.pid}
        finally:
            process.send_signal(signal.SIGINT)
            assert process.wait(20) in (0, -signal.SIGKILL)
            process.stdout.close()


@pytest.fixture(scope="session")
def warm() -> Generator[WarmPython]:
    """Starts commands of all tests of the command line."""
    with tempfile.TemporaryDirectory() as folder:  # a short path, as sockets want it
        python = WarmPython(Path(folder), os.environ | {"COLUMNS": COLUMNS})
        yield python
        python.close()


@pytest.fixture
def cli(tmp_path: Path, warm: WarmPython) -> Cli:
    (tmp_path / "agents.py").write_text(AGENTS, "utf-8")
    return Cli(tmp_path, tmp_path / "hub.db", warm)


@pytest.fixture
def hugging_face(tmp_path: Path) -> Path:
    """The folder of a small model of Hugging Face, made here, that knows the words of a game."""
    sys.path.insert(0, str(Path(__file__).parents[1] / "training"))
    from pretrained_models import save_model

    return save_model(tmp_path / "model", ["day", "night", "sun", "moon"])
