"""`Environment`: one conversation, whatever it is called on."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import anyio
import pytest

from agent_env import AgentEnvironment, Environment, Limits, ToolResult, recording
from agent_env.client.lanes.websocket import close_sockets
from agent_env.errors import (
    AgentEnvError,
    AgentFailed,
    AtCapacity,
    ConfigurationError,
    InvalidArguments,
    NotSupported,
    TransportError,
    UnknownSession,
)
from agent_env_wrappers.contract import TextDelta

pytestmark = pytest.mark.anyio


async def counting(message: str, history: list[dict[str, str]]) -> str:
    return f"{len(history) // 2 + 1}: {message}"


async def words(message: str) -> AsyncIterator[str]:
    for word in message.split():
        yield word + " "


async def test_an_agent_object_is_an_environment_in_this_process() -> None:
    async with Environment(counting) as env:
        assert env.lane == "inprocess"
        assert env.card.name == "counting"
        assert (await env.chat("a")).text == "1: a"
        assert (await env.chat("b")).text == "2: b"


async def test_two_first_calls_at_once_share_one_conversation() -> None:
    async with Environment(counting) as env:
        first, second = await asyncio.gather(env.chat("a"), env.chat("b"))
        assert first.session_id == second.session_id
        assert {first.text[0], second.text[0]} == {"1", "2"}


async def test_two_environments_of_one_agent_are_two_conversations() -> None:
    served = AgentEnvironment(counting)
    async with Environment(served) as one, Environment(served) as other:
        await one.chat("a")
        assert (await other.chat("b")).text == "1: b"
        assert (await one.chat("c")).text == "2: c"
    assert len((await served.runtime()).sessions) == 0


async def test_a_session_that_was_kept_can_be_taken_up_again() -> None:
    served = AgentEnvironment(counting)
    first = Environment(served)
    await first.chat("a")
    session_id = first.keep_session()
    await first.release()
    async with Environment(served, session_id=session_id) as again:
        assert (await again.chat("b")).text == "2: b"
    async with Environment(served, session_id=session_id) as still:
        assert (await still.chat("c")).text == "3: c"


async def test_an_unknown_session_is_never_a_fresh_conversation() -> None:
    async with Environment(counting, session_id="s-nobody-has-this") as env:
        with pytest.raises(UnknownSession, match="leave the id out"):
            await env.chat("a")


async def test_a_fork_goes_its_own_way() -> None:
    async with Environment(counting) as env:
        await env.chat("a")
        fork = await env.fork()
        assert (await fork.chat("b")).text == "2: b"
        assert (await env.chat("c")).text == "2: c"
        assert (await fork.chat("d")).text == "3: d"
        await fork.release()


async def test_a_stream_yields_the_events_and_then_the_result() -> None:
    async with Environment(words) as env:
        events = [event async for event in env.stream("one two three")]
        assert [event.text for event in events if isinstance(event, TextDelta)] == ["one ", "two ", "three "]
        assert isinstance(events[-1], ToolResult)
        assert events[-1].text == "one two three "


async def test_closing_a_stream_cancels_the_turn() -> None:
    cancelled = anyio.Event()

    async def endless(message: str) -> AsyncIterator[str]:
        try:
            while True:
                yield message
                await asyncio.sleep(0)
        except BaseException:
            cancelled.set()
            raise

    with anyio.fail_after(10):
        async with Environment(endless) as env:
            stream = env.stream("x")
            assert isinstance(await anext(stream), TextDelta)
            await stream.aclose()
            await cancelled.wait()


async def test_tools_come_in_the_form_that_openai_takes() -> None:
    async with Environment(counting) as env:
        (tool,) = await env.list_openai_tools()
        assert tool["type"] == "function"
        assert tool["function"]["name"] == "chat"
        assert tool["function"]["parameters"]["required"] == ["message"]


async def test_a_nameless_agent_must_be_named() -> None:
    with pytest.raises(ConfigurationError, match="name="):
        await Environment(lambda message: message).initialize()


async def test_a_lane_that_is_not_there_is_refused_with_what_to_do() -> None:
    with pytest.raises(NotSupported, match="pass its URL"):
        await Environment(counting, lane="mcp").initialize()
    with pytest.raises(ConfigurationError, match="there is no lane"):
        await Environment(counting, lane="pigeon").initialize()  # type: ignore[arg-type]


async def test_the_card_is_there_after_the_environment_was_reached() -> None:
    env = Environment(counting)
    with pytest.raises(AgentEnvError, match="initialize"):
        _ = env.card
    assert (await env.initialize()).card.ref == "counting@0.0.0-dev"
    await env.release()


async def test_an_error_in_the_block_is_what_the_caller_sees() -> None:
    with pytest.raises(ZeroDivisionError):
        async with Environment(counting) as env:
            await env.chat("a")
            _ = 1 / 0


async def test_a_served_environment_of_this_process_needs_no_socket() -> None:
    async with AgentEnvironment(counting).serving() as server, Environment(server.url) as env:
        assert env.lane == "inprocess"
        assert (await env.chat("a")).text == "1: a"


async def test_a_reference_finds_the_served_release() -> None:
    served = AgentEnvironment(counting, name="agent-b", version="1.0.0")
    async with served.serving(), Environment("agent-b@^1", lane="websocket") as env:
        assert (env.lane, env.card.ref) == ("websocket", "agent-b@1.0.0")
        assert (await env.chat("a")).text == "1: a"
    await close_sockets()


async def test_an_address_where_nobody_serves_is_a_transport_error() -> None:
    with pytest.raises(TransportError, match=r"127\.0\.0\.1:9"):
        await Environment("http://127.0.0.1:9").initialize()


async def test_a_full_environment_says_when_to_come_back() -> None:
    served = AgentEnvironment(counting, limits=Limits(max_sessions=1, queue_seconds=0.05))
    async with Environment(served) as one, Environment(served) as other:
        await one.chat("a")
        with pytest.raises(AtCapacity) as refused:
            await other.chat("b")
        assert refused.value.retry_after is not None


async def test_every_call_of_an_episode_leaves_an_edge_even_a_failed_one() -> None:
    async def broken(message: str) -> str:
        raise ValueError("a secret of the agent")

    async with recording() as episode, Environment(counting) as good, Environment(broken) as bad:
        await good.chat("a")
        with pytest.raises(AgentFailed) as failed:
            await bad.chat("b")
        assert "secret" not in str(failed.value.to_wire())
    assert [(edge.callee, edge.status) for edge in episode.edges] == [
        ("counting@0.0.0-dev", "ok"),
        ("broken@0.0.0-dev", "agent_failed"),
    ]
    assert len(episode.traces) == 2


async def test_arguments_that_do_not_fit_name_the_field() -> None:
    async with Environment(counting) as env:
        with pytest.raises(InvalidArguments) as refused:
            await env.call_tool("chat", {"message": 3})
        assert refused.value.data["problems"][0]["pointer"] == "/message"
        assert (await env.chat("a")).text == "1: a"


def test_code_without_an_event_loop_has_a_synchronous_mirror() -> None:
    with Environment(AgentEnvironment(counting)).sync() as env:
        assert env.chat("a").text == "1: a"
        assert env.call_tool("chat", {"message": "b"}).text == "2: b"
        assert [tool["name"] for tool in env.list_tools()] == ["chat"]
        assert env.reset(seed=3).session_id == env.environment.session_id
        assert env.step("c").observation == "1: c"
        assert env.state()["turns"] == 1
        assert [event.text for event in env.stream("d") if isinstance(event, ToolResult)] == ["2: d"]
    with pytest.raises(ConfigurationError, match="inside `with`"):
        env.chat("e")
