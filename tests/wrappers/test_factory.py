"""Factories: agents that are built for each turn."""

from __future__ import annotations

import asyncio
import functools
from collections.abc import Mapping
from typing import Any

import pytest
from driving import done, events, peer
from model_server import ModelServer

from agent_env_wrappers.callable import CallableWrapper
from agent_env_wrappers.contract import AgentError, BuildContext, ModelRoute, WrapError
from agent_env_wrappers.factory import Factory, FactoryWrapper, agent_factory
from agent_env_wrappers.registry import wrap

pytestmark = pytest.mark.anyio

ROUTE = ModelRoute("http://there/v1", "blue")


async def solve(message: str) -> str:
    return f"solved {message}"


def counter(message: str, history: list[Any]) -> str:
    """Counts."""
    return f"seen={len(history) // 2 + 1}"


async def test_what_a_factory_reads_is_its_own_affair() -> None:
    @agent_factory
    def build(build: BuildContext) -> Any:
        tools = {tool.seat: tool.acall for tool in build.tools}
        name = build.model.model if build.model else "own"

        async def agent(message: str) -> str:
            return f"{name} {await tools['solver'](message=message) if tools else '-'}"

        return agent

    wrapper = wrap(build)
    caps = (await wrapper.describe()).caps
    assert (caps.tools, caps.model) == ("turn", "turn")
    assert (await done(wrapper, "x")).text == "own -"
    assert (await done(wrapper, "x", tools=[peer(solve)], model=ROUTE)).text == "blue solved x"


async def test_what_a_factory_does_not_read_goes_on_to_its_agent() -> None:
    @agent_factory
    def build(build: BuildContext) -> Any:
        async def agent(message: str, peers: Mapping[str, Any], model: ModelRoute | None) -> str:
            return f"{model.model if model else 'own'} {await peers['solver'](message)}"

        return agent

    wrapper = wrap(build)
    caps = (await wrapper.describe()).caps
    assert (caps.tools, caps.model) == ("turn", "turn")
    assert (await done(wrapper, "x", tools=[peer(solve)], model=ROUTE)).text == "blue solved x"


async def test_peers_and_a_model_that_nobody_takes_are_refused_and_not_lost() -> None:
    wrapper = wrap(Factory(lambda build: counter))
    caps = (await wrapper.describe()).caps
    assert (caps.tools, caps.model, caps.state) == ("none", "turn", "value")
    with pytest.raises(WrapError, match="cannot be given peers"):
        await done(wrapper, tools=[peer(solve)])
    with pytest.raises(WrapError, match="replied without asking one through the openai or the anthropic client"):
        await done(wrapper, model=ROUTE)


async def test_the_client_of_a_function_that_a_factory_builds_is_re_pointed(models: ModelServer) -> None:
    @agent_factory
    def build(build: BuildContext) -> Any:
        client = models.client()

        async def agent(message: str) -> str:
            made = await client.chat.completions.create(model="own", messages=[{"role": "user", "content": message}])
            return str(made.choices[0].message.content)

        return agent

    wrapper = wrap(build)
    assert (await done(wrapper, model=models.route("red"))).text == "red seen=1"
    assert (await done(wrapper)).text == "seen=1"


async def test_an_async_factory_is_awaited_and_the_state_outlives_the_agents() -> None:
    built: list[str] = []

    @agent_factory
    async def build(build: BuildContext) -> Any:
        await asyncio.sleep(0)
        built.append(build.conversation_id)
        return counter

    wrapper = wrap(build)
    first = await done(wrapper, conversation_id="c1")
    assert (await done(wrapper, "again", first.state, conversation_id="c1")).text == "seen=2"
    assert built == ["c1", "c1"]


async def test_a_factory_of_a_value_forks_by_copying_and_releases_nothing() -> None:
    wrapper: Any = wrap(Factory(lambda build: counter))
    state = (await done(wrapper)).state
    copied = await wrapper.fork(state)
    assert copied == state
    assert copied is not state
    assert copied["history"] is not state["history"]
    await wrapper.release(state)


async def test_a_factory_is_described_by_what_it_builds() -> None:
    info = await wrap(Factory(lambda build: counter)).describe()
    assert (info.framework, info.name, info.description) == ("callable", "counter", "Counts.")

    @agent_factory
    def nameless(build: BuildContext) -> Any:
        """Builds someone.

        At length.
        """
        return lambda message: message

    info = await wrap(nameless).describe()
    assert (info.name, info.description) == ("nameless", "Builds someone.")
    assert nameless(BuildContext())("x") == "x"


@pytest.mark.parametrize(
    ("fn", "error", "words"),
    [
        (lambda build: 1 / 0, AgentError, "the factory raised ZeroDivisionError"),
        (lambda build: None, WrapError, "the factory returned None"),
        (lambda build: 3, WrapError, "no wrapper fits an object of builtins.int"),
    ],
)
async def test_a_factory_that_builds_no_agent_is_an_error(fn: Any, error: type[Exception], words: str) -> None:
    with pytest.raises(error, match=words):
        await done(wrap(Factory(fn)))


async def test_a_factory_may_say_itself_why_it_builds_nothing() -> None:
    def build(build: BuildContext) -> Any:
        raise AgentError("no seat is free", kind="limit")

    with pytest.raises(AgentError, match="no seat is free"):
        await events(wrap(Factory(build)))


def unmarked(build: BuildContext) -> Any:
    return counter


async def test_a_function_of_a_build_context_is_a_factory_without_a_mark() -> None:
    def by_type(build: Any) -> Any:
        return counter

    by_type.__annotations__["build"] = BuildContext
    for fn in (unmarked, by_type, functools.partial(unmarked)):
        assert (await done(wrap(fn))).text == "seen=1"


@pytest.mark.parametrize("value", [print, max, dict.fromkeys, object.__init__, 3, "x", functools.partial(print)])
def test_nothing_else_is_taken_for_a_factory(value: Any) -> None:
    assert FactoryWrapper.match(value) == 0


async def test_a_factory_may_build_another_kind_of_agent_each_time() -> None:
    class Speaker:
        def __call__(self, message: str) -> str:
            return f"speaker {message}"

    agents = iter([counter, counter, Speaker(), CallableWrapper(counter), CallableWrapper(counter), counter])
    wrapper = wrap(Factory(lambda build: next(agents)))
    assert [(await done(wrapper, "x")).text for _ in range(6)] == [
        "seen=1",
        "seen=1",
        "speaker x",
        "seen=1",
        "seen=1",
        "seen=1",
    ]
