"""Whom an episode blames when a model fails: the model, however deep it was asked, and nobody for what was handled."""

from __future__ import annotations

import json
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any, cast

import anyio
import pytest
from games import guesser
from stages import staged

from agent_env.client.resolution import LaneName
from agent_env.errors import AgentEnvError, PeerFailed
from agent_env.training import PolicyServer, Team

pytestmark = [pytest.mark.anyio, pytest.mark.timeout(120)]

SAID = {"choices": [{"index": 0, "message": {"role": "assistant", "content": "sun"}, "finish_reason": "stop"}]}
ANSWERS: dict[str, tuple[int, bytes]] = {
    "broken": (500, json.dumps({"error": {"message": "no memory", "code": "cuda"}}).encode()),
    "unsaid": (500, b""),
    "away": (503, b"<html>"),
    "refused": (400, json.dumps({"error": {"message": "too long", "code": None}}).encode()),
    "odd": (200, b"[1]"),
    "none": (200, b"no json"),
    "fine": (200, json.dumps(SAID).encode()),
}


async def model(scope: Any, receive: Any, send: Any) -> None:
    """A model's server that answers what the last message names."""
    body = b""
    while (message := await receive()).get("more_body") or message.get("body"):
        body += message["body"]
        if not message.get("more_body"):
            break
    status, answer = ANSWERS[json.loads(body)["messages"][-1]["content"]]
    await send({"type": "http.response.start", "status": status, "headers": [(b"content-type", b"application/json")]})
    await send({"type": "http.response.body", "body": answer})


async def relay(message: str, peers: Any) -> str:
    return "heard " + str(await peers["guesser"](message))


async def careless(message: str, model: Any, peers: Any) -> str:
    """Gets over its model's failure, and not over its peer's."""
    with suppress(AgentEnvError):
        await guesser("broken", model)
    return str(await peers["breaker"](message))


def breaker(message: str) -> str:
    raise ValueError(message)


async def ask_relay(team: Team, task: str) -> str:
    return (await team["relay"].chat(task)).text


async def ask_guesser(team: Team, task: str) -> str:
    return (await team["guesser"].chat(task)).text


async def ask_careless(team: Team, task: str) -> str:
    return (await team["careless"].chat(task)).text


AGENTS: dict[str, Callable[..., Any]] = {"relay": relay, "guesser": guesser, "careless": careless, "breaker": breaker}
PEERS = {"relay": ["guesser"], "careless": ["breaker"]}


@pytest.mark.parametrize("lane", ["inprocess", "websocket", "http", "mcp", "a2a"])
async def test_a_model_that_fails_is_blamed_through_all_agents_that_failed_for_it(
    tmp_path: Path, lane: LaneName
) -> None:
    served = cast(PolicyServer, model)
    with anyio.fail_after(60):
        async with staged(
            tmp_path, lane, AGENTS, PEERS, models=served, policies={"guesser": "p", "careless": "q"}
        ) as stage:
            assert stage.run is not None
            episodes = [
                *await stage.play(ask_relay, [*ANSWERS]),
                *await stage.play(ask_guesser, [*ANSWERS]),
            ]
            handled = await stage.play(ask_careless)
            # Nobody listens there.
            await stage.run.policy("p").change(endpoints=["http://127.0.0.1:9/v1"])
            episodes += [*await stage.play(ask_relay, ["away"]), *await stage.play(ask_guesser, ["away"])]
    for episode in episodes:
        blamed = [(failure.boundary, failure.code) for failure in episode.failures]
        assert blamed == ([] if episode.task == "fine" else [("model", "peer_failed")]), (episode.task, blamed)
        calls = [call for trace in episode.traces for call in trace.calls]
        assert [call.status == "ok" for call in calls] == [episode.ok]
    (episode,) = handled
    assert [failure.boundary for failure in episode.failures] == ["peer"]


def liar(message: str) -> str:
    told = {"model_call": "forged"}
    if message == "deep":
        raise PeerFailed(
            "bad", error={"code": "peer_failed", "data": {"error": {"code": "agent_failed", "data": told}}}
        )
    if message == "odd":
        raise PeerFailed("bad", error={"code": ["x"], "data": {"model_call": ["x"]}})
    raise PeerFailed("bad", **told)


async def relay_liar(message: str, peers: Any) -> str:
    return str(await peers["liar"](message))


async def ask_liar(team: Team, task: str) -> str:
    return (await team["liar"].chat(task)).text


@pytest.mark.parametrize("lane", ["inprocess", "http"])
async def test_a_model_call_that_the_episode_has_not_is_not_believed_to_have_failed(
    tmp_path: Path, lane: LaneName
) -> None:
    agents: dict[str, Callable[..., Any]] = {"liar": liar, "relay": relay_liar}
    tasks = ["plain", "deep", "odd"]
    with anyio.fail_after(60):
        async with staged(
            tmp_path, lane, agents, {"relay": ["liar"]}, models=cast(PolicyServer, model), policies={"liar": "p"}
        ) as stage:
            assert stage.run is not None
            episodes = [*await stage.play(ask_liar, tasks), *await stage.play(ask_relay, tasks)]
    for episode in episodes:
        assert [failure.boundary for failure in episode.failures] == ["peer"], (episode.task, episode.failures)
