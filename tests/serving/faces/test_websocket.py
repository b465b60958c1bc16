"""The WebSocket face and lane: one socket, many calls; cancelled, bounded, and resumed when the socket breaks."""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import aiohttp
import anyio
import pytest

from agent_env.client.environment import Environment
from agent_env.client.lanes.connection import Connection
from agent_env.client.lanes.contract import Outgoing
from agent_env.client.lanes.websocket import WebSocketLane, close_sockets
from agent_env.context import CallContext
from agent_env.errors import (
    AgentEnvError,
    Forbidden,
    ProtocolError,
    TransportError,
    Unauthenticated,
    UnknownTool,
)
from agent_env.net.frames import WINDOW
from agent_env.serving.environment import AgentEnvironment
from agent_env.serving.server import Server
from agent_env_wrappers.contract import TextDelta

pytestmark = pytest.mark.anyio


class Agent:
    """Echoes, waits until it is let go, or talks without end."""

    def __init__(self) -> None:
        self.started = anyio.Event()
        self.go_on = anyio.Event()
        self.cancelled = anyio.Event()
        self.said = 0

    async def __call__(self, message: str) -> AsyncIterator[str]:
        if message == "wait":
            self.started.set()
            try:
                await self.go_on.wait()
            except BaseException:
                self.cancelled.set()
                raise
        if message.startswith("say "):
            for number in range(int(message.removeprefix("say "))):
                self.said = number + 1
                yield f"{number} "
            return
        yield message


@asynccontextmanager
async def serving(agent: object, **options: Any) -> AsyncGenerator[Server]:
    with anyio.fail_after(30):
        async with AgentEnvironment(agent, name="agent", **options).serving(register=False) as server:
            yield server
            await close_sockets()


def socket_url(server: Server) -> str:
    return "ws" + server.url.removeprefix("http") + "/v1/ws"


async def test_many_conversations_share_one_socket() -> None:
    async with serving(Agent()) as server:
        environments = [Environment(server.url, lane="websocket") for _ in range(20)]
        replies = await asyncio.gather(*(one.chat(f"hello {n}") for n, one in enumerate(environments)))
        assert [reply.text for reply in replies] == [f"hello {n}" for n in range(20)]
        assert len({reply.session_id for reply in replies}) == 20
        app_state = server.runtime.sessions
        assert len(app_state) == 20
        await asyncio.gather(*(one.release() for one in environments))
        assert len(app_state) == 0


async def test_cancelling_a_call_cancels_the_turn_and_leaves_no_session() -> None:
    agent = Agent()
    async with serving(agent) as server:
        environment = Environment(server.url, lane="websocket")
        task = asyncio.create_task(environment.chat("wait"))
        await agent.started.wait()
        task.cancel()
        await agent.cancelled.wait()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert (await environment.chat("still there")).text == "still there"
        await environment.release()
        assert len(server.runtime.sessions) == 0


async def test_a_deadline_that_passes_is_a_typed_error_and_cancels_the_turn() -> None:
    agent = Agent()
    async with serving(agent) as server, Environment(server.url, lane="websocket") as environment:
        with pytest.raises(AgentEnvError) as caught:
            await environment.chat("wait", timeout=0.2)
        assert caught.value.code == "deadline_exceeded"
        await agent.cancelled.wait()


async def test_the_server_sends_no_more_events_than_the_client_has_taken_in() -> None:
    agent = Agent()
    blocked = anyio.Event()
    go_on = anyio.Event()
    seen: list[str] = []

    async def on_event(event: Any) -> None:
        assert isinstance(event, TextDelta)
        seen.append(event.text)
        if len(seen) == 1:
            blocked.set()
            await go_on.wait()

    async with serving(agent) as server, Environment(server.url, lane="websocket") as environment:
        task = asyncio.create_task(environment.call_tool("chat", {"message": f"say {WINDOW * 10}"}, on_event=on_event))
        await blocked.wait()
        # Another conversation on the same socket is not held up, and gives the server time to run ahead if it would.
        async with Environment(server.url, lane="websocket") as other:
            for _ in range(20):
                await other.chat("hello")
        assert agent.said <= WINDOW + 2
        go_on.set()
        result = await task
        assert len(seen) == WINDOW * 10
        assert result.text == "".join(seen)


class Breaker:
    """A TCP proxy whose connections a test can cut, as a network does."""

    def __init__(self, port: int) -> None:
        self._port = port
        self._open: list[asyncio.StreamWriter] = []
        self.connections = 0
        self.port = 0

    @asynccontextmanager
    async def running(self) -> AsyncGenerator[None]:
        server = await asyncio.start_server(self._serve, "127.0.0.1", 0)
        self.port = server.sockets[0].getsockname()[1]
        try:
            yield
        finally:
            self.cut()
            server.close()
            await server.wait_closed()

    def cut(self) -> None:
        for writer in self._open:
            writer.transport.abort()
        self._open.clear()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connections += 1
        upstream_reader, upstream_writer = await asyncio.open_connection("127.0.0.1", self._port)
        self._open += [writer, upstream_writer]
        await asyncio.gather(_pump(reader, upstream_writer), _pump(upstream_reader, writer))


async def _pump(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    try:
        while data := await reader.read(65536):
            writer.write(data)
            await writer.drain()
    except OSError:
        pass
    finally:
        writer.close()


async def test_a_call_survives_a_broken_socket_and_is_not_made_twice() -> None:
    agent = Agent()
    calls = 0

    async def counted(message: str) -> AsyncIterator[str]:
        nonlocal calls
        calls += 1
        async for piece in agent(message):
            yield piece

    async with serving(counted) as server:
        breaker = Breaker(int(server.url.rpartition(":")[2]))
        async with breaker.running():
            lane = WebSocketLane(f"ws://127.0.0.1:{breaker.port}/v1/ws")
            arguments = {"name": "chat", "arguments": {"message": "wait"}}
            task = asyncio.create_task(lane.perform("call_tool", arguments, Outgoing(CallContext().within(20))))
            await agent.started.wait()
            breaker.cut()
            agent.go_on.set()
            result = await task
            assert result["text"] == "wait"
            assert calls == 1
            assert breaker.connections == 2
            await lane.aclose()
            await close_sockets()


async def test_streamed_events_survive_a_broken_socket_in_order() -> None:
    agent = Agent()
    seen: list[str] = []
    async with serving(agent) as server:
        breaker = Breaker(int(server.url.rpartition(":")[2]))

        async def on_event(event: Any) -> None:
            seen.append(event.text)
            if len(seen) in (5, 150):
                breaker.cut()

        async with breaker.running():
            lane = WebSocketLane(f"ws://127.0.0.1:{breaker.port}/v1/ws")
            arguments = {"name": "chat", "arguments": {"message": "say 300"}}
            result = await lane.perform("call_tool", arguments, Outgoing(CallContext().within(20)), on_event)
            assert seen == [f"{number} " for number in range(300)]
            assert result["text"] == "".join(seen)
            await lane.aclose()
            await close_sockets()


async def test_a_server_that_is_gone_is_a_transport_error_before_the_deadline() -> None:
    agent = Agent()
    async with serving(agent) as server:
        breaker = Breaker(int(server.url.rpartition(":")[2]))
        async with breaker.running():
            lane = WebSocketLane(f"ws://127.0.0.1:{breaker.port}/v1/ws")
            arguments = {"name": "chat", "arguments": {"message": "wait"}}
            task = asyncio.create_task(lane.perform("call_tool", arguments, Outgoing(CallContext().within(20))))
            await agent.started.wait()
        with anyio.fail_after(5), pytest.raises(TransportError):
            await task
        await lane.aclose()
        await close_sockets()


async def test_a_client_that_does_not_come_back_has_its_turns_cancelled() -> None:
    agent = Agent()
    env = AgentEnvironment(agent, name="agent")
    async with serving_with_short_resume(env) as url:
        async with aiohttp.ClientSession() as session:
            socket = await session.ws_connect(url)
            call = {"id": 1, "verb": "call_tool", "arguments": {"name": "chat", "arguments": {"message": "wait"}}}
            await socket.send_json([call])
            await agent.started.wait()
            assert socket._response.connection is not None
            transport = socket._response.connection.transport
            assert transport is not None
            transport.abort()
        await agent.cancelled.wait()
    await env.aclose()


@asynccontextmanager
async def serving_with_short_resume(env: AgentEnvironment) -> AsyncGenerator[str]:
    from starlette.applications import Starlette

    from agent_env.net import OutwardGuard, listen
    from agent_env.serving.access import Access
    from agent_env.serving.address import PublicAddress
    from agent_env.serving.faces.contract import Site
    from agent_env.serving.faces.websocket import WebSocketFace
    from agent_env.serving.server import serve

    runtime, card = await env.runtime(), await env.card()
    site = Site(runtime, card, Access(guard=OutwardGuard(local=True)), PublicAddress("http://127.0.0.1"))
    face = WebSocketFace(site, resume_seconds=0.2)

    @asynccontextmanager
    async def lifespan(app: Starlette) -> AsyncGenerator[None]:
        async with face.running():
            yield

    app = Starlette(routes=list(face.routes()), lifespan=lifespan)
    with anyio.fail_after(30), listen("127.0.0.1", 0) as socket:
        address = f"127.0.0.1:{socket.getsockname()[1]}"
        async with serve(app, socket, Server(f"http://{address}", "", card, runtime), register=False, hub=None):
            yield f"ws://{address}/v1/ws"


async def test_what_is_no_message_gets_an_error_and_the_connection_goes_on() -> None:
    async with serving(Agent()) as server, aiohttp.ClientSession() as session:
        async with session.ws_connect(socket_url(server)) as socket:
            hello = (await socket.receive_json(timeout=5))[0]["hello"]
            assert hello["window"] == WINDOW
            await socket.send_json([{"id": 7, "nonsense": True}, {"id": 8, "verb": "list_tools"}])
            answers: list[dict[str, Any]] = []
            while len(answers) < 2:
                answers += await socket.receive_json(timeout=5)
            by_id = {answer["id"]: answer for answer in answers}
            assert by_id[7]["error"]["code"] == "protocol_error"
            assert by_id[8]["result"]["tools"][0]["name"] == "chat"


async def test_a_frame_that_is_not_json_closes_the_socket() -> None:
    async with serving(Agent()) as server, aiohttp.ClientSession() as session:
        async with session.ws_connect(socket_url(server)) as socket:
            await socket.receive_json(timeout=5)
            await socket.send_str("{")
            message = await socket.receive(timeout=5)
            assert message.type is aiohttp.WSMsgType.CLOSE
            assert message.data == 1003


async def test_another_principals_connection_cannot_be_resumed() -> None:
    agent = Agent()
    tokens = {"a" * 20: ["chat"], "b" * 20: ["chat"]}
    async with serving(agent, auth=tokens) as server, aiohttp.ClientSession() as session:
        headers = [{"Authorization": f"Bearer {token}"} for token in tokens]
        async with session.ws_connect(socket_url(server), headers=headers[0]) as first:
            connection = (await first.receive_json(timeout=5))[0]["hello"]["connection"]
            call = {"id": 1, "verb": "call_tool", "arguments": {"name": "chat", "arguments": {"message": "wait"}}}
            await first.send_json([call])
            await agent.started.wait()
            async with session.ws_connect(socket_url(server), headers=headers[1]) as second:
                await second.send_json([{"resume": connection, "seen": 0}])
                received: list[dict[str, Any]] = []
                while not any("resumed" in message for message in received):
                    received += await second.receive_json(timeout=5)
                assert {"resumed": False} in received
            agent.go_on.set()
            answer: list[dict[str, Any]] = await first.receive_json(timeout=5)
            assert answer[0]["result"]["text"] == "wait"


async def test_a_bad_token_and_a_foreign_page_are_refused_with_the_reason(caplog: pytest.LogCaptureFixture) -> None:
    async with serving(Agent(), auth={"t" * 20: ["chat"]}) as server:
        lane = WebSocketLane(socket_url(server), "wrong-token")
        with pytest.raises(Unauthenticated, match="not one that this server accepts"):
            await lane.perform("list_tools", {}, Outgoing(CallContext().within(5)))
        await lane.aclose()
    async with serving(Agent()) as server, aiohttp.ClientSession() as session:
        with pytest.raises(aiohttp.WSServerHandshakeError) as refused:
            await session.ws_connect(socket_url(server), headers={"Origin": "http://evil.example"})
        assert refused.value.status == Forbidden.http_status
    # A refusal is the client's fault: the log of the server holds no error.
    assert [record.getMessage() for record in caplog.records if record.levelno >= logging.ERROR] == []


async def test_an_address_that_now_serves_another_release_is_refused() -> None:
    async with serving(Agent()) as server:
        connection = Connection(socket_url(server), None, "sha256:" + "0" * 64)
        with pytest.raises(ProtocolError, match="another release"):
            await connection.call("list_tools", {}, Outgoing(CallContext().within(5)), None)
        await connection.aclose()


async def test_an_unknown_verb_is_a_typed_error() -> None:
    async with serving(Agent()) as server:
        lane = WebSocketLane(socket_url(server))
        with pytest.raises(UnknownTool, match="the verbs are list_tools"):
            await lane.perform("fly", {}, Outgoing(CallContext().within(5)))
        await lane.aclose()


async def test_a_plain_request_is_told_to_upgrade() -> None:
    async with serving(Agent()) as server, aiohttp.ClientSession() as session:
        async with session.get(server.url + "/v1/ws") as response:
            assert response.status == 426
            assert json.loads(await response.text())["error"]["code"] == "not_supported"
