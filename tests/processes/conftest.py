"""Agents, hubs and clients in processes of their own, as users run them, in a folder of their own."""

from __future__ import annotations

import json
import os
import runpy
import signal
import sys
from collections.abc import AsyncGenerator
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from pathlib import Path
from typing import Any

import anyio
import pytest
from anyio.abc import Process
from anyio.streams.text import TextReceiveStream

from agent_env import AgentEnvironment
from agent_env.hub import Hub
from agent_env.launch import log_directory, python_launch

AGENTS = '''
import asyncio
import os
from pathlib import Path

from agent_env import Need

async def solver(message: str) -> str:
    """Solves."""
    if message == "wait":
        Path("waiting").touch()
        await asyncio.sleep(60)
    return f"{os.getpid()} {message}"

async def manager(message: str, peers) -> str:
    """Asks a solver."""
    return f"manager {os.getpid()}, " + await peers["solver"](message)
'''

START_SECONDS = 20.0
"""How long a process may take until it is ready, on a busy machine."""


class World:
    """A folder with agents and a hub; everything that runs there ends with the test."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.hub: str = str(folder / "hub.db")
        self.agents = folder / "agents.py"
        self.agents.write_text(AGENTS, "utf-8")
        self._stack = AsyncExitStack()

    async def start(self, *command: str) -> Process:
        """Starts `agent-env …`; it is killed in the end."""
        process = await anyio.open_process(
            [sys.executable, "-m", "agent_env.cli", *command],
            cwd=self.folder,
            env=os.environ | {"AGENT_ENV_HUB": self.hub, "PYTHONUNBUFFERED": "1", "COLUMNS": "200"},
            stderr=None,
        )
        self._stack.push_async_callback(_end, process)
        return process

    async def serve(self, *options: str) -> dict[str, Any]:
        """Starts `agent-env serve …` and returns what it announced, with its process and its `pid`."""
        process = await self.start("serve", *options, "--json")
        assert process.stdout is not None
        told = ""
        with anyio.fail_after(START_SECONDS):
            async for text in TextReceiveStream(process.stdout):
                told += text
                if told.rstrip().endswith("}"):
                    return {**json.loads(told), "process": process, "pid": process.pid}
        raise AssertionError(f"the server ended before it was ready: {told!r}")

    async def push(self, attribute: str = "solver", version: str = "1.0.0", *skills: str) -> None:
        """Does what `agent-env push agents:solver --name solver --version …` does, without a process for it."""
        module = runpy.run_path(str(self.agents))
        options = ["--name", attribute, "--version", version, *(word for one in skills for word in ("--skill", one))]
        async with Hub.open(self.hub) as hub:
            environment = AgentEnvironment(module[attribute], name=attribute, version=version, skills=skills)
            launch = python_launch(f"agents:{attribute}", options=options, directory=self.folder)
            await hub.publish(await environment.card(), launch.to_json())
            await environment.aclose()

    async def launched(self) -> list[int]:
        """The processes that were launched through the hub and still run: their output goes to its logs."""
        async with Hub.open(self.hub) as hub:
            logs = log_directory(hub)
        return _writing_to(logs)

    async def aclose(self) -> None:
        """Ends what runs."""
        await self._stack.aclose()
        if not self.hub.startswith("http"):
            for pid in await self.launched():
                with suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)


def _writing_to(logs: Path) -> list[int]:
    found: list[int] = []
    for process in Path("/proc").iterdir():
        if process.name.isdecimal():
            with suppress(OSError):  # it has ended, or is not ours
                if (process / "fd" / "1").readlink().parent == logs:
                    found.append(int(process.name))
    return sorted(found)


async def _end(process: Process) -> None:
    if process.returncode is None:
        with suppress(ProcessLookupError):
            process.kill()
    with anyio.CancelScope(shield=True), anyio.fail_after(10):
        await process.aclose()


@asynccontextmanager
async def _world(folder: Path) -> AsyncGenerator[World]:
    world = World(folder)
    try:
        yield world
    finally:
        await world.aclose()


@pytest.fixture
async def world(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncGenerator[World]:
    monkeypatch.setenv("AGENT_ENV_HUB", str(tmp_path / "hub.db"))
    async with _world(tmp_path) as world:
        yield world
