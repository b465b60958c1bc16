"""Conversations with the MCP face, by the SDK's stock client in both eras of the protocol."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from typing import Any

import anyio
import pytest
from mcp import Client, MCPError
from pydantic import BaseModel

from agent_env import AgentEnvironment, Limits
from agent_env.context import CallContext, Link, inject
from agent_env.net.mcp_verbs import EVENTS_KEY, EXTENSION

pytestmark = pytest.mark.anyio

ERAS = ("auto", "legacy")


async def recall(message: str, history: list[dict[str, str]]) -> AsyncIterator[str]:
    for word in f"{len(history) // 2 + 1}: {message}".split():
        yield word + " "


def served(agent: object = recall, **options: Any) -> AgentEnvironment:
    return AgentEnvironment(agent, name="recall", version="1.2.3", hub=False, **options)


@pytest.mark.clause("EC-54", "EC-55")
async def test_a_modern_client_talks_for_three_turns_by_passing_the_session_id() -> None:
    async with served().serving() as server:
        with anyio.fail_after(20):
            async with Client(f"{server.url}/mcp") as client:
                assert client.protocol_version == "2026-07-28"
                said: list[str] = []
                session: dict[str, Any] = {}
                for message in ("one", "two", "three"):
                    result = await client.call_tool("chat", {"message": message, **session})
                    session = {"session_id": result.structured_content["session_id"]}
                    said.append(result.content[0].text)
    assert said == ["1: one ", "2: two ", "3: three "]


@pytest.mark.clause("EC-54", "EC-56")
async def test_a_modern_client_without_a_session_id_opens_a_conversation_with_each_call() -> None:
    async with served().serving() as server:
        with anyio.fail_after(20):
            async with Client(f"{server.url}/mcp") as client:
                first, second = [await client.call_tool("chat", {"message": "hi"}) for _ in range(2)]
    assert first.structured_content["text"] == second.structured_content["text"] == "1: hi "
    assert first.structured_content["session_id"] != second.structured_content["session_id"]


@pytest.mark.clause("EC-55")
async def test_a_client_of_the_handshake_era_goes_on_in_its_mcp_session() -> None:
    async with served().serving() as server:
        with anyio.fail_after(20):
            async with Client(f"{server.url}/mcp", mode="legacy") as client:
                assert client.protocol_version == "2025-11-25"
                said = [(await client.call_tool("chat", {"message": "hi"})).content[0].text for _ in range(3)]
                async with Client(f"{server.url}/mcp", mode="legacy") as other:
                    apart = (await other.call_tool("chat", {"message": "hi"})).content[0].text
    assert said == ["1: hi ", "2: hi ", "3: hi "]
    assert apart == "1: hi "


async def test_the_session_id_of_a_handshake_era_client_opens_the_same_conversation_to_a_modern_one() -> None:
    async with served().serving() as server:
        with anyio.fail_after(20):
            async with Client(f"{server.url}/mcp", mode="legacy") as old, Client(f"{server.url}/mcp") as new:
                session_id = (await old.call_tool("chat", {"message": "hi"})).structured_content["session_id"]
                there = await new.call_tool("chat", {"message": "hi", "session_id": session_id})
                back = await old.call_tool("chat", {"message": "hi"})
    assert [there.structured_content["text"], back.structured_content["text"]] == ["2: hi ", "3: hi "]


@pytest.mark.parametrize("mode", ERAS)
async def test_the_reply_streams_as_progress_while_it_is_made(mode: str) -> None:
    heard: list[str | None] = []
    first = asyncio.Event()

    async def patient(message: str) -> AsyncIterator[str]:
        yield "first"
        await first.wait()
        yield " second"

    async def on_progress(progress: float, total: float | None, message: str | None) -> None:
        heard.append(message)
        first.set()

    async with served(patient).serving() as server:
        with anyio.fail_after(20):
            async with Client(f"{server.url}/mcp", mode=mode) as client:
                result = await client.call_tool("chat", {"message": "go"}, progress_callback=on_progress)
    assert heard == ["first", " second"]
    assert result.structured_content["text"] == "first second"


async def test_a_client_that_asks_for_all_events_gets_them_as_json() -> None:
    heard: list[Any] = []

    async def on_progress(progress: float, total: float | None, message: str | None) -> None:
        heard.append(json.loads(message or ""))

    async with served().serving() as server:
        with anyio.fail_after(20):
            async with Client(f"{server.url}/mcp") as client:
                await client.call_tool(
                    "chat", {"message": "hi"}, progress_callback=on_progress, meta={EVENTS_KEY: True}
                )
    assert heard == [
        {"type": "text_delta", "text": "1: ", "channel": "answer"},
        {"type": "text_delta", "text": "hi ", "channel": "answer"},
    ]


@pytest.mark.parametrize("mode", ERAS)
async def test_both_cards_are_resources(mode: str) -> None:
    async with served().serving() as server:
        with anyio.fail_after(20):
            async with Client(f"{server.url}/mcp", mode=mode) as client:
                resources = (await client.list_resources()).resources
                cards = [json.loads((await client.read_resource(item.uri)).contents[0].text) for item in resources]
                assert (await client.list_resource_templates()).resource_templates == []
                with pytest.raises(MCPError, match="there is no resource"):
                    await client.read_resource("http://elsewhere/card.json")
        assert [item.uri for item in resources] == [
            f"{server.url}/.well-known/agent-env.json",
            f"{server.url}/.well-known/agent-card.json",
        ]
        assert cards[0]["digest"] == server.card.digest()
        assert cards[1]["supportedInterfaces"][0]["url"] == f"{server.url}/a2a"


async def test_a_modern_client_sees_the_card_among_the_capabilities() -> None:
    async with served().serving() as server:
        with anyio.fail_after(20):
            async with Client(f"{server.url}/mcp") as client:
                extensions = client.server_capabilities.extensions
                assert client.server_info is not None
                assert client.server_info.version == "1.2.3"
                assert "session_id" in (client.instructions or "")
        assert extensions == {EXTENSION: {"card": f"{server.url}/.well-known/agent-env.json"}}


class Point(BaseModel):
    x: int


class Walk(BaseModel):
    steps: list[Point]


async def test_declared_tools_answer_with_their_data_under_a_schema_that_the_client_checks() -> None:
    env = served()

    @env.tool
    def walk(steps: int) -> Walk:
        """Walks some steps."""
        return Walk(steps=[Point(x=x) for x in range(steps)])

    @env.tool
    def count(session: Any, by: int = 1) -> int:
        """Counts in this conversation."""
        session.memory["n"] = session.memory.get("n", 0) + by
        return session.memory["n"]

    async with env.serving() as server:
        with anyio.fail_after(20):
            async with Client(f"{server.url}/mcp") as client:
                tools = {tool.name: tool for tool in (await client.list_tools()).tools}
                assert "session_id" in tools["count"].input_schema["properties"]
                assert "session_id" not in tools["walk"].input_schema["properties"]
                output = tools["walk"].output_schema
                assert output is not None
                assert output["properties"]["data"]["anyOf"][1] == {"type": "null"}
                walked = await client.call_tool("walk", {"steps": 2})
                assert walked.structured_content["data"] == {"steps": [{"x": 0}, {"x": 1}]}
                assert walked.structured_content["session_id"] == ""
                opened = await client.call_tool("count", {})
                session = {"session_id": opened.structured_content["session_id"]}
                assert (await client.call_tool("count", {"by": 2, **session})).structured_content["data"] == 3


async def test_a_tool_without_a_session_opens_none_for_a_handshake_era_client() -> None:
    env = served()

    @env.tool
    def double(number: int) -> int:
        """Doubles."""
        return 2 * number

    async with env.serving() as server:
        with anyio.fail_after(20):
            async with Client(f"{server.url}/mcp", mode="legacy") as client:
                assert (await client.call_tool("double", {"number": 4})).structured_content["data"] == 8
                assert len(server.runtime.sessions) == 0


@pytest.mark.clause("EC-63", "EC-64")
@pytest.mark.parametrize("mode", ERAS)
async def test_the_verbs_play_an_episode(mode: str) -> None:
    env = served()

    @env.on_reset
    def begin(session: Any) -> str:
        return f"seed {session.seed}"

    @env.reward
    def length(session: Any) -> float:
        """How long the reply is."""
        return float(len(session.reply))

    @env.function
    def grade(session: Any) -> int:
        """Grades."""
        return session.turns

    async with env.serving() as server:
        with anyio.fail_after(20):
            async with Client(f"{server.url}/mcp", mode=mode) as client:
                reset = (await client.call_tool("env_reset", {"seed": 7})).structured_content
                assert reset["observation"] == "seed 7"
                # The handshake era knows the session by itself.
                session = {} if mode == "legacy" else {"session_id": reset["session_id"]}
                step = (await client.call_tool("env_step", {"action": "hi", **session})).structured_content
                assert (step["observation"], step["reward"], step["session_id"]) == ("1: hi ", 6.0, reset["session_id"])
                state = await client.call_tool("env_state", session)
                assert state.structured_content["turns"] == 1
                assert json.loads(state.content[0].text) == state.structured_content
                graded = await client.call_tool("env_call_function", {"name": "grade", **session})
                assert graded.structured_content["result"] == 1
                rewarded = await client.call_tool("env_call_reward", {"name": "length", **session})
                assert rewarded.structured_content["value"] == 6.0
                forked = (await client.call_tool("env_fork", session)).structured_content["session_id"]
                assert forked != reset["session_id"]
                assert (await client.call_tool("env_release", session)).structured_content["released"]


async def test_a_step_opens_the_conversation_of_a_handshake_era_client() -> None:
    async with served().serving() as server:
        with anyio.fail_after(20):
            async with Client(f"{server.url}/mcp", mode="legacy") as client:
                seen = [(await client.call_tool("env_step", {"action": "hi"})).structured_content for _ in range(2)]
    assert [step["observation"] for step in seen] == ["1: hi ", "2: hi "]


@pytest.mark.clause("EC-57")
async def test_a_conversation_that_has_ended_is_not_begun_again_unasked() -> None:
    async with served().serving() as server:
        with anyio.fail_after(20):
            async with Client(f"{server.url}/mcp", mode="legacy") as client:
                await client.call_tool("chat", {"message": "hi"})
                await client.call_tool("env_release", {})
                for tool, arguments in (("chat", {"message": "hi"}), ("env_step", {"action": "hi"}), ("env_state", {})):
                    with pytest.raises(MCPError) as caught:
                        await client.call_tool(tool, arguments)
                    assert caught.value.data["code"] == "unknown_session"
                assert len(server.runtime.sessions) == 0
                await client.call_tool("env_reset", {})
                assert (await client.call_tool("chat", {"message": "hi"})).structured_content["text"] == "1: hi "


@pytest.mark.clause("EC-67")
async def test_ending_an_mcp_session_frees_its_conversation() -> None:
    async with served().serving() as server:
        with anyio.fail_after(20):
            async with Client(f"{server.url}/mcp", mode="legacy") as client:
                await client.call_tool("chat", {"message": "hi"})
                assert len(server.runtime.sessions) == 1
            assert len(server.runtime.sessions) == 0


async def test_a_call_says_where_in_a_tree_of_calls_it_stands_and_gets_back_what_is_left() -> None:
    async def placed(message: str, context: Any) -> str:
        return f"{context['caller']} {context['depth']} {context['episode']}"

    above = CallContext(episode="e1", chain=(Link("boss@1.0.0", "00"),), calls=5).within(60)
    async with served(placed, limits=Limits(max_depth=2)).serving() as server:
        with anyio.fail_after(20):
            async with Client(f"{server.url}/mcp") as client:
                result = await client.call_tool("chat", {"message": "where?"}, meta=inject(above))
                assert result.structured_content["text"] == "boss@1.0.0 1 e1"
                assert result.structured_content["calls_left"] == 5
                deep = CallContext(chain=(Link("a@1", "00"), Link("b@1", "00")))
                with pytest.raises(MCPError) as caught:
                    await client.call_tool("chat", {"message": "where?"}, meta=inject(deep))
                assert caught.value.data["code"] == "too_deep"
                with pytest.raises(MCPError) as caught:
                    await client.call_tool("chat", {"message": "?"}, meta={"baggage": "agent-env.calls=many"})
                assert caught.value.data["code"] == "invalid_arguments"


async def test_a_big_reply_arrives_whole() -> None:
    async def long(message: str) -> str:
        return message * 300_000

    async with served(long).serving() as server:
        with anyio.fail_after(20):
            async with Client(f"{server.url}/mcp") as client:
                result = await client.call_tool("chat", {"message": "abcdefgh"})
    assert len(result.structured_content["text"]) == 2_400_000


async def test_conversations_stay_apart_when_they_run_at_once() -> None:
    async with served().serving() as server:
        with anyio.fail_after(20):
            async with Client(f"{server.url}/mcp") as client:

                async def talk(name: str) -> list[str]:
                    said: list[str] = []
                    session: dict[str, Any] = {}
                    for turn in range(3):
                        result = await client.call_tool("chat", {"message": f"{name}{turn}", **session})
                        session = {"session_id": result.structured_content["session_id"]}
                        said.append(result.structured_content["text"])
                    return said

                spoken = await asyncio.gather(*[talk(name) for name in "abcdef"])
    assert spoken == [[f"{turn + 1}: {name}{turn} " for turn in range(3)] for name in "abcdef"]
