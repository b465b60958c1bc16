"""Bad input over all five lanes: the same typed error, and nothing changed."""

from __future__ import annotations

import asyncio
from typing import Any, get_args

import anyio
import pytest
from lane_places import NETWORK, TOKENS, Agent, Place, chat, served

from agent_env import AgentEnvironment, Limits, Tokens
from agent_env.client.lanes.contract import Outgoing
from agent_env.client.lanes.websocket import close_sockets
from agent_env.client.resolution import LaneName
from agent_env.context import CallContext
from agent_env.errors import (
    AgentEnvError,
    AgentFailed,
    AtCapacity,
    DeadlineExceeded,
    Forbidden,
    InvalidArguments,
    MessageTooLarge,
    NotSupported,
    Unauthenticated,
    UnknownSession,
    UnknownTool,
    UnsupportedContent,
)

pytestmark = [pytest.mark.anyio, pytest.mark.parametrize("lane", get_args(LaneName))]


BAD: list[tuple[str, dict[str, Any], type[AgentEnvError], str]] = [
    ("call_tool", {"name": "dance", "arguments": {}}, UnknownTool, "it has chat, remember, shout"),
    ("call_tool", {"name": "chat", "arguments": {"message": 7}}, InvalidArguments, "'message' that is a string"),
    ("call_tool", {"name": "chat", "arguments": {}}, InvalidArguments, "'message' that is a string"),
    ("call_tool", {"name": "chat", "arguments": {"message": "x", "mood": 1}}, InvalidArguments, "takes no 'mood'"),
    ("call_tool", {"name": "shout", "arguments": {"text": 7}}, InvalidArguments, "/text"),
    ("call_tool", {"name": "shout", "arguments": {"text": "x", "volume": 1}}, InvalidArguments, "/volume"),
    ("call_tool", chat("x" * 2001), MessageTooLarge, "takes 2000"),
    ("call_tool", chat("x", "s-nobody-has-this-session-id"), UnknownSession, "leave the id out"),
    ("call_tool", {"name": "chat", "arguments": {"message": "", "parts": [{"type": "video"}]}}, InvalidArguments,
     "is not a message part"),
    ("call_tool", {"name": "chat", "arguments": {"message": "x", "answer": 1}}, InvalidArguments, "asked nothing"),
    ("call_tool", chat("fail"), AgentFailed, "ValueError"),
    ("step", {"action": 7}, InvalidArguments, "'action' must be"),
    ("step", {"action": "x", "session_id": "s-nobody-has-this-session-id"}, UnknownSession, "leave the id out"),
    ("reset", {"seed": "x"}, InvalidArguments, "whole number"),
    ("reset", {"session_id": "s-nobody-has-this-session-id"}, UnknownSession, "leave the id out"),
    ("state", {"session_id": "s-nobody-has-this-session-id"}, UnknownSession, "leave the id out"),
    ("call_function", {"name": "dance", "arguments": {}}, UnknownTool, "it has count"),
    ("call_reward", {"name": "dance", "session_id": "s-x"}, UnknownTool, "it has worth"),
    ("fork", {"session_id": "s-nobody-has-this-session-id"}, UnknownSession, "leave the id out"),
    ("release", {"session_id": "s-nobody-has-this-session-id"}, UnknownSession, "leave the id out"),
]  # fmt: skip


async def test_bad_input_is_the_same_typed_error(lane: LaneName) -> None:
    async with served(lane, limits=Limits(max_message_bytes=2000)) as place, place.environment() as env:
        await env.chat("a")
        before = await env.state()
        for verb, arguments, kind, words in BAD:
            with pytest.raises(AgentEnvError) as caught:
                await place.call(verb, arguments)
            error = caught.value
            assert type(error) is kind, (verb, arguments, error.to_wire())
            assert words in error.message
            assert "secret" not in str(error.to_wire())
            assert "Traceback" not in str(error.to_wire())
        for verb, arguments in [("call_tool", chat("fail")), ("call_tool", chat("x" * 2001)), ("step", {"action": 7})]:
            with pytest.raises(AgentEnvError):
                await place.call(verb, arguments | {"session_id": env.session_id})
        assert await env.state() == before
        assert (await env.chat("b")).text == "2: b"
        assert len(place.server.runtime.sessions) == 1


async def test_data_of_an_error_crosses_too(lane: LaneName) -> None:
    async with served(lane) as place, place.environment() as env:
        with pytest.raises(InvalidArguments) as refused:
            await env.call_tool("shout", {"text": 7, "volume": 1})
        assert [problem["pointer"] for problem in refused.value.data["problems"]] == ["/text", "/volume"]
        with pytest.raises(UnknownTool) as unknown:
            await env.call_tool("dance")
        assert unknown.value.data["known"] == ["chat", "remember", "shout"]


async def test_a_part_that_the_agent_cannot_read_is_refused(lane: LaneName) -> None:
    async def plain(message: str) -> str:
        return message

    env = AgentEnvironment(plain, hub=False)
    async with env.serving(register=False) as server:
        place = Place(env, server, Agent(), lane)
        parts = [{"type": "file", "mediaType": "image/png", "data": "aGk="}]
        with anyio.fail_after(10), pytest.raises(UnsupportedContent):
            await place.call("call_tool", {"name": "chat", "arguments": {"message": "see", "parts": parts}})
        with anyio.fail_after(10), pytest.raises(NotSupported, match="cannot be forked"):
            opened = await place.call("call_tool", chat("x"))
            await place.call("fork", {"session_id": opened["session_id"]})
        await close_sockets()


async def test_a_released_session_is_unknown(lane: LaneName) -> None:
    async with served(lane) as place:
        opened = await place.call("call_tool", chat("a"))
        session_id = opened["session_id"]
        assert (await place.call("release", {"session_id": session_id}))["released"]
        with pytest.raises(UnknownSession):
            await place.call("call_tool", chat("b", session_id))


async def test_a_foreign_session_is_unknown(lane: LaneName) -> None:
    async with served(lane, auth=Tokens(TOKENS)) as place, place.bare("alice") as alice, place.bare("bob") as bob:
        outgoing = Outgoing(CallContext().within(10))
        session_id = (await alice.perform("call_tool", chat("a"), outgoing))["session_id"]
        for verb, arguments in [
            ("call_tool", chat("b", session_id)),
            ("state", {"session_id": session_id}),
            ("reset", {"session_id": session_id}),
            ("fork", {"session_id": session_id}),
            ("release", {"session_id": session_id}),
        ]:
            with pytest.raises(UnknownSession):
                await bob.perform(verb, arguments, outgoing)
        assert (await alice.perform("call_tool", chat("b", session_id), outgoing))["text"] == "2: b"


async def test_who_may_not_is_told_what_is_missing(lane: LaneName) -> None:
    async with served(lane, auth=Tokens(TOKENS)) as place:
        outgoing = Outgoing(CallContext().within(10))
        async with place.bare("carol") as carol:
            opened = await carol.perform("call_tool", chat("a"), outgoing)
            for verb, arguments in [
                ("reset", {}),
                ("step", {"action": "x"}),
                ("call_function", {"name": "count", "arguments": {}}),
                ("fork", {"session_id": opened["session_id"]}),
            ]:
                with pytest.raises(Forbidden) as refused:
                    await carol.perform(verb, arguments, outgoing)
                assert refused.value.data["scope"] == "orchestrate"
        if lane in NETWORK:
            for token in (None, "eve"):
                async with place.bare(token) as nobody:
                    with pytest.raises(Unauthenticated):
                        await nobody.perform("call_tool", chat("a"), outgoing)


async def test_an_agent_that_never_answers_ends_at_the_deadline(lane: LaneName) -> None:
    async with served(lane) as place, place.environment() as env:
        await env.chat("a")
        with pytest.raises(DeadlineExceeded):
            await env.call_tool("chat", {"message": "hang"}, timeout=0.3)
        await place.agent.cancelled.acquire()
        assert (await env.chat("b")).text == "2: b"


async def test_the_owners_deadline_holds_where_the_caller_has_none(lane: LaneName) -> None:
    async with served(lane, limits=Limits(turn_seconds=0.3)) as place, place.environment(timeout=None) as env:
        with pytest.raises(DeadlineExceeded):
            await env.chat("hang")
        await place.agent.cancelled.acquire()


async def test_a_client_that_goes_away_cancels_its_turn(lane: LaneName) -> None:
    async with served(lane) as place, place.environment() as env:
        await env.chat("a")
        call = asyncio.create_task(env.chat("hang"))
        await place.agent.started.acquire()
        call.cancel()
        await asyncio.wait({call})
        assert call.cancelled()
        await place.agent.cancelled.acquire()
        assert (await env.chat("b")).text == "2: b"


async def test_a_first_turn_that_is_cancelled_leaves_no_session(lane: LaneName) -> None:
    async with served(lane, limits=Limits(max_sessions=1)) as place, place.environment() as env:
        call = asyncio.create_task(env.chat("hang"))
        await place.agent.started.acquire()
        call.cancel()
        await asyncio.wait({call})
        await place.agent.cancelled.acquire()
        # There is one place, and it is free again.
        assert (await env.chat("b")).text == "1: b"


async def test_a_full_environment_says_when_to_come_back(lane: LaneName) -> None:
    async with served(lane, limits=Limits(max_sessions=1, queue_seconds=0.05)) as place:
        async with place.environment() as one, place.environment() as other:
            await one.chat("a")
            with pytest.raises(AtCapacity) as refused:
                await other.chat("b")
            assert refused.value.retry_after == 1.0
            assert (await one.chat("c")).text == "2: c"


async def test_a_message_of_the_full_size_passes_and_one_beyond_every_bound_harms_nobody(lane: LaneName) -> None:
    async with served(lane, limits=Limits(max_message_bytes=2000)) as place:
        async with place.environment() as env, place.environment() as other:
            for text in ("x" * 2000, "é" * 1000, "🙂" * 500, "\x07" * 2000):
                assert len((await env.chat(text)).text) == len(text) + 3
            waiting = asyncio.create_task(other.chat("hang"))
            await place.agent.started.acquire()
            for length in (2001, 20_000, 100_000, 1_000_000):
                with pytest.raises(MessageTooLarge):
                    await env.chat("x" * length)
            assert (await env.chat("still here")).text == "5: still here"
            # What others wait for over the same connection is still on its way.
            assert not waiting.done()
            waiting.cancel()
            await asyncio.wait({waiting})
            await place.agent.cancelled.acquire()


async def test_many_messages_at_once_are_no_message_that_is_too_large(lane: LaneName) -> None:
    async with served(lane, limits=Limits(max_message_bytes=10_000)) as place:

        async def converse(number: int) -> str:
            async with place.environment() as env:
                return (await env.chat(str(number % 10) * 9000)).text

        replies = await asyncio.gather(*(converse(number) for number in range(24)))
        assert replies == [f"1: {str(number % 10) * 9000}" for number in range(24)]


async def test_arguments_that_are_no_json_harm_nobody(lane: LaneName) -> None:
    async with served(lane) as place, place.environment() as env:
        await env.chat("a")
        if lane in NETWORK:
            # A mistake of the program; the lanes over SDKs raise what these raise.
            with pytest.raises((InvalidArguments, TypeError, ValueError)):
                await env.call_tool("shout", {"text": object()})
        assert (await env.chat("b")).text == "2: b"
