"""Where the models of plain functions are asked, turn by turn, with no change of their code."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import AsyncIterator, Iterator, Mapping
from contextlib import aclosing
from typing import Any

import anyio
import pytest
from driving import done, peer, question
from model_server import ModelServer
from openai import OpenAI

from agent_env_wrappers.contract import AgentError, Interrupt, Message, ModelRoute, TextDelta, Turn, WrapError
from agent_env_wrappers.registry import wrap

pytestmark = pytest.mark.anyio

KINDS = (
    "async",
    "sync",
    "a lambda that returns a coroutine",
    "an async generator",
    "a sync generator",
    "in a thread",
    "in tasks",
    "in a loop of its own",
)
NOT_ASKED = "the callable 'agent' was set, and it replied without asking one .* add a parameter `model`"


def ask_blocking(models: ModelServer, text: str) -> str:
    with OpenAI(base_url=models.url, api_key="own-key", max_retries=0) as client:
        made = client.chat.completions.create(model="own-model", messages=[{"role": "user", "content": text}])
        return str(made.choices[0].message.content)


def functions(models: ModelServer) -> dict[str, Any]:
    client = models.client()

    async def ask(text: str) -> str:
        made = await client.chat.completions.create(model="own-model", messages=[{"role": "user", "content": text}])
        return str(made.choices[0].message.content)

    def sync(message: str) -> str:
        return ask_blocking(models, message)

    async def pieces(message: str) -> AsyncIterator[str]:
        yield await ask(message)
        yield "; "
        yield await ask(message)

    def sync_pieces(message: str) -> Iterator[str]:
        yield ask_blocking(models, message)
        yield "; "
        yield ask_blocking(models, message)

    async def in_a_thread(message: str) -> str:
        return await asyncio.to_thread(ask_blocking, models, message)

    async def in_tasks(message: str) -> str:
        return "; ".join(await asyncio.gather(ask(message), ask(message)))

    def in_a_loop_of_its_own(message: str) -> str:
        return asyncio.run(in_a_thread(message))

    later = lambda message: ask(message)
    agents = (ask, sync, later, pieces, sync_pieces, in_a_thread, in_tasks, in_a_loop_of_its_own)
    return dict(zip(KINDS, agents, strict=True))


@pytest.mark.parametrize("kind", KINDS)
async def test_a_function_that_takes_no_model_asks_by_the_route_of_its_turn(models: ModelServer, kind: str) -> None:
    wrapper = wrap(functions(models)[kind])
    assert (await wrapper.describe()).caps.model == "turn"
    with anyio.fail_after(20):
        red, blue = await asyncio.gather(*(done(wrapper, model=models.route(word)) for word in ("red", "blue")))
        own = await done(wrapper)
    assert (set(red.text.split("; ")), set(blue.text.split("; "))) == ({"red seen=1"}, {"blue seen=1"})
    assert set(own.text.split("; ")) == {"seen=1"}
    assert {(asked.word, asked.key) for asked in models.asked} == {
        ("red", "key-of-red"),
        ("blue", "key-of-blue"),
        ("", "own-key"),
    }


@pytest.mark.parametrize("is_async", [True, False])
async def test_a_function_that_asks_no_model_by_the_route_is_told_how_to(models: ModelServer, is_async: bool) -> None:
    def agent(message: str) -> str:
        return "by rule"

    async def pieces(message: str) -> AsyncIterator[str]:
        yield "by rule"

    pieces.__name__ = "agent"
    wrapper = wrap(pieces if is_async else agent)
    with pytest.raises(WrapError, match=NOT_ASKED):
        await done(wrapper, model=models.route("red"))
    assert (await done(wrapper)).text == "by rule"


async def test_a_function_that_fails_before_it_asks_has_failed_by_itself(models: ModelServer) -> None:
    def agent(message: str) -> str:
        raise ValueError("secret")

    with pytest.raises(AgentError, match="the agent raised ValueError"):
        await done(wrap(agent), model=models.route("red"))


async def test_a_function_may_ask_its_caller_before_it_asks_its_model(models: ModelServer) -> None:
    def agent(message: str, answers: Mapping[str, Any]) -> Any:
        return ask_blocking(models, answers["go"]) if answers else Interrupt("go", "question", "Go?")

    wrapper = wrap(agent)
    asked = await question(wrapper, model=models.route("red"))
    assert (await done(wrapper, "yes", asked.state, model=models.route("red"))).text == "red seen=1"


async def test_a_function_that_takes_the_model_uses_it_as_it_likes(models: ModelServer) -> None:
    async def agent(message: str, model: ModelRoute | None) -> str:
        made = await models.client().chat.completions.create(model="m", messages=[{"role": "user", "content": "x"}])
        return f"{made.choices[0].message.content} {model.model if model else 'own'}"

    assert (await done(wrap(agent), model=models.route("red"))).text == "seen=1 red-model"


async def test_a_peer_in_the_same_process_is_not_asked_by_a_functions_route(models: ModelServer) -> None:
    inner = wrap(functions(models)["sync"])

    async def solve(message: str) -> str:
        return (await done(inner, message)).text

    def agent(message: str, peers: Mapping[str, Any]) -> str:
        return f"{ask_blocking(models, message)}, the peer {peers['solver'](message)}"

    said = await done(wrap(agent), tools=[peer(solve)], model=models.route("red"))
    assert said.text == "red seen=1, the peer seen=1"


async def test_a_turn_that_two_tasks_drive_is_stopped_before_it_leaves_its_route(models: ModelServer) -> None:
    wrapper = wrap(functions(models)["an async generator"])
    turn: Any = wrapper.run(Turn(Message.of("hi"), model=models.route("red")))
    async with aclosing(turn) as stream:
        assert await asyncio.create_task(anext(stream)) == TextDelta("red seen=1")
        with pytest.raises(WrapError, match="one task must drive a turn"):
            await asyncio.create_task(anext(stream))
    assert [asked.word for asked in models.asked] == ["red"]


async def test_without_an_sdk_that_takes_a_route_the_model_cannot_be_set(monkeypatch: pytest.MonkeyPatch) -> None:
    wrapper = wrap(lambda message: message)
    for sdk in ("openai", "anthropic"):
        monkeypatch.setitem(sys.modules, sdk, None)
    assert (await wrapper.describe()).caps.model == "none"
    with pytest.raises(WrapError, match="neither is installed"):
        await done(wrapper, model=ModelRoute("http://there/v1", "m"))
