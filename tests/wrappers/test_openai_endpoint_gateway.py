"""A chat-completions endpoint that plays a policy at the gateway, and is refused there for a moment."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import anyio
import pytest
from driving import done
from endpoint_script import SOON, answer, endpoint, said

from agent_env.gateway import Gateway, PolicyHandle, RunHandle, SeatPolicy, running
from agent_env.training import (
    Policy,
    PolicyServer,
    Scenario,
    Seat,
    WordTokenizer,
    collect,
    cut_rows,
    make_model,
    rollout,
)
from agent_env_wrappers.contract import ModelRoute
from agent_env_wrappers.openai_endpoint import OpenAIEndpoint

pytestmark = [pytest.mark.anyio, pytest.mark.timeout(90)]

WORDS = ["day", "night", "sun", "moon"]


class Resumed(Gateway):
    """A gateway whose policy goes on as soon as a call was refused, before its caller knows."""

    policy: PolicyHandle
    refused = 0

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        async def told(message: Any) -> None:
            if message.get("status") == 429:
                self.refused += 1
                await self.policy.resume()
            await send(message)

        await super().__call__(scope, receive, told)


async def play(team: Any, task: str) -> None:
    await team["guesser"].chat(task)


async def test_turns_come_through_a_pause_of_their_policy_and_no_row_is_lost(tmp_path: Path) -> None:
    tokenizer = WordTokenizer(WORDS)
    gateway = Resumed(tmp_path, admin_token="admin")
    models = PolicyServer([Policy("tiny", make_model(tokenizer, seed=0), tokenizer)])
    seat = Seat(OpenAIEndpoint("http://own.invalid/v1", "own"), policy="tiny")
    scenario = Scenario(play, lambda episode: {"guesser": {"right": 1.0}}, {"guesser": seat}, name="guessed")
    with anyio.fail_after(60):
        async with running(models) as served, running(gateway) as url:
            seats = scenario.seated({"tiny": SeatPolicy("tiny", (f"{served}/v1",))})
            async with await RunHandle.open(url, "admin", seats) as run:
                gateway.policy = run.policy("tiny")
                await gateway.policy.pause()
                episodes = await collect(rollout(scenario, WORDS, run=run))
    gateway.close()
    assert [episode.failures for episode in episodes] == [[]] * len(WORDS)
    calls = [call for episode in episodes for trace in episode.traces for call in trace.calls]
    assert [call.status for call in calls] == ["ok"] * len(WORDS)
    marks = [(call.attempt, call.retry_among) for call in calls if call.attempt]
    assert marks == [(1, [])] * gateway.refused and marks
    rows, report = cut_rows(episodes)
    assert len(rows) == len(WORDS), report


async def test_the_record_of_a_further_try_names_the_call_that_it_repeats(tmp_path: Path) -> None:
    gateway = Gateway(tmp_path, admin_token="admin")
    async with endpoint(answer(503, SOON), said("at last")) as (model, wrapper), running(gateway) as url:
        async with await RunHandle.open(url, "admin", {"a": SeatPolicy("A", (model.url,))}) as run:
            seen = run.episode("e1", "a")
            assert seen.route is not None
            told = await done(wrapper, model=ModelRoute(seen.model_url("t1"), "own", seen.route.token))
            first, second = (await run.collect(["e1"]))["e1"]
    gateway.close()
    assert told.text == "at last"
    assert (first["status"], second["status"]) == ("upstream_error", "ok")
    assert (second["retry_of"], second["attempt"]) == (first["call_id"], 1)
