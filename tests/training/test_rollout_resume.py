"""A second start of a rollout: what was finished is not played again, and what was not, is."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import subprocess
import sys
from collections import Counter
from pathlib import Path
from typing import Any

import anyio
import pytest
from stages import LANES, staged

from agent_env.client.resolution import LaneName
from agent_env.episodes import Episode, EpisodeStore
from agent_env.training import Scenario, Team, collect, rollout

pytestmark = pytest.mark.anyio


def place(episode: Episode) -> tuple[Any, Any]:
    return episode.info["index"], episode.info["sample"]


async def test_a_second_start_plays_what_the_first_one_did_not_finish(tmp_path: Path) -> None:
    played: Counter[tuple[int, int]] = Counter()

    async def play(team: Team, task: int) -> int:
        played[task, team.seed] += 1
        await asyncio.sleep(0)
        if task == 3:
            raise ValueError("this one always fails")
        return task

    async def start(store: EpisodeStore, stop: int | None = None, **options: Any) -> list[Episode]:
        taken: list[Episode] = []
        stream = rollout(play, range(8), group_size=3, concurrency=2, store=store, run_id="monday", **options)
        async with contextlib.aclosing(stream):
            async for episode in stream:
                taken.append(episode)
                assert store.get(episode.id) == episode  # it is kept before it is handed out
                if len(taken) == stop:
                    break
        return taken

    with EpisodeStore(tmp_path / "episodes.db") as store, anyio.fail_after(20):
        first = await start(store, stop=7)
        kept = list(store.find(run="monday"))
        assert len(first) == 7 <= len(kept) <= 7 + 2
        second = await start(store)
        assert {*map(place, kept)}.isdisjoint(map(place, second))
        assert {*map(place, kept), *map(place, second)} == {(task, sample) for task in range(8) for sample in range(3)}
        assert len(store) == 24 and await start(store) == []
        # Only what was being played when the first was left was played twice.
        assert sum(played.values()) - 24 <= 2
        # All of them, for whoever needs the whole, with the seeds they had.
        every = await start(store, finished="yield")
        assert len(every) == 24 and len(store) == 24
        fresh = await collect(rollout(play, range(8), group_size=3))
        assert {place(episode): episode.seed for episode in every} == {place(one): one.seed for one in fresh}
        # Those that failed, once more.
        failed = await start(store, finished="retry")
        assert [episode.task for episode in failed] == [3] * 3 and len(store) == 27
        # Another seed, run or task is another episode.
        assert len(await start(store, seed=1)) == 24
        other = await collect(rollout(play, ["new", 1], store=store, run_id="monday", finished="skip", group_size=3))
        assert [episode.task for episode in other] == ["new"] * 3


async def test_what_was_retried_well_is_what_a_later_start_gets(tmp_path: Path) -> None:
    well = False

    async def play(team: Team, task: int) -> int:
        if not well:
            raise ValueError("not yet")
        return task

    with EpisodeStore(tmp_path / "episodes.db") as store:

        async def start(finished: Any) -> list[bool]:
            return [one.ok for one in await collect(rollout(play, [1], store=store, run_id="r", finished=finished))]

        assert await start("skip") == [False] and await start("skip") == []
        well = True
        assert await start("retry") == [True] and await start("retry") == []
        assert await start("yield") == [True]


@pytest.mark.parametrize("lane", LANES)
async def test_what_a_start_that_was_stopped_left_half_done_is_in_no_later_episode(
    tmp_path: Path, lane: LaneName
) -> None:
    began, finish = asyncio.Event(), asyncio.Event()

    async def slow(message: str) -> str:
        return message.upper()

    async def play(team: Team, task: str) -> str:
        said = (await team["slow"].chat(task)).text
        began.set()
        await finish.wait()
        return said + (await team["slow"].chat(task + "!")).text

    with EpisodeStore(tmp_path / "episodes.db") as store, anyio.fail_after(30):
        async with staged(tmp_path, lane, {"slow": slow}) as stage:
            scenario = Scenario(play, None, {"slow": stage.seat("slow")})

            async def start() -> list[Episode]:
                return await collect(rollout(scenario, ["a"], run=stage.run, store=store, run_id="r"))

            first = asyncio.create_task(start())
            await began.wait()
            first.cancel()
            with pytest.raises(asyncio.CancelledError):
                await first
            assert len(store) == 0 and not any((await stage.sessions()).values())
            finish.set()
            (episode,) = await start()
        assert episode.ok and episode.info["result"] == "AA!"
        # Its own turns alone, though the gateway of the run has those of both attempts.
        (trace,) = episode.traces
        assert [turn.request for turn in trace.turns] == ["a", "a!"] and len(episode.edges) == 2
        assert list(store.find()) == [episode]


PROGRAM = """
import asyncio, sys
from agent_env import AgentEnvironment
from agent_env.episodes import EpisodeStore
from agent_env.training import Seat, rollout

async def play(team, task):
    return (await team["echo"].chat(f"task {task}")).text

async def main():
    echo = AgentEnvironment(lambda message: message, name="echo", hub=False)
    with EpisodeStore(sys.argv[1]) as store:
        stream = rollout(play, range(400), seats={"echo": Seat(echo)}, store=store, run_id="r", concurrency=8)
        async for episode in stream:
            print(episode.id, flush=True)

asyncio.run(main())
"""


@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGINT])
def test_a_process_that_is_killed_or_interrupted_is_gone_on_with_by_the_next(tmp_path: Path, how: int) -> None:
    program, path = tmp_path / "program.py", tmp_path / "episodes.db"
    program.write_text(PROGRAM)
    command = [sys.executable, str(program), str(path)]
    first = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env={**os.environ})
    assert first.stdout is not None
    told = [first.stdout.readline().strip() for _ in range(100)]
    first.send_signal(how)
    rest, _ = first.communicate(timeout=60)
    told += [line for line in rest.splitlines() if len(line) == len(told[0])]
    assert first.returncode != 0 and 100 <= len(told) < 400
    with EpisodeStore(path) as store:
        assert set(told) <= store.finished("r") and len(store) < 400
        assert all(episode.ok for episode in store.find())
    second = subprocess.run(command, check=True, capture_output=True, text=True, timeout=60)
    with EpisodeStore(path) as store:
        episodes = list(store.find(run="r"))
    assert sorted(place(episode) for episode in episodes) == [(index, 0) for index in range(400)]
    assert all(episode.ok and episode.info["result"] == f"task {episode.task}" for episode in episodes)
    assert not {*told} & {*second.stdout.split()}
