"""The HTTP lane against servers that answer oddly, break off, or are not there."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from typing import Any

import anyio
import pytest

from agent_env.client.lanes import http as module
from agent_env.client.lanes.contract import Outgoing
from agent_env.client.lanes.http import HttpLane
from agent_env.context import CallContext, Run
from agent_env.errors import (
    AgentEnvError,
    AgentFailed,
    AtCapacity,
    DeadlineExceeded,
    MessageTooLarge,
    ProtocolError,
    TransportError,
    Unauthenticated,
)
from agent_env_wrappers.contract import Event, Status, TextDelta

pytestmark = pytest.mark.anyio


def calm() -> Outgoing:
    return Outgoing(CallContext().within(10))


class Server:
    """Answers every request with the same bytes, and keeps what it was asked."""

    def __init__(self, answer: bytes, *, hold: bool = False) -> None:
        self._answer = answer
        self._hold = hold
        self.asked: list[tuple[str, dict[str, str], Any]] = []
        self.arrived = asyncio.Event()
        self.left = asyncio.Event()

    async def handle(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            head = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1").split("\r\n")
            headers = {name.lower(): value for name, _, value in (line.partition(": ") for line in head[1:]) if name}
            body = await reader.readexactly(int(headers.get("content-length", 0)))
            self.asked.append((head[0], headers, json.loads(body)))
            self.arrived.set()
            writer.write(self._answer)
            await writer.drain()
            if self._hold:
                await reader.read()
                self.left.set()
        finally:
            writer.close()


@asynccontextmanager
async def answering(server: Server) -> AsyncGenerator[str]:
    with anyio.fail_after(20):
        async with await asyncio.start_server(server.handle, "127.0.0.1", 0) as running:
            yield f"http://127.0.0.1:{running.sockets[0].getsockname()[1]}/v1"


def whole(body: bytes, status: str = "200 OK", kind: str = "application/json", extra: str = "") -> bytes:
    head = (
        f"HTTP/1.1 {status}\r\nContent-Type: {kind}\r\nContent-Length: {len(body)}\r\n{extra}Connection: close\r\n\r\n"
    )
    return head.encode() + body


def stream(*lines: bytes, end: bool = True) -> bytes:
    head = b"HTTP/1.1 200 OK\r\nContent-Type: application/x-ndjson\r\nTransfer-Encoding: chunked\r\n\r\n"
    chunks = b"".join(b"%x\r\n%b\r\n" % (len(line), line) for line in lines)
    return head + chunks + (b"0\r\n\r\n" if end else b"")


async def perform(answer: bytes, *, events: list[Event] | None = None, **arguments: Any) -> Any:
    async def listen(event: Event) -> None:
        assert events is not None
        events.append(event)

    async with answering(Server(answer)) as url:
        lane = HttpLane(url)
        return await lane.perform("call_tool", arguments, calm(), None if events is None else listen)


async def test_what_a_call_says_of_itself_is_in_its_headers() -> None:
    server = Server(whole(b'{"ok": 1}'))
    run = Run("http://gateway", "r", "e1", "solver")
    context = CallContext(call_id="ab" * 8, episode="e1", calls=3).within(5)
    async with answering(server) as url:
        lane = HttpLane(url + "/", "s3cret")
        assert await lane.perform("state", {"session_id": "s-1"}, Outgoing(context, run)) == {"ok": 1}
        await lane.aclose()
    ((line, headers, body),) = server.asked
    assert line == "POST /v1/state HTTP/1.1"
    assert body == {"session_id": "s-1"}
    assert headers["authorization"] == "Bearer s3cret"
    assert headers["session-id"] == "s-1"
    assert headers["accept"] == "application/json"
    assert headers["traceparent"].split("-")[1:3] == [context.trace_id, "ab" * 8]
    assert "agent-env.calls=3" in headers["baggage"]
    assert "solver" not in headers["baggage"]
    assert headers["agent-env-run"]


async def test_an_id_that_no_header_can_hold_is_in_the_body_alone() -> None:
    for session_id in ("sitzung-ü", "a\r\nX-Evil: 1"):
        server = Server(whole(b"{}"))
        async with answering(server) as url:
            await HttpLane(url).perform("state", {"session_id": session_id}, calm())
        assert "session-id" not in server.asked[0][1]
        assert "x-evil" not in server.asked[0][1]
        assert server.asked[0][2] == {"session_id": session_id}


async def test_a_call_without_time_is_not_sent() -> None:
    server = Server(whole(b"{}"))
    async with answering(server) as url:
        with pytest.raises(DeadlineExceeded, match="before state could be sent"):
            await HttpLane(url).perform("state", {}, Outgoing(CallContext().within(0)))
    assert server.asked == []


async def test_a_server_that_says_nothing_is_waited_for_until_the_deadline() -> None:
    server = Server(b"", hold=True)
    async with answering(server) as url:
        with pytest.raises(DeadlineExceeded):
            await HttpLane(url).perform("state", {}, Outgoing(CallContext().within(0.2)))
        await server.left.wait()


async def test_a_stream_that_stalls_is_waited_for_until_the_deadline() -> None:
    server = Server(stream(b'{"type": "text_delta", "text": "a"}\n', end=False), hold=True)
    seen: list[Event] = []

    async def listen(event: Event) -> None:
        seen.append(event)

    async with answering(server) as url:
        with pytest.raises(DeadlineExceeded):
            await HttpLane(url).perform("call_tool", {}, Outgoing(CallContext().within(0.3)), listen)
        await server.left.wait()
    assert seen == [TextDelta("a")]


async def test_cancelling_closes_the_connection() -> None:
    server = Server(b"", hold=True)
    async with answering(server) as url:
        call = asyncio.create_task(HttpLane(url).perform("state", {}, Outgoing(CallContext())))
        await server.arrived.wait()
        call.cancel()
        await asyncio.wait({call})
        assert call.cancelled()
        await server.left.wait()


async def test_events_come_from_lines_however_they_are_cut() -> None:
    text = "é" * 100_000
    lines = (
        json.dumps({"type": "text_delta", "text": text}, ensure_ascii=False).encode()
        + b'\n{"type": "keep_alive"}\n\n{"type": "status", "text": "x"}\n{"result": {"text": "done"}}'
    )
    events: list[Event] = []
    cut = [lines[start : start + 7001] for start in range(0, len(lines), 7001)]
    assert await perform(stream(*cut), events=events) == {"text": "done"}
    assert events == [TextDelta(text), Status("x")]


async def test_an_error_at_the_end_of_a_stream_is_raised() -> None:
    error = AgentFailed("it broke", calls_left=2).to_wire()
    lines = [b'{"type": "text_delta", "text": "a"}\n', json.dumps({"error": error}).encode() + b"\n"]
    events: list[Event] = []
    with pytest.raises(AgentFailed, match="it broke") as failed:
        await perform(stream(*lines), events=events)
    assert failed.value.data["calls_left"] == 2
    assert events == [TextDelta("a")]


async def test_a_server_without_streams_answers_a_call_that_wanted_one() -> None:
    assert await perform(whole(b'{"text": "x"}'), events=[]) == {"text": "x"}


@pytest.mark.parametrize(
    "answer",
    [
        stream(b'{"type": "text_delta", "text": "a"}\n', end=False),
        stream(b'{"type": "text_delta", "text": "a"}\n'),
        b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: 100\r\n\r\n{",
        b"",
        whole(b""),
    ],
    ids=["cut off", "no end", "short", "nothing", "empty"],
)
async def test_an_answer_that_breaks_off_is_a_transport_error(answer: bytes) -> None:
    with pytest.raises(TransportError):
        await perform(answer, events=[])


@pytest.mark.parametrize(
    "answer",
    [
        whole(b"<html>"),
        whole(b"[1]"),
        whole(b"3"),
        stream(b"3\n"),
        stream(b'{"type": "dance"}\n'),
        stream(b'{"result": 3}\n'),
        stream(b"{\n"),
        whole(b"", "302 Found", extra="Location: http://elsewhere\r\n"),
        whole(b"no", "418 I'm a teapot"),
    ],
)
async def test_an_answer_that_the_protocol_does_not_know_is_a_protocol_error(answer: bytes) -> None:
    with pytest.raises(ProtocolError):
        await perform(answer, events=[])


@pytest.mark.parametrize(
    ("answer", "kind"),
    [
        (whole(b"<h1>Bad gateway</h1>", "502 Bad Gateway", "text/html"), TransportError),
        (whole(b"", "401 Unauthorized"), Unauthenticated),
        (whole(b"{}", "413 Too Large"), MessageTooLarge),
        (whole(b"", "429 Too Many Requests", extra="Retry-After: 7\r\n"), AtCapacity),
        (whole(json.dumps({"error": AgentFailed("x").to_wire()}).encode(), "500 Oops"), AgentFailed),
    ],
)
async def test_a_status_is_its_error(answer: bytes, kind: type[AgentEnvError]) -> None:
    with pytest.raises(AgentEnvError) as caught:
        await perform(answer)
    assert type(caught.value) is kind
    if kind is AtCapacity:
        assert caught.value.retry_after == 7


async def test_an_answer_without_end_is_not_read_to_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "MAX_REPLY_BYTES", 1000)
    with pytest.raises(MessageTooLarge, match="more than 1000 bytes"):
        await perform(whole(b'{"text": "' + b"x" * 2000 + b'"}'))


async def test_nobody_there_is_a_transport_error() -> None:
    with anyio.fail_after(10), pytest.raises(TransportError, match=r"127\.0\.0\.1:9"):
        await HttpLane("http://127.0.0.1:9/v1").perform("state", {}, calm())


@pytest.mark.parametrize("error", [LookupError("mine"), TimeoutError("mine"), ConnectionError("mine")])
async def test_a_listener_that_raises_ends_the_call_with_its_own_error(error: Exception) -> None:
    async def deaf(event: Event) -> None:
        raise error

    server = Server(stream(b'{"type": "text_delta", "text": "a"}\n', end=False), hold=True)
    async with answering(server) as url:
        with pytest.raises(type(error), match="mine"):
            await HttpLane(url).perform("call_tool", {}, calm(), deaf)
        await server.left.wait()
