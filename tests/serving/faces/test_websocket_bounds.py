"""What one client can make the WebSocket face hold, and what its mistakes and its old sockets can do: little."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from typing import Any

import aiohttp
import anyio
import pytest

from agent_env.client.environment import Environment
from agent_env.client.lanes.websocket import close_sockets
from agent_env.net.limits import Limits
from agent_env.serving.environment import AgentEnvironment
from agent_env.serving.faces import websocket_connection, websocket_outbox
from agent_env.serving.server import Server
from agent_env_wrappers.contract import Done, Event, ToolCall

pytestmark = pytest.mark.anyio

LARGE = 10_000


class Agent:
    """Answers at length, or waits until it is let go."""

    def __init__(self) -> None:
        self.started = asyncio.Semaphore(0)
        self.go_on = anyio.Event()
        self.cancelled = anyio.Event()

    async def __call__(self, message: str) -> str:
        if message == "wait":
            self.started.release()
            try:
                await self.go_on.wait()
            except asyncio.CancelledError:
                self.cancelled.set()
                raise
        return message if message in ("wait", "short") else "x" * LARGE


@pytest.fixture
def narrow(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(websocket_outbox, "LEAST_BYTES", 20 * LARGE)  # each answer has its text twice
    monkeypatch.setattr(websocket_connection, "ROOM_SECONDS", 0.05)


@asynccontextmanager
async def serving(agent: object, **options: Any) -> AsyncGenerator[Server]:
    with anyio.fail_after(30):
        async with AgentEnvironment(agent, hub=False, **options).serving(register=False) as server:
            yield server
            await close_sockets()


@asynccontextmanager
async def opened(server: Server) -> AsyncGenerator[tuple[aiohttp.ClientWebSocketResponse, str]]:
    async with aiohttp.ClientSession() as session, session.ws_connect(f"{server.url}/v1/ws", max_msg_size=0) as socket:
        yield socket, (await socket.receive_json(timeout=5))[0]["hello"]["connection"]


def call(id: int, message: str, **more: Any) -> dict[str, Any]:
    arguments = {"name": "chat", "arguments": {"message": message}}
    return {"id": id, "verb": "call_tool", "arguments": arguments, **more}


async def closing(socket: aiohttp.ClientWebSocketResponse) -> tuple[int | None, list[dict[str, Any]]]:
    """The code that the socket is closed with, and what came before."""
    came: list[dict[str, Any]] = []
    while True:
        message = await socket.receive(timeout=5)
        if message.type is not aiohttp.WSMsgType.TEXT:
            return socket.close_code, came
        came += message.json()


async def test_a_client_that_acknowledges_nothing_is_held_up_until_it_does(narrow: None) -> None:
    async with serving(Agent(), limits=Limits(max_message_bytes=1000)) as server, opened(server) as (socket, _):
        codes: list[str] = []
        last = 0
        for id in range(30):
            await socket.send_json([call(id, "long")])
            (answer,) = await socket.receive_json(timeout=5)
            codes.append(answer["error"]["code"] if "error" in answer else "ok")
            last = answer["seq"]
        assert codes == ["ok"] * 10 + ["at_capacity"] * 20
        await socket.send_json([{"ack": last}, call(99, "long")])
        (answer,) = await socket.receive_json(timeout=5)
        assert len(answer["result"]["text"]) == LARGE


async def test_a_call_that_waits_for_room_begins_when_the_client_makes_some(
    narrow: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(websocket_connection, "ROOM_SECONDS", 20)
    async with serving(Agent(), limits=Limits(max_message_bytes=1000)) as server, opened(server) as (socket, _):
        for id in range(10):
            await socket.send_json([call(id, "long")])
            await socket.receive_json(timeout=5)
        # The second is of the same connection and waits too; both begin by the acknowledgement that follows them.
        await socket.send_json([call(10, "long"), call(11, "long")])
        await socket.send_json([{"ack": 10}])
        answers: list[dict[str, Any]] = []
        while len(answers) < 2:
            answers += await socket.receive_json(timeout=5)
        assert {answer["id"] for answer in answers if "result" in answer} == {10, 11}


async def test_calls_that_run_already_cannot_fill_the_server_either(narrow: None) -> None:
    agent = Agent()

    async def waiting(message: str) -> str:
        await agent("wait")
        return "x" * LARGE

    limits = Limits(max_message_bytes=1000, max_sessions=100)
    async with serving(waiting, limits=limits) as server, opened(server) as (socket, _):
        await socket.send_json([call(id, "x") for id in range(60)])
        for _ in range(60):
            await agent.started.acquire()
        agent.go_on.set()
        code, _ = await closing(socket)
        assert code == 1008


async def test_what_is_no_message_is_answered_a_few_times_and_then_closes_the_socket() -> None:
    agent = Agent()
    async with serving(agent) as server, opened(server) as (socket, _):
        await socket.send_json([call(1, "wait")])
        await agent.started.acquire()
        for _ in range(20):
            await socket.send_json([{"x": "y" * 150}] * 1000)
        code, came = await closing(socket)
        assert code == 1008
        assert len(came) <= websocket_connection.MAX_STRAYS
        await agent.cancelled.wait()


async def test_a_client_of_ours_may_be_answered_at_any_length(narrow: None) -> None:
    """It acknowledges by length too, so that it is never held up for long."""
    text = "x" * 1_500_000

    async def long(message: str) -> str:
        return text

    async with serving(long) as server, Environment(server.url, lane="websocket") as env:
        for _ in range(20):
            assert (await env.chat("x")).text == text


@pytest.mark.parametrize("code", [1000, 1001])
async def test_after_a_resume_the_old_socket_rules_nothing(code: int) -> None:
    agent = Agent()
    async with serving(agent) as server, opened(server) as (old, connection):
        await old.send_json([call(1, "wait")])
        await agent.started.acquire()
        async with opened(server) as (new, _):
            await new.send_json([{"resume": connection, "seen": 0}])
            assert await new.receive_json(timeout=5) == [{"resumed": True}]
            # It is not read, so its close and its cancel are on the way before it sees that it was closed.
            await old.send_json([{"cancel": 1}])
            await old.close(code=code)
            await new.send_json([call(2, "short")])
            (answer,) = await new.receive_json(timeout=5)
            assert answer["id"] == 2
            assert not agent.cancelled.is_set()
            agent.go_on.set()
            (answer,) = await new.receive_json(timeout=5)
            assert answer["result"]["text"] == "wait"


async def test_a_resume_closes_the_old_socket() -> None:
    agent = Agent()
    async with serving(agent) as server, opened(server) as (old, connection), opened(server) as (new, _):
        await old.send_json([call(1, "wait")])
        await agent.started.acquire()
        await new.send_json([{"resume": connection, "seen": 0}])
        code, came = await closing(old)
        assert (code, came) == (1008, [])
        agent.go_on.set()


@pytest.mark.parametrize(
    "fields",
    [
        {"context": "abc"},
        {"context": [1]},
        {"context": {"baggage": ["agent-env.ms=1"]}},
        {"context": {"baggage": "agent-env.ms=" + "9" * 400}},
        {"run": 5},
        {"run": [5]},
        {"arguments": "x"},
        {"arguments": [1]},
    ],
    ids=lambda fields: str(fields)[:40],
)
async def test_a_call_that_is_malformed_is_refused_as_that(fields: dict[str, Any]) -> None:
    async with serving(Agent()) as server, opened(server) as (socket, _):
        await socket.send_json([call(1, "short") | fields])
        (answer,) = await socket.receive_json(timeout=5)
        assert answer["error"]["code"] == "invalid_arguments"


@pytest.mark.parametrize(
    "frame",
    ["[" * 100_000, '{"id": 1, "verb": "reset", "arguments": {"options": NaN}}', '[{"resume": "x", "seen": "y"}]'],
    ids=["deep", "NaN", "seen"],
)
async def test_a_frame_that_cannot_be_read_closes_the_socket_with_the_reason(frame: str) -> None:
    async with serving(Agent()) as server, opened(server) as (socket, _):
        await socket.send_str(frame)
        code, came = await closing(socket)
        assert (code, came) == (1003, [])


async def test_an_event_that_is_no_json_fails_its_call_alone() -> None:
    class Wrapped:
        pass

    async def agent(message: str) -> Any:
        event: Event = ToolCall("t1", "look", {"at": Wrapped()}) if message == "bad" else Done("well")
        yield event

    async with serving(agent) as server, opened(server) as (socket, _):
        await socket.send_json([call(1, "bad", stream=True)])
        (answer,) = await socket.receive_json(timeout=5)
        assert answer["error"]["code"] == "agent_failed"
        await socket.send_json([call(2, "good", stream=True)])
        (answer,) = await socket.receive_json(timeout=5)
        assert answer["result"]["text"] == "well"
