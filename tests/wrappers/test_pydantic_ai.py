"""Agents of Pydantic AI: deferred tools, structured output, limits, and what goes to a route."""

from __future__ import annotations

import json
from typing import Any

import pytest
from driving import done, events, peer, question
from model_server import ModelServer
from pydantic import BaseModel
from pydantic_ai import Agent, CallDeferred, DeferredToolRequests, RunContext
from pydantic_ai.agent import WrapperAgent
from pydantic_ai.models.openai import OpenAIChatModel
from pydantic_ai.providers.openai import OpenAIProvider

from agent_env_wrappers.contract import (
    AgentError,
    Answer,
    FilePart,
    Limits,
    Message,
    ModelCall,
    TextDelta,
    ToolCall,
    ToolReturn,
    Usage,
    WrapError,
)
from agent_env_wrappers.pydantic_ai import PydanticAIWrapper
from agent_env_wrappers.registry import wrap

pytestmark = pytest.mark.anyio


@pytest.fixture
def model(models: ModelServer) -> Any:
    return OpenAIChatModel("own-model", provider=OpenAIProvider(openai_client=models.client()))


async def solve(message: str) -> str:
    return f"solved {message}"


def pad(model: Any, launched: list[str], **more: Any) -> Agent[Any, Any]:
    agent: Agent[Any, Any] = Agent(model, **more)

    @agent.tool_plain(requires_approval=True)
    def launch(what: str) -> str:
        """Launches something."""
        launched.append(what)
        return f"launched {what}"

    return agent


async def test_several_approvals_are_asked_for_one_after_the_other(model: Any) -> None:
    launched: list[str] = []
    wrapper = wrap(pad(model, launched))
    first = await question(wrapper, "twice launch")
    assert first.prompt == 'May the agent call launch with {"what": "hi"}?'
    assert first.usage == Usage(10, 7, 1)
    second = await question(wrapper, "", json.loads(json.dumps(first.state)), answers=[Answer(first.id, True)])
    assert second.id != first.id
    assert launched == []
    mixed = await done(wrapper, "no", second.state)
    assert launched == ["hi"]
    assert mixed.text.startswith("launch said [launched hi | ")
    assert mixed.usage == Usage(10, 7, 1)


async def test_a_rejected_tool_is_not_called_and_the_model_is_told_why(model: Any) -> None:
    launched: list[str] = []
    wrapper = wrap(pad(model, launched))
    asked = await question(wrapper, "call launch")
    no = [Answer(asked.id, {"approved": False, "reason": "it rains"})]
    assert "it rains" in (await done(wrapper, "", asked.state, answers=no)).text
    assert launched == []


async def test_an_unclear_answer_approves_nothing(model: Any) -> None:
    wrapper = wrap(pad(model, []))
    asked = await question(wrapper, "call launch")
    with pytest.raises(AgentError, match="neither yes nor no"):
        await done(wrapper, "perhaps", asked.state)


async def test_a_tool_that_defers_its_call_is_answered_by_the_caller(model: Any) -> None:
    agent = Agent(model, output_type=[str, DeferredToolRequests])

    @agent.tool_plain
    def weather(place: str) -> str:
        raise CallDeferred

    wrapper = wrap(agent)
    asked = await question(wrapper, "call weather")
    assert (asked.kind, asked.schema) == ("question", None)
    assert asked.prompt == 'What does weather with {"place": "hi"} give?'
    assert (await done(wrapper, "rain", asked.state)).text == "weather said [rain] seen=1"


async def test_an_agent_with_output_validators_that_may_not_defer_fails_clearly(model: Any) -> None:
    agent = pad(model, [])

    @agent.output_validator
    def check(output: str) -> str:
        return output

    wrapper = wrap(agent)
    assert not (await wrapper.describe()).caps.interrupts
    assert (await done(wrapper)).text == "seen=1"
    with pytest.raises(AgentError, match="the agent's framework failed \\(UserError\\)") as failed:
        await done(wrapper, "call launch")
    assert failed.value.kind == "framework"


async def test_a_structured_output_is_data(model: Any) -> None:
    class City(BaseModel):
        name: str

    from pydantic_ai import PromptedOutput

    agent = Agent(model, output_type=PromptedOutput(City), retries=0)
    info = await wrap(agent).describe()
    assert info.output_schema is not None
    assert "name" in info.output_schema["properties"]
    city = await done(wrap(agent), 'say {"name": "Oslo"}')
    assert (city.text, city.data) == ('{"name": "Oslo"}', {"name": "Oslo"})
    with pytest.raises(AgentError, match="the agent's model failed") as failed:
        await done(wrap(agent), "hello")
    assert failed.value.kind == "model"


async def test_the_limit_of_steps_stops_the_agent(model: Any) -> None:
    with pytest.raises(AgentError, match="UsageLimitExceeded") as stopped:
        await done(wrap(Agent(model)), "call ask_solver", tools=[peer(solve)], limits=Limits(steps=1))
    assert stopped.value.kind == "limit"


async def test_peers_come_and_go_with_the_turn_and_a_failing_one_is_marked(models: ModelServer, model: Any) -> None:
    async def fail(message: str) -> str:
        raise AgentError("out to lunch")

    wrapper = wrap(Agent(model))
    told = await events(wrapper, "twice ask_solver", tools=[peer(fail)])
    returned = [event for event in told if isinstance(event, ToolReturn)]
    assert [(back.output, back.is_error) for back in returned] == [("solver failed: out to lunch", True)] * 2
    assert {call.id for call in told if isinstance(call, ToolCall)} == {back.id for back in returned}
    await done(wrapper, "hello", told[-1].state)
    assert "tools" not in models.asked[-1].body


async def test_a_peer_with_the_name_of_a_tool_is_refused(model: Any) -> None:
    agent = Agent(model, name="x")

    @agent.tool_plain
    def ask_solver(message: str) -> str:
        return message

    with pytest.raises(WrapError, match="'x' has a tool 'ask_solver' already"):
        await done(wrap(agent), tools=[peer(solve)])


async def test_reasoning_and_model_calls_are_told(model: Any) -> None:
    told = await events(wrap(Agent(model)), "think")
    assert "".join(e.text for e in told if isinstance(e, TextDelta) and e.channel == "thought") == "let me see"
    assert [e for e in told if isinstance(e, ModelCall)] == [ModelCall("own-model", Usage(10, 7, 1), "stop")]


async def test_deps_are_handed_to_tools(model: Any) -> None:
    agent = Agent(model, deps_type=str)

    @agent.tool
    def whoami(context: RunContext[str]) -> str:
        return context.deps

    wrapper = PydanticAIWrapper(agent, deps="bob")
    assert (await done(wrapper, "call whoami")).text.startswith("whoami said [bob]")


async def test_only_the_routes_key_and_model_go_to_a_route(models: ModelServer, model: Any) -> None:
    wrapper = wrap(Agent(model))
    assert (await done(wrapper, model=models.route("red"))).text == "red seen=1"
    (asked,) = models.asked
    assert (asked.key, asked.body["model"]) == ("key-of-red", "red-model")
    assert "own-key" not in str(asked.headers)
    await wrapper.aclose()


@pytest.mark.parametrize(("status", "retryable"), [(400, False), (429, True), (500, True)])
async def test_a_failing_model_says_whether_to_try_again(model: Any, status: int, retryable: bool) -> None:
    with pytest.raises(AgentError, match=f"HTTP {status}") as failed:
        await done(wrap(Agent(model)), f"boom {status}")
    assert (failed.value.kind, failed.value.retryable) == ("model", retryable)
    assert "secret" not in str(failed.value)


async def test_a_tool_that_raises_fails_the_agent(model: Any) -> None:
    agent = Agent(model)

    @agent.tool_plain
    def clock() -> str:
        raise ValueError("secret")

    with pytest.raises(AgentError, match="the agent failed \\(ValueError\\)"):
        await done(wrap(agent), "call clock")


async def test_an_agent_that_wraps_another_is_driven_and_described(model: Any) -> None:
    inner = pad(model, [], name="pad", instructions="Be careful.")
    info = await wrap(WrapperAgent(inner)).describe()
    assert (info.framework, info.name) == ("pydantic-ai", "pad")
    assert (info.tools[0].name, info.tools[0].description) == ("launch", "Launches something.")
    assert info.tools[0].parameters["required"] == ["what"]
    assert info.output_schema is None
    assert (await done(wrap(WrapperAgent(inner)))).text == "seen=1"


async def test_files_are_refused(model: Any) -> None:
    with pytest.raises(WrapError, match="the message has a file"):
        await done(wrap(Agent(model)), Message((FilePart("image/png", b""),)))
