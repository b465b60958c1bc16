"""Agents of the OpenAI Agents SDK: handoffs, approvals, limits, and what goes to a route."""

from __future__ import annotations

import json
from typing import Any

import pytest
from agents import (
    Agent,
    GuardrailFunctionOutput,
    OpenAIChatCompletionsModel,
    RunContextWrapper,
    function_tool,
    handoff,
    input_guardrail,
)
from agents.realtime import RealtimeAgent
from agents.tracing import get_trace_provider
from driving import done, events, peer, question
from model_server import ModelServer
from pydantic import BaseModel

from agent_env_wrappers.contract import (
    AgentError,
    Answer,
    FilePart,
    Limits,
    Message,
    ModelCall,
    Status,
    TextDelta,
    ToolReturn,
    Usage,
    WrapError,
)
from agent_env_wrappers.openai_agents import OpenAIAgentsWrapper
from agent_env_wrappers.registry import wrap

pytestmark = pytest.mark.anyio

launched: list[str] = []


@function_tool(needs_approval=True)
def launch(what: str) -> str:
    """Launches something."""
    launched.append(what)
    return f"launched {what}"


@pytest.fixture
def model(models: ModelServer) -> Any:
    launched.clear()
    return OpenAIChatCompletionsModel("own-model", models.client())


async def solve(message: str) -> str:
    return f"solved {message}"


def team(model: Any, *, as_object: bool) -> Agent[Any]:
    """Two agents that hand over to each other."""
    expert = Agent(name="expert", model=model)
    desk = Agent(name="desk", model=model, handoffs=[handoff(expert) if as_object else expert])
    expert.handoffs.append(handoff(desk) if as_object else desk)
    return desk


@pytest.mark.parametrize("as_object", [False, True])
async def test_the_agent_that_was_handed_over_to_speaks_in_the_next_turn(
    models: ModelServer, model: Any, as_object: bool
) -> None:
    wrapper = wrap(team(model, as_object=as_object))
    first = await events(wrapper, "call transfer_to_expert")
    assert Status("handed over to expert") in first
    assert first[-1].state["agent"] == "expert"
    await done(wrapper, "call transfer_to_desk", first[-1].state)
    offered = models.asked[-2].body["tools"][0]["function"]["name"]
    assert offered == "transfer_to_desk"


@pytest.mark.parametrize("as_object", [False, True])
async def test_peers_are_there_after_a_handoff_and_the_users_agents_stay_as_they_are(
    models: ModelServer, model: Any, as_object: bool
) -> None:
    desk = team(model, as_object=as_object)
    wrapper = wrap(desk)
    handed = await done(wrapper, "call transfer_to_expert", tools=[peer(solve)])
    reply = await done(wrapper, "call ask_solver", handed.state, tools=[peer(solve)])
    assert reply.text.startswith("ask_solver said [solved hi]")
    assert reply.state["agent"] == "expert"
    assert desk.tools == []
    await done(wrapper, "hello", reply.state)
    assert [tool["function"]["name"] for tool in models.asked[-1].body["tools"]] == ["transfer_to_desk"]


async def test_a_conversation_whose_speaker_has_left_the_team_is_an_error(model: Any) -> None:
    state = (await done(wrap(team(model, as_object=False)), "call transfer_to_expert")).state
    with pytest.raises(AgentError, match="handed over to 'expert', who is not in the team"):
        await done(wrap(Agent(name="desk", model=model)), "hello", state)


async def test_several_approvals_are_asked_for_one_after_the_other(model: Any) -> None:
    wrapper = wrap(Agent(name="pad", model=model, tools=[launch]))
    first = await question(wrapper, "twice launch")
    assert first.usage == Usage(10, 7, 1)
    second = await question(wrapper, "", first.state, answers=[Answer(first.id, True)])
    assert second.id != first.id
    assert launched == []
    approved = await done(wrapper, "yes", second.state)
    assert launched == ["hi", "hi"]
    assert approved.text == "launch said [launched hi | launched hi] seen=1"
    assert approved.usage == Usage(10, 7, 1)


async def test_a_rejected_tool_is_not_called_and_the_model_is_told_why(model: Any) -> None:
    wrapper = wrap(Agent(name="pad", model=model, tools=[launch]))
    asked = await question(wrapper, "call launch")
    assert asked.prompt == 'May the agent call launch with {"what": "hi"}?'
    state = json.loads(json.dumps(asked.state))
    no = [Answer(asked.id, {"approved": False, "reason": "it rains"})]
    rejected = await done(wrapper, "", state, answers=no)
    assert launched == []
    assert "it rains" in rejected.text
    assert (await done(wrapper, "and now", rejected.state)).text == "seen=2"


async def test_an_unclear_answer_approves_nothing(model: Any) -> None:
    wrapper = wrap(Agent(name="pad", model=model, tools=[launch]))
    asked = await question(wrapper, "call launch")
    with pytest.raises(AgentError, match="'perhaps' is neither yes nor no"):
        await done(wrapper, "perhaps", asked.state)
    assert launched == []


async def test_an_approval_is_kept_with_peers_in_the_turn(model: Any) -> None:
    wrapper = wrap(Agent(name="pad", model=model, tools=[launch]))
    asked = await question(wrapper, "call launch", tools=[peer(solve)])
    assert (await done(wrapper, "yes", asked.state, tools=[peer(solve)])).text.startswith("launch said [launched hi]")


async def test_the_limit_of_steps_stops_the_agent(model: Any) -> None:
    wrapper = wrap(Agent(name="loop", model=model))
    with pytest.raises(AgentError, match="MaxTurnsExceeded") as stopped:
        await done(wrapper, "call ask_solver", tools=[peer(solve)], limits=Limits(steps=1))
    assert stopped.value.kind == "limit"


async def test_a_guardrail_refuses(model: Any) -> None:
    @input_guardrail
    def never(context: Any, agent: Any, said: Any) -> GuardrailFunctionOutput:
        return GuardrailFunctionOutput(output_info=None, tripwire_triggered=True)

    wrapper = wrap(Agent(name="guarded", model=model, input_guardrails=[never]))
    with pytest.raises(AgentError, match="the agent refused") as refused:
        await done(wrapper)
    assert refused.value.kind == "refused"


async def test_a_peer_with_the_name_of_a_tool_is_refused(model: Any) -> None:
    @function_tool
    def ask_solver(message: str) -> str:
        return message

    with pytest.raises(WrapError, match="has a tool 'ask_solver' already"):
        await done(wrap(Agent(name="x", model=model, tools=[ask_solver])), tools=[peer(solve)])


async def test_a_failing_peer_is_told_to_the_model_and_marked(model: Any) -> None:
    async def fail(message: str) -> str:
        raise AgentError("out to lunch")

    told = await events(wrap(Agent(name="x", model=model)), "call ask_solver", tools=[peer(fail)])
    (returned,) = [event for event in told if isinstance(event, ToolReturn)]
    assert (returned.output, returned.is_error) == ("solver failed: out to lunch", True)


async def test_a_structured_output_is_data(model: Any) -> None:
    class City(BaseModel):
        name: str

    agent = Agent(name="atlas", output_type=City, model=model)
    info = await wrap(agent).describe()
    assert info.output_schema is not None
    assert "name" in info.output_schema["properties"]
    city = await done(wrap(agent), 'say {"name": "Oslo"}')
    assert (city.text, city.data) == ('{"name": "Oslo"}', {"name": "Oslo"})
    with pytest.raises(AgentError, match="ModelBehaviorError") as failed:
        await done(wrap(agent))
    assert failed.value.kind == "model"


async def test_context_is_handed_to_tools(model: Any) -> None:
    @function_tool
    def whoami(context: RunContextWrapper[str]) -> str:
        return context.context

    wrapper = OpenAIAgentsWrapper(Agent(name="x", model=model, tools=[whoami]), context="bob")
    assert (await done(wrapper, "call whoami")).text.startswith("whoami said [bob]")


async def test_reasoning_and_model_calls_are_told(model: Any) -> None:
    told = await events(wrap(Agent(name="x", model=model)), "think")
    assert "".join(e.text for e in told if isinstance(e, TextDelta) and e.channel == "thought") == "let me see"
    assert [e for e in told if isinstance(e, ModelCall)] == [ModelCall("own-model", Usage(10, 7, 1))]


async def test_a_route_replaces_the_model_of_every_agent_in_the_team(models: ModelServer, model: Any) -> None:
    wrapper = wrap(team(model, as_object=True))
    handed = await done(wrapper, "call transfer_to_expert", model=models.route("red"))
    assert handed.text.endswith("red seen=1")
    assert {(asked.word, asked.key, asked.body["model"]) for asked in models.asked} == {
        ("red", "key-of-red", "red-model")
    }
    await wrapper.aclose()


async def test_nothing_is_traced(model: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    traced: list[Any] = []
    create = get_trace_provider().create_trace
    monkeypatch.setattr(
        get_trace_provider(), "create_trace", lambda *a, **k: traced.append(k.get("disabled")) or create(*a, **k)
    )
    await done(wrap(Agent(name="x", model=model)))
    assert set(traced) == {True}


@pytest.mark.parametrize(("status", "retryable"), [(400, False), (429, True), (500, True)])
async def test_a_failing_model_says_whether_to_try_again(model: Any, status: int, retryable: bool) -> None:
    with pytest.raises(AgentError, match=f"HTTP {status}") as failed:
        await done(wrap(Agent(name="x", model=model)), f"boom {status}")
    assert (failed.value.kind, failed.value.retryable) == ("model", retryable)
    assert "secret" not in str(failed.value)


async def test_an_agent_is_described_by_its_fields() -> None:
    agent = Agent(name="Pad", handoff_description="Launches.", instructions="Be careful.", tools=[launch])
    info = await wrap(agent).describe()
    assert (info.name, info.description, info.instructions) == ("Pad", "Launches.", "Be careful.")
    assert (info.tools[0].name, info.tools[0].description) == ("launch", "Launches something.")
    assert info.tools[0].parameters["required"] == ["what"]
    assert (await wrap(Agent(name="x", instructions=lambda context, agent: "secret")).describe()).instructions is None


async def test_what_the_wrapper_cannot_do_is_refused(model: Any) -> None:
    with pytest.raises(WrapError, match="speaks audio"):
        wrap(RealtimeAgent(name="x"))
    with pytest.raises(WrapError, match="the message has a file"):
        await done(wrap(Agent(name="x", model=model)), Message((FilePart("image/png", b""),)))
