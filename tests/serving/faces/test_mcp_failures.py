"""What the MCP face answers to what it cannot do, and what becomes of turns that nobody waits for."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import aiohttp
import anyio
import pytest
from mcp import Client, MCPError

from agent_env import AgentEnvironment, Limits
from agent_env.net.mcp_verbs import rpc_code

pytestmark = pytest.mark.anyio

ERAS = ("auto", "legacy")
HEADERS = {"Accept": "application/json, text/event-stream", "Content-Type": "application/json"}
HELLO = {
    "protocolVersion": "2025-11-25",
    "capabilities": {},
    "clientInfo": {"name": "raw", "version": "1"},
}


class Waiting:
    """An agent that answers when it is told to, and tells what became of its turns."""

    def __init__(self) -> None:
        self.started = asyncio.Event()
        self.go_on = asyncio.Event()
        self.ended = asyncio.Event()
        self.cancelled = 0

    async def __call__(self, message: str, history: list[dict[str, str]]) -> str:
        if message == "now":
            return f"turn {len(history) // 2 + 1}"
        self.started.set()
        try:
            await self.go_on.wait()
        except asyncio.CancelledError:
            self.cancelled += 1
            self.ended.set()
            raise
        return "late"


async def moody(message: str, history: list[dict[str, str]]) -> str:
    if message == "crash":
        raise ValueError("the password is 1234")
    if message == "sleep":
        await asyncio.sleep(60)
    return f"turn {len(history) // 2 + 1}"


FAILURES: list[tuple[str, dict[str, Any], str, int]] = [
    ("nothing", {}, "unknown_tool", -32602),
    ("chat", {}, "invalid_arguments", -32602),
    ("chat", {"message": 1}, "invalid_arguments", -32602),
    ("chat", {"message": "hi", "volume": 11}, "invalid_arguments", -32602),
    ("chat", {"message": "hi", "session_id": 7}, "invalid_arguments", -32602),
    ("chat", {"message": "hi", "session_id": "never-opened"}, "unknown_session", 404),
    ("chat", {"message": "x" * 2000}, "message_too_large", 413),
    ("chat", {"message": "crash"}, "agent_failed", 500),
    ("chat", {"message": "sleep"}, "deadline_exceeded", 504),
    ("env_step", {}, "invalid_arguments", -32602),
    ("env_fork", {"session_id": "never-opened"}, "unknown_session", 404),
    ("env_call_function", {"name": "nothing"}, "unknown_tool", -32602),
    ("env_reset", {"seed": "seven"}, "invalid_arguments", -32602),
    ("env_reset", {"speed": 7}, "invalid_arguments", -32602),
]


@pytest.mark.parametrize("mode", ERAS)
async def test_what_cannot_be_done_is_a_typed_error_and_leaves_the_session_as_it_was(mode: str) -> None:
    limits = Limits(max_message_bytes=1000, turn_seconds=0.5)
    async with AgentEnvironment(moody, name="moody", limits=limits, hub=False).serving() as server:
        with anyio.fail_after(20):
            async with Client(f"{server.url}/mcp", mode=mode) as client:
                opened = await client.call_tool("chat", {"message": "hi"})
                session = {"session_id": opened.structured_content["session_id"]}
                for number, (tool, arguments, code, rpc) in enumerate(FAILURES):
                    own = session if mode == "auto" and tool == "chat" else {}
                    with pytest.raises(MCPError) as caught:
                        await client.call_tool(tool, own | arguments)
                    assert (caught.value.code, caught.value.data["code"]) == (rpc, code), (tool, arguments)
                    assert caught.value.data["message"] == caught.value.message
                    assert "1234" not in json.dumps(caught.value.data)
                    state = (await client.call_tool("env_state", session)).structured_content
                    assert (state["turns"], state["busy"]) == (1 + number, False), (tool, arguments)
                    again = await client.call_tool("chat", {"message": "hi", **session})
                    assert again.structured_content["text"] == f"turn {2 + number}"
                assert len(server.runtime.sessions) == 1


@pytest.mark.parametrize("mode", ERAS)
async def test_a_call_that_its_client_cancels_is_cancelled_at_once_and_rolled_back(mode: str) -> None:
    agent = Waiting()
    async with AgentEnvironment(agent, name="waiting", hub=False).serving() as server:
        with anyio.fail_after(20):
            async with Client(f"{server.url}/mcp", mode=mode) as client:
                opened = await client.call_tool("chat", {"message": "now"})
                session = {"session_id": opened.structured_content["session_id"]}
                async with anyio.create_task_group() as group:
                    group.start_soon(client.call_tool, "chat", {"message": "wait", **session})
                    await agent.started.wait()
                    group.cancel_scope.cancel()
                await agent.ended.wait()
                assert agent.cancelled == 1
                again = await client.call_tool("chat", {"message": "now", **session})
                assert again.structured_content["text"] == "turn 2"


@pytest.mark.parametrize("mode", ERAS)
async def test_a_client_that_gives_up_waiting_has_its_turn_cancelled(mode: str) -> None:
    agent = Waiting()
    async with AgentEnvironment(agent, name="waiting", hub=False).serving() as server:
        with anyio.fail_after(20):
            async with Client(f"{server.url}/mcp", mode=mode) as client:
                with pytest.raises(MCPError, match="timed out"):
                    await client.call_tool("chat", {"message": "wait"}, read_timeout_seconds=0.3)
                await agent.ended.wait()


async def test_a_handshake_era_client_that_drops_its_connection_has_its_turn_cancelled() -> None:
    agent = Waiting()
    limits = Limits(max_sessions=1)
    async with AgentEnvironment(agent, name="waiting", hub=False, limits=limits).serving() as server:
        with anyio.fail_after(20):
            async with aiohttp.ClientSession(headers=HEADERS) as http:
                url = f"{server.url}/mcp"
                hello = {"jsonrpc": "2.0", "id": 1, "method": "initialize", "params": HELLO}
                async with http.post(url, json=hello) as opened:
                    session = {"Mcp-Session-Id": opened.headers["Mcp-Session-Id"]}
                await http.post(url, json={"jsonrpc": "2.0", "method": "notifications/initialized"}, headers=session)
                call = {"name": "chat", "arguments": {"message": "wait"}}
                body = {"jsonrpc": "2.0", "id": 2, "method": "tools/call", "params": call}
                response = await http.post(url, json=body, headers=session)
                await agent.started.wait()
                response.close()
                await agent.ended.wait()
            # The one place there is becomes free, since nothing of the call is left.
            async with Client(f"{server.url}/mcp") as client:
                assert (await client.call_tool("chat", {"message": "now"})).structured_content["text"] == "turn 1"


async def test_a_server_that_stops_does_not_wait_for_calls_of_the_handshake_era() -> None:
    agent = Waiting()
    env = AgentEnvironment(agent, name="waiting", hub=False)
    with anyio.fail_after(20):
        async with env.serving() as server:
            client = Client(f"{server.url}/mcp", mode="legacy")
            await client.__aenter__()
            before = asyncio.get_running_loop().time()
        assert asyncio.get_running_loop().time() - before < 3
        await client.__aexit__(None, None, None)


def test_codes_are_those_of_json_rpc_where_it_has_one() -> None:
    from agent_env.errors import AgentEnvError, AtCapacity, InvalidArguments, UnknownTool

    assert [rpc_code(kind("")) for kind in (InvalidArguments, UnknownTool, AtCapacity, AgentEnvError)] == [
        -32602,
        -32602,
        429,
        500,
    ]
