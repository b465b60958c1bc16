"""Requests that are only half sent are let go; those that are slow and steady are not."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import anyio
import pytest
from starlette.types import Message

from agent_env import AgentEnvironment, Limits
from agent_env.errors import RequestTimeout, from_wire
from agent_env.gateway import Gateway
from agent_env.hub import locate
from agent_env.hub.app import hub_app
from agent_env.hub.local import LocalHub
from agent_env.net import bound_url, listen, protocols, serving, uploads
from agent_env.net.a2a_wire import EXTENSION
from agent_env.net.serving import served
from agent_env.net.uploads import TimelyBodies, timely

pytestmark = pytest.mark.anyio

SECONDS = 0.3


async def echo(message: str) -> str:
    """Repeats."""
    return message


@asynccontextmanager
async def place(what: str, directory: Path) -> AsyncGenerator[str]:
    """An app of ours that waits for no body longer than `SECONDS`."""
    limits = Limits(body_seconds=SECONDS)
    if what == "environment":
        env = AgentEnvironment(echo, name="echo", version="1.0.0", hub=False, limits=limits)
        async with env.serving() as server:
            yield server.url
        return
    gateway = Gateway(directory / "runs", admin_token="admin", body_seconds=SECONDS)
    app: Any = gateway if what == "gateway" else hub_app(LocalHub(locate(directory / "h.db")), limits=limits)
    listener = listen()
    url = bound_url(listener)
    async with served(app, listener, lifespan=what == "hub"):
        yield url
    gateway.close()


class Raw:
    """A connection on which a request is sent piece by piece."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader, self.writer = reader, writer

    def send(self, data: bytes) -> None:
        self.writer.write(data)

    async def answer(self) -> tuple[int, dict[str, str], Any]:
        """The one answer on this connection, which the server must then close."""
        head, _, body = (await self.reader.read()).partition(b"\r\n\r\n")
        lines = head.decode().split("\r\n")
        headers = dict(line.lower().split(": ", 1) for line in lines[1:])
        return int(lines[0].split()[1]), headers, json.loads(body)

    async def drip(self) -> None:
        """Sends a byte now and then until the server has hung up."""
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(self._drip)
            with suppress(ConnectionError):
                while await self.reader.read(1000):
                    pass
            tasks.cancel_scope.cancel()

    async def _drip(self) -> None:
        while True:
            self.send(b" ")
            await anyio.sleep(0.05)


@asynccontextmanager
async def raw(url: str) -> AsyncGenerator[Raw]:
    parts = urlsplit(url)
    with anyio.fail_after(15):
        reader, writer = await asyncio.open_connection(parts.hostname, parts.port)
        try:
            yield Raw(reader, writer)
        finally:
            writer.close()


def head(path: str, length: int, *more: str) -> bytes:
    lines = [f"POST {path} HTTP/1.1", "Host: 127.0.0.1", "Content-Type: application/json", *more]
    return "\r\n".join([*lines, f"Content-Length: {length}", "", ""]).encode()


STREAM = "Accept: application/json, text/event-stream"
FACES = {
    "http": ("environment", "/v1/call_tool", ()),
    "data plane": ("environment", "/agentenv", ()),
    "mcp": ("environment", "/mcp", (STREAM, "MCP-Protocol-Version: 2026-07-28")),
    "mcp with a handshake": ("environment", "/mcp", (STREAM,)),
    "a2a json-rpc": ("environment", "/a2a", ("A2A-Version: 1.0",)),
    "a2a rest": ("environment", "/a2a/rest/message:send", ("A2A-Version: 1.0",)),
    "gateway": ("gateway", "/runs", ("Authorization: Bearer admin",)),
    "hub": ("hub", "/v1/doubt", ()),
}


def told(face: str, body: Any) -> Any:
    """The error in our own form, out of the form of the face."""
    error = body["error"]
    if face.startswith("a2a"):
        (details,) = [one for one in error["data" if face == "a2a json-rpc" else "details"] if "metadata" in one]
        return details["metadata"][EXTENSION]
    return error["data"] if "mcp" in face or face == "data plane" else error


@pytest.mark.parametrize("face", FACES)
async def test_half_a_body_is_answered_with_a_typed_error_in_the_faces_own_form(face: str, tmp_path: Path) -> None:
    what, path, headers = FACES[face]
    async with place(what, tmp_path) as url, raw(url) as connection:
        connection.send(head(path, 1000, *headers) + b'{"half": ')
        status, answered, body = await connection.answer()
        assert (status, answered["connection"]) == (408, "close")
        assert isinstance(from_wire(told(face, body)), RequestTimeout)
        assert ("jsonrpc" in body) is (path in ("/mcp", "/a2a", "/agentenv"))


@pytest.mark.parametrize("face", ["http", "mcp", "a2a json-rpc", "gateway", "hub"])
async def test_a_body_that_is_never_begun_is_not_waited_for(face: str, tmp_path: Path) -> None:
    what, path, headers = FACES[face]
    async with place(what, tmp_path) as url, raw(url) as connection:
        connection.send(head(path, 1000, *headers))
        assert (await connection.answer())[0] == 408


async def test_a_slow_but_steady_body_passes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(uploads, "STEADY_BYTES", 100)
    body = json.dumps({"name": "chat", "arguments": {"message": "x" * 300}}).encode()
    async with place("environment", tmp_path) as url, raw(url) as connection:
        connection.send(head("/v1/call_tool", len(body), "Connection: close"))
        begun = asyncio.get_running_loop().time()
        for at in range(0, len(body), 60):
            connection.send(body[at : at + 60])
            await anyio.sleep(0.1)  # the pace of the client is what is tested
        status, _, answer = await connection.answer()
        assert asyncio.get_running_loop().time() - begun > 1.5 * SECONDS
        assert (status, answer["text"]) == (200, "x" * 300)


async def test_a_body_that_drips_is_let_go_however_long_it_would_go_on(tmp_path: Path) -> None:
    async with place("environment", tmp_path) as url, raw(url) as connection:
        connection.send(head("/v1/call_tool", 100_000))
        await connection.drip()


async def test_an_answer_that_takes_longer_is_left_alone(tmp_path: Path) -> None:
    async def slow(message: str) -> str:
        await anyio.sleep(3 * SECONDS)
        return message

    env = AgentEnvironment(slow, name="slow", hub=False, limits=Limits(body_seconds=SECONDS))
    body = json.dumps({"name": "chat", "arguments": {"message": "hi"}}).encode()
    async with env.serving() as server, raw(server.url) as connection:
        connection.send(head("/v1/call_tool", len(body), "Accept: application/x-ndjson", "Connection: close") + body)
        with anyio.fail_after(10):
            assert b'"hi"' in await connection.reader.read()


async def test_what_comes_after_the_body_is_waited_for_without_end() -> None:
    gone = asyncio.Event()
    messages: list[Message] = [{"type": "http.request", "body": b"x"}]

    async def receive() -> Message:
        if messages:
            return messages.pop()
        await gone.wait()
        return {"type": "http.disconnect"}

    bounded = timely(receive, 0.05)
    assert (await bounded())["body"] == b"x"
    with anyio.move_on_after(0.2) as waited:
        await bounded()
    assert waited.cancelled_caught
    gone.set()
    assert (await bounded())["type"] == "http.disconnect"


async def test_other_scopes_are_passed_on_as_they_are() -> None:
    seen: list[Any] = []

    async def app(scope: Any, receive: Any, send: Any) -> None:
        seen.append(receive)

    async def receive() -> Message:
        return {}

    async def send(message: Message) -> None: ...

    await TimelyBodies(app)({"type": "websocket"}, receive, send)
    await TimelyBodies(app)({"type": "lifespan"}, receive, send)
    assert seen == [receive, receive]


# ── connections ────────────────────────────────────────────────────────────────────────────────────────────────────


async def test_half_a_head_is_answered_and_let_go(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(protocols, "HEAD_SECONDS", SECONDS)
    async with place("environment", tmp_path) as url:
        for half in (b"POST /v1/call_tool HTTP/1.1\r\nHost: x", b"GET /v1/ws HTTP/1.1\r\nUpgrade: websocket\r\n"):
            async with raw(url) as connection:
                connection.send(half)
                status, _, body = await connection.answer()
                assert status == 408 and isinstance(from_wire(body["error"]), RequestTimeout)


async def test_a_connection_on_which_nothing_is_said_is_let_go(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(protocols, "HEAD_SECONDS", SECONDS)
    async with place("environment", tmp_path) as url, raw(url) as connection:
        assert await connection.reader.read() == b""


async def test_the_rest_of_a_body_that_was_answered_is_not_waited_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(protocols, "HEAD_SECONDS", SECONDS)
    async with place("environment", tmp_path) as url, raw(url) as connection:
        connection.send(head("/nowhere", 1_000_000) + b"{")
        assert b" 404 " in await connection.reader.readuntil(b"\r\n\r\n")
        await connection.drip()


async def test_a_connection_is_kept_between_requests(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(protocols, "HEAD_SECONDS", SECONDS)
    async with place("environment", tmp_path) as url, raw(url) as connection:
        for _ in range(2):
            connection.send(b"GET /health HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n")
            assert b"200 OK" in await connection.reader.readuntil(b"\r\n\r\n")
            await connection.reader.readuntil(b"}}")
            await anyio.sleep(1.5 * SECONDS)  # longer than a head may take
        assert not connection.reader.at_eof()


def frame(opcode: int, payload: bytes, *, fin: bool = True, length: int | None = None) -> bytes:
    """A masked frame (RFC 6455 §5.2) that announces `length` bytes and has those of the payload."""
    length = len(payload) if length is None else length
    announced = bytes([0x80 | length]) if length < 126 else bytes([0x80 | 126]) + length.to_bytes(2, "big")
    return bytes([(0x80 if fin else 0) | opcode]) + announced + b"\0\0\0\0" + payload


@asynccontextmanager
async def socket(url: str) -> AsyncGenerator[Raw]:
    async with raw(url) as connection:
        connection.send(
            b"GET /v1/ws HTTP/1.1\r\nHost: 127.0.0.1\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n"
            b"Sec-WebSocket-Key: AAAAAAAAAAAAAAAAAAAAAA==\r\nSec-WebSocket-Version: 13\r\n\r\n"
        )
        assert b" 101 " in await connection.reader.readuntil(b"\r\n\r\n")
        yield connection


async def test_a_websocket_frame_that_is_never_whole_is_let_go(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(serving, "PING_SECONDS", SECONDS)
    async with place("environment", tmp_path) as url, socket(url) as connection:
        connection.send(frame(1, b'{"half', length=100))
        assert b"keepalive ping timeout" in await connection.reader.read()


async def test_a_websocket_message_that_is_never_whole_is_let_go(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(protocols, "MESSAGE_SECONDS", SECONDS)
    async with place("environment", tmp_path) as url, socket(url) as connection:
        connection.send(frame(1, b'{"half', fin=False))
        assert b"a message was not whole" in await connection.reader.read()


async def test_a_websocket_message_in_several_frames_passes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(protocols, "MESSAGE_SECONDS", SECONDS)
    call = json.dumps({"id": 1, "verb": "call_tool", "arguments": {"name": "chat", "arguments": {"message": "hi"}}})
    async with place("environment", tmp_path) as url, socket(url) as connection:
        for opcode, piece, fin in ((1, call[:10], False), (0, call[10:20], False), (0, call[20:], True)):
            connection.send(frame(opcode, piece.encode(), fin=fin))
        assert b'"hi"' in await connection.reader.readuntil(b'"hi"')
        with anyio.move_on_after(2 * SECONDS) as waited:
            while await connection.reader.read(1000):
                pass
        assert waited.cancelled_caught  # it is still open
