"""The data plane at `/agentenv`: JSON-RPC that clients of agent-env.json speak."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from typing import Any

import aiohttp
import anyio
import pytest

from agent_env import AgentEnvironment
from agent_env.context import Principal
from agent_env.net import Tokens
from agent_env.runtime.caller import Caller
from agent_env.runtime.declared import declare
from agent_env.serving.server import Server

pytestmark = pytest.mark.anyio

ALICE, BOB = Principal("alice"), Principal("bob")
NARROW = Principal("narrow", frozenset({"chat"}))


async def counting(message: str, history: list[Any]) -> str:
    return f"{len(history) // 2 + 1}: {message}"


@asynccontextmanager
async def serving(**options: Any) -> AsyncGenerator[Server]:
    env = AgentEnvironment(counting, auth=Tokens({"a": ALICE, "b": BOB, "n": NARROW}), **options)
    with anyio.fail_after(30):
        async with env.serving(register=False) as server:
            yield server


async def rpc(server: Server, body: Any, token: str = "a") -> tuple[int, Any]:
    headers = {"Authorization": f"Bearer {token}", "Content-Type": "application/json"}
    sent: Any = {"data": body} if isinstance(body, bytes) else {"json": body}
    async with (
        aiohttp.ClientSession() as http,
        http.post(f"{server.url}/agentenv", headers=headers, **sent) as response,
    ):
        return response.status, await response.json() if response.status != 204 else None


def request(method: str, **more: Any) -> dict[str, Any]:
    return {"jsonrpc": "2.0", "id": 7, "method": method, **more}


async def say(server: Server, message: str, principal: Principal, session_id: str | None = None) -> Any:
    return await server.runtime.call_tool("chat", {"message": message}, session_id=session_id, caller=Caller(principal))


async def test_reset_starts_the_callers_sessions_anew_and_nobody_elses() -> None:
    async with serving() as server:
        mine = [(await say(server, "x", ALICE)).session_id for _ in range(3)]
        other = (await say(server, "x", BOB)).session_id
        assert await rpc(server, request("data/reset", params={})) == (200, {"jsonrpc": "2.0", "id": 7, "result": {}})
        for session_id in mine:
            assert (await say(server, "y", ALICE, session_id)).text == "1: y"
        assert (await say(server, "y", BOB, other)).text == "2: y"


async def test_a_notification_is_done_and_not_answered() -> None:
    async with serving() as server:
        session_id = (await say(server, "x", ALICE)).session_id
        assert await rpc(server, {"jsonrpc": "2.0", "method": "data/reset"}) == (204, None)
        assert (await say(server, "y", ALICE, session_id)).text == "1: y"


@pytest.mark.parametrize(
    ("body", "code"),
    [
        (request("data/add", params={"parts": []}), -32601),
        (request("data/get"), -32601),
        (request("data/reset", params=[1]), -32602),
        ({"id": 7, "method": "data/reset"}, -32600),
        ([request("data/reset")], -32600),
        (request("data/reset") | {"method": 3}, -32600),
        (b"{", -32700),
    ],
)
async def test_what_is_no_reset_has_the_codes_of_json_rpc(body: Any, code: int) -> None:
    async with serving() as server:
        status, answer = await rpc(server, body)
        assert status == 200
        assert answer["error"]["code"] == code
        assert "result" not in answer


async def test_a_reset_that_fails_is_told_with_why() -> None:
    def start(session: Any) -> str:
        raise ValueError("secret")

    async with serving() as server:
        await say(server, "x", ALICE)
        server.runtime.definition.on_reset = declare(start, name="on_reset")
        status, answer = await rpc(server, request("data/reset"))
    assert status == 200
    assert answer["error"]["code"] == -32000
    assert answer["error"]["data"]["code"] == "reset_failed"
    assert answer["error"]["data"]["error"] == "agent_failed"
    assert "secret" not in str(answer)


async def test_who_may_not_is_refused_in_both_forms() -> None:
    async with serving() as server:
        status, answer = await rpc(server, request("data/reset"), token="wrong")
        assert status == 401
        assert answer["error"]["data"]["code"] == "unauthenticated"
        status, answer = await rpc(server, request("data/reset"), token="n")
        assert status == 200
        assert answer["error"]["data"]["error"] == "forbidden"


async def test_a_failure_inside_the_server_tells_nothing_of_it(caplog: pytest.LogCaptureFixture) -> None:
    class Broken:
        async def record(self, records: Any) -> None:
            raise RuntimeError("secret internals")

    async with serving(recorder=Broken()) as server:
        await server.runtime.reset(caller=Caller(ALICE))
        server.runtime.definition.on_reset = declare(lambda: "go", name="on_reset")
        status, answer = await rpc(server, request("data/reset"))
    assert status == 200
    assert answer["error"]["code"] == -32000
    assert "secret" not in str(answer)
    assert "secret internals" in caplog.text


async def test_a_client_that_goes_away_cancels_its_reset() -> None:
    started, cancelled = asyncio.Event(), asyncio.Event()

    async def start() -> None:
        started.set()
        try:
            await asyncio.Event().wait()
        finally:
            cancelled.set()

    async with serving() as server:
        await say(server, "x", ALICE)
        server.runtime.definition.on_reset = declare(start, name="on_reset")
        call = asyncio.create_task(rpc(server, request("data/reset")))
        await started.wait()
        call.cancel()
        await asyncio.wait({call})
        await cancelled.wait()
