"""The MCP lane with an environment on the other side: the same verbs, events and errors as in process."""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncGenerator, AsyncIterator, Mapping
from contextlib import asynccontextmanager
from typing import Any

import anyio
import pytest
import uvicorn
from opentelemetry import trace
from starlette.types import ASGIApp, Receive, Scope, Send

from agent_env import AgentEnvironment, Environment, Limits, ToolResult
from agent_env.client.lanes.contract import Lane, Outgoing
from agent_env.client.lanes.inprocess import InProcessLane
from agent_env.client.lanes.mcp import McpLane
from agent_env.context import CallContext, Link, Route, Run, decode_run
from agent_env.errors import AgentEnvError, DeadlineExceeded, NotSupported, from_wire
from agent_env.net import listen
from agent_env_wrappers.contract import (
    AgentInfo,
    Caps,
    Done,
    Event,
    ModelCall,
    Status,
    TextDelta,
    ToolCall,
    ToolReturn,
    Turn,
    Usage,
)

pytestmark = pytest.mark.anyio

EVENTS = [
    TextDelta("let me see", "thought"),
    Status("looking it up"),
    ToolCall("1", "search", {"q": "ü"}),
    ToolReturn("1", ["a", None], is_error=False),
    ModelCall("tiny", Usage(3, 4, 1), "stop"),
    *(TextDelta(f"{number} ") for number in range(50)),
]


class Eventful:
    """A wrapper that yields every kind of event."""

    framework = "eventful"

    @classmethod
    def match(cls, agent: object) -> int:
        return 0

    def __init__(self, agent: object) -> None:
        self.turn: Turn | None = None

    async def describe(self) -> AgentInfo:
        caps = Caps(streaming=True, tool_events=True, usage=True, state="value", fork=True)
        schema = {"type": "object", "properties": {"n": {"type": "integer"}}}
        return AgentInfo("eventful", caps, name="eventful", output_schema=schema)

    async def run(self, turn: Turn) -> AsyncIterator[Event]:
        if turn.message.text == "crash":
            raise ValueError("the password is 1234")
        for event in EVENTS:
            yield event
        turns = (turn.state or 0) + 1
        yield Done(f"turn {turns}", {"n": turns}, turns, Usage(3, 4, 1))

    async def aclose(self) -> None:
        pass


def eventful(**options: Any) -> AgentEnvironment:
    env = AgentEnvironment("agent", name="eventful", version="1.0.0", wrapper=Eventful, hub=False, **options)

    @env.tool
    def add(a: int, b: int = 1) -> int:
        """Adds."""
        return a + b

    @env.tool
    def note(text: str, session: Any) -> list[str]:
        """Notes."""
        session.memory.setdefault("notes", []).append(text)
        return session.memory["notes"]

    @env.function
    def grade(session: Any) -> dict[str, int]:
        """Grades."""
        return {"turns": session.turns}

    @env.reward
    def half(session: Any) -> float:
        """Half a point."""
        return 0.5

    @env.on_reset
    def begin(session: Any) -> dict[str, Any]:
        return {"seed": session.seed, "options": session.options}

    return env


def outgoing(seconds: float = 20, **fields: Any) -> Outgoing:
    return Outgoing(CallContext(**fields).within(seconds))


class Requests:
    """An app that notes the headers and methods of what it passes on."""

    def __init__(self, app: ASGIApp) -> None:
        self.app = app
        self.headers: list[dict[str, str]] = []

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http":
            self.headers.append({name.decode(): value.decode() for name, value in scope["headers"]})
        await self.app(scope, receive, send)


@asynccontextmanager
async def hosted(app: ASGIApp) -> AsyncGenerator[str]:
    with listen("127.0.0.1", 0) as socket:
        server = uvicorn.Server(uvicorn.Config(app, log_config=None, lifespan="on"))
        async with anyio.create_task_group() as group:
            group.start_soon(server.serve, [socket])
            try:
                yield f"http://127.0.0.1:{socket.getsockname()[1]}/mcp"
            finally:
                server.should_exit = True


def without_ids(value: Any) -> Any:
    """An answer in which ids, which no two calls share, are told only by their form."""
    if isinstance(value, Mapping):
        return {key: without_ids(part) for key, part in value.items()}
    if isinstance(value, list):
        return [without_ids(part) for part in value]
    if isinstance(value, str):
        return re.sub(r"^(s-|[0-9a-f]{16}$).*", r"<id>", value)
    return value


async def play(lane: Lane) -> list[Any]:
    """An episode with every verb, and what it answers."""
    answers: list[Any] = []

    async def perform(verb: str, **arguments: Any) -> Mapping[str, Any]:
        answer = await lane.perform(verb, arguments, outgoing())
        answers.append(without_ids(answer))
        return answer

    await perform("list_tools")
    await perform("call_tool", name="add", arguments={"a": 2})
    session = {"session_id": (await perform("call_tool", name="chat", arguments={"message": "hi"}))["session_id"]}
    await perform("call_tool", name="chat", arguments={"message": "again"}, **session)
    await perform("call_tool", name="note", arguments={"text": "x"}, **session)
    await perform("state", **session)
    await perform("call_function", name="grade", arguments={}, **session)
    await perform("call_reward", name="half", arguments={}, **session)
    fork = await perform("fork", **session)
    await perform("step", action={"tool": "note", "arguments": {"text": "y"}}, session_id=fork["session_id"])
    await perform("reset", seed=3, options={"level": "ü"}, **session)
    await perform("step", action="go", **session)
    await perform("release", **session)
    return answers


async def test_every_verb_answers_as_it_does_in_process() -> None:
    async with eventful().serving() as server:
        with anyio.fail_after(20):
            lane = McpLane(f"{server.url}/mcp")
            assert await play(lane) == await play(InProcessLane(server.runtime))
            await lane.aclose()


async def test_every_event_arrives_in_order_before_the_answer() -> None:
    async with eventful().serving() as server:
        with anyio.fail_after(20):
            heard: list[Event] = []

            async def on_event(event: Event) -> None:
                await asyncio.sleep(0)
                heard.append(event)

            call = {"name": "chat", "arguments": {"message": "hi"}}
            lane = McpLane(f"{server.url}/mcp")
            answer = await lane.perform("call_tool", call, outgoing(), on_event)
            assert heard == EVENTS
            assert answer["text"] == "turn 1"
            heard.clear()
            await lane.perform("step", {"action": "hi", "session_id": answer["session_id"]}, outgoing(), on_event)
            assert heard == EVENTS
            await lane.aclose()


async def test_a_big_answer_arrives_whole_beside_its_events() -> None:
    async def long(message: str) -> AsyncIterator[str]:
        for _ in range(3):
            yield message * 100_000

    heard: list[Event] = []

    async def on_event(event: Event) -> None:
        heard.append(event)

    async with AgentEnvironment(long, name="long", hub=False).serving() as server:
        with anyio.fail_after(20):
            lane = McpLane(f"{server.url}/mcp")
            call = {"name": "chat", "arguments": {"message": "abcdefgh"}}
            answer = await lane.perform("call_tool", call, outgoing(), on_event)
            assert answer["text"] == "abcdefgh" * 300_000
            assert heard == [TextDelta("abcdefgh" * 100_000)] * 3
            await lane.aclose()


async def test_errors_are_raised_as_the_class_that_the_other_side_raised() -> None:
    calls: list[tuple[str, dict[str, Any]]] = [
        ("call_tool", {"name": "nothing"}),
        ("call_tool", {"name": "add", "arguments": {"a": "x", "c": 3}}),
        ("call_tool", {"name": "chat", "arguments": {"message": "x" * 2000}}),
        ("call_tool", {"name": "chat", "arguments": {"message": "crash"}}),
        ("call_tool", {"name": "chat", "arguments": {"message": "hi"}, "session_id": "never-opened"}),
        ("state", {}),
        ("call_reward", {"name": "nothing", "session_id": "never-opened"}),
        ("reset", {"seed": "x"}),
    ]
    async with eventful(limits=Limits(max_message_bytes=1000)).serving() as server:
        with anyio.fail_after(20):
            lanes: list[Lane] = [InProcessLane(server.runtime), McpLane(f"{server.url}/mcp")]
            for verb, arguments in calls:
                raised: list[AgentEnvError] = []
                for lane in lanes:
                    with pytest.raises(AgentEnvError) as caught:
                        await lane.perform(verb, arguments, outgoing())
                    raised.append(caught.value)
                local, remote = raised
                assert type(remote) is type(local), (verb, arguments)
                assert remote.to_wire() == from_wire(local.to_wire()).to_wire()
                assert "1234" not in str(remote.to_wire())
            with pytest.raises(NotSupported, match="'dance'"):
                await lanes[1].perform("dance", {}, outgoing())
            await lanes[1].aclose()


async def test_an_environment_over_mcp_is_a_conversation() -> None:
    async with eventful().serving() as server:
        with anyio.fail_after(20):
            async with Environment(server.url, lane="mcp") as env:
                assert env.lane == "mcp"
                assert [(await env.chat("hi")).text for _ in range(3)] == ["turn 1", "turn 2", "turn 3"]
                *events, last = [item async for item in env.stream("hi")]
                assert events == EVENTS
                assert isinstance(last, ToolResult)
                assert (last.text, last.data, last.reward, last.usage) == ("turn 4", {"n": 4}, 0.5, Usage(3, 4, 1))
                assert (await env.call_tool("add", {"a": 2, "b": 3})).data == 5
            assert len(server.runtime.sessions) == 0


class Slow:
    """An agent that never answers, and tells when it is cancelled."""

    def __init__(self) -> None:
        self.started = asyncio.Event()
        self.cancelled = asyncio.Event()

    async def __call__(self, message: str) -> AsyncIterator[str]:
        yield "well"
        self.started.set()
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            self.cancelled.set()
            raise


@pytest.mark.parametrize("listening", [False, True])
async def test_cancelling_a_call_cancels_it_on_the_other_side(listening: bool) -> None:
    agent = Slow()

    async def on_event(event: Event) -> None: ...

    async with AgentEnvironment(agent, name="slow", hub=False).serving() as server:
        with anyio.fail_after(20):
            lane = McpLane(f"{server.url}/mcp")
            call = {"name": "chat", "arguments": {"message": "hi"}}
            task = asyncio.create_task(lane.perform("call_tool", call, outgoing(), on_event if listening else None))
            await agent.started.wait()
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
            await agent.cancelled.wait()
            assert len((await lane.perform("list_tools", {}, outgoing()))["tools"]) == 1
            await lane.aclose()


async def test_a_call_ends_at_its_deadline_on_both_sides() -> None:
    agent = Slow()
    async with AgentEnvironment(agent, name="slow", hub=False).serving() as server:
        with anyio.fail_after(20):
            lane = McpLane(f"{server.url}/mcp")
            with pytest.raises(DeadlineExceeded):
                await lane.perform("call_tool", {"name": "chat", "arguments": {"message": "hi"}}, outgoing(0.5))
            await agent.cancelled.wait()
            await lane.aclose()


async def test_a_listener_that_fails_ends_the_call() -> None:
    agent = Slow()

    async def on_event(event: Event) -> None:
        raise LookupError("nobody listens")

    async with AgentEnvironment(agent, name="slow", hub=False).serving() as server:
        with anyio.fail_after(20):
            lane = McpLane(f"{server.url}/mcp")
            with pytest.raises(LookupError):
                await lane.perform("call_tool", {"name": "chat", "arguments": {"message": "hi"}}, outgoing(), on_event)
            await agent.cancelled.wait()
            await lane.aclose()


async def test_the_run_and_the_session_travel_as_headers_of_their_own_call_alone() -> None:
    def plain(message: str) -> str:
        return message

    async def on_event(event: Event) -> None: ...

    env = AgentEnvironment(plain, name="plain", hub=False)
    requests = Requests(env.app(local=True))
    # A run without a seat of the callee's own: nothing is to be recorded anywhere.
    run = Run("http://127.0.0.1:9", "r1", "e1", "judge", {"solver": Route("secret", "policy")})
    async with hosted(requests) as url:
        with anyio.fail_after(20):
            lane = McpLane(url)
            call = {"name": "chat", "arguments": {"message": "hi"}}
            opened = await lane.perform("call_tool", call, Outgoing(CallContext().within(20), run), on_event)
            assert decode_run(requests.headers[-1]["agent-env-run"]) == run
            # Whatever else the connection sent when that call opened it, it sent without the run.
            assert ["agent-env-run" in headers for headers in requests.headers] == [False, False, True]
            await lane.perform("call_tool", {**call, "session_id": opened["session_id"]}, outgoing())
            assert requests.headers[-1]["session-id"] == opened["session_id"]
            assert "agent-env-run" not in requests.headers[-1]
            await lane.aclose()


async def test_the_context_arrives_whole_with_a_tracer_between() -> None:
    async def placed(message: str, context: Any) -> str:
        return f"{context['trace_id']} {context['caller']} {context['episode']}"

    parents: list[str | None] = []

    class Recorder:
        async def record(self, records: Any) -> None:
            parents.extend(record["parent_call_id"] for record in records)

    env = AgentEnvironment(placed, name="placed", hub=False, recorder=Recorder())
    async with env.serving() as server:
        with anyio.fail_after(20):
            lane = McpLane(f"{server.url}/mcp")
            out = outgoing(call_id="00000000000000aa", episode="e1", chain=(Link("boss@1.0.0", "00"),), calls=7)
            span = trace.SpanContext(0xBEEF, 0xBEEF, is_remote=False, trace_flags=trace.TraceFlags(1))
            with trace.use_span(trace.NonRecordingSpan(span)):
                answer = await lane.perform("call_tool", {"name": "chat", "arguments": {"message": "?"}}, out)
            assert answer["text"] == f"{out.context.trace_id} boss@1.0.0 e1"
            assert answer["calls_left"] == 7
            assert parents == ["00000000000000aa"]
            await lane.aclose()
