"""Where the models of a graph are asked, turn by turn."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import aclosing
from typing import Any

import pytest
from driving import done, peer
from graphs import clock, graph
from langchain.agents import create_agent
from langchain_core.language_models import FakeListLLM, GenericFakeChatModel
from langchain_core.messages import AIMessage
from model_server import ModelServer
from subjects import chat_model

from agent_env_wrappers.contract import (
    BuildContext,
    Message,
    Turn,
    WrapError,
)
from agent_env_wrappers.factory import agent_factory
from agent_env_wrappers.langgraph import as_tool
from agent_env_wrappers.registry import wrap

pytestmark = pytest.mark.anyio


async def test_only_the_routes_key_and_model_go_to_a_route(models: ModelServer) -> None:
    await done(wrap(create_agent(chat_model(models), [clock])), "call clock", model=models.route("red"))
    assert {(asked.word, asked.key, asked.body["model"]) for asked in models.asked} == {
        ("red", "key-of-red", "red-model")
    }
    assert "own-key" not in str([asked.headers for asked in models.asked])


async def test_a_model_in_a_sync_node_is_re_pointed(models: ModelServer) -> None:
    from langchain_openai import ChatOpenAI

    model = ChatOpenAI(model="own-model", base_url=models.url, api_key="own-key")
    wrapper = wrap(graph(lambda state: {"messages": [model.invoke(state["messages"])]}))
    assert (await done(wrapper, model=models.route("red"))).text == "red seen=1"
    model.root_client.close()


@pytest.mark.filterwarnings(
    # LangChain leaves the callbacks after the one that refuses unawaited.
    "ignore:coroutine 'ahandle_event' was never awaited:RuntimeWarning",
    "ignore:Exception ignored in. <coroutine object ahandle_event:pytest.PytestUnraisableExceptionWarning",
)
async def test_a_model_that_is_not_asked_through_the_openai_client_is_refused_unasked(models: ModelServer) -> None:
    def replies() -> Iterator[AIMessage]:
        yield AIMessage("asked after all")

    wrapper = wrap(create_agent(GenericFakeChatModel(messages=replies()), []))
    with pytest.raises(WrapError, match="goes through neither the openai nor the anthropic client"):
        await done(wrapper, model=models.route("red"))
    assert (await done(wrapper)).text == "asked after all"
    completion = FakeListLLM(responses=["x", "y"])
    other = wrap(graph(lambda state: {"messages": [AIMessage(completion.invoke("hi"))]}))
    assert (await done(other)).text == "x"
    with pytest.raises(WrapError, match="text completion model"):
        await done(other, model=models.route("red"))


async def test_a_model_that_only_says_it_is_openais_is_found_out(models: ModelServer) -> None:
    class Pretender(GenericFakeChatModel):
        def _get_ls_params(self, stop: Any = None, **more: Any) -> Any:
            return {"ls_provider": "openai", "ls_model_type": "chat"}

    wrapper = wrap(create_agent(Pretender(messages=iter([AIMessage("x")])), []))
    with pytest.raises(WrapError, match="was asked without the client that is re-pointed"):
        await done(wrapper, model=models.route("red"))


async def test_a_peer_in_the_same_process_is_not_asked_by_the_callers_route(models: ModelServer) -> None:
    inner = wrap(create_agent(chat_model(models), [], name="inner"))

    async def ask(message: str) -> str:
        return (await done(inner, message)).text

    @agent_factory
    def build(build: BuildContext) -> Any:
        return create_agent(chat_model(models), [as_tool(each) for each in build.tools])

    said = await done(wrap(build), "call ask_solver", tools=[peer(ask)], model=models.route("red"))
    assert said.text == "ask_solver said [seen=1] red seen=1"
    assert [asked.word for asked in models.asked] == ["red", "", "red"]


async def test_a_turn_that_two_tasks_drive_is_stopped_before_it_leaves_its_route(models: ModelServer) -> None:
    wrapper = wrap(create_agent(chat_model(models), [clock]))
    turn: Any = wrapper.run(Turn(Message.of("call clock"), model=models.route("red")))
    async with aclosing(turn) as stream:
        with pytest.raises(WrapError, match="one task must drive a turn"):
            while True:
                await asyncio.create_task(anext(stream))
    assert {asked.word for asked in models.asked} == {"red"}


async def test_without_a_client_that_takes_the_hook_models_need_a_factory(monkeypatch: pytest.MonkeyPatch) -> None:
    from agent_env_wrappers import langgraph

    def broken() -> list[str]:
        raise WrapError("moved")

    wrapper = wrap(graph(lambda state: {}))
    with monkeypatch.context() as patched:
        patched.setattr(langgraph, "install_hooks", broken)
        assert (await wrapper.describe()).caps.model == "factory"
    with monkeypatch.context() as patched:
        for sdk in ("openai", "anthropic"):
            patched.delitem(__import__("sys").modules, sdk, raising=False)
        assert (await wrapper.describe()).caps.model == "factory"
