"""Processes that were started for one program end when it is killed, and those that are shared linger."""

from __future__ import annotations

import json
import os
import signal
import sys
from pathlib import Path
from typing import Any

import anyio
import pytest
from anyio.streams.buffered import BufferedByteReceiveStream

from agent_env.hub import Hub

pytestmark = pytest.mark.anyio

EXAMPLE = Path(__file__).parents[2] / "examples" / "multiagent" / "signals" / "train.py"

PARENT = """
import asyncio, json, os, subprocess, sys
from agent_env.gateway import launched
from agent_env.net.serving import STDIN_VARIABLE

async def main():
    command = [sys.executable, "-m", "agent_env.cli", "serve", "agents:solver", "--name", "solver", "--json"]
    environment = {**os.environ, STDIN_VARIABLE: "1"}
    agent = subprocess.Popen(command, env=environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    agent.stdout.readline()
    async with launched("gateway") as gateway:
        print(json.dumps([agent.pid, gateway.pid]), flush=True)
        await asyncio.sleep(60)

asyncio.run(main())
"""


def runs(pid: int) -> bool:
    """Whether a process runs; one that has ended and that nobody waited for does not."""
    try:
        return Path(f"/proc/{pid}/stat").read_text("utf-8").rpartition(")")[2].split()[0] not in ("Z", "X")
    except OSError:
        return False


async def until_ended(*pids: int) -> None:
    while any(map(runs, pids)):  # noqa: ASYNC110 - nothing tells when a process ends that is not a child
        await anyio.sleep(0.05)


def children(pid: int) -> list[int]:
    return [int(child) for child in Path(f"/proc/{pid}/task/{pid}/children").read_text("utf-8").split()]


def end(*pids: int) -> None:
    for pid in pids:
        if runs(pid):
            os.kill(pid, signal.SIGKILL)


@pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="looks at processes in /proc")
async def test_an_agent_and_a_gateway_end_when_the_process_that_started_them_is_killed(world: Any) -> None:
    parent = await anyio.open_process([sys.executable, "-c", PARENT], cwd=world.folder, stderr=None)
    pids: list[int] = []
    try:
        assert parent.stdout is not None
        with anyio.fail_after(40):
            pids = json.loads(await BufferedByteReceiveStream(parent.stdout).receive_until(b"\n", 100))
        assert all(map(runs, pids)) and len(pids) == 2
        parent.kill()
        with anyio.fail_after(15):
            await until_ended(*pids)
        async with Hub.open(world.hub) as hub:
            assert await hub.instances("solver") == []  # it took its leave
    finally:
        end(parent.pid, *pids)
        await parent.aclose()


@pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="looks at processes in /proc")
@pytest.mark.timeout(120)
async def test_the_trainer_of_the_example_leaves_no_process_behind_when_it_is_killed(tmp_path: Path) -> None:
    trainer = await anyio.open_process(
        [sys.executable, str(EXAMPLE), "--runs", str(tmp_path)], stdout=None, stderr=None
    )
    started: list[int] = []
    try:
        with anyio.fail_after(90):
            while not (found := list(tmp_path.glob("*/hub.db"))):  # noqa: ASYNC240
                assert trainer.returncode is None
                await anyio.sleep(0.1)
            async with Hub.open(found[0]) as hub:
                while {one.name for one in await hub.instances()} != {"signal-sender", "signal-receiver"}:
                    assert trainer.returncode is None
                    await anyio.sleep(0.1)
        started = children(trainer.pid)
        assert len(started) == 3  # the gateway and both agents
        trainer.kill()
        with anyio.fail_after(25):
            await until_ended(*started)
    finally:
        end(trainer.pid, *started)
        await trainer.aclose()


USER = """
import asyncio, sys
from agent_env import Environment

async def main():
    env = Environment(sys.stdin.readline().strip())
    print((await env.chat("hello")).text, flush=True)
    await asyncio.sleep(60)

print("ready", flush=True)
asyncio.run(main())
"""


async def test_a_server_that_lingers_ends_when_the_sessions_of_a_killed_user_have_ended(world: Any) -> None:
    world.agents.write_text(
        world.agents.read_text("utf-8") + "\nfrom agent_env import AgentEnvironment\nfrom agent_env.net import Limits\n"
        'brief = AgentEnvironment(solver, name="brief", version="1.0.0", limits=Limits(idle_seconds=3))\n',
        "utf-8",
    )
    user = await anyio.open_process([sys.executable, "-c", USER], cwd=world.folder, stderr=None)
    try:
        assert user.stdin is not None and user.stdout is not None
        said = BufferedByteReceiveStream(user.stdout)
        with anyio.fail_after(40):
            # A user that has started already is there before the server that it uses stops waiting for one.
            assert await said.receive_until(b"\n", 100) == b"ready"
            served = await world.serve("agents:brief", "--linger", "3")
            await user.stdin.send(f"{served['url']}\n".encode())
            assert (await said.receive_until(b"\n", 100)).endswith(b"hello")
        user.kill()
        with anyio.move_on_after(2) as kept:
            await served["process"].wait()
        assert kept.cancelled_caught  # the session can still be gone on with
        with anyio.fail_after(20):
            assert await served["process"].wait() == 0
    finally:
        end(user.pid)
        await user.aclose()
