"""Tools and functions that an owner adds: what callers see, what they answer, what a failure leaves."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any

import anyio
import pytest
from pydantic import BaseModel
from scripted_agents import ANYBODY, add, counting, remember

from agent_env.errors import (
    AgentFailed,
    DeadlineExceeded,
    InvalidArguments,
    PeerFailed,
    UnknownTool,
)
from agent_env.net.limits import Limits
from agent_env.runtime.definition import SessionView

pytestmark = pytest.mark.anyio

Say = Callable[..., Awaitable[Any]]


async def test_chat_is_a_tool_and_so_is_what_the_owner_declared(runtime_of: Any) -> None:
    runtime = await runtime_of(counting, tools=[add, remember], description="Counts.")
    tools = {tool["name"]: tool for tool in runtime.list_tools()}
    assert list(tools) == ["chat", "add", "remember"]
    assert tools["chat"]["description"] == "Counts."
    assert tools["add"]["description"] == "Adds two numbers."
    assert tools["add"]["inputSchema"]["properties"]["a"]["description"] == "The first."
    assert tools["add"]["inputSchema"]["required"] == ["a"]
    assert set(tools["remember"]["inputSchema"]["properties"]) == {"word"}
    assert "outputSchema" not in tools["add"]  # its result is no object


async def test_a_tool_without_a_session_opens_none(runtime_of: Any) -> None:
    runtime = await runtime_of(counting, tools=[add])
    result = await runtime.call_tool("add", {"a": 2}, caller=ANYBODY)
    assert (result.data, result.text, result.session_id) == (3, "", "")
    assert result.content == [{"type": "data", "data": 3}]
    assert len(runtime.sessions) == 0


async def test_a_tool_with_a_session_shares_its_memory_with_the_conversation(runtime_of: Any, say: Say) -> None:
    runtime = await runtime_of(counting, tools=[remember])
    session_id = (await say(runtime, "hi")).session_id
    await runtime.call_tool("remember", {"word": "a"}, session_id=session_id, caller=ANYBODY)
    with pytest.raises(AgentFailed, match=r"'remember' of agent@1\.0\.0 raised RuntimeError") as failed:
        await runtime.call_tool("remember", {"word": "fail"}, session_id=session_id, caller=ANYBODY)
    assert "secret" not in str(failed.value.to_wire())
    result = await runtime.call_tool("remember", {"word": "b"}, session_id=session_id, caller=ANYBODY)
    assert result.text == "a b"  # the failed call left nothing behind


async def test_a_tool_that_fails_in_a_session_of_its_own_leaves_none(runtime_of: Any) -> None:
    runtime = await runtime_of(counting, tools=[remember])
    with pytest.raises(AgentFailed):
        await runtime.call_tool("remember", {"word": "fail"}, caller=ANYBODY)
    assert len(runtime.sessions) == 0


async def test_an_unknown_tool_is_refused_with_those_that_there_are(runtime_of: Any) -> None:
    runtime = await runtime_of(counting, tools=[add])
    with pytest.raises(UnknownTool, match="no tool 'subtract' here; it has add, chat") as refused:
        await runtime.call_tool("subtract", {}, caller=ANYBODY)
    assert refused.value.data["known"] == ["add", "chat"]


async def test_arguments_of_a_tool_are_checked_before_a_session_is_opened(runtime_of: Any) -> None:
    runtime = await runtime_of(counting, tools=[add, remember])
    with pytest.raises(InvalidArguments, match=r"/a: .*; /c: ") as refused:
        await runtime.call_tool("add", {"a": "two", "c": 1}, caller=ANYBODY)
    assert [problem["pointer"] for problem in refused.value.data["problems"]] == ["/a", "/c"]
    with pytest.raises(InvalidArguments, match="/word: Field required"):
        await runtime.call_tool("remember", {}, caller=ANYBODY)
    with pytest.raises(InvalidArguments, match="/session"):
        await runtime.call_tool("remember", {"word": "x", "session": {}}, caller=ANYBODY)
    assert len(runtime.sessions) == 0


@dataclass
class Point:
    """A place."""

    x: int
    y: float


class Person(BaseModel):
    """Somebody."""

    name: str
    friends: set[str] = set()


async def test_results_are_json_whatever_the_tool_returns(runtime_of: Any) -> None:
    def point() -> Point:
        return Point(1, float("nan"))

    def person(who: Person) -> Person:
        return who

    runtime = await runtime_of(counting, tools=[point, person])
    result = await runtime.call_tool("point", {}, caller=ANYBODY)
    assert result.data == {"x": 1, "y": None}  # JSON has no NaN
    given = {"name": "Ada", "friends": ["Bob"]}
    result = await runtime.call_tool("person", {"who": given}, caller=ANYBODY)
    assert result.data == given
    assert json.loads(json.dumps(result.to_json()))["data"] == given
    schemas = {tool["name"]: tool for tool in runtime.list_tools()}
    assert schemas["point"]["outputSchema"]["properties"]["x"] == {"type": "integer"}


async def test_a_result_that_is_no_json_is_the_owners_failure(runtime_of: Any) -> None:
    def broken() -> Any:
        return object()

    runtime = await runtime_of(counting, tools=[broken])
    with pytest.raises(AgentFailed, match=r"'broken' of agent@1\.0\.0 returned a object that is no JSON value"):
        await runtime.call_tool("broken", {}, caller=ANYBODY)


async def test_a_tool_has_the_owners_deadline_and_a_timeout_of_its_own_is_not_one(runtime_of: Any) -> None:
    async def slow() -> None:
        await asyncio.Event().wait()

    async def times_out() -> None:
        raise TimeoutError("the database is slow")

    runtime = await runtime_of(counting, tools=[slow, times_out], limits=Limits(turn_seconds=0.05))
    with anyio.fail_after(5), pytest.raises(DeadlineExceeded, match=r"'slow' of agent@1\.0\.0"):
        await runtime.call_tool("slow", {}, caller=ANYBODY)
    with pytest.raises(AgentFailed, match="raised TimeoutError"):
        await runtime.call_tool("times_out", {}, caller=ANYBODY)


async def test_what_a_tools_peer_refuses_is_not_the_callers_mistake(runtime_of: Any) -> None:
    async def delegate() -> None:
        raise InvalidArguments("the peer wants a number")

    runtime = await runtime_of(counting, tools=[delegate])
    with pytest.raises(PeerFailed) as failed:
        await runtime.call_tool("delegate", {}, caller=ANYBODY)
    assert failed.value.data["error"]["code"] == "invalid_arguments"


async def test_memory_that_cannot_be_copied_is_the_owners_failure(runtime_of: Any, say: Say) -> None:
    import threading

    def lock(session: SessionView) -> None:
        session.memory["lock"] = threading.Lock()

    runtime = await runtime_of(counting, tools=[lock])
    session_id = (await say(runtime, "hi")).session_id
    await runtime.call_tool("lock", {}, session_id=session_id, caller=ANYBODY)
    with pytest.raises(AgentFailed, match="keep plain values in it"):
        await runtime.call_tool("lock", {}, session_id=session_id, caller=ANYBODY)


@pytest.mark.parametrize("value", ["text", "", None, 0, False, [], {"a": [1]}])
async def test_a_function_answers_exactly_what_it_returned(runtime_of: Any, value: Any) -> None:
    def give() -> Any:
        return value

    runtime = await runtime_of(counting, functions=[give])
    assert await runtime.call_function("give", {}, caller=ANYBODY) == {"result": value, "session_id": ""}


async def test_functions_are_no_tools(runtime_of: Any) -> None:
    runtime = await runtime_of(counting, functions=[add])
    with pytest.raises(UnknownTool):
        await runtime.call_tool("add", {"a": 1}, caller=ANYBODY)
    with pytest.raises(UnknownTool, match="no function 'chat' here; it has add"):
        await runtime.call_function("chat", {}, caller=ANYBODY)
    bare = await runtime_of(counting)
    with pytest.raises(UnknownTool, match="it has no functions"):
        await bare.call_function("add", {}, caller=ANYBODY)
