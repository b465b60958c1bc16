"""The shared HTTP client, against a real server on loopback."""

from __future__ import annotations

import asyncio
import gc
import json
from collections.abc import AsyncGenerator
from typing import Any

import anyio
import pytest
from aiohttp import web

from agent_env.errors import (
    AgentEnvError,
    AtCapacity,
    DeadlineExceeded,
    Forbidden,
    MessageTooLarge,
    ProtocolError,
    TransportError,
    Unauthenticated,
    UnknownSession,
)
from agent_env.net import bound_url, close_shared_http, get_json, listen, post_json, request_json, shared_http, shown

pytestmark = pytest.mark.anyio


@pytest.fixture
async def url() -> AsyncGenerator[str, None]:
    """A server that answers what it is asked to answer, and echoes JSON."""
    connections: set[Any] = set()

    async def echo(request: web.Request) -> web.Response:
        connections.add(request.transport)
        answer = {
            "method": request.method,
            "body": await request.json() if request.can_read_body else None,
            "token": request.headers.get("Authorization"),
            "cookie": request.headers.get("Cookie"),
            "query": dict(request.query),
            "connections": len(connections),
        }
        response = web.json_response(answer)
        response.set_cookie("who", "somebody")
        return response

    async def say(request: web.Request) -> web.StreamResponse:
        asked = await request.json()
        response = web.Response(status=asked["status"], text=asked.get("text", ""), headers=asked.get("headers", {}))
        if asked.get("compress"):
            response.enable_compression(web.ContentCoding.gzip)
        return response

    async def stream(request: web.Request) -> web.StreamResponse:
        response = web.StreamResponse()
        await response.prepare(request)
        for _ in range(int(request.query["chunks"])):
            await response.write(b'"' + b"x" * 1000 + b'"')
        return response

    async def never(request: web.Request) -> web.Response:
        await asyncio.sleep(60)
        raise AssertionError("nobody waits this long")

    async def drop(request: web.Request) -> web.Response:
        assert request.transport is not None
        request.transport.abort()
        return web.Response()

    async def broken(request: web.Request) -> web.StreamResponse:
        response = web.StreamResponse(headers={"Content-Length": "100"})
        await response.prepare(request)
        await response.write(b"{")
        assert request.transport is not None
        request.transport.close()
        return response

    app = web.Application(client_max_size=2**24)
    for path, handler in {"/echo": echo, "/say": say, "/stream": stream, "/never": never}.items():
        app.router.add_route("*", path, handler)
    app.router.add_get("/drop", drop)
    app.router.add_get("/broken", broken)
    runner = web.AppRunner(app, shutdown_timeout=0.1)
    await runner.setup()
    listener = listen()
    await web.SockSite(runner, listener).start()
    yield bound_url(listener)
    await close_shared_http()
    await runner.cleanup()


async def test_json_goes_out_and_comes_back(url: str) -> None:
    answer = await post_json(f"{url}/echo", {"text": "grüße"}, headers={"Authorization": "Bearer t"})
    assert (answer["method"], answer["body"], answer["token"]) == ("POST", {"text": "grüße"}, "Bearer t")
    answer = await get_json(f"{url}/echo", params={"q": "a b"})
    assert (answer["method"], answer["body"], answer["query"]) == ("GET", None, {"q": "a b"})
    assert await post_json(f"{url}/say", {"status": 204}) is None


async def test_a_large_body_is_sent_whole(url: str) -> None:
    body = {"text": "x" * 2_000_000}
    assert (await post_json(f"{url}/echo", body))["body"] == body


async def test_connections_are_kept_and_cookies_are_not(url: str) -> None:
    for _ in range(3):
        answer = await get_json(f"{url}/echo")
        assert (answer["connections"], answer["cookie"]) == (1, None)


async def test_one_client_is_shared_until_it_is_closed(url: str) -> None:
    client = shared_http()
    assert shared_http() is client
    await close_shared_http()
    assert client.closed and shared_http() is not client


def test_no_loop_leaves_an_open_client_behind() -> None:
    async def use() -> None:
        listener = listen()

        async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            await reader.readuntil(b"\r\n\r\n")
            writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\n{}")
            await writer.drain()
            await reader.read()
            writer.close()

        async with await asyncio.start_server(answer, sock=listener):
            assert await get_json(bound_url(listener)) == {}
            await close_shared_http()

    for _ in range(3):
        asyncio.run(use())
    gc.collect()  # an unclosed client or connection would warn here, and warnings are errors


async def test_an_error_of_ours_is_raised_again(url: str) -> None:
    wire = {"code": "unknown_session", "message": "no such session", "retryable": False, "data": {"session": "s"}}
    with pytest.raises(UnknownSession, match="no such session") as failed:
        await post_json(f"{url}/say", {"status": 404, "text": json.dumps({"error": wire})})
    assert failed.value.data == {"session": "s"}


async def test_retry_after_is_told(url: str) -> None:
    wire = {"code": "at_capacity", "message": "full"}
    ask = {"status": 429, "text": json.dumps({"error": wire}), "headers": {"Retry-After": "7"}}
    with pytest.raises(AtCapacity, match="full") as failed:
        await post_json(f"{url}/say", ask)
    assert failed.value.retry_after == 7
    with pytest.raises(AtCapacity) as failed:
        await post_json(f"{url}/say", {"status": 429, "headers": {"Retry-After": "Fri, 31 Dec 1999 23:59:59 GMT"}})
    assert failed.value.retry_after is None


@pytest.mark.parametrize(
    ("status", "kind"),
    [
        (302, ProtocolError),
        (400, ProtocolError),
        (401, Unauthenticated),
        (403, Forbidden),
        (413, MessageTooLarge),
        (429, AtCapacity),
        (500, ProtocolError),
        (502, TransportError),
        (503, TransportError),
        (504, TransportError),
    ],
)
@pytest.mark.parametrize("text", ["", "<html>", "[]", '{"error": "no"}', '{"error": {"code": "x"}}'])
async def test_an_answer_of_somebody_else_gets_the_error_of_its_status(
    url: str, status: int, text: str, kind: type[AgentEnvError]
) -> None:
    with pytest.raises(kind, match=r"127\.0\.0\.1:\d+/say"):
        await post_json(f"{url}/say", {"status": status, "text": text, "headers": {"Location": "/echo"}})


async def test_what_is_not_json_is_a_protocol_error(url: str) -> None:
    with pytest.raises(ProtocolError, match="answered 200 with what is not JSON"):
        await post_json(f"{url}/say", {"status": 200, "text": "<html>"})


async def test_an_answer_is_read_up_to_its_bound(url: str) -> None:
    assert await request_json("GET", f"{url}/stream?chunks=1", max_bytes=1002) == "x" * 1000
    with pytest.raises(MessageTooLarge, match="more than 1001 bytes"):
        await get_json(f"{url}/stream?chunks=1", max_bytes=1001)
    with pytest.raises(MessageTooLarge, match="more than 4 bytes"):
        await request_json("POST", f"{url}/say", {"status": 200, "text": "123456"}, max_bytes=4)
    bomb = {"status": 200, "text": json.dumps("x" * 100_000), "compress": True}
    with pytest.raises(MessageTooLarge):
        await request_json("POST", f"{url}/say", bomb, headers={"Accept-Encoding": "gzip"}, max_bytes=50_000)
    assert await get_json(f"{url}/stream?chunks=1") == "x" * 1000


async def test_trouble_with_the_connection_names_the_place_without_secrets(url: str) -> None:
    with listen() as closed:
        nowhere = bound_url(closed)
    for place in (f"{nowhere}/a?token=s3cret", f"{url}/drop", "http://nothing.invalid/"):
        with pytest.raises(TransportError, match=r"cannot be reached: .+") as failed:
            await get_json(place)
        assert "s3cret" not in failed.value.message and place.partition("?")[0] in failed.value.message
    with pytest.raises(TransportError, match="not a URL that can be called"):
        await get_json("http://")


async def test_an_answer_that_breaks_off_is_a_protocol_error(url: str) -> None:
    with pytest.raises(ProtocolError, match="broken HTTP response"):
        await get_json(f"{url}/broken")


async def test_time_is_bounded(url: str) -> None:
    with anyio.fail_after(5):
        with pytest.raises(DeadlineExceeded, match="did not answer within the time allowed"):
            await get_json(f"{url}/never", timeout=0.05)


def test_a_url_is_shown_without_its_secrets() -> None:
    assert shown("https://me:pw@host:8000/path?q=1#f") == "https://host:8000/path"
    assert shown("http://[::1/") == "<not a URL>"
