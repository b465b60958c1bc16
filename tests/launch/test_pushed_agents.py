"""From `agent-env push` to a call: the real command line, real processes, two hubs."""

from __future__ import annotations

import os
import runpy
import signal
import sys
from collections.abc import AsyncGenerator, Awaitable, Callable
from pathlib import Path
from typing import TypeAlias

import anyio
import pytest

from agent_env import AgentEnvironment, Environment
from agent_env.errors import LaunchFailed
from agent_env.hub import Hub
from agent_env.launch import answers, find_or_launch, launcher, log_directory, python_launch

pytestmark = pytest.mark.anyio

Push: TypeAlias = Callable[..., Awaitable[None]]

_AGENT = '''
import os

def answer(message: str) -> str:
    """Answers in the manner of the house."""
    import prompts
    with open("pid", "w") as file:
        print(os.getpid(), file=file)
    return prompts.PREFIX + message
'''


@pytest.fixture
async def project(tmp_path: Path) -> AsyncGenerator[Path, None]:
    """A folder with an agent; what was launched from it is ended in the end."""
    (tmp_path / "agents.py").write_text(_AGENT)
    (tmp_path / "prompts.py").write_text("PREFIX = 'house: '\n")
    yield tmp_path
    async with Hub.open(tmp_path / "hub.db") as hub:
        for log in log_directory(hub).glob("*.log"):
            for pid in group_of(log):
                os.killpg(pid, signal.SIGKILL)


def group_of(log: Path) -> list[int]:
    """The process groups whose output goes to this log, told by the system."""
    found: set[int] = set()
    for process in Path("/proc").iterdir():
        if process.name.isdecimal():
            try:
                if (process / "fd" / "1").readlink() == log:
                    found.add(os.getpgid(int(process.name)))
            except OSError:
                continue  # it has ended, or is not ours
    return sorted(found)


@pytest.fixture
def push(project: Path) -> Push:
    """Does what `agent-env push` does, without starting a process for it."""

    async def push(version: str | None = None) -> None:
        module = runpy.run_path(str(project / "agents.py"))
        options = ["--name", "agent-b"] + (["--version", version] if version is not None else [])
        async with Hub.open(project / "hub.db") as hub:
            environment = AgentEnvironment(module["answer"], name="agent-b", version=version)
            launch = python_launch("agents:answer", options=options, directory=project)
            await hub.publish(await environment.card(), launch.to_json())
            await environment.aclose()

    return push


async def test_a_pushed_agent_is_launched_called_and_ends_when_nobody_needs_it(
    project: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(launcher, "LINGER_SECONDS", 1.0)
    command = [sys.executable, "-m", "agent_env.cli", "push", "agents:answer", "--hub", str(project / "hub.db")]
    with anyio.fail_after(50):
        await anyio.run_process([*command, "--name", "agent-b", "--version", "1.0.0", "--skill", "math"], cwd=project)
        async with Environment("agent-b@^1", hub=project / "hub.db") as agent_b:
            assert (await agent_b.call_tool("chat", {"message": "hello"})).text == "house: hello"
            process = int((project / "pid").read_text())
        async with Hub.open(project / "hub.db") as hub:
            while await hub.instances("agent-b"):  # noqa: ASYNC110 - it waits for another process
                await anyio.sleep(0.05)
    with pytest.raises(ProcessLookupError):
        while True:
            os.kill(process, 0)
            await anyio.sleep(0.05)


async def test_code_that_changed_behind_its_version_is_not_run(project: Path, push: Push) -> None:
    await push("1.0.0")
    (project / "prompts.py").write_text("PREFIX = 'edited: '\n")
    async with Hub.open(project / "hub.db") as hub:
        with pytest.raises(LaunchFailed, match=r"another source now .* bump the version and push it again"):
            await find_or_launch("agent-b", hub)
    await push("1.0.1")
    async with Environment("agent-b", hub=project / "hub.db") as agent_b:
        assert (await agent_b.call_tool("chat", {"message": "hello"})).text == "edited: hello"


async def test_a_killed_server_is_replaced_by_the_next_call(project: Path, push: Push) -> None:
    await push("1.0.0")
    async with Hub.open(project / "hub.db") as hub:
        first = await find_or_launch("agent-b", hub)
        (log,) = log_directory(hub).glob("*.log")
        for group in group_of(log):
            os.killpg(group, signal.SIGKILL)
        with anyio.fail_after(10):
            while await answers(first.url):  # noqa: ASYNC110 - it waits for another process
                await anyio.sleep(0.05)
    async with Environment("agent-b@1.0.0", hub=project / "hub.db") as agent_b:
        assert (await agent_b.call_tool("chat", {"message": "again"})).text == "house: again"


async def test_an_edited_draft_is_launched_as_it_is_now(project: Path, push: Push) -> None:
    await push()
    (project / "prompts.py").write_text("PREFIX = 'edited: '\n")
    (project / "agents.py").write_text(_AGENT.replace("of the house", "of another house"))
    async with Environment("agent-b", hub=project / "hub.db") as agent_b:
        assert (await agent_b.call_tool("chat", {"message": "hello"})).text == "edited: hello"
