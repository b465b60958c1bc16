"""Rollouts and learning, with real agents, a gateway on a socket and policies behind it."""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import anyio
import pytest

from agent_env import AgentEnvironment, Environment
from agent_env.episodes import Episode, EpisodeReader, EpisodeWriter, recording
from agent_env.errors import AgentFailed, BudgetExhausted
from agent_env.gateway import Gateway, RunHandle, SeatPolicy, running
from agent_env.net import post_json
from agent_env.training import (
    Policy,
    PolicyServer,
    WordTokenizer,
    learn,
    make_model,
    rollout,
    rollout_progress,
    warm_start,
)
from agent_env_wrappers.contract import ModelRoute

pytestmark = pytest.mark.anyio

OBJECTS = ["boat", "car", "hat", "kite", "drum"]
CODES = ["zip", "zap", "zop", "bim", "bam", "bom", "dak"]
ADMIN = "admin"


async def ask(model: ModelRoute, text: str) -> str:
    answer = await post_json(
        f"{model.base_url}/chat/completions",
        {"model": "any", "messages": [{"role": "user", "content": text}], "max_tokens": 3},
        headers={"Authorization": f"Bearer {model.api_key}"},
        timeout=20,
    )
    return str(answer["choices"][0]["message"]["content"])


async def sender(message: str, peers: Mapping[str, Callable[[str], Awaitable[str]]], model: ModelRoute) -> str:
    return await peers["receiver"](await ask(model, message))


async def receiver(message: str, model: ModelRoute) -> str:
    return await ask(model, message)


@dataclass
class Team:
    """Two agents in this process, their policies, and a run at a gateway."""

    policies: dict[str, Policy]
    run: RunHandle
    agent: AgentEnvironment

    async def play(self, task: str) -> str:
        async with Environment(self.agent, seat="sender") as environment:
            return (await environment.call_tool("chat", {"message": task})).text


def fresh_policy(seat: str, seed: int) -> Policy:
    rng = random.Random(seed)
    tokenizer = WordTokenizer([*OBJECTS, *CODES])
    model = make_model(tokenizer, seed=seed)

    def example() -> tuple[str, str]:
        place = rng.randrange(len(OBJECTS))
        code = CODES[place] if rng.random() < 0.35 else rng.choice(CODES)
        return (OBJECTS[place], code) if seat == "sender" else (code, OBJECTS[place])

    warm_start(model, tokenizer, example, batch=32)
    return Policy(seat, model, tokenizer, seed=seed)


@asynccontextmanager
async def team(directory: Path) -> AsyncGenerator[Team, None]:
    policies = {seat: fresh_policy(seat, place) for place, seat in enumerate(("sender", "receiver"), start=1)}
    gateway = Gateway(directory, admin_token=ADMIN)
    named = AgentEnvironment(receiver, name="receiver", hub=False)
    agent = AgentEnvironment(sender, name="sender", hub=False, peers={"receiver": named})
    async with running(PolicyServer(policies.values())) as served, running(gateway) as url:
        seats = {seat: SeatPolicy(seat, (f"{served}/v1",)) for seat in policies}
        async with await RunHandle.open(url, ADMIN, seats) as run:
            try:
                yield Team(policies, run, agent)
            finally:
                await agent.aclose()
                await named.aclose()
    gateway.close()


def score(episode: Episode) -> None:
    episode.score("named", float(episode.info["result"] == episode.task))


async def test_an_episode_has_both_traces_the_edges_and_the_model_calls_of_each(tmp_path: Path) -> None:
    async with team(tmp_path) as players:
        with anyio.fail_after(90):
            episodes = await rollout(["boat", "hat"], players.play, run=players.run, score=score, concurrency=2)
    assert [episode.task for episode in episodes] == ["boat", "hat"]
    with EpisodeWriter(tmp_path / "episodes.jsonl") as store:
        store.append(episodes)
    for episode in EpisodeReader(tmp_path / "episodes.jsonl"):
        assert episode.ok and episode.run == players.run.run
        traces = {trace.seat: trace for trace in episode.traces}
        assert set(traces) == {"sender", "receiver"}
        for seat, trace in traces.items():
            (turn,), (call,) = trace.turns, trace.calls
            assert call.parent_call_id == turn.call_id and call.seat == seat and call.token_ids
            assert trace.agent == f"{seat}@0.0.0-dev"
        (first,) = episode.tree().children
        (second,) = first.children
        assert first.turn is traces["sender"].turns[0] and second.turn is traces["receiver"].turns[0]
        assert first.edge is not None and (first.edge.caller, first.edge.callee_seat) == (None, "sender")
        assert second.edge is not None and second.edge.caller_call_id == first.call_id
        assert second.edge.request == traces["sender"].calls[0].response["choices"][0]["message"]["content"]
        assert episode.reward() in (0.0, 1.0) and episode.info["result"] == first.turn.reply


async def test_policies_that_play_together_learn_together_and_a_frozen_one_stays(tmp_path: Path) -> None:
    rng = random.Random(0)
    curve: list[float] = []
    async with team(tmp_path) as players:
        with anyio.fail_after(170):
            for _ in range(12):
                tasks = [word for word in rng.choices(OBJECTS, k=24) for _ in range(8)]
                episodes = await rollout(tasks, players.play, run=players.run, score=score)
                lessons = learn(players.policies, episodes)
                assert all(lesson.update is not None for lesson in lessons.policies.values())
                assert lessons.report.captured_tokens == lessons.report.delivered_tokens
                curve.append(sum(episode.reward() or 0.0 for episode in episodes) / len(episodes))
            assert {policy.version for policy in players.policies.values()} == {12}
            versions = {call.policy_version for e in episodes for trace in e.traces for call in trace.calls}
            assert versions == {11}
            players.policies["receiver"].trainable = False
            lessons = learn(players.policies, episodes)
            assert set(lessons.policies) == {"sender"} and players.policies["receiver"].version == 12
            # One seat's rows alone: half of the calls.
            assert lessons.report.calls == lessons.report.rows == len(episodes)
    assert sum(curve[-3:]) / 3 > sum(curve[:3]) / 3 + 0.12, curve


async def test_a_task_that_fails_is_an_episode_that_is_not_ok_and_the_others_go_on() -> None:
    async def play(task: int) -> int:
        if task % 3 == 0:
            raise AgentFailed(f"task {task} broke")
        if task == 4:
            raise ZeroDivisionError
        return task

    seen: list[str] = []
    episodes = await rollout(
        range(7),
        play,
        score=lambda episode: episode.score("x", 1.0),
        on_episode=lambda episode: seen.append(episode.id),
    )
    assert [episode.ok for episode in episodes] == [False, True, True, False, False, True, False]
    assert [episode.reward() for episode in episodes] == [None, 1.0, 1.0, None, None, 1.0, None]
    assert [failure.boundary for episode in episodes for failure in episode.failures] == [
        *("agent", "agent", "program", "agent")
    ]
    assert sorted(seen) == sorted(episode.id for episode in episodes)
    assert await rollout([], play) == []


async def test_records_that_cannot_be_read_fail_their_episode_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    collect = RunHandle.collect

    async def with_an_odd_one(self: RunHandle, episodes: Iterable[str]) -> dict[str, list[dict[str, Any]]]:
        found = await collect(self, episodes)
        second = list(found)[1]
        found[second].append({"kind": "turn", "call_id": [1], "agent": "a", "session": "s", "episode": second})
        return found

    async def play(task: int) -> int:
        return task

    monkeypatch.setattr(RunHandle, "collect", with_an_odd_one)
    gateway = Gateway(tmp_path, admin_token=ADMIN)
    async with running(gateway) as url:
        async with await RunHandle.open(url, ADMIN, {"a": SeatPolicy("A", ("http://h/v1",))}) as run:
            episodes = await rollout(range(3), play, run=run, score=lambda episode: episode.score("x", 1.0))
    gateway.close()
    assert [episode.ok for episode in episodes] == [True, False, True]
    assert [episode.reward() for episode in episodes] == [1.0, None, 1.0]
    (failure,) = episodes[1].failures
    assert failure.boundary == "protocol" and "'call_id'" in failure.message


async def test_no_more_than_the_bound_are_played_at_a_time() -> None:
    now, most = 0, 0

    async def play(_: int) -> None:
        nonlocal now, most
        now += 1
        most = max(most, now)
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        now -= 1

    episodes = await rollout(range(50), play, concurrency=4)
    assert most == 4 and len(episodes) == 50 and "result" not in episodes[0].info


async def test_budget_and_time_bound_each_episode() -> None:
    echo = AgentEnvironment(lambda message: message, name="echo", hub=False)

    async def play(task: int) -> None:
        async with Environment(echo) as environment:
            for _ in range(task):
                await environment.call_tool("chat", {"message": "hi"})

    async def stall(_: int) -> None:
        async with Environment(AgentEnvironment(hang, name="hang", hub=False)) as environment:
            await environment.call_tool("chat", {"message": "hi"})

    async def hang(message: str) -> str:
        await asyncio.Event().wait()
        return message

    with anyio.fail_after(20):
        episodes = await rollout([1, 2, 5], play, budget=2)
        assert [failure.code for episode in episodes for failure in episode.failures] == [BudgetExhausted.code]
        (late,) = await rollout([0], stall, seconds=0.05)
    assert late.failures[0].boundary == "deadline"
    await echo.aclose()


async def test_a_score_may_be_async_and_one_that_fails_belongs_to_the_reward() -> None:
    async def play(task: int) -> int:
        return task

    async def judge(episode: Episode) -> None:
        await asyncio.sleep(0)
        if episode.info["result"] == 1:
            raise AgentFailed("the judge is out of order")
        episode.score("x", 0.5, source="judge")

    episodes = await rollout([0, 1], play, score=judge)
    assert [(episode.ok, episode.reward()) for episode in episodes] == [(True, 0.5), (False, None)]
    assert episodes[1].failures[0].boundary == "reward"

    def mistaken(episode: Episode) -> None:
        raise KeyError("a mistake of the program is the program's to see")

    with pytest.raises(KeyError):
        await rollout([0], play, score=mistaken)


async def test_the_progress_bar_counts_what_was_played_and_what_failed(capsys: pytest.CaptureFixture[str]) -> None:
    async def play(task: int) -> None:
        if task:
            raise AgentFailed("broke")

    with rollout_progress(3) as progress:
        progress.describe("a run")
        episodes = await rollout([0, 1, 0], play, on_episode=progress.played_one)
        for episode in episodes[:1]:
            episode.score("x", 0.25)
        progress.scored(episodes)
    assert (progress.played, progress.failed) == (3, 1)
    shown = " ".join(capsys.readouterr().out.split())
    assert "a run" in shown and "3/3" in shown and "reward 0.25" in shown and "failed 1" in shown
    with rollout_progress(1, visible=False) as progress:
        progress.scored([])
    assert capsys.readouterr().out == ""


async def test_an_episode_in_this_process_needs_no_gateway_and_no_socket() -> None:
    echo = AgentEnvironment(lambda message: f"you said {message}", name="echo", hub=False)
    async with recording(task="hi") as episode:
        async with Environment(echo) as environment:
            await environment.call_tool("chat", {"message": "hi"})
    (trace,) = episode.traces
    assert trace.turns[0].reply == "you said hi"
    assert episode.edges[0].callee_call_id == trace.turns[0].call_id
    await echo.aclose()


async def test_curves_are_drawn_into_a_picture(tmp_path: Path) -> None:
    from agent_env.training.plots import plot_curves, smoothed

    path = tmp_path / "runs" / "curve.png"
    curves: Any = {"both": [[0.1, 0.5, 0.9], [0.2, 0.6, 0.8]], "none": [[0.1, 0.1]], "nothing": [[]]}
    plot_curves(path, curves, title="learning", levels={"chance": 0.125})
    assert path.read_bytes().startswith(b"\x89PNG")
    assert smoothed([1.0, 2.0, 3.0, 4.0], 2) == [1.0, 1.5, 2.5, 3.5]
