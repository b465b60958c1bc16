"""How the MCP lane keeps its connections: shared, opened again, and failing one call at a time."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncGenerator, Callable
from contextlib import asynccontextmanager
from typing import Any

import anyio
import pytest
import uvicorn
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response, StreamingResponse
from starlette.routing import Route
from starlette.types import ASGIApp, Receive, Scope, Send

from agent_env import AgentEnvironment, Limits
from agent_env.client.lanes import mcp_connection
from agent_env.client.lanes.contract import Outgoing
from agent_env.client.lanes.mcp import McpLane
from agent_env.client.lanes.mcp_connection import pools
from agent_env.context import CallContext, Principal
from agent_env.errors import (
    AgentEnvError,
    AtCapacity,
    DeadlineExceeded,
    Forbidden,
    MessageTooLarge,
    NotSupported,
    ProtocolError,
    TransportError,
    Unauthenticated,
)
from agent_env.net import Tokens, listen

pytestmark = pytest.mark.anyio

CHAT = {"name": "chat", "arguments": {"message": "hi"}}


class Patient:
    """An agent that waits until it is told to go on."""

    def __init__(self) -> None:
        self.started = asyncio.Event()
        self.go_on = asyncio.Event()

    async def __call__(self, message: str) -> str:
        if message == "wait":
            self.started.set()
            await self.go_on.wait()
        return f"done: {message}"


class Door:
    """An app before another one, which counts what passes and can be shut."""

    def __init__(self, app: ASGIApp) -> None:
        self.app = app
        self.methods: list[str] = []
        self.refusal: Response | None = None

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http":
            if self.refusal is not None:
                await self.refusal(scope, receive, send)
                return
            self.methods.append(Request(scope).headers.get("mcp-method", scope["method"]))
        await self.app(scope, receive, send)


def outgoing(seconds: float = 20) -> Outgoing:
    return Outgoing(CallContext().within(seconds))


@asynccontextmanager
async def hosted(app: ASGIApp, port: int = 0, *, lifespan: str = "on") -> AsyncGenerator[str]:
    with listen("127.0.0.1", port) as socket:
        server = uvicorn.Server(uvicorn.Config(app, log_config=None, lifespan=lifespan))  # type: ignore[arg-type]
        async with anyio.create_task_group() as group:
            group.start_soon(server.serve, [socket])
            try:
                yield f"http://127.0.0.1:{socket.getsockname()[1]}/mcp"
            finally:
                server.should_exit = True


async def talk(lane: McpLane, message: str = "hi") -> str:
    answer = await lane.perform("call_tool", {"name": "chat", "arguments": {"message": message}}, outgoing())
    return str(answer["text"])


def patient(agent: Patient | None = None, **options: Any) -> AgentEnvironment:
    return AgentEnvironment(agent or Patient(), name="patient", hub=False, **options)


async def test_lanes_to_the_same_server_share_one_connection() -> None:
    door = Door(patient().app(local=True))
    async with hosted(door) as url:
        with anyio.fail_after(20):
            lanes = [McpLane(url) for _ in range(3)]
            assert await asyncio.gather(*[talk(lane) for lane in lanes for _ in range(2)]) == ["done: hi"] * 6
            assert door.methods.count("server/discover") == door.methods.count("tools/list") == 1
            assert door.methods.count("tools/call") == 6
            for lane in lanes:
                await lane.aclose()
            again = McpLane(url)
            await talk(again)
            assert door.methods.count("server/discover") == 1
            await again.aclose()


async def test_callers_with_different_tokens_share_nothing() -> None:
    tokens = Tokens({"ann": Principal("ann", frozenset({"chat"})), "bob": Principal("bob", frozenset({"chat"}))})
    async with patient(auth=tokens).serving() as server:
        url = f"{server.url}/mcp"
        with anyio.fail_after(20):
            ann, bob, nobody = McpLane(url, "ann"), McpLane(url, "bob"), McpLane(url)
            session = (await ann.perform("call_tool", CHAT, outgoing()))["session_id"]
            assert (await ann.perform("state", {"session_id": session}, outgoing()))["turns"] == 1
            with pytest.raises(AgentEnvError, match="there is no session"):
                await bob.perform("state", {"session_id": session}, outgoing())
            with pytest.raises(Forbidden, match="'orchestrate'"):
                await ann.perform("reset", {"session_id": session}, outgoing())
            with pytest.raises(Unauthenticated):
                await nobody.perform("call_tool", CHAT, outgoing())
            for lane in (ann, bob, nobody):
                await lane.aclose()


async def test_a_connection_that_nobody_uses_is_closed_after_a_while(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(mcp_connection, "LINGER_SECONDS", 0.05)
    async with patient().serving() as server:
        url = f"{server.url}/mcp"
        with anyio.fail_after(20):
            lane = McpLane(url)
            await talk(lane)
            pool = pools.get((url, None))
            connection = await pool.borrow()
            pool.give_back(connection)
            await lane.aclose()
            await lane.aclose()
            await connection.ended()
            assert await talk(lane) == "done: hi"
            with pytest.raises(TransportError, match="is closed"):
                await connection.list_tools(None)
            await lane.aclose()


def test_a_program_may_end_without_closing_anything() -> None:
    async def program() -> str:
        async with patient().serving() as server:
            return await talk(McpLane(f"{server.url}/mcp"))

    for _ in range(2):
        assert asyncio.run(asyncio.wait_for(program(), 20)) == "done: hi"


async def test_one_request_that_fails_leaves_the_others_alone() -> None:
    agent = Patient()
    door = Door(patient(agent, limits=Limits(max_message_bytes=1000)).app(local=True))
    async with hosted(door) as url:
        with anyio.fail_after(20):
            lane = McpLane(url)
            waiting = asyncio.create_task(talk(lane, "wait"))
            await agent.started.wait()
            with pytest.raises(MessageTooLarge):
                await talk(lane, "x" * 100_000)
            door.refusal = Response("busy", 503, {"Retry-After": "7"})
            with pytest.raises(AtCapacity) as caught:
                await talk(lane)
            assert caught.value.retry_after == 7.0
            door.refusal = Response("gone", 502)
            with pytest.raises(TransportError):
                await talk(lane)
            agent.go_on.set()
            assert await waiting == "done: wait"
            door.refusal = None
            assert await talk(lane) == "done: hi"
            await lane.aclose()


async def test_a_server_that_comes_back_is_asked_anew_what_it_is() -> None:
    door = Door(patient().app(local=True))
    with anyio.fail_after(20):
        async with hosted(door) as url:
            lane = McpLane(url)
            assert await talk(lane) == "done: hi"
        with pytest.raises(TransportError, match="cannot be reached"):
            await talk(lane)
        with pytest.raises(TransportError, match="cannot be reached"):
            await McpLane(url).perform("list_tools", {}, outgoing())
        again = Door(patient().app(local=True))
        async with hosted(again, int(url.split(":")[2].split("/")[0])):
            assert await talk(lane) == "done: hi"
            assert again.methods.count("server/discover") == 1
            await lane.aclose()


async def test_a_server_that_dies_in_the_middle_of_a_call_is_a_transport_error() -> None:
    agent = Patient()
    writers: list[asyncio.StreamWriter] = []
    async with patient(agent).serving() as server:
        port = int(server.url.rpartition(":")[2])

        async def forward(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            onward_reader, onward = await asyncio.open_connection("127.0.0.1", port)
            writers.extend((writer, onward))

            async def copy(source: asyncio.StreamReader, target: asyncio.StreamWriter) -> None:
                while data := await source.read(65536):
                    target.write(data)

            await asyncio.gather(copy(reader, onward), copy(onward_reader, writer), return_exceptions=True)
            onward.close()
            writer.close()

        proxy = await asyncio.start_server(forward, "127.0.0.1", 0)
        with anyio.fail_after(20):
            lane = McpLane(f"http://127.0.0.1:{proxy.sockets[0].getsockname()[1]}/mcp")
            call = asyncio.create_task(talk(lane, "wait"))
            await agent.started.wait()
            for writer in writers:
                writer.transport.abort()
            with pytest.raises(TransportError):
                await call
            agent.go_on.set()
            await lane.aclose()
        proxy.close()
        await proxy.wait_closed()


async def test_a_server_that_says_nothing_is_left_at_the_deadline() -> None:
    left = asyncio.Event()

    async def silent(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read()
        writer.close()
        left.set()

    server = await asyncio.start_server(silent, "127.0.0.1", 0)
    with anyio.fail_after(20):
        lane = McpLane(f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}/mcp")
        with pytest.raises(DeadlineExceeded, match="did not answer call_tool"):
            await lane.perform("call_tool", CHAT, outgoing(0.2))
        await left.wait()
        await lane.aclose()
    server.close()
    await server.wait_closed()


async def test_a_caller_that_gives_up_opening_leaves_the_connection_to_the_others() -> None:
    door = Door(patient().app(local=True))
    async with hosted(door) as url:
        with anyio.fail_after(20):
            hasty, calm = McpLane(url), McpLane(url)
            first = asyncio.create_task(talk(hasty))
            second = asyncio.create_task(talk(calm))
            await asyncio.sleep(0)
            first.cancel()
            assert await second == "done: hi"
            assert first.cancelled()
            assert door.methods.count("server/discover") == 1
            await calm.aclose()


def answering(answer: Callable[[], Response]) -> Starlette:
    async def endpoint(request: Request) -> Response:
        return answer()

    return Starlette(routes=[Route("/mcp", endpoint, methods=["POST", "GET", "DELETE"])])


JSON_RPC_REFUSAL = {"jsonrpc": "2.0", "id": None, "error": {"code": -32000, "message": "no"}}


@pytest.mark.parametrize(
    ("answer", "kind"),
    [
        (lambda: Response("no", 401), Unauthenticated),
        (lambda: JSONResponse(JSON_RPC_REFUSAL, 401), Unauthenticated),
        (lambda: Response("no", 403), Forbidden),
        (lambda: Response("no", 421), Forbidden),
        (lambda: Response("no", 413), MessageTooLarge),
        (lambda: Response("no", 429, {"Retry-After": "3"}), AtCapacity),
        (lambda: Response("no", 502), TransportError),
        (lambda: Response("no", 504), TransportError),
        (lambda: Response("<html>", 200, media_type="text/html"), ProtocolError),
        (lambda: Response("{", 200, media_type="application/json"), ProtocolError),
        (lambda: Response("no", 404), NotSupported),
        (lambda: Response("", 307, {"Location": "http://elsewhere.example/mcp"}), ProtocolError),
        (lambda: StreamingResponse(iter([b": nothing follows\n\n"]), media_type="text/event-stream"), TransportError),
    ],
)
async def test_what_is_no_mcp_server_or_refuses_is_told_by_a_typed_error(
    answer: Callable[[], Response], kind: type[AgentEnvError]
) -> None:
    async with hosted(answering(answer), lifespan="off") as url:
        with anyio.fail_after(20):
            lane = McpLane(url)
            for _ in range(2):
                with pytest.raises(kind) as caught:
                    await lane.perform("list_tools", {}, outgoing())
                assert "127.0.0.1" in caught.value.message
            await lane.aclose()


async def test_an_answer_beyond_all_measure_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    from agent_env.client.lanes import sdk_http

    monkeypatch.setattr(sdk_http, "MAX_REPLY_BYTES", 100_000)
    async with patient().serving() as server:
        with anyio.fail_after(20):
            lane = McpLane(f"{server.url}/mcp")
            assert await talk(lane) == "done: hi"
            with pytest.raises(MessageTooLarge, match="more than 100000 bytes"):
                await talk(lane, "x" * 100_000)
            await lane.aclose()


async def test_messages_that_are_no_events_break_the_protocol() -> None:
    from agent_env.client.lanes.mcp_native import decoder

    async def on_event(event: Any) -> None: ...

    for message in ("not json", json.dumps({"type": "dance"}), json.dumps([1])):
        with pytest.raises(ProtocolError):
            await decoder(on_event, "somewhere")(message)
