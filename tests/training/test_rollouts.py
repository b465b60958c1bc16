"""Rollouts through a gateway on a socket with policies behind it, and learning from them."""

from __future__ import annotations

import random
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

import anyio
import pytest

from agent_env import AgentEnvironment
from agent_env.episodes import Episode, EpisodeReader, EpisodeWriter
from agent_env.gateway import Gateway, RunHandle, SeatPolicy, running
from agent_env.net import post_json
from agent_env.training import (
    Policy,
    PolicyServer,
    Scenario,
    Seat,
    Team,
    WordTokenizer,
    collect,
    learn,
    make_model,
    rollout,
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
class Players:
    """Two agents in this process, their policies, and a run at a gateway."""

    policies: dict[str, Policy]
    run: RunHandle
    scenario: Scenario


async def play(team: Team, task: str) -> str:
    return (await team["sender"].chat(task)).text


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


def score(episode: Episode) -> dict[str, dict[str, float]]:
    return {"team": {"named": float(episode.info["result"] == episode.task)}}


@asynccontextmanager
async def players(directory: Path) -> AsyncGenerator[Players, None]:
    policies = {seat: fresh_policy(seat, place) for place, seat in enumerate(("sender", "receiver"), start=1)}
    gateway = Gateway(directory, admin_token=ADMIN)
    named = AgentEnvironment(receiver, name="receiver", hub=False)
    agent = AgentEnvironment(sender, name="sender", hub=False, peers={"receiver": named})
    scenario = Scenario(
        play, score, {"sender": Seat(agent, policy="sender"), "receiver": Seat(policy="receiver")}, "signals"
    )
    async with running(PolicyServer(policies.values())) as served, running(gateway) as url:
        seats = scenario.seated({name: SeatPolicy(name, (f"{served}/v1",)) for name in policies})
        async with await RunHandle.open(url, ADMIN, seats) as run:
            try:
                yield Players(policies, run, scenario)
            finally:
                await agent.aclose()
                await named.aclose()
    gateway.close()


async def test_an_episode_has_both_traces_the_edges_and_the_model_calls_of_each(tmp_path: Path) -> None:
    async with players(tmp_path) as those:
        with anyio.fail_after(90):
            episodes = await collect(rollout(those.scenario, ["boat", "hat"], run=those.run, concurrency=2))
    assert [episode.task for episode in episodes] == ["boat", "hat"]
    with EpisodeWriter(tmp_path / "episodes.jsonl") as store:
        store.append(episodes)
    for episode in EpisodeReader(tmp_path / "episodes.jsonl"):
        assert episode.ok and episode.run == those.run.run and episode.env == "signals"
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


@pytest.mark.long
async def test_policies_that_play_together_learn_together_and_a_frozen_one_stays(tmp_path: Path) -> None:
    rng = random.Random(0)
    curve: list[float] = []
    async with players(tmp_path) as those:
        with anyio.fail_after(170):
            for _ in range(12):
                tasks = rng.choices(OBJECTS, k=24)
                episodes = await collect(rollout(those.scenario, tasks, run=those.run, group_size=8))
                lessons = learn(those.policies, episodes)
                assert all(lesson.update is not None for lesson in lessons.policies.values())
                assert lessons.report.captured_tokens == lessons.report.delivered_tokens
                curve.append(sum(episode.reward() or 0.0 for episode in episodes) / len(episodes))
            assert {policy.version for policy in those.policies.values()} == {12}
            versions = {call.policy_version for e in episodes for trace in e.traces for call in trace.calls}
            assert versions == {11}
            those.policies["receiver"].trainable = False
            lessons = learn(those.policies, episodes)
            assert set(lessons.policies) == {"sender"} and those.policies["receiver"].version == 12
            # One seat's rows alone: half of the calls.
            assert lessons.report.calls == lessons.report.rows == len(episodes)
    assert sum(curve[-3:]) / 3 > sum(curve[:3]) / 3 + 0.12, curve
