"""The A2A lane with an environment: every verb, the same results, events and errors as on other lanes."""

from __future__ import annotations

import asyncio
import subprocess
import sys
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import anyio
import pytest

from agent_env.client.environment import Environment
from agent_env.client.lanes import a2a_native, a2a_peer
from agent_env.client.lanes.a2a import A2aLane
from agent_env.client.lanes.contract import Outgoing
from agent_env.client.lanes.inprocess import InProcessLane
from agent_env.context import CallContext, Principal, Route, Run
from agent_env.errors import (
    AgentEnvError,
    AgentFailed,
    DeadlineExceeded,
    ProtocolError,
    TransportError,
    Unauthenticated,
    UnknownSession,
    UnknownTool,
)
from agent_env.net import Tokens
from agent_env.serving.environment import AgentEnvironment
from agent_env.serving.faces import a2a
from agent_env.serving.server import Server
from agent_env_wrappers.contract import Event, TextDelta

pytestmark = pytest.mark.anyio


class Agent:
    """Remembers what it was told; "wait" blocks until it is let go or cancelled."""

    def __init__(self) -> None:
        self.started = anyio.Event()
        self.go_on = anyio.Event()
        self.cancelled = anyio.Event()
        self.contexts: list[dict[str, Any]] = []

    async def __call__(self, message: str, history: list[dict[str, str]], context: Any) -> AsyncIterator[str]:
        self.contexts.append(context)
        if message == "fail":
            raise ValueError("hunter2")
        yield f"{len(history) // 2 + 1}: "
        if message == "wait":
            self.started.set()
            try:
                await self.go_on.wait()
            except BaseException:
                self.cancelled.set()
                raise
        for word in message.split():
            yield word + " "


@asynccontextmanager
async def serving(agent: object, **options: Any) -> AsyncGenerator[Server]:
    env = AgentEnvironment(agent, **{"name": "echo", "version": "1.0.0", "hub": False, **options})

    @env.tool
    def add(a: int, b: int) -> int:
        """Adds two numbers."""
        return a + b

    @env.reward
    def good(session: Any) -> float:
        return 1.0

    async with env.serving() as server:
        yield server


def outgoing(seconds: float | None = 20, **fields: Any) -> Outgoing:
    return Outgoing(CallContext(**fields).within(seconds))


def chat(message: str, **fields: Any) -> dict[str, Any]:
    return {"name": "chat", "arguments": {"message": message}, **fields}


@pytest.fixture
def tasks_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Answers by a task what takes longer than 50 ms."""
    monkeypatch.setattr(a2a.A2aFace.__init__, "__kwdefaults__", {"message_seconds": 0.05})


async def test_an_environment_is_the_same_over_a2a_as_in_process() -> None:
    async with serving(Agent()) as server:
        near, far = InProcessLane(server.runtime), A2aLane(f"{server.url}/a2a")
        seen: list[list[Any]] = []
        for lane in (near, far):
            answers: list[Any] = [await lane.perform("list_tools", {}, outgoing())]
            reset = await lane.perform("reset", {"seed": 2**60 + 1, "options": {"a": 1.5}}, outgoing())
            session = {"session_id": reset["session_id"]}
            for verb, arguments in (
                ("call_tool", chat("a b", **session)),
                ("call_tool", {"name": "add", "arguments": {"a": 2**60, "b": 1}, **session}),
                ("step", {"action": "c", **session}),
                ("state", session),
                ("call_reward", {"name": "good", **session}),
                ("fork", session),
                ("release", session),
            ):
                answers.append({**await lane.perform(verb, arguments, outgoing()), **session})
                answers[-1].get("info", {}).pop("call_id", None)
                answers[-1].pop("call_id", None)
            seen.append([{**answer, "session_id": ""} for answer in answers])
        assert seen[0] == seen[1]


async def test_events_arrive_before_the_result_and_in_order() -> None:
    async with serving(Agent()) as server:
        lane = A2aLane(server.url)
        events: list[Event] = []

        async def on_event(event: Event) -> None:
            events.append(event)

        result = await lane.perform("call_tool", chat("a b c"), outgoing(), on_event)
        assert events == [TextDelta(text) for text in ("1: ", "a ", "b ", "c ")]
        assert result["text"] == "1: a b c "


async def test_what_the_callers_own_code_raises_is_not_the_servers_failure() -> None:
    class Mine(ValueError):
        pass

    async def on_event(event: Event) -> None:
        raise Mine

    agent = Agent()
    async with serving(agent) as server:
        with pytest.raises(Mine):
            await A2aLane(server.url).perform("call_tool", chat("wait"), outgoing(), on_event)
        with anyio.fail_after(10):
            await agent.cancelled.wait()


async def test_errors_are_raised_as_the_classes_that_the_server_meant() -> None:
    async def ignore(event: Event) -> None:
        pass

    async with serving(Agent()) as server:
        lane = A2aLane(f"{server.url}/a2a")
        for on_event in (None, ignore):
            with pytest.raises(AgentFailed, match="raised ValueError") as failed:
                await lane.perform("call_tool", chat("fail"), outgoing(), on_event)
            assert failed.value.data["agent"] == "echo@1.0.0"
            with pytest.raises(UnknownTool, match="it has add, chat") as unknown:
                await lane.perform("call_tool", {"name": "nope"}, outgoing(), on_event)
            assert unknown.value.data == {"known": ["add", "chat"]}
            with pytest.raises(UnknownSession):
                await lane.perform("state", {"session_id": "nope"}, outgoing(), on_event)


@pytest.mark.parametrize("streaming", [False, True])
@pytest.mark.parametrize("task", [False, True])
async def test_cancelling_a_call_cancels_the_turn(streaming: bool, task: bool, request: pytest.FixtureRequest) -> None:
    if task:
        request.getfixturevalue("tasks_at_once")
    agent = Agent()

    async def ignore(event: Event) -> None:
        pass

    async with serving(agent) as server:
        lane = A2aLane(server.url)
        session = (await lane.perform("call_tool", chat("a"), outgoing()))["session_id"]
        call = asyncio.create_task(
            lane.perform("call_tool", chat("wait", session_id=session), outgoing(), ignore if streaming else None)
        )
        with anyio.fail_after(10):
            await agent.started.wait()
            if task:
                await anyio.sleep(0.1)
            call.cancel()
            await agent.cancelled.wait()
        assert (await asyncio.wait({call}))[0] == {call}
        assert call.cancelled()
        assert (await lane.perform("call_tool", chat("b", session_id=session), outgoing()))["text"] == "2: b "


async def test_a_deadline_ends_the_call_and_the_turn() -> None:
    agent = Agent()
    async with serving(agent) as server:
        with pytest.raises(DeadlineExceeded):
            await A2aLane(server.url).perform("call_tool", chat("wait"), outgoing(0.3))
        with anyio.fail_after(10):
            await agent.cancelled.wait()


@pytest.mark.usefixtures("tasks_at_once")
async def test_a_call_that_became_a_task_is_awaited() -> None:
    agent = Agent()
    async with serving(agent) as server, anyio.create_task_group() as tasks:

        async def let_go() -> None:
            await agent.started.wait()
            await anyio.sleep(0.2)
            agent.go_on.set()

        tasks.start_soon(let_go)
        result = await A2aLane(server.url).perform("call_tool", chat("wait"), outgoing())
        assert result["text"] == "1: wait "


async def test_a_stream_that_is_cut_off_is_followed_by_asking_for_the_task(monkeypatch: pytest.MonkeyPatch) -> None:
    agent = Agent()
    monkeypatch.setattr(a2a_native, "POLL_SECONDS", 0.02)
    whole = a2a_peer.Peer.send

    async def cut(self: Any, request: Any, context: Any, *, streaming: bool) -> AsyncIterator[Any]:
        request.message.parts[0].text = request.message.parts[0].text.replace('"attached": true', '"attached": false')
        async for answer in whole(self, request, context, streaming=streaming):
            yield answer
            if answer.HasField("task"):
                agent.go_on.set()
                return

    monkeypatch.setattr(a2a_peer.Peer, "send", cut)

    async def ignore(event: Event) -> None:
        pass

    async with serving(agent) as server:
        result = await A2aLane(server.url).perform("call_tool", chat("wait"), outgoing(), ignore)
        assert result["text"] == "1: wait "


async def test_context_and_run_reach_the_agent() -> None:
    agent = Agent()
    run = Run("http://127.0.0.1:9", "r", "ep-2", "solver", {"other": Route("t", "m")})
    context = CallContext(episode="ep-1", call_id="00f067aa0ba902b7")
    async with serving(agent) as server:
        lane = A2aLane(server.url)
        await lane.perform("call_tool", chat("a"), Outgoing(context))
        await lane.perform("call_tool", chat("a"), Outgoing(context, run))
    assert [seen["episode"] for seen in agent.contexts] == ["ep-1", "ep-2"]
    assert [seen["seat"] for seen in agent.contexts] == [None, "solver"]
    assert {seen["trace_id"] for seen in agent.contexts} == {context.trace_id}


async def test_the_token_is_sent_and_a_wrong_one_is_refused() -> None:
    tokens = Tokens({"right": Principal("alice")})
    async with serving(Agent(), auth=tokens) as server:
        assert (await A2aLane(server.url, "right").perform("call_tool", chat("a"), outgoing()))["text"] == "1: a "
        for wrong in (None, "wrong"):
            with pytest.raises(Unauthenticated):
                await A2aLane(server.url, wrong).perform("call_tool", chat("a"), outgoing())


async def test_a_server_that_went_away_is_a_transport_error_and_a_new_one_is_found() -> None:
    async with serving(Agent()) as server:
        lane = A2aLane(server.url)
        await lane.perform("list_tools", {}, outgoing())
        port = int(server.url.rpartition(":")[2])
    with pytest.raises(TransportError):
        await lane.perform("list_tools", {}, outgoing())
    async with AgentEnvironment(Agent(), name="other", hub=False).serving(port=port):
        assert (await lane.perform("call_tool", chat("a"), outgoing()))["text"] == "1: a "


async def test_a_connection_that_breaks_in_the_middle_is_a_transport_error() -> None:
    agent = Agent()

    async def ignore(event: Event) -> None:
        pass

    for on_event in (None, ignore):
        agent.started = anyio.Event()
        async with serving(agent) as server, breaking_proxy(server) as (url, breaks):
            lane = A2aLane(url)
            call = asyncio.create_task(lane.perform("call_tool", chat("wait"), outgoing(), on_event))
            with anyio.fail_after(10):
                await agent.started.wait()
                breaks.set()
                with pytest.raises(TransportError):
                    await call


@asynccontextmanager
async def breaking_proxy(server: Server) -> AsyncGenerator[tuple[str, anyio.Event]]:
    """Passes bytes on until the event is set, and then closes every connection."""
    breaks = anyio.Event()
    port = int(server.url.rpartition(":")[2])

    async def pump(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while content := await reader.read(65536):
            writer.write(content)
            await writer.drain()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        there, back = await asyncio.open_connection("127.0.0.1", port)
        pumps = [asyncio.create_task(pump(reader, back)), asyncio.create_task(pump(there, writer))]
        broken = asyncio.create_task(breaks.wait())
        await asyncio.wait({*pumps, broken}, return_when=asyncio.FIRST_COMPLETED)
        for task in (*pumps, broken):
            task.cancel()
        writer.transport.abort()
        back.transport.abort()

    proxy = await asyncio.start_server(serve, "127.0.0.1", 0)
    try:
        yield f"http://127.0.0.1:{proxy.sockets[0].getsockname()[1]}", breaks
    finally:
        breaks.set()
        proxy.close()


async def test_many_calls_at_once_read_the_card_once() -> None:
    async with serving(Agent()) as server:
        lane = A2aLane(f"{server.url}/a2a")
        results = await asyncio.gather(
            *(lane.perform("call_tool", chat(str(number)), outgoing()) for number in range(20))
        )
        assert [result["text"] for result in results] == [f"1: {number} " for number in range(20)]
        pool = a2a_peer.pools.get((f"{server.url}/a2a", None))
        assert await pool.peer() is await pool.peer()


async def test_environment_takes_the_lane_by_name() -> None:
    async with serving(Agent()) as server, Environment(server.url, lane="a2a") as env:
        assert env.lane == "a2a"
        assert [(await env.chat(text)).text for text in ("a", "b", "c")] == ["1: a ", "2: b ", "3: c "]
        assert [item async for item in env.stream("d")][:2] == [TextDelta("4: "), TextDelta("d ")]
        with pytest.raises(AgentEnvError):
            await env.call_tool("nope")
        assert len(server.runtime.sessions) == 1
    assert len(server.runtime.sessions) == 0


async def test_where_no_card_is_there_is_no_agent() -> None:
    async with serving(Agent()) as server:
        with pytest.raises(ProtocolError, match="no A2A Agent Card"):
            await A2aLane(f"{server.url}/v1/some/where").perform("list_tools", {}, outgoing())


def test_the_lane_imports_no_sdk_before_it_is_used() -> None:
    check = "import sys, agent_env.client.lanes.a2a; print(any(name.split('.')[0] == 'a2a' for name in sys.modules))"
    done = subprocess.run([sys.executable, "-c", check], capture_output=True, text=True, timeout=60, check=True)
    assert done.stdout.strip() == "False"
