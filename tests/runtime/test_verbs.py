"""The verbs: whose session it is, who may call, from JSON to JSON."""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable
from typing import Any

import anyio
import pytest
from scripted_agents import ANYBODY, Handles, add, counting

from agent_env.context import CallContext, Link, Principal
from agent_env.errors import (
    Forbidden,
    InvalidArguments,
    ReentrantCall,
    TooDeep,
    UnknownSession,
    UnknownTool,
)
from agent_env.net.limits import Limits
from agent_env.runtime.caller import Caller
from agent_env.runtime.definition import SessionView
from agent_env.runtime.verbs import ORCHESTRATION, VERBS, perform
from agent_env_wrappers.contract import AgentInfo, Caps

pytestmark = pytest.mark.anyio

Say = Callable[..., Awaitable[Any]]


ALICE = Caller(Principal("alice"))
BOB = Caller(Principal("bob"))


def _calls(session_id: str) -> dict[str, dict[str, Any]]:
    return {
        "call_tool": {"name": "chat", "arguments": {"message": "x"}, "session_id": session_id},
        "reset": {"session_id": session_id},
        "step": {"session_id": session_id, "action": "x"},
        "state": {"session_id": session_id},
        "call_function": {"name": "add", "arguments": {"a": 1}, "session_id": session_id},
        "call_reward": {"name": "score", "session_id": session_id},
        "fork": {"session_id": session_id},
        "release": {"session_id": session_id},
    }


def score(session: SessionView) -> float:
    return 1.0


@pytest.mark.parametrize("verb", sorted(VERBS.keys() - {"list_tools"}))
async def test_an_unknown_or_foreign_session_is_refused_by_every_verb(runtime_of: Any, say: Say, verb: str) -> None:
    runtime = await runtime_of(counting, functions=[add], rewards=[score])
    session_id = (await say(runtime, "a", caller=ALICE)).session_id
    before = await runtime.state(session_id=session_id, caller=ALICE)
    for id in (session_id, "s-never-was"):
        with pytest.raises(UnknownSession):
            await perform(runtime, verb, _calls(id)[verb], BOB)
    assert len(runtime.sessions) == 1
    assert await runtime.state(session_id=session_id, caller=ALICE) == before
    assert await perform(runtime, verb, _calls(session_id)[verb], ALICE)


async def test_a_released_session_is_unknown(runtime_of: Any, say: Say) -> None:
    runtime = await runtime_of(counting)
    session_id = (await say(runtime, "a")).session_id
    assert await runtime.release(session_id=session_id, caller=ANYBODY) == {"released": True, "session_id": session_id}
    with pytest.raises(UnknownSession, match="leave the id out to open a new one"):
        await say(runtime, "b", session_id)


@pytest.mark.parametrize("verb", sorted(VERBS))
async def test_each_verb_asks_for_its_scope(runtime_of: Any, say: Say, verb: str) -> None:
    runtime = await runtime_of(counting, functions=[add], rewards=[score])
    session_id = (await say(runtime, "a")).session_id
    arguments = {} if verb == "list_tools" else _calls(session_id)[verb]
    wanted = "orchestrate" if verb in ORCHESTRATION else "chat"
    lacking = Caller(Principal("local", frozenset({"chat", "orchestrate"} - {wanted})))
    with pytest.raises(Forbidden, match=f"needs a token with the scope '{wanted}'") as refused:
        await perform(runtime, verb, arguments, lacking)
    assert refused.value.data == {"scope": wanted}


async def test_state_gives_no_way_into_the_session(runtime_of: Any, say: Say) -> None:
    runtime = await runtime_of(counting)
    session_id = (await say(runtime, "a")).session_id
    state = await runtime.state(session_id=session_id, caller=ANYBODY)
    state["messages"][0]["content"] = "forged"
    state["messages"].clear()
    assert (await runtime.state(session_id=session_id, caller=ANYBODY))["messages"][0]["content"] == "a"


@pytest.mark.parametrize("verb", ["call_tool", "reset", "step", "call_reward", "fork", "release"])
async def test_a_chain_that_holds_a_session_does_not_wait_for_it(runtime_of: Any, say: Say, verb: str) -> None:
    runtime = await runtime_of(counting, functions=[add], rewards=[score])
    session_id = (await say(runtime, "a")).session_id
    held = Link("agent@1.0.0", next(iter(runtime.sessions)).hash)
    caller = Caller(context=CallContext(chain=(held,)))
    with anyio.fail_after(5), pytest.raises(ReentrantCall):
        async with runtime.sessions.hold(next(iter(runtime.sessions))):
            await perform(runtime, verb, _calls(session_id)[verb], caller)
    assert (await runtime.state(session_id=session_id, caller=caller))["turns"] == 1


async def test_a_chain_that_is_too_deep_opens_no_session(runtime_of: Any, say: Say) -> None:
    runtime = await runtime_of(counting, tools=[add], limits=Limits(max_depth=1))
    deep = Caller(context=CallContext(chain=(Link("other@1.0.0", "s"),)))
    with pytest.raises(TooDeep):
        await say(runtime, "a", caller=deep)
    with pytest.raises(TooDeep):
        await runtime.call_tool("add", {"a": 1}, caller=deep)
    assert len(runtime.sessions) == 0


async def test_every_verb_answers_json(runtime_of: Any) -> None:
    runtime = await runtime_of(counting, functions=[add], rewards=[score], tools=[add])
    opened = await perform(runtime, "call_tool", {"name": "chat", "arguments": {"message": "x"}}, ANYBODY)
    for verb, arguments in {"list_tools": {}, **_calls(opened["session_id"])}.items():
        answer = await perform(runtime, verb, arguments, ANYBODY)
        assert json.loads(json.dumps(answer)) == answer


@pytest.mark.parametrize(
    ("verb", "arguments", "error", "match"),
    [
        ("teleport", {}, UnknownTool, "there is no verb 'teleport'; the verbs are list_tools"),
        ("list_tools", {"page": 1}, InvalidArguments, r"list_tools takes no 'page'; its arguments are none"),
        ("state", {"session": "x"}, InvalidArguments, r"its arguments are \['session_id'\]"),
        ("state", {}, InvalidArguments, "state needs the 'session_id'"),
        ("state", {"session_id": ""}, InvalidArguments, "state needs the 'session_id'"),
        ("release", {}, InvalidArguments, "release needs"),
        ("fork", {"session_id": None}, InvalidArguments, "fork needs"),
        ("call_reward", {"name": "score"}, InvalidArguments, "call_reward needs"),
        ("call_tool", {}, InvalidArguments, "'name' must be a string, not None"),
        ("call_tool", {"name": "chat", "arguments": ["x"]}, InvalidArguments, "'arguments' must be an object"),
        ("call_tool", {"name": "chat", "session_id": 7}, InvalidArguments, "'session_id' must be a string, not 7"),
        ("step", {}, InvalidArguments, "step needs an 'action'"),
    ],
)
async def test_a_call_that_is_malformed_is_refused(
    runtime_of: Any, verb: str, arguments: dict[str, Any], error: type[Exception], match: str
) -> None:
    runtime = await runtime_of(counting, rewards=[score])
    with pytest.raises(error, match=match):
        await perform(runtime, verb, arguments, ANYBODY)


async def test_an_agents_own_output_schema_is_on_its_tool(runtime_of: Any) -> None:
    class Typed(Handles):
        async def describe(self) -> AgentInfo:
            return AgentInfo(self.framework, Caps(), output_schema={"type": "object"})

    runtime = await runtime_of(Typed())
    assert runtime.list_tools()[0]["outputSchema"] == {"type": "object"}
