"""A team whose agents run in a process each, with a gateway in another, played in a single place."""

from __future__ import annotations

import asyncio
import os
import sys
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from pathlib import Path

import anyio
import pytest

from agent_env.episodes import Episode, EpisodeStore, Node
from agent_env.gateway import RunHandle, launched
from agent_env.net.serving import STDIN_VARIABLE
from agent_env.training import Scenario, Seat, Team, collect, rollout

pytestmark = pytest.mark.anyio

AGENTS = """
import sys
from agent_env import serve_agent_as_env

def leaf(message: str) -> str:
    return f"leaf {message}"

async def middle(message: str, peers) -> str:
    return "middle " + await peers["leaf"](message)

async def top(message: str, peers) -> str:
    return "top " + await peers["middle"](message)

name, *below = sys.argv[1:]
peers = {peer: f"{peer}@1.0.0" for peer in below}
serve_agent_as_env(globals()[name], name=name, version="1.0.0", peers=peers)
"""


@asynccontextmanager
async def processes(program: Path, *names: str) -> AsyncGenerator[dict[str, asyncio.subprocess.Process]]:
    """Serves each agent in a process of its own; it may call the one that was named before it."""
    running: dict[str, asyncio.subprocess.Process] = {}
    try:
        for place, name in enumerate(names):
            running[name] = await asyncio.create_subprocess_exec(
                *(sys.executable, str(program), name, *names[max(0, place - 1) : place]),
                env={**os.environ, STDIN_VARIABLE: "1"},
                stdin=asyncio.subprocess.PIPE,
                stdout=asyncio.subprocess.PIPE,
            )
        for process in running.values():
            assert process.stdout is not None
            assert await process.stdout.readline()
        yield running
    finally:
        for process in running.values():
            if process.returncode is None:
                process.terminate()
            await process.communicate()


async def play(team: Team, task: str) -> str:
    return (await team["top"].chat(task)).text


@pytest.mark.timeout(120)
async def test_three_processes_deep_in_a_single_place_and_what_is_told_when_one_dies(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AGENT_ENV_HUB", str(tmp_path / "hub.db"))
    program = tmp_path / "agents.py"
    program.write_text(AGENTS)
    scenario = Scenario(play, None, {"top": Seat("top@1.0.0"), "middle": Seat(), "leaf": Seat(trainable=False)})
    with anyio.fail_after(100), EpisodeStore(tmp_path / "episodes.db") as store:
        async with processes(program, "leaf", "middle", "top") as running, launched(tmp_path / "gateway") as gateway:
            seats = dict.fromkeys(scenario.seats)
            async with await RunHandle.open(gateway.url, gateway.admin_token, seats) as run:

                async def start(*tasks: str) -> list[Episode]:
                    return await collect(rollout(scenario, tasks, run=run, store=store, concurrency=1, seconds=20))

                episodes = await start("a", "b", "c")
                running["leaf"].kill()
                await running["leaf"].wait()
                broken = await start("d")
        assert list(store.find()) == [*episodes, *broken]
    for episode in episodes:
        assert episode.ok and episode.info["result"] == f"top middle leaf {episode.task}", episode.failures
        line = [node for node in episode.tree().walk() if node.turn is not None]
        assert [node.turn.agent for node in line if node.turn] == ["top@1.0.0", "middle@1.0.0", "leaf@1.0.0"]
        assert {trace.seat: trace.trainable for trace in episode.traces} == {"top": True, "middle": True, "leaf": False}
        assert depth(episode.tree()) == 3
    (lost,) = broken
    # Whoever called the one that died told of it, and everything above it is in the episode.
    assert not lost.ok and lost.failures[0].boundary == "peer"
    assert {trace.seat for trace in lost.traces} == {"top", "middle"}


def depth(node: Node) -> int:
    return max((1 + depth(child) for child in node.children), default=0)
