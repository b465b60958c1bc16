"""A program that serves a card and registers itself, as `agent-env serve` does, for the launcher to start."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import AsyncGenerator, Callable, Generator
from contextlib import suppress
from pathlib import Path

import pytest

from agent_env.hub import Hub
from agent_env.launch import CommandLaunch
from agent_env_cards import EnvironmentCard

_PROGRAM = """
import asyncio, os, pathlib, subprocess, sys, uvicorn
from starlette.applications import Starlette
from starlette.responses import JSONResponse
from starlette.routing import Route
from agent_env.hub import Heartbeat, Hub
from agent_env.net import bound_url, listen
from agent_env_cards import EnvironmentCard

mode = sys.argv[1]
with open("pids", "a") as pids:
    print(os.getpid(), file=pids)
print("key is", os.environ.get("AGENT_TEST_KEY"), "secret is", os.environ.get("AGENT_TEST_SECRET"), flush=True)
if mode == "crash":
    sys.exit("the model file is missing")
if mode == "silent":
    child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
    with open("pids", "a") as pids:
        print(child.pid, file=pids)

registered = EnvironmentCard(name="agent-b", version=sys.argv[2], description="Solves things.")
served = registered.model_copy(update={"description": "Does other things."}) if mode == "other-card" else registered

async def main():
    async def card(request):
        return JSONResponse({"no": "card"} if mode == "bad-card" else served.to_dict())
    async def health(request):
        return JSONResponse({"status": "healthy"})
    app = Starlette(routes=[Route("/.well-known/agent-env.json", card), Route("/health", health)])
    listener = listen()
    server = uvicorn.Server(uvicorn.Config(app, log_level="warning"))
    if mode == "silent":
        return await server.serve([listener])
    source = "sha256:other" if mode == "other-source" else "sha256:same"
    async with Hub.open() as hub, Heartbeat(hub, registered, bound_url(listener), source=source):
        await server.serve([listener])

asyncio.run(main())
"""


@pytest.fixture
def directory(tmp_path: Path) -> Generator[Path, None, None]:
    """The working directory of launched programs; those that still run in the end are ended by their ids."""
    (tmp_path / "program.py").write_text(_PROGRAM)
    yield tmp_path
    for pid in launched(tmp_path):
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)


def launched(directory: Path) -> list[int]:
    pids = directory / "pids"
    return [int(line) for line in pids.read_text().split()] if pids.exists() else []


@pytest.fixture
def pids(directory: Path) -> Callable[[], list[int]]:
    """Tells the processes that were launched, in order."""
    return lambda: launched(directory)


@pytest.fixture
def command(directory: Path) -> Callable[..., CommandLaunch]:
    """A launch specification of the program in one of its modes."""

    def make(mode: str, version: str = "1.0.0", env: tuple[str, ...] = ()) -> CommandLaunch:
        return CommandLaunch(
            command=(sys.executable, "program.py", mode, version),
            directory=str(directory),
            env=env,
            source="sha256:same",
        )

    return make


@pytest.fixture
def card() -> EnvironmentCard:
    return EnvironmentCard(name="agent-b", version="1.0.0", description="Solves things.")


@pytest.fixture
async def hub(tmp_path: Path) -> AsyncGenerator[Hub, None]:
    async with Hub.open(tmp_path / "data" / "hub.db") as hub:
        yield hub
