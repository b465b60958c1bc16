"""Under which addresses an environment is known: on its cards, behind proxies, and below a path prefix."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Mapping
from contextlib import asynccontextmanager
from typing import Any

import aiohttp
import anyio
import pytest
from starlette.requests import HTTPConnection
from starlette.types import ASGIApp, Receive, Scope, Send

from agent_env import AgentEnvironment, Environment
from agent_env.client.lanes.websocket import close_sockets
from agent_env.net import bound_url, listen
from agent_env.net.serving import served
from agent_env.serving.address import PublicAddress
from agent_env_cards import CARD_PATH, EnvironmentCard

pytestmark = pytest.mark.anyio

FALLBACK = "http://127.0.0.1:8000"


async def echo(message: str) -> str:
    return message


def connection(headers: Mapping[str, str], client: str = "127.0.0.1", root_path: str = "") -> HTTPConnection:
    raw = [(name.lower().encode(), value.encode()) for name, value in headers.items()]
    return HTTPConnection(
        {"type": "http", "scheme": "http", "headers": raw, "client": (client, 5000), "root_path": root_path}
    )


@asynccontextmanager
async def http() -> AsyncGenerator[aiohttp.ClientSession]:
    with anyio.fail_after(20):
        async with aiohttp.ClientSession() as session:
            yield session


# ── the base URL of a request ──────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    ("headers", "base"),
    [
        ({"Host": "agents.example:8443"}, "http://agents.example:8443"),
        ({"Host": "0.0.0.0:8000"}, FALLBACK),
        ({"Host": "0.0.0.0"}, FALLBACK),
        ({"Host": "[::]:8000"}, FALLBACK),
        ({"Host": ""}, FALLBACK),
        ({}, FALLBACK),
        ({"Host": "[::1]:8000"}, "http://[::1]:8000"),
        ({"Host": "x", "X-Forwarded-Host": "agents.example, inner"}, "http://agents.example"),
        ({"Host": "x", "X-Forwarded-Proto": "https"}, "https://x"),
        ({"Host": "x", "X-Forwarded-Prefix": "/sandbox/7/"}, "http://x/sandbox/7"),
        ({"Host": "x", "X-Forwarded-Prefix": "sandbox"}, "http://x/sandbox"),
        ({"Host": "0.0.0.0:1", "X-Forwarded-Prefix": "/a"}, f"{FALLBACK}/a"),
    ],
)
async def test_a_request_tells_its_base_url(headers: dict[str, str], base: str) -> None:
    assert PublicAddress(FALLBACK).base(connection(headers)) == base


@pytest.mark.parametrize(
    ("root_path", "forwarded", "base"),
    [
        ("/inner", "", "http://x/inner"),
        ("/inner", "/outer", "http://x/outer/inner"),
        ("/outer", "/outer", "http://x/outer"),
        ("/outer/inner", "/outer", "http://x/outer/inner"),
        ("/outermost", "/outer", "http://x/outer/outermost"),
        ("", "/", "http://x"),
    ],
)
async def test_a_mount_lies_below_what_the_proxy_took_off(root_path: str, forwarded: str, base: str) -> None:
    headers = {"Host": "x", "X-Forwarded-Prefix": forwarded}
    assert PublicAddress(FALLBACK).base(connection(headers, root_path=root_path)) == base


async def test_only_trusted_proxies_are_believed() -> None:
    headers = {"Host": "x", "X-Forwarded-Host": "evil.example", "X-Forwarded-Proto": "https"}
    stranger, proxy = "203.0.113.9", "10.0.0.1"
    assert PublicAddress(FALLBACK).base(connection(headers, stranger)) == "http://x"
    assert PublicAddress(FALLBACK).base(connection(headers)) == "https://evil.example"
    trusting = PublicAddress(FALLBACK, trusted_proxies=[proxy])
    assert trusting.base(connection(headers, proxy)) == "https://evil.example"
    assert trusting.base(connection(headers)) == "http://x"


async def test_a_public_url_wins_over_everything() -> None:
    address = PublicAddress(FALLBACK, "https://agents.example/echo/")
    assert address.base(connection({"Host": "x", "X-Forwarded-Host": "y"})) == "https://agents.example/echo"


# ── the card on the wire ───────────────────────────────────────────────────────────────────────────────────────────


async def test_a_card_is_sent_once_and_then_not_modified() -> None:
    async with AgentEnvironment(echo).serving() as server, http() as session:
        url = server.url + CARD_PATH
        async with session.get(url) as first:
            tag = first.headers["ETag"]
            assert first.content_type == "application/json"
            assert EnvironmentCard.parse(await first.json()).digest() == server.card.digest()
        for known in (tag, f'"other", {tag}', f"W/{tag}", "*"):
            async with session.get(url, headers={"If-None-Match": known}) as again:
                assert (again.status, await again.read(), again.headers["ETag"]) == (304, b"", tag)
        async with session.get(url, headers={"If-None-Match": '"other"'}) as again:
            assert again.status == 200
        async with session.head(url) as head:
            assert (head.status, head.headers["ETag"]) == (200, tag)


async def test_a_card_with_other_instance_facts_is_another_document() -> None:
    tags: list[str] = []
    for auth in (None, {"s3cret": ["chat"]}):
        async with AgentEnvironment(echo, auth=auth).serving() as server, http() as session:
            async with session.get(server.url + CARD_PATH) as response:
                tags.append(response.headers["ETag"])
    assert tags[0] != tags[1]


async def test_what_is_not_there_is_told_in_json() -> None:
    async with AgentEnvironment(echo).serving() as server, http() as session:
        async with session.get(server.url + "/nowhere") as response:
            error = (await response.json())["error"]
            assert (response.status, error["code"]) == (404, "unknown_tool")
            assert CARD_PATH in error["message"]
        async with session.put(server.url + CARD_PATH) as response:
            error = (await response.json())["error"]
            assert (response.status, error["code"]) == (405, "unknown_tool")
            assert "GET" in response.headers["Allow"] and "GET" in error["message"]


async def test_bound_to_every_address_it_is_known_by_one_that_can_be_reached() -> None:
    async with AgentEnvironment(echo, version="1.0.0").serving("0.0.0.0", insecure=True) as server, http() as session:
        assert server.url.startswith("http://127.0.0.1:")
        port = server.url.rpartition(":")[2]
        for path in (CARD_PATH, "/.well-known/agent-card.json", "/.well-known/agent.json", "/openapi.json"):
            async with session.get(server.url + path, headers={"Host": f"0.0.0.0:{port}"}) as response:
                assert response.status == 200
                assert "0.0.0.0" not in await response.text()
        async with Environment("echo@1.0.0", lane="http") as env:
            assert (await env.chat("hi")).text == "hi"


@pytest.mark.clause("EC-52")
async def test_behind_a_proxy_the_agent_card_has_the_address_that_the_client_used() -> None:
    headers = {"X-Forwarded-Host": "agents.example", "X-Forwarded-Proto": "https", "X-Forwarded-Prefix": "/echo"}
    async with AgentEnvironment(echo).serving() as server, http() as session:
        async with session.get(server.url + "/.well-known/agent-card.json", headers=headers) as response:
            assert response.headers["Vary"] == "Host, X-Forwarded-Host, X-Forwarded-Proto, X-Forwarded-Prefix"
            interfaces = (await response.json())["supportedInterfaces"]
        assert {face["url"] for face in interfaces} == {
            "https://agents.example/echo/a2a",
            "https://agents.example/echo/a2a/rest",
        }
    async with AgentEnvironment(echo).serving(trusted_proxies=["10.0.0.1"]) as server, http() as session:
        async with session.get(server.url + "/.well-known/agent-card.json", headers=headers) as response:
            interfaces = (await response.json())["supportedInterfaces"]
        assert all(face["url"].startswith(server.url) for face in interfaces)


async def test_with_a_public_url_every_card_and_the_hub_have_it() -> None:
    async with AgentEnvironment(echo).serving(public_url="https://agents.example/echo/") as server, http() as session:
        assert server.url == "https://agents.example/echo"
        assert server.local_url.startswith("http://127.0.0.1:")
        assert server.urls["websocket"] == "wss://agents.example/echo/v1/ws"
        assert server.urls["mcp"] == "https://agents.example/echo/mcp"
        async with session.get(server.local_url + "/.well-known/agent.json") as response:
            assert (await response.json())["url"] == "https://agents.example/echo/a2a"


# ── a path prefix ──────────────────────────────────────────────────────────────────────────────────────────────────


def below(prefix: str, app: ASGIApp) -> ASGIApp:
    """Serves an app below a path, as a framework mounts it (`root_path` in ASGI)."""

    async def mounted(scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "lifespan":
            assert scope["path"].startswith(prefix)
            scope = {**scope, "root_path": prefix}
        await app(scope, receive, send)

    return mounted


def taken_off(prefix: str, app: ASGIApp) -> ASGIApp:
    """Takes a prefix off the path, as a proxy does, and says so."""

    async def proxied(scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "lifespan":
            path = scope["path"].removeprefix(prefix)
            headers = [*scope["headers"], (b"x-forwarded-prefix", prefix.encode())]
            scope = {**scope, "path": path, "raw_path": path.encode(), "headers": headers}
        await app(scope, receive, send)

    return proxied


@pytest.mark.clause("EC-52")
@pytest.mark.parametrize("put", [below, taken_off])
async def test_every_url_works_below_a_path_prefix(put: Any) -> None:
    app = put("/sandbox/7", AgentEnvironment(echo, name="echo").app(local=True))
    listener = listen()
    url = bound_url(listener) + "/sandbox/7"
    with anyio.fail_after(40):
        async with served(app, listener, max_frame_bytes=2**20), http() as session:
            for lane in ("websocket", "http", "mcp", "a2a"):
                async with Environment(url, lane=lane) as env:
                    assert (await env.chat(lane)).text == lane
            async with session.get(url + CARD_PATH) as response:
                card = EnvironmentCard.parse(await response.json())
            async with session.get(url + (card.agent_card or "")) as response:
                agent_card = await response.json()
            interfaces = {face["url"] for face in agent_card["supportedInterfaces"]}
            assert interfaces == {f"{url}/a2a", f"{url}/a2a/rest"}
            for path in ("/health", "/docs", "/openapi.json", "/.well-known/agent.json"):
                async with session.get(url + path) as response:
                    assert response.status == 200, path
            await close_sockets()


async def test_an_app_whose_lifespan_did_not_run_says_what_is_missing(caplog: pytest.LogCaptureFixture) -> None:
    listener = listen()
    async with served(AgentEnvironment(echo).app(), listener, lifespan=False), http() as session:
        async with session.get(bound_url(listener) + "/health") as response:
            assert response.status == 500
    assert "starts with its server's lifespan" in caplog.text


async def test_an_app_that_cannot_start_fails_its_server_with_the_reason(caplog: pytest.LogCaptureFixture) -> None:
    from agent_env.errors import ConfigurationError

    app = AgentEnvironment(lambda message: message).app()
    with pytest.raises(ConfigurationError, match="the app did not start"):
        async with served(app, listen()):
            raise AssertionError("it must not be served")
    assert "give one: name='my-agent'" in caplog.text
