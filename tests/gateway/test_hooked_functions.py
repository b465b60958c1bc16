"""Plain functions that ask through a stock client, trained in a seat with a policy with no change of their code."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import anyio
import pytest
from anthropic import Anthropic, AsyncAnthropic
from openai import AsyncOpenAI, OpenAI

from agent_env import AgentEnvironment
from agent_env.episodes import Episode
from agent_env.gateway import Gateway, RunHandle, SeatPolicy, running
from agent_env.training import (
    Policy,
    PolicyServer,
    Scenario,
    Seat,
    Team,
    WordTokenizer,
    collect,
    make_model,
    rollout,
)

pytestmark = pytest.mark.anyio

OWN: dict[str, Any] = {"base_url": "http://own.invalid/v1", "api_key": "own", "max_retries": 0}
OWN_MESSAGES: dict[str, Any] = {**OWN, "base_url": "http://own.invalid"}
WORDS = ["day", "night", "sun", "moon"]


def asked(message: str) -> dict[str, Any]:
    return {"model": "own", "max_tokens": 4, "messages": [{"role": "user", "content": message}]}


async def by_async_openai(message: str) -> str:
    async with AsyncOpenAI(**OWN) as client:
        return str((await client.chat.completions.create(**asked(message))).choices[0].message.content)


def by_openai(message: str) -> str:
    with OpenAI(**OWN) as client:
        return str(client.chat.completions.create(**asked(message)).choices[0].message.content)


async def by_async_anthropic(message: str) -> str:
    async with AsyncAnthropic(**OWN_MESSAGES) as client:
        return "".join(part.text for part in (await client.messages.create(**asked(message))).content)


def by_anthropic(message: str) -> str:
    with Anthropic(**OWN_MESSAGES) as client:
        return "".join(part.text for part in client.messages.create(**asked(message)).content)


def by_rule(message: str) -> str:
    return message


AGENTS: dict[str, Callable[[str], Any]] = {
    "async-openai": by_async_openai,
    "openai": by_openai,
    "async-anthropic": by_async_anthropic,
    "anthropic": by_anthropic,
}


async def play(team: Team, task: str) -> dict[str, str]:
    return {seat: (await team[seat].chat(task)).text for seat in AGENTS}


async def ask_by_rule(team: Team, task: str) -> str:
    return (await team["rule"].chat(task)).text


async def played(directory: Path, tokenizer: WordTokenizer, scenario: Scenario) -> Episode:
    """One episode of the scenario at a gateway, its seats played by a tiny policy."""
    gateway = Gateway(directory, admin_token="admin")
    policy = Policy("tiny", make_model(tokenizer, seed=0), tokenizer)
    async with running(PolicyServer([policy])) as models, running(gateway) as url:
        seats = scenario.seated({"tiny": SeatPolicy("tiny", (f"{models}/v1",))})
        async with await RunHandle.open(url, "admin", seats) as run:
            (episode,) = await collect(rollout(scenario, ["day"], run=run))
    gateway.close()
    return episode


@pytest.mark.parametrize("served", [False, True], ids=["in process", "over a socket"])
async def test_an_unchanged_function_plays_its_seats_policy_and_is_recorded(tmp_path: Path, served: bool) -> None:
    tokenizer = WordTokenizer(WORDS)
    async with AsyncExitStack() as stack:
        envs: dict[str, Any] = dict(AGENTS)
        for name, agent in AGENTS.items() if served else ():
            server = await stack.enter_async_context(AgentEnvironment(agent, name=name).serving(register=False))
            envs[name] = server.url
        scenario = Scenario(
            play, lambda episode: None, {name: Seat(env, policy="tiny") for name, env in envs.items()}, name="hooked"
        )
        with anyio.fail_after(60):
            episode = await played(tmp_path, tokenizer, scenario)
    assert episode.ok, episode.error
    assert {trace.seat for trace in episode.traces} == set(AGENTS)
    for trace in episode.traces:
        assert trace.seat is not None
        (turn,), (call,) = trace.turns, trace.calls
        assert (call.parent_call_id, call.policy) == (turn.call_id, "tiny")
        assert call.api == ("messages" if "anthropic" in trace.seat else "chat")
        assert call.prompt_token_ids and call.token_ids and len(call.logprobs or ()) == len(call.token_ids)
        said = [tokenizer.tokens[token] for token in call.token_ids]
        assert turn.reply == episode.info["result"][trace.seat] == " ".join(word for word in said if word in WORDS)


async def test_a_function_that_asks_no_model_is_no_players_of_a_policy(tmp_path: Path) -> None:
    scenario = Scenario(ask_by_rule, lambda episode: None, {"rule": Seat(by_rule, policy="tiny")}, name="ruled")
    with anyio.fail_after(60):
        episode = await played(tmp_path, WordTokenizer(WORDS), scenario)
    assert not episode.ok and episode.traces[0].calls == []
    (failure,) = episode.failures
    assert failure.code == "not_supported" and "the model of the callable 'by_rule' was set" in failure.message


def by_rule_or_openai(message: str) -> str:
    return "no" if message == "night" else by_openai(message)


async def ask_twice(team: Team, task: str) -> list[str]:
    return [(await team["rule"].chat(text)).text for text in ("night", task)]


@pytest.mark.parametrize("served", [False, True], ids=["in process", "over a socket"])
async def test_a_function_that_has_a_client_may_answer_a_turn_without_asking_its_model(
    tmp_path: Path, served: bool
) -> None:
    async with AsyncExitStack() as stack:
        env: Any = by_rule_or_openai
        if served:
            env = (await stack.enter_async_context(AgentEnvironment(env, name="rule").serving(register=False))).url
        scenario = Scenario(ask_twice, lambda episode: None, {"rule": Seat(env, policy="tiny")}, name="refusing")
        with anyio.fail_after(60):
            episode = await played(tmp_path, WordTokenizer(WORDS), scenario)
    assert episode.ok, episode.error
    (trace,) = episode.traces
    (refused, answered), (call,) = trace.turns, trace.calls
    assert refused.reply == "no" and (refused.status, answered.status) == ("ok", "ok")
    assert call.parent_call_id == answered.call_id and call.token_ids


async def test_a_judge_that_the_scenario_asks_makes_no_turn_suspect_that_asks_nothing(tmp_path: Path) -> None:
    """Of a turn that asks nothing while a model is asked from nowhere, it could have been the turn's own thread."""
    begun, judged = anyio.Event(), anyio.Event()
    model = Policy("judge", make_model(WordTokenizer(WORDS), seed=1), WordTokenizer(WORDS))

    async def cautious(message: str) -> str:
        if message != "day":
            return await by_async_openai(message)
        begun.set()
        await judged.wait()
        return "no"

    async with running(PolicyServer([model])) as judges:

        async def ask_and_judge(team: Team, task: str) -> str:
            async with anyio.create_task_group() as tasks, AsyncOpenAI(**{**OWN, "base_url": f"{judges}/v1"}) as client:

                async def judge() -> None:
                    await begun.wait()
                    await client.chat.completions.create(**{**asked(task), "model": "judge"})
                    judged.set()

                tasks.start_soon(judge)
                return (await team["rule"].chat(task)).text

        scenario = Scenario(ask_and_judge, lambda episode: None, {"rule": Seat(cautious, policy="tiny")}, name="judged")
        with anyio.fail_after(60):
            episode = await played(tmp_path, WordTokenizer(WORDS), scenario)
    assert episode.ok and episode.info["result"] == "no" and episode.traces[0].calls == []
