"""Launch specifications: what is stored, what is read, and how processes are watched."""

from __future__ import annotations

import os
import platform
import sys
import time
from pathlib import Path

import anyio
import pytest

from agent_env.errors import ConfigurationError, LaunchFailed
from agent_env.hub import Hub
from agent_env.launch import (
    CommandLaunch,
    PythonLaunch,
    UrlLaunch,
    launch,
    log_directory,
    parse_launch,
    python_launch,
    source_hash,
)
from agent_env.launch.process import Detached, forget_old_logs
from agent_env_cards import EnvironmentCard


def test_a_specification_is_read_as_it_was_written(tmp_path: Path) -> None:
    (tmp_path / "agent.py").write_text("def make(): ...\n")
    spec = python_launch("agent:make", directory=tmp_path, env=["OPENAI_API_KEY"])
    assert spec == PythonLaunch(
        target="agent:make",
        interpreter=sys.executable,
        directory=str(tmp_path),
        env=("OPENAI_API_KEY",),
        source=source_hash("agent:make", tmp_path),
        machine=platform.node(),
    )
    command = CommandLaunch(command=("serve-it", "--fast"), directory="/srv")
    for written in (spec, command, UrlLaunch(url="http://127.0.0.1:1")):
        assert parse_launch(written.to_json()) == written


def test_a_python_specification_becomes_a_serve_command() -> None:
    options = ("--name", "agent-b", "--version", "1.0.0")
    spec = PythonLaunch(target="agent:make", interpreter="/venv/bin/python", directory="/srv", options=options)
    assert spec.argv(60.0) == [
        *("/venv/bin/python", "-m", "agent_env.cli", "serve", "agent:make"),
        *("--name", "agent-b", "--version", "1.0.0", "--host", "127.0.0.1", "--port", "0", "--linger", "60"),
    ]


def test_values_of_variables_are_not_stored(tmp_path: Path) -> None:
    (tmp_path / "agent.py").write_text("")
    with pytest.raises(ConfigurationError, match="'KEY=secret' is not the name of an environment variable"):
        python_launch("agent:make", directory=tmp_path, env=["KEY=secret"])


def test_what_is_no_specification_is_refused() -> None:
    for value in ({}, {"kind": "command", "command": [], "directory": "/"}, {"kind": "url", "url": 5}):
        with pytest.raises(LaunchFailed, match="push the release again"):
            parse_launch(value)


@pytest.mark.anyio
async def test_changed_code_is_refused_before_it_runs(tmp_path: Path) -> None:
    agent = tmp_path / "agent.py"
    agent.write_text("")
    card = EnvironmentCard(name="agent-b", version="1.0.0", description="Solves things.")
    async with Hub.open(tmp_path / "hub.db") as hub:
        release = await hub.publish(card, python_launch("agent:make", directory=tmp_path).to_json())
        agent.write_text("open('ran', 'w')\n")
        with pytest.raises(LaunchFailed, match="another source now than when it was published"):
            await launch(release, hub)
    assert not (tmp_path / "ran").exists()


@pytest.mark.anyio
async def test_a_process_that_does_not_want_to_end_is_killed(tmp_path: Path) -> None:
    stubborn = (
        "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); print('deaf', flush=True); time.sleep(600)"
    )
    process = Detached([sys.executable, "-c", stubborn], directory=str(tmp_path), env={}, log=tmp_path / "a.log")
    with anyio.fail_after(10):
        while "deaf" not in process.tail():  # noqa: ASYNC110 - it waits for another process
            await anyio.sleep(0.02)
        assert process.exit_code is None
        await process.kill()
        while process.exit_code is None:  # noqa: ASYNC110 - a thread of the process object reaps it
            await anyio.sleep(0.02)
    assert process.exit_code == -9
    await process.kill()


def test_only_the_end_of_a_long_log_is_shown(tmp_path: Path) -> None:
    log = tmp_path / "a.log"
    process = Detached([sys.executable, "-c", ""], directory=str(tmp_path), env={}, log=log)
    log.write_bytes(b"\xff" + b"".join(b"line %d\n" % number for number in range(10_000)))
    assert process.tail().splitlines() == [f"line {number}" for number in range(9980, 10_000)]


def test_logs_are_kept_for_a_week(tmp_path: Path) -> None:
    old, new = tmp_path / "old.log", tmp_path / "new.log"
    for log in (old, new):
        log.touch()
    week_ago = time.time() - 8 * 24 * 3600
    os.utime(old, (week_ago, week_ago))
    forget_old_logs(tmp_path)
    assert [log.name for log in tmp_path.iterdir()] == ["new.log"]


@pytest.mark.anyio
async def test_logs_of_a_served_hub_are_in_the_users_own_directory(tmp_path: Path) -> None:
    async with Hub.open("sqlite://") as hub:
        assert log_directory(hub).is_absolute() and "agent-env" in str(log_directory(hub))
    async with Hub.open(tmp_path / "hub.db") as hub:
        assert log_directory(hub) == tmp_path / "logs"
