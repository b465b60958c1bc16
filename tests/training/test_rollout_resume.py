"""A second start of a rollout: what was finished is not played again, and what was not, is."""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import json
import os
import signal
import subprocess
import sys
from collections import Counter, defaultdict
from collections.abc import Iterable
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


async def echo(team: Team, task: Any) -> Any:
    return task


def in_groups(episodes: Iterable[Episode]) -> dict[str | None, list[Any]]:
    """The tasks of each group."""
    found: defaultdict[str | None, list[Any]] = defaultdict(list)
    for episode in episodes:
        found[episode.group].append(episode.task)
    return dict(found)


async def test_tasks_that_were_moved_or_put_between_are_known_again_and_no_group_holds_two(tmp_path: Path) -> None:
    """A group was named by the place of its task, and a changed list compared attempts at different tasks."""
    red, yellow, blue = ({"colour": colour} for colour in ("red", "yellow", "blue"))
    with EpisodeStore(tmp_path / "episodes.db") as store:

        async def start(tasks: list[Any], **options: Any) -> list[Any]:
            stream = rollout(echo, tasks, **{"group_size": 2, "store": store, "run_id": "monday", **options})
            return [episode.task for episode in await collect(stream)]

        assert await start([red, yellow]) == [red, red, yellow, yellow]
        assert await start([yellow, red]) == []
        assert await start([yellow, red], finished="yield") == [yellow, yellow, red, red]
        assert await start([blue, yellow, red]) == [blue, blue]
        # The group that was begun is filled up, wherever its task stands by now.
        assert await start([blue, red], group_size=3) == [blue, red]
        groups = in_groups(store)
        assert sorted(map(len, groups.values())) == [2, 3, 3]
        assert all(task == tasks[0] for tasks in groups.values() for task in tasks)
        # What stands twice is played twice, in groups of its own, and each of them goes on.
        assert await start([red, yellow, red]) == [red, red]
        assert await start([red, red], group_size=4) == [red, red, red]
        assert sorted(len(tasks) for tasks in in_groups(store).values() if tasks[0] == red) == [4, 4]


async def test_tasks_of_one_id_that_say_different_things_share_no_group(tmp_path: Path) -> None:
    old, new = {"id": "q7", "text": "3 + 4"}, {"id": "q7", "text": "3 + 5"}
    with EpisodeStore(tmp_path / "episodes.db") as store:
        for task in (old, new):
            await collect(rollout(echo, [task], group_size=2, store=store, run_id="r"))
        groups = in_groups(store)
    assert sorted(groups.values(), key=str) == [[old, old], [new, new]]
    assert all(str(group).startswith("q7-") for group in groups)
    # Nor within one list, whether or not anything is kept; a batch is the same batch with a changed list.
    once = await collect(rollout(echo, [old, new], group_size=2, batch="5"))
    again = await collect(rollout(echo, [new, {"text": "?"}], batch="5"))
    assert sorted(map(len, in_groups([*once, *again]).values())) == [1, 2, 3]


def of_an_earlier_version(task: Any, index: int, sample: int) -> Episode:
    """An episode as it was kept when tasks were known by their place in the list."""
    said = json.dumps(["r", 0, index, sample]) + json.dumps(task, sort_keys=True)
    name = f"{hashlib.sha256(said.encode()).hexdigest()[:16]}-0badcafe"
    return Episode(name, task, str(index), "r", info={"index": index, "sample": sample})


async def test_what_an_earlier_version_kept_is_skipped_and_its_groups_are_filled_up(tmp_path: Path) -> None:
    kept = [("a", 0, 0), ("a", 0, 1), ("b", 1, 0), ("a", 2, 1), ("c", 3, 0), ("d", 3, 1)]
    with EpisodeStore(tmp_path / "episodes.db") as store:
        store.append(of_an_earlier_version(*one) for one in kept)
        played = await collect(rollout(echo, ["a", "b", "a", "c"], group_size=2, store=store, run_id="r"))
        assert [(one.task, *place(one)) for one in played] == [("b", 1, 1), ("a", 2, 0), ("c", 3, 1)]
        groups = in_groups(store)
        assert [groups[name] for name in "012"] == [["a", "a"], ["b", "b"], ["a", "a"]]
        # In one that has two tasks already there is nothing more to spoil, and nothing to add.
        assert groups["3"] == ["c", "d"] and played[2].group != "3"
        assert await collect(rollout(echo, ["a", "b", "a", "c"], group_size=2, store=store, run_id="r")) == []
        # At another place one is played anew, in a group of its own.
        moved = await collect(rollout(echo, ["d"], group_size=2, store=store, run_id="r"))
        assert [one.task for one in moved] == ["d", "d"] and moved[0].group not in groups


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
