"""One body of tests over all five lanes: whatever the way, an environment is the same."""

from __future__ import annotations

import asyncio
import json
from typing import get_args

import pytest
from lane_places import EVENTS, served

from agent_env import ToolResult
from agent_env.client.resolution import LaneName
from agent_env.errors import (
    InvalidArguments,
)
from agent_env_wrappers.contract import Event

pytestmark = [pytest.mark.anyio, pytest.mark.parametrize("lane", get_args(LaneName))]


# ── the verbs ─────────────────────────────────────────────────────────────────────────────────────────────────────────


async def test_every_verb_gives_the_same(lane: LaneName) -> None:
    async with served(lane) as place, place.environment() as env:
        assert env.lane == lane
        assert [tool["name"] for tool in await env.list_tools()] == ["chat", "shout", "remember"]
        first = await env.chat("a")
        assert first == ToolResult(
            [{"type": "text", "text": "1: a"}],
            "1: a",
            session_id=first.session_id,
            call_id=first.call_id,
        )
        assert first.session_id
        assert first.call_id
        said = await env.call_tool("shout", {"text": "hey", "times": 2})
        assert (said.data, said.text, said.is_error) == ({"said": "HEYHEY"}, "", False)
        assert (await env.call_tool("remember", {"word": "x"})).text == "x"
        assert (await env.call_tool("remember", {"word": "y"})).text == "x y"
        step = await env.step("good")
        assert (step.observation, step.reward, step.terminated, step.truncated) == ("2: good", 1.0, False, False)
        assert step.session_id == first.session_id
        state = await env.state()
        assert (state["turns"], state["terminated"], state["interrupt"]) == (2, False, None)
        assert [message["content"] for message in state["messages"]] == ["a", "1: a", "good", "2: good"]
        assert await env.call_function("count") == 2
        assert await env.call_reward("worth") == 1.0
        reset = await env.reset(seed=3, options={"level": [1]})
        assert (reset.session_id, reset.observation) == (first.session_id, {"seed": 3, "options": {"level": [1]}})
        assert reset.info == {"environment": "agent@1.0.0"}
        assert (await env.chat("b")).text == "1: b"
    assert len(place.server.runtime.sessions) == 0  # released at the end of the block


async def test_a_reward_that_was_not_given_is_none_and_never_zero(lane: LaneName) -> None:
    async with served(lane) as place, place.environment() as env:
        rewards = [(await env.chat(message)).reward for message in ("good", "bad", "else")]
        assert rewards == [1.0, 0.0, None]
        assert await env.call_reward("worth") is None
        step = await env.step("last")
        assert (step.reward, step.terminated) == (0.5, True)
        with pytest.raises(InvalidArguments, match="has ended"):
            await env.chat("more")


async def test_data_replies_and_data_parts_pass(lane: LaneName) -> None:
    async with served(lane) as place, place.environment() as env:
        reply = await env.chat("data")
        assert reply.data == {"n": [1, 2.5, None, "é"]}
        assert reply.content == [{"type": "data", "data": {"n": [1, 2.5, None, "é"]}}]
        parts = [{"type": "data", "data": {"a": [1, {"b": None}]}}]
        assert json.loads((await env.call_tool("chat", {"message": "parts", "parts": parts})).text) == [
            {"a": [1, {"b": None}]}
        ]


@pytest.mark.parametrize("text", ["é 界 🙂 \u2028 \x07 \\ \" '", " \n\t ", "x" * 300_000])
async def test_texts_pass_as_they_are(lane: LaneName, text: str) -> None:
    async with served(lane) as place, place.environment() as env:
        assert (await env.chat(text)).text == f"1: {text}"
        assert (await env.state())["messages"][0]["content"] == text


async def test_a_question_is_answered_by_the_next_message(lane: LaneName) -> None:
    async with served(lane) as place, place.environment() as env:
        asked = await env.chat("ask")
        question = {"id": "q1", "kind": "approval", "prompt": "Really?", "schema": {"type": "boolean"}}
        assert (asked.stop, asked.text, asked.interrupt) == ("input_required", "Really?", question)
        assert (await env.state())["interrupt"] == question
        assert (await env.chat("true")).text == 'answered {"q1": true}'
        await env.chat("ask")
        answered = await env.call_tool("chat", {"message": "", "answer": {"because": 1}})
        assert answered.text == 'answered {"q1": {"because": 1}}'


# ── conversations ─────────────────────────────────────────────────────────────────────────────────────────────────────


async def test_interleaved_conversations_stay_apart(lane: LaneName) -> None:
    async with served(lane) as place, place.environment() as one, place.environment() as other:
        for turn in range(1, 4):
            replies = await asyncio.gather(one.chat("a"), other.chat("b"))
            assert [reply.text for reply in replies] == [f"{turn}: a", f"{turn}: b"]
        assert one.session_id != other.session_id


async def test_many_conversations_at_once_are_all_served(lane: LaneName) -> None:
    async with served(lane) as place:

        async def converse(number: int) -> list[str]:
            async with place.environment() as env:
                return [(await env.chat(f"{number}.{turn}")).text for turn in range(3)]

        replies = await asyncio.gather(*(converse(number) for number in range(16)))
        assert replies == [[f"{turn + 1}: {number}.{turn}" for turn in range(3)] for number in range(16)]
        assert len(place.server.runtime.sessions) == 0


async def test_turns_of_one_conversation_wait_for_each_other(lane: LaneName) -> None:
    async with served(lane) as place, place.environment() as env:
        await env.chat("first")
        replies = await asyncio.gather(*(env.chat("x") for _ in range(5)))
        assert sorted(reply.text for reply in replies) == [f"{turn}: x" for turn in range(2, 7)]


async def test_a_fork_goes_its_own_way(lane: LaneName) -> None:
    async with served(lane) as place, place.environment() as env:
        await env.chat("a")
        fork = await env.fork()
        assert fork.session_id != env.session_id
        assert (await fork.chat("b")).text == "2: b"
        assert (await env.chat("c")).text == "2: c"
        assert (await fork.chat("d")).text == "3: d"
        await fork.release()
        assert (await env.chat("e")).text == "3: e"


async def test_a_session_can_be_taken_up_again(lane: LaneName) -> None:
    async with served(lane) as place:
        first = await place.environment().initialize()
        await first.chat("a")
        async with place.environment(session_id=first.session_id) as again:
            assert (await again.chat("b")).text == "2: b"
        assert (await first.chat("c")).text == "3: c"
        await first.release()


# ── events ────────────────────────────────────────────────────────────────────────────────────────────────────────────


async def test_events_are_the_same_and_come_before_the_result(lane: LaneName) -> None:
    async with served(lane) as place, place.environment() as env:
        seen = [event async for event in env.stream("stream")]
        assert tuple(seen[:-1]) == EVENTS
        result = seen[-1]
        assert isinstance(result, ToolResult)
        assert result.text == "one two é"
        assert (await env.chat("x")).text == "2: x"


async def test_a_stream_that_is_left_stops_the_turn(lane: LaneName) -> None:
    async with served(lane) as place, place.environment() as env:
        await env.chat("a")
        stream = env.stream("hang")
        waiting = asyncio.create_task(anext(stream))
        await place.agent.started.acquire()
        waiting.cancel()
        await asyncio.wait({waiting})
        await stream.aclose()
        await place.agent.cancelled.acquire()
        assert (await env.chat("b")).text == "2: b"


async def test_a_listener_that_raises_stops_the_turn_with_its_own_error(lane: LaneName) -> None:
    async def deaf(event: Event) -> None:
        raise LookupError("mine")

    async with served(lane) as place, place.environment() as env:
        await env.chat("a")
        with pytest.raises(LookupError, match="mine"):
            await env.call_tool("chat", {"message": "speak and hang"}, on_event=deaf)
        # The session is free, and as it was.
        assert (await env.chat("b")).text == "2: b"
