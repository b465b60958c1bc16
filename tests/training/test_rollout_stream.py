"""The stream of episodes: what is in it, in which order, how many at once, and what goes wrong."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncGenerator, Iterator
from contextvars import ContextVar
from pathlib import Path
from typing import Any

import anyio
import pytest

from agent_env import AgentEnvironment, Environment
from agent_env.episodes import Episode, EpisodeStore, EpisodeWriter
from agent_env.errors import (
    AgentEnvError,
    AgentFailed,
    BudgetExhausted,
    ConfigurationError,
    Forbidden,
    Unauthenticated,
)
from agent_env.gateway import Gateway, RunHandle, SeatPolicy, running
from agent_env.gateway.collector_client import RunRecorder
from agent_env.net import bearer_headers, post_json
from agent_env.training import Scenario, Seat, Team, collect, rollout
from agent_env.training import playing as module

pytestmark = pytest.mark.anyio


async def same(team: Team, task: Any) -> Any:
    return task


async def shout(message: str) -> str:
    return message.upper()


async def wait(message: str) -> str:
    await asyncio.Event().wait()
    return message


@pytest.fixture
async def quiet() -> AsyncGenerator[AgentEnvironment]:
    """An agent that never answers."""
    environment = AgentEnvironment(wait, name="quiet", hub=False)
    yield environment
    await environment.aclose()


async def test_episodes_come_as_they_end_and_collected_in_the_order_of_the_tasks() -> None:
    release = {task: asyncio.Event() for task in "abc"}

    async def play(team: Team, task: str) -> str:
        await release[task].wait()
        return task

    came: list[str] = []
    with anyio.fail_after(10):
        release["b"].set()
        async for episode in rollout(play, list("abc")):
            came.append(episode.task)
            if episode.task == "b":
                release["c"].set()
            if episode.task == "c":
                release["a"].set()
        assert came == ["b", "c", "a"]
        episodes = await collect(rollout(play, list("cab"), group_size=2))
    assert [(episode.task, episode.info["sample"]) for episode in episodes] == [
        (task, sample) for task in "cab" for sample in (0, 1)
    ]
    numbers = [str(episode.group).partition(".") for episode in episodes]
    assert [number.partition("-")[0] for _, _, number in numbers] == ["0", "0", "1", "1", "2", "2"]
    assert len({episode.group for episode in episodes}) == 3
    assert len({batch for batch, _, _ in numbers}) == 1
    again = await collect(rollout(same, ["c"]))
    assert again[0].group not in {episode.group for episode in episodes}, "another rollout has groups of its own"
    assert len({episode.id for episode in episodes}) == 6
    named = await collect(
        rollout(same, [{"id": "x7", "n": 1}, {"id": 12}, {"id": None}], info={"phase": "test"}, batch="7")
    )
    assert [str(episode.group).partition("-")[0] for episode in named] == ["7.x7", "7.12", "7.2"]
    assert named[0].info == {"phase": "test", "index": 0, "sample": 0, "result": {"id": "x7", "n": 1}}
    assert await collect(rollout(same, [])) == []


async def test_chance_comes_from_the_seed_the_task_and_the_sample_alone() -> None:
    async def play(team: Team, task: int) -> list[Any]:
        for _ in range(task % 3):
            await asyncio.sleep(0)
        return [team.seed, team.random.random(), team.random.random()]

    async def drawn(**options: Any) -> list[Any]:
        episodes = await collect(rollout(play, range(6), group_size=2, **options))
        assert all(episode.seed == episode.info["result"][0] for episode in episodes)
        return [episode.info["result"] for episode in episodes]

    first = await drawn(concurrency=1)
    assert first == await drawn(concurrency=12) == await drawn(run_id="any")
    assert len({tuple(numbers) for numbers in first}) == 12
    assert not {tuple(numbers) for numbers in first} & {tuple(numbers) for numbers in await drawn(seed=1)}


async def test_no_more_are_played_than_the_bound_and_none_far_ahead_of_who_takes_them() -> None:
    now, most, begun = 0, 0, 0

    async def play(team: Team, task: int) -> None:
        nonlocal now, most, begun
        now, begun = now + 1, begun + 1
        most = max(most, now)
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        now -= 1

    episodes = await collect(rollout(play, range(50), concurrency=4))
    assert most == 4 and len(episodes) == 50 and "result" not in episodes[0].info

    def endless() -> Iterator[int]:
        task = 0
        while True:
            yield task
            task += 1

    begun = taken = ahead = 0
    async with contextlib.aclosing(rollout(play, endless(), concurrency=4)) as stream:
        async for _ in stream:
            taken += 1
            for _ in range(20):  # whoever takes them is slow
                await asyncio.sleep(0)
            ahead = max(ahead, begun - taken)
            if taken == 30:
                break
    assert ahead == 2 * 4


async def test_a_rollout_inside_an_episode_of_a_rollout_does_not_wait_for_its_place() -> None:
    async def inner(team: Team, task: int) -> int:
        return task * 2

    async def outer(team: Team, task: int) -> list[int]:
        return [episode.info["result"] for episode in await collect(rollout(inner, range(task), concurrency=1))]

    with anyio.fail_after(10):
        episodes = await collect(rollout(outer, [1, 3], concurrency=1))
    assert [episode.info["result"] for episode in episodes] == [[0], [0, 2, 4]]


async def test_a_task_that_fails_is_an_episode_that_is_not_ok_and_the_others_go_on() -> None:
    async def play(team: Team, task: int) -> Any:
        match task:
            case 0:
                raise AgentFailed("task 0 broke")
            case 1:
                raise ZeroDivisionError
            case 2:
                current = asyncio.current_task()
                assert current is not None
                current.cancel()
                await asyncio.sleep(0)
            case 3:
                raise ExceptionGroup("several", [AgentFailed("one"), ExceptionGroup("x", [KeyError("two")])])
            case 4:
                return {1, 2}
            case 5:
                raise asyncio.CancelledError
            case 6:
                raise TimeoutError("its own")
            case _:
                return task

    seen: list[Episode] = []
    scenario = Scenario(play, lambda episode: {"team": {"x": 1.0}})
    with anyio.fail_after(10):
        episodes = await collect(rollout(scenario, range(9), on_episode=seen.append))
    assert [episode.ok for episode in episodes] == [False] * 7 + [True, True]
    assert [episode.reward() for episode in episodes] == [None] * 7 + [1.0, 1.0]
    assert [[(failure.boundary, failure.code) for failure in episode.failures] for episode in episodes[:7]] == [
        [("agent", "agent_failed")],
        [("program", "ZeroDivisionError")],
        [("program", "CancelledError")],
        [("agent", "agent_failed"), ("program", "KeyError")],
        [("program", "configuration")],
        [("program", "CancelledError")],
        [("program", "TimeoutError")],
    ]
    assert "no JSON" in episodes[4].failures[0].message
    # Nobody was called, so nobody is made up.
    assert not any(episode.traces or episode.edges or episode.rewards for episode in episodes[:7])
    assert {episode.id for episode in seen} == {episode.id for episode in episodes}


async def test_what_one_episode_sets_in_its_context_the_next_does_not_see() -> None:
    mark: ContextVar[int] = ContextVar("mark", default=-1)

    async def play(team: Team, task: int) -> int:
        before = mark.get()
        mark.set(task)
        return before

    episodes = await collect(rollout(play, range(4), concurrency=1))
    assert [episode.info["result"] for episode in episodes] == [-1] * 4


async def test_budget_and_time_bound_each_episode(monkeypatch: pytest.MonkeyPatch, quiet: AgentEnvironment) -> None:
    async def play(team: Team, task: int) -> None:
        for _ in range(task):
            await team["echo"].chat("hi")

    async def call(team: Team, task: int) -> None:
        await team["quiet"].chat("hi")

    async def sit(team: Team, task: int) -> None:
        await asyncio.Event().wait()

    monkeypatch.setattr(module, "GRACE", 0.05)
    with anyio.fail_after(20):
        episodes = await collect(rollout(play, [1, 2, 5], seats={"echo": Seat(shout)}, budget=2))
        assert [failure.code for episode in episodes for failure in episode.failures] == [BudgetExhausted.code]
        # An agent that is called in vain, and a program that waits for nothing, both end.
        (late,) = await collect(rollout(call, [0], seats={"quiet": Seat(quiet)}, seconds=0.05))
        (idle,) = await collect(rollout(sit, [0], seconds=0.05))
        # The conversation is over although its time was.
        assert len((await quiet.runtime()).sessions) == 0
    assert late.failures[0].boundary == idle.failures[0].boundary == "deadline"
    assert "program did not end" in idle.failures[0].message
    assert idle.failures[0].message.endswith("; allow more: seconds=…, or --seconds of a command")


async def test_leaving_the_stream_ends_what_is_played_and_its_conversations(quiet: AgentEnvironment) -> None:
    async def play(team: Team, task: int) -> int:
        if task:
            await team["quiet"].chat("hi")
        return task

    before = asyncio.all_tasks()
    with anyio.fail_after(10):
        async with contextlib.aclosing(rollout(play, range(9), seats={"quiet": Seat(quiet)}, concurrency=5)) as stream:
            async for episode in stream:
                assert episode.task == 0
                break
        assert len((await quiet.runtime()).sessions) == 0
        assert asyncio.all_tasks() == before
        # A loop that is just left closes its stream a little later.
        async for _ in rollout(play, range(9), seats={"quiet": Seat(quiet)}, concurrency=5):
            break
        await asyncio.sleep(0)
        await asyncio.wait(asyncio.all_tasks() - before)
        assert len((await quiet.runtime()).sessions) == 0


@pytest.mark.parametrize("by", ["task", "scope"])
async def test_cancelling_whoever_takes_the_episodes_ends_them_too(
    by: str, tmp_path: Path, quiet: AgentEnvironment
) -> None:
    async def play(team: Team, task: int) -> int:
        if task > 2:
            await team["quiet"].chat("hi")
        return task

    taken: list[str] = []
    three = asyncio.Event()

    async def take(store: EpisodeStore) -> None:
        async for episode in rollout(play, range(9), store=store, seats={"quiet": Seat(quiet)}, concurrency=5):
            taken.append(episode.id)
            if len(taken) == 3:
                three.set()

    before = asyncio.all_tasks()
    with EpisodeStore(tmp_path / "episodes.db") as store, anyio.fail_after(10):
        if by == "task":
            task = asyncio.create_task(take(store))
            await three.wait()
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
        else:
            async with anyio.create_task_group() as group:
                group.start_soon(take, store)
                await three.wait()
                group.cancel_scope.cancel()
        assert len((await quiet.runtime()).sessions) == 0 and asyncio.all_tasks() == before
        assert [episode.id for episode in store.find()] == taken and len(taken) == 3


async def test_an_error_of_the_tasks_or_of_the_one_who_takes_them_ends_the_stream(tmp_path: Path) -> None:
    def tasks() -> Iterator[int]:
        yield 1
        raise OSError("the data set is gone")

    with EpisodeStore(tmp_path / "episodes.db") as store, anyio.fail_after(10):
        with pytest.raises(OSError, match="data set is gone"):
            await collect(rollout(same, tasks(), store=store))
        assert len(store) == 1  # what was played is not lost

    def mistaken(episode: Episode) -> None:
        raise KeyError("mine")

    with pytest.raises(KeyError, match="mine"):
        await collect(rollout(same, [1], on_episode=mistaken))


async def test_a_score_that_fails_belongs_to_the_reward_and_leaves_none() -> None:
    def half(episode: Episode) -> Any:
        episode.score("before", 1.0)
        raise ValueError("no number in the answer")

    async def judge(episode: Episode) -> dict[str, dict[str, float]]:
        await asyncio.sleep(0)
        if episode.task == 1:
            raise AgentFailed("the judge is out of order")
        return {"team": {"x": 0.5}}

    def cancelled(episode: Episode) -> Any:
        raise asyncio.CancelledError

    async def endless(episode: Episode) -> None:
        await asyncio.Event().wait()

    (episode,) = await collect(rollout(Scenario(same, half), [0]))
    assert not episode.ok and episode.reward() is None and not episode.rewards
    assert (episode.failures[0].boundary, episode.failures[0].code) == ("reward", "ValueError")
    (episode,) = await collect(rollout(Scenario(same, cancelled), [0]))
    assert (episode.failures[0].boundary, episode.failures[0].code) == ("reward", "CancelledError")
    episodes = await collect(rollout(Scenario(same, judge), [0, 1]))
    assert [(episode.ok, episode.reward()) for episode in episodes] == [(True, 0.5), (False, None)]
    assert episodes[1].failures[0].boundary == "reward"
    with anyio.fail_after(10):
        (late,) = await collect(rollout(Scenario(same, endless), [0], seconds=0.05))
    assert late.failures[0].boundary == "reward" and "the score took more" in late.failures[0].message


async def test_records_that_cannot_be_read_fail_their_episode_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = RunHandle.collect

    async def with_an_odd_one(self: RunHandle, episodes: Any) -> dict[str, list[dict[str, Any]]]:
        found = await asked(self, episodes)
        second = ids[1]
        if second in found:
            found[second].append({"kind": "turn", "call_id": [1], "agent": "a", "session": "s", "episode": second})
        return found

    ids: list[str] = []

    async def play(team: Team, task: int) -> int:
        from agent_env.context import current_frame

        frame = current_frame()
        assert frame is not None and frame.episode is not None
        ids.append(frame.episode)
        return task

    monkeypatch.setattr(RunHandle, "collect", with_an_odd_one)
    gateway = Gateway(tmp_path, admin_token="admin")
    async with running(gateway) as url:
        async with await RunHandle.open(url, "admin", {"a": SeatPolicy("A", ("http://h/v1",))}) as run:
            scenario = Scenario(play, lambda episode: {"team": {"x": 1.0}})
            episodes = await collect(rollout(scenario, range(3), run=run))
    gateway.close()
    assert [episode.ok for episode in episodes] == [True, False, True]
    assert [episode.reward() for episode in episodes] == [1.0, None, 1.0]
    (failure,) = episodes[1].failures
    assert failure.boundary == "protocol" and "'call_id'" in failure.message


async def test_a_seat_without_a_policy_tells_what_it_did_and_has_no_way_to_a_model(tmp_path: Path) -> None:
    gateway = Gateway(tmp_path, admin_token="admin")
    async with running(gateway) as url:
        async with await RunHandle.open(url, "admin", {"a": None, "b": SeatPolicy("B", ("http://h/v1",))}) as run:
            mine, other = run.episode("e1", "a"), run.episode("e1", "b")
            assert mine.route is None and other.route is not None
            token = mine.routes["a"].token
            for seat in "ab":
                with pytest.raises((Unauthenticated, Forbidden)):
                    address = f"{other.at(seat).model_url('c1')}/chat/completions"
                    await post_json(address, {"messages": []}, headers=bearer_headers(token))
            # Its token opens the collector, and its turns are in the episode.
            turn = {"kind": "turn", "call_id": "c1", "agent": "a@1.0.0", "session": "s", "episode": "e1", "seat": "a"}
            await RunRecorder(mine).record([turn])
            assert [record["seat"] for record in (await run.collect(["e1"]))["e1"]] == ["a"]
    gateway.close()


async def test_a_gateway_that_is_gone_ends_the_stream_and_leaves_the_episodes_to_be_played_again(
    tmp_path: Path,
) -> None:
    gateway = Gateway(tmp_path / "gateway", admin_token="admin")
    with EpisodeStore(tmp_path / "episodes.db") as store, anyio.fail_after(20):
        async with running(gateway) as url:
            run = await RunHandle.open(url, "admin", {"a": None})
            first = await collect(rollout(same, range(3), run=run, store=store, run_id="r"))
        gateway.close()
        with pytest.raises(AgentEnvError):
            await collect(rollout(same, range(6), run=run, store=store, run_id="r"))
        assert {episode.id for episode in store.find()} == {episode.id for episode in first}


async def test_an_agent_that_is_no_environment_is_wrapped_once_for_all_episodes() -> None:
    async def play(team: Team, task: str) -> list[str]:
        other = team.another("a")
        return [(await team["a"].chat(task)).text, (await team["b"].chat(task)).text, (await other.chat(task)).text]

    (first, second) = await collect(rollout(play, ["x", "y"], seats={"a": Seat(shout), "b": Seat(shout)}))
    assert first.info["result"] == ["X"] * 3 and second.info["result"] == ["Y"] * 3
    assert sorted(str(trace.seat) for trace in first.traces) == ["a", "a", "b"]
    with pytest.raises(ConfigurationError):
        await collect(rollout(play, ["x"], seats={"a": Seat(object())}))


async def test_an_episode_that_the_team_cannot_leave_is_told_so(monkeypatch: pytest.MonkeyPatch) -> None:
    async def unwilling(self: Environment, *_: object) -> None:
        raise AgentFailed("the goodbye broke")

    async def play(team: Team, task: int) -> None:
        for seat in team.seats:
            await team[seat].chat("hi")

    monkeypatch.setattr(Environment, "__aexit__", unwilling)
    for names in ("a", "ab"):
        (episode,) = await collect(rollout(play, [1], seats={name: Seat(shout) for name in names}))
        assert [failure.message for failure in episode.failures] == ["the goodbye broke"]


async def test_what_would_fail_in_every_episode_is_refused_at_once(tmp_path: Path) -> None:
    async def refused(match: str, *given: Any, **options: Any) -> None:
        with pytest.raises(ConfigurationError, match=match):
            await collect(rollout(*(given or (same,)), [1], **options))

    await refused("needs `async def play", object())
    await refused("must be at least 1", group_size=0)
    await refused("must be at least 1", concurrency=0)
    await refused("finished must be one of skip, yield, retry", finished="again")
    await refused("there is no run", seats={"a": Seat(shout, policy="p")})
    with EpisodeWriter(tmp_path / "episodes.jsonl") as store:
        await refused("EpisodeStore", store=store, run_id="r")
    run = RunHandle("http://h", "r1", "secret", {"b": None}, "admin")
    await refused("has no policy for it", seats={"a": Seat(shout, policy="p")}, run=run)
    await refused("has no policy for it", seats={"b": Seat(shout, policy="p")}, run=run)
    await refused("has no seats", run=RunHandle("http://h", "r1", "secret", {}, "admin"))
    with pytest.raises(ConfigurationError, match="no JSON"):
        await collect(rollout(same, [{1, 2}], run_id="r"))
    (episode,) = await collect(rollout(lambda team, task: 3, [1]))
    assert "must be `async def play" in episode.failures[0].message
