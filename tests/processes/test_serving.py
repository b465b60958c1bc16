"""An agent in one process, its caller in another: found, called, killed, found again."""

from __future__ import annotations

import os
import re
import signal
import sys
from pathlib import Path
from typing import Any

import anyio
import pytest
from anyio.streams.text import TextReceiveStream

from agent_env import AgentEnvironment, Environment, Need
from agent_env.client.lanes.websocket import close_sockets
from agent_env.errors import AgentEnvError, LaunchFailed, TransportError
from agent_env.hub import Hub

pytestmark = pytest.mark.anyio

World = Any
"""The folder of the fixture `world`."""


def pid_of(text: str) -> int:
    return int(text.split()[0])


async def until_ended(pid: int) -> None:
    while True:
        try:
            os.kill(pid, 0)
        except ProcessLookupError:
            return
        await anyio.sleep(0.05)


async def test_a_killed_server_is_a_typed_error_and_the_next_environment_has_another(world: World) -> None:
    await world.push()
    served = await world.serve("agents:solver", "--name", "solver", "--version", "1.0.0")
    deadline = 8.0
    async with Environment("solver@1.0.0", timeout=deadline) as env:
        assert env.lane == "websocket"
        assert pid_of((await env.chat("hello")).text) == served["pid"]
        with anyio.fail_after(deadline):
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(kill_while_it_waits, served["pid"], world.folder)
                with pytest.raises(TransportError, match=r"could not be resumed|cannot be reached"):
                    await env.chat("wait")
        # The conversation is lost with its process, and that stays an error: never a fresh one in its place.
        with pytest.raises(TransportError):
            await env.chat("again")
    async with Hub.open() as hub:
        (instance,) = await hub.instances("solver")
        assert instance.state == "suspect"  # the caller told the hub, before the lease lapsed
    with anyio.fail_after(20):
        async with Environment("solver@1.0.0") as env:
            assert pid_of((await env.chat("hello")).text) in await world.launched()
    await close_sockets()


async def kill_while_it_waits(pid: int, folder: Path) -> None:
    while not (folder / "waiting").exists():  # noqa: ASYNC110 - it waits for another process
        await anyio.sleep(0.02)
    os.kill(pid, signal.SIGKILL)


async def test_a_lease_that_nobody_renews_lapses_by_itself(world: World) -> None:
    served = await world.serve("agents:solver", "--name", "solver", "--version", "1.0.0")
    os.kill(served["pid"], signal.SIGKILL)
    async with Hub.open() as hub:
        with anyio.fail_after(15):
            while (await hub.instances("solver"))[0].up:  # noqa: ASYNC110 - nothing tells when a lease lapses
                await anyio.sleep(0.1)
        with pytest.raises(LaunchFailed, match=r"no instance that answers.*push it"):
            await Environment("solver@1.0.0").initialize()


CLIENT = """
import asyncio, sys
from agent_env import AgentEnvironment, Environment, Need

async def main():
    async with Environment("solver@^1") as solver:
        print((await solver.chat("hello")).text, flush=True)
        await asyncio.to_thread(sys.stdin.readline)

asyncio.run(main())
"""


async def test_two_clients_at_once_launch_one_instance(world: World) -> None:
    await world.push()
    clients = [await anyio.open_process([sys.executable, "-c", CLIENT], cwd=world.folder, stderr=None) for _ in "ab"]
    answers: list[str] = []

    async def hear(stream: Any) -> None:
        answers.append(await TextReceiveStream(stream).receive())

    try:
        with anyio.fail_after(24):
            async with anyio.create_task_group() as tasks:
                for client in clients:
                    tasks.start_soon(hear, client.stdout)
            assert len({pid_of(answer) for answer in answers}) == 1
            assert await world.launched() == [pid_of(answers[0])]
            for client in clients:
                assert client.stdin is not None
                await client.stdin.aclose()
                assert await client.wait() == 0
    finally:
        for client in clients:
            if client.returncode is None:
                client.kill()
            await client.aclose()


async def test_a_need_is_met_by_a_release_that_must_be_launched_first(world: World) -> None:
    async def manager(message: str, peers: Any) -> str:
        return str(await peers["solver"](message))

    await world.push("solver", "1.0.0", "math")
    managing = AgentEnvironment(manager, name="manager", needs=[Need("solver", skills=["math"])])
    with anyio.fail_after(24):
        async with Environment(managing) as env:
            assert pid_of((await env.chat("2 + 2")).text) in await world.launched()
    await managing.aclose()
    await close_sockets()


async def test_a_server_that_lingers_ends_after_its_last_user(world: World) -> None:
    served = await world.serve("agents:solver", "--name", "solver", "--version", "1.0.0", "--linger", "1")
    async with Environment("solver@1.0.0") as env:
        await env.chat("a")
        await anyio.sleep(1.5)
        assert pid_of((await env.chat("b")).text) == served["pid"]
    with anyio.fail_after(10):
        assert await served["process"].wait() == 0
    async with Hub.open() as hub:
        assert await hub.instances("solver") == []
    await close_sockets()


async def test_code_that_changed_behind_its_version_is_not_launched(world: World) -> None:
    await world.push()
    world.agents.write_text(world.agents.read_text("utf-8") + "\nEXTRA = 1\n", "utf-8")
    with pytest.raises(LaunchFailed, match=r"another source now .* bump the version") as refused:
        await Environment("solver@1.0.0").initialize()
    assert refused.value.code == "launch_failed"
    assert await world.launched() == []


async def test_a_draft_is_the_newest_one_that_was_started(world: World) -> None:
    first = await world.serve("agents:solver", "--name", "solver")
    async with Environment("solver") as env:
        assert pid_of((await env.chat("a")).text) == first["pid"]
    # Editing a docstring never refuses a start.
    world.agents.write_text(world.agents.read_text("utf-8").replace("Solves.", "Solves better."), "utf-8")
    second = await world.serve("agents:solver", "--name", "solver")
    assert second["digest"] != first["digest"]
    async with Environment("solver") as env:
        assert env.card.description == "Solves better."
        assert pid_of((await env.chat("a")).text) == second["pid"]
    second["process"].terminate()
    with anyio.fail_after(10):
        assert await second["process"].wait() == 0
    async with Environment("solver") as env:
        assert pid_of((await env.chat("a")).text) == first["pid"]
    await close_sockets()


async def test_agents_find_each_other_and_are_called_over_a_served_hub(world: World) -> None:
    hub = await world.start("hub", "serve", "--port", "0")
    with anyio.fail_after(20):
        told = ""
        while not (found := re.search(r"served at (http://\S+)", told)):
            told += await TextReceiveStream(hub.stdout).receive()
    world.hub = found[1]
    served: dict[str, dict[str, Any]] = {}

    async def serve(*options: str) -> None:
        served[options[0]] = await world.serve(*options)

    world.agents.write_text(
        world.agents.read_text("utf-8") + "\nfrom agent_env import AgentEnvironment\n"
        'team = AgentEnvironment(manager, name="manager", version="1.0.0", needs=[Need("solver", skills=["math"])])\n',
        "utf-8",
    )
    with anyio.fail_after(20):
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(serve, "agents:solver", "--name", "solver", "--version", "1.0.0", "--skill", "math")
            tasks.start_soon(serve, "agents:team")
    pids = [served[target]["pid"] for target in ("agents:team", "agents:solver")]
    async with Environment("manager@1.0.0", hub=world.hub) as manager:
        assert (await manager.chat("2 + 2")).text == f"manager {pids[0]}, {pids[1]} 2 + 2"
    os.kill(pids[1], signal.SIGKILL)
    with anyio.fail_after(20):
        async with Environment("manager@1.0.0", hub=world.hub) as manager:
            with pytest.raises(AgentEnvError) as failed:
                await manager.chat("2 + 2")
            assert failed.value.code in ("need_unmet", "peer_failed")
    await close_sockets()
