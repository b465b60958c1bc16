"""Who may speak to the MCP face, from where, how much, and what clients of either era see of a refusal."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Mapping, Sequence
from contextlib import asynccontextmanager
from typing import Any

import aiohttp
import anyio
import httpx2
import pytest
import uvicorn
from mcp import Client, MCPError
from mcp.client.streamable_http import streamable_http_client
from starlette.applications import Starlette
from starlette.routing import Mount

from agent_env import AgentEnvironment, Limits
from agent_env.client.lanes.contract import Outgoing
from agent_env.client.lanes.mcp import McpLane
from agent_env.context import RUN_HEADER, CallContext, Principal, Route, Run, encode_run
from agent_env.errors import ConfigurationError
from agent_env.net import OutwardGuard, Tokens, listen
from agent_env.serving.access import Access
from agent_env.serving.address import PublicAddress
from agent_env.serving.faces.contract import Site
from agent_env.serving.faces.mcp import McpFace
from agent_env_cards import Interface

pytestmark = pytest.mark.anyio

HEADERS = {"Accept": "application/json, text/event-stream", "Content-Type": "application/json"}
LIST = {"jsonrpc": "2.0", "id": 1, "method": "tools/list", "params": {}}
HELLO = {
    "jsonrpc": "2.0",
    "id": 1,
    "method": "initialize",
    "params": {
        "protocolVersion": "2025-11-25",
        "capabilities": {},
        "clientInfo": {"name": "raw", "version": "1"},
    },
}
TOKENS = Tokens(
    {"ann": Principal("ann", frozenset({"chat"})), "bob": Principal("bob", frozenset({"chat", "orchestrate"}))}
)


async def echo(message: str, history: list[dict[str, str]]) -> str:
    return f"{len(history) // 2 + 1}: {message}"


def served(**options: Any) -> AgentEnvironment:
    return AgentEnvironment(echo, name="echo", version="1.0.0", hub=False, **options)


@asynccontextmanager
async def client(url: str, token: str | None = None, **options: Any) -> AsyncGenerator[Client]:
    headers = {} if token is None else {"Authorization": f"Bearer {token}"}
    async with httpx2.AsyncClient(headers=headers, timeout=20) as http:
        async with Client(streamable_http_client(url, http_client=http), **options) as opened:
            yield opened


@asynccontextmanager
async def post(url: str, body: Any = LIST, **headers: str) -> AsyncGenerator[aiohttp.ClientResponse]:
    named = {name.replace("_", "-"): value for name, value in headers.items()}
    async with aiohttp.ClientSession() as http:
        async with http.post(url, json=body, headers={**HEADERS, **named}) as response:
            yield response


@asynccontextmanager
async def hosted(*, prefix: str = "", card: Mapping[str, Any] | None = None, **options: Any) -> AsyncGenerator[str]:
    """Serves the MCP face alone, as an app of one's own would mount it."""
    env = served()
    facts = (await env.card()).model_copy(update=card)
    face = McpFace(Site(await env.runtime(), facts, Access(), PublicAddress("http://127.0.0.1")), **options)

    @asynccontextmanager
    async def lifespan(_: Starlette) -> AsyncGenerator[None]:
        async with face.running():
            yield

    routes: Sequence[Any] = face.routes()
    app = Starlette(routes=[Mount(prefix, routes=routes)] if prefix else routes, lifespan=lifespan)
    with listen("127.0.0.1", 0) as socket:
        server = uvicorn.Server(uvicorn.Config(app, log_config=None))
        async with anyio.create_task_group() as group:
            group.start_soon(server.serve, [socket])
            try:
                yield f"http://127.0.0.1:{socket.getsockname()[1]}{prefix}/mcp"
            finally:
                server.should_exit = True
    await env.aclose()


@pytest.mark.clause("EC-75")
@pytest.mark.parametrize("token", [None, "wrong"])
async def test_without_a_good_token_nobody_gets_in(token: str | None) -> None:
    async with served(auth=TOKENS).serving() as server:
        headers = {} if token is None else {"Authorization": f"Bearer {token}"}
        with anyio.fail_after(20):
            async with post(f"{server.url}/mcp", **headers) as response:
                assert response.status == 401
                assert response.headers["WWW-Authenticate"].startswith("Bearer")
                error = (await response.json())["error"]
                assert (error["code"], error["data"]["code"]) == (401, "unauthenticated")
            for mode in ("auto", "legacy"):
                with pytest.raises(ExceptionGroup) as caught:
                    async with client(f"{server.url}/mcp", token, mode=mode):
                        pass
                found = caught.value.subgroup(MCPError)
                assert found is not None


async def test_verbs_are_listed_to_orchestrators_and_some_work_for_chatters() -> None:
    async with served(auth=TOKENS).serving() as server:
        with anyio.fail_after(20):
            async with client(f"{server.url}/mcp", "ann") as ann, client(f"{server.url}/mcp", "bob") as bob:
                assert [tool.name for tool in (await ann.list_tools()).tools] == ["chat"]
                assert "env_reset" in [tool.name for tool in (await bob.list_tools()).tools]
                opened = await ann.call_tool("chat", {"message": "hi"})
                session = {"session_id": opened.structured_content["session_id"]}
                assert (await ann.call_tool("env_state", session)).structured_content["turns"] == 1
                with pytest.raises(MCPError) as caught:
                    await ann.call_tool("env_reset", session)
                assert (caught.value.code, caught.value.data["code"]) == (403, "forbidden")
                with pytest.raises(MCPError) as caught:
                    await bob.call_tool("chat", {"message": "hi", **session})
                assert caught.value.data["code"] == "unknown_session"
                assert (await ann.call_tool("env_release", session)).structured_content["released"]


@pytest.mark.clause("EC-75")
async def test_a_token_without_the_scope_chat_sees_no_tools() -> None:
    tokens = Tokens({"eve": Principal("eve", frozenset({"watch"}))})
    async with served(auth=tokens).serving() as server:
        with anyio.fail_after(20):
            async with client(f"{server.url}/mcp", "eve") as eve:
                with pytest.raises(MCPError) as caught:
                    await eve.list_tools()
                assert caught.value.data["code"] == "forbidden"


@pytest.mark.clause("EC-57")
async def test_an_mcp_session_belongs_to_the_principal_that_opened_it() -> None:
    async with served(auth=TOKENS).serving() as server:
        url = f"{server.url}/mcp"
        with anyio.fail_after(20):
            async with post(url, HELLO, Authorization="Bearer ann") as opened:
                session = opened.headers["Mcp-Session-Id"]
            async with post(url, LIST, Authorization="Bearer bob", Mcp_Session_Id=session) as stolen:
                assert stolen.status == 404
            async with post(url, LIST, Authorization="Bearer ann", Mcp_Session_Id=session) as own:
                assert own.status == 200


async def test_a_run_is_taken_from_loopback_or_from_orchestrators_alone() -> None:
    run = encode_run(Run("http://127.0.0.1:9", "r", "e", "seat", {"seat": Route("token", "policy")}))
    async with served(auth=TOKENS).serving() as server:
        with anyio.fail_after(20):
            async with httpx2.AsyncClient(headers={"Authorization": "Bearer ann", RUN_HEADER: run}) as http:
                async with Client(streamable_http_client(f"{server.url}/mcp", http_client=http)) as ann:
                    with pytest.raises(MCPError) as caught:
                        await ann.call_tool("chat", {"message": "hi"})
                    assert caught.value.data["code"] == "forbidden"
                    assert "Agent-Env-Run" in caught.value.message


async def test_a_page_that_calls_this_machine_by_a_name_of_its_own_is_refused() -> None:
    async with served().serving() as server:
        url = f"{server.url}/mcp"
        with anyio.fail_after(20):
            async with post(url, Host="evil.example:80") as response:
                assert response.status == 403
                assert "evil.example" in (await response.json())["error"]["message"]
            async with post(url, Origin="http://evil.example") as response:
                assert response.status == 403
                assert (await response.json())["error"]["data"]["code"] == "forbidden"
            for host in ("localhost", "127.0.0.1:1", "[::1]:80", "LOCALHOST:8000"):
                async with post(url, HELLO, Host=host) as response:
                    assert response.status == 200
            async with post(url, HELLO, Origin=server.url) as response:
                assert response.status == 200


async def test_behind_a_proxy_the_public_name_is_known_too() -> None:
    async with served().serving(public_url="https://agents.example/echo") as server:
        url = f"{server.local_url}/mcp"
        with anyio.fail_after(20):
            async with post(url, HELLO, Host="agents.example") as response:
                assert response.status == 200
            async with post(url, HELLO, Host="agents.example", Origin="https://agents.example") as response:
                assert response.status == 200
            async with post(url, HELLO, Host="other.example") as response:
                assert response.status == 403
            async with client(url) as opened:
                assert opened.server_capabilities.extensions == {
                    "dev.agent-env/env": {"card": "https://agents.example/echo/.well-known/agent-env.json"}
                }


async def test_a_server_that_asks_for_tokens_may_be_called_by_any_name() -> None:
    async with served(auth=TOKENS).serving() as server:
        with anyio.fail_after(20):
            async with post(f"{server.url}/mcp", HELLO, Host="agents.internal", Authorization="Bearer ann") as response:
                assert response.status == 200


async def test_there_is_no_stream_for_what_the_server_says_unasked() -> None:
    async with served().serving() as server:
        with anyio.fail_after(20):
            async with aiohttp.ClientSession() as http:
                async with http.get(f"{server.url}/mcp", headers={"Accept": "text/event-stream"}) as response:
                    assert response.status == 405
                    assert response.headers["Allow"] == "POST, DELETE"


@pytest.mark.clause("EC-74")
@pytest.mark.parametrize("mode", ["auto", "legacy"])
async def test_a_request_that_is_too_large_is_refused_in_the_form_of_the_protocol(mode: str) -> None:
    async with served(limits=Limits(max_message_bytes=1000)).serving() as server:
        with anyio.fail_after(20):
            async with Client(f"{server.url}/mcp", mode=mode) as opened:
                with pytest.raises(MCPError) as caught:
                    await opened.call_tool("chat", {"message": "x" * 200_000})
                assert (caught.value.code, caught.value.data["code"]) == (413, "message_too_large")
                assert (await opened.call_tool("chat", {"message": "hi"})).structured_content["text"] == "1: hi"


async def test_a_request_of_unknown_length_is_bounded_too() -> None:
    async def endless() -> AsyncGenerator[bytes]:
        for _ in range(100):
            yield b" " * 10_000

    async with served(limits=Limits(max_message_bytes=1000)).serving() as server:
        with anyio.fail_after(20):
            async with aiohttp.ClientSession() as http:
                async with http.post(f"{server.url}/mcp", data=endless(), headers=HEADERS) as response:
                    assert response.status == 413
                    assert (await response.json())["error"]["data"]["code"] == "message_too_large"


@pytest.mark.clause("EC-71")
async def test_too_many_mcp_sessions_are_refused_with_a_time_to_wait() -> None:
    async with served(limits=Limits(max_sessions=2)).serving() as server:
        url = f"{server.url}/mcp"
        with anyio.fail_after(20):
            for _ in range(2):
                async with post(url, HELLO) as response:
                    assert response.status == 200
            async with post(url, HELLO) as response:
                assert response.status == 429
                assert response.headers["Retry-After"] == "5"
                assert (await response.json())["error"]["data"]["code"] == "at_capacity"


async def test_the_session_id_is_mirrored_into_a_header_only_where_the_owner_wants_it() -> None:
    seen: list[str | None] = []

    async def note(request: httpx2.Request) -> None:
        seen.append(request.headers.get("Mcp-Param-Session-Id"))

    async def talk(url: str) -> None:
        seen.clear()
        async with httpx2.AsyncClient(event_hooks={"request": [note]}) as http:
            async with Client(streamable_http_client(url, http_client=http)) as opened:
                await opened.list_tools()
                result = await opened.call_tool("chat", {"message": "hi"})
                await opened.call_tool("chat", {"message": "hi", "session_id": result.structured_content["session_id"]})
                seen.append(result.structured_content["session_id"])

    with anyio.fail_after(20):
        async with hosted() as url:
            await talk(url)
            assert set(seen[:-1]) == {None}
        async with hosted(mirror_session_id=True) as url:
            await talk(url)
            assert seen[-2] == seen[-1]
            lane, now = McpLane(url), Outgoing(CallContext().within(20))
            call = {"name": "chat", "arguments": {"message": "hi"}}
            opened = await lane.perform("call_tool", call, now)
            again = await lane.perform("call_tool", {**call, "session_id": opened["session_id"]}, now)
            assert again["text"] == "2: hi"
            await lane.aclose()


@pytest.mark.parametrize("mode", ["auto", "legacy"])
async def test_what_goes_wrong_inside_is_told_to_the_log_alone(mode: str, caplog: pytest.LogCaptureFixture) -> None:
    # Its card says that it has no A2A, so no Agent Card can be made.
    only_mcp = {"interfaces": [Interface(transport="mcp", url="/mcp")]}
    with anyio.fail_after(20):
        async with hosted(card=only_mcp) as url, client(url, mode=mode) as opened:
            agent_card = (await opened.list_resources()).resources[1]
            with pytest.raises(MCPError) as caught:
                await opened.read_resource(agent_card.uri)
    assert (caught.value.code, caught.value.data["code"]) == (-32603, "internal")
    assert "A2A" not in f"{caught.value} {caught.value.data}"
    assert "A2A" in caplog.text


async def test_the_endpoint_works_under_a_prefix() -> None:
    with anyio.fail_after(20):
        async with hosted(prefix="/agents/echo") as url:
            async with client(url) as opened:
                card = url.removesuffix("/mcp") + "/.well-known/agent-env.json"
                assert opened.server_capabilities.extensions == {"dev.agent-env/env": {"card": card}}
                assert (await opened.list_resources()).resources[0].uri == card
                assert (await opened.call_tool("chat", {"message": "hi"})).structured_content["text"] == "1: hi"


async def test_the_face_serves_again_after_it_has_stopped() -> None:
    env = served()
    for _ in range(2):
        async with env.serving() as server:
            with anyio.fail_after(20):
                async with Client(f"{server.url}/mcp", mode="legacy") as opened:
                    assert (await opened.call_tool("chat", {"message": "hi"})).structured_content["text"] == "1: hi"


async def test_names_that_mean_something_else_on_mcp_are_refused_at_start() -> None:
    def env_reset(level: int) -> int:
        return level

    def grade(session_id: str) -> str:
        return session_id

    for tool, message in ((env_reset, "env_reset"), (grade, "session_id")):
        env = served(tools=[tool])
        site = Site(
            await env.runtime(),
            await env.card(),
            Access(guard=OutwardGuard(local=True)),
            PublicAddress("http://127.0.0.1"),
        )
        with pytest.raises(ConfigurationError, match=message):
            McpFace(site)
        await env.aclose()
