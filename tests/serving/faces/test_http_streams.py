"""Answers in lines: events as they happen, then the result or the error."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import aiohttp
import anyio
import pytest
from starlette.applications import Starlette

from agent_env import AgentEnvironment
from agent_env.net.listening import bound_url, listen
from agent_env.net.serving import served
from agent_env.serving.access import Access
from agent_env.serving.address import PublicAddress
from agent_env.serving.faces.contract import Site
from agent_env.serving.faces.http import HttpFace
from agent_env_wrappers.contract import Status, ToolCall, ToolReturn

pytestmark = pytest.mark.anyio

NDJSON = {"Accept": "application/x-ndjson"}


class Speaker:
    """Says words one by one, and waits between them where it is told to."""

    def __init__(self) -> None:
        self.go_on = asyncio.Event()
        self.stopped = asyncio.Event()
        self.waits = asyncio.Semaphore(0)

    async def __call__(self, message: str) -> AsyncIterator[Any]:
        try:
            for word in message.split():
                match word:
                    case "wait":
                        self.waits.release()
                        await self.go_on.wait()
                    case "fail":
                        raise ValueError("secret internals")
                    case "look":
                        yield Status("looking it up")
                        yield ToolCall("t1", "look", {"up": "it"})
                        yield ToolReturn("t1", [1], is_error=True)
                    case _:
                        yield word
        finally:
            self.stopped.set()


@asynccontextmanager
async def serving(agent: Any, keep_alive_seconds: float = 15.0) -> AsyncGenerator[tuple[str, HttpFace]]:
    """Serves the HTTP face alone."""
    env = AgentEnvironment(agent, name="speaker", version="1.0.0")
    runtime, card = await env.runtime(), await env.card()
    face = HttpFace(Site(runtime, card, Access(), PublicAddress("http://x")), keep_alive_seconds=keep_alive_seconds)

    @asynccontextmanager
    async def lifespan(_: Starlette) -> AsyncGenerator[None]:
        async with face.running():
            yield

    app = Starlette(routes=list(face.routes()), lifespan=lifespan)
    listener = listen()
    url = bound_url(listener)
    with anyio.fail_after(30):
        async with served(app, listener):
            yield url, face
    await env.aclose()


def chat(message: str) -> dict[str, Any]:
    return {"name": "chat", "arguments": {"message": message}}


async def lines(response: aiohttp.ClientResponse) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (await response.text()).splitlines()]


async def test_each_event_is_a_line_and_the_last_one_is_the_result() -> None:
    async with serving(Speaker()) as (url, _), aiohttp.ClientSession() as http:
        async with http.post(f"{url}/v1/call_tool", json=chat("a look é"), headers=NDJSON) as response:
            assert response.status == 200
            assert response.content_type == "application/x-ndjson"
            assert response.headers["cache-control"] == "no-store"
            told = await lines(response)
        async with http.post(f"{url}/v1/call_tool", json=chat("a look é")) as response:
            whole = await response.json()
    assert told[:-1] == [
        {"type": "text_delta", "text": "a", "channel": "answer"},
        {"type": "status", "text": "looking it up"},
        {"type": "tool_call", "id": "t1", "name": "look", "arguments": {"up": "it"}},
        {"type": "tool_return", "id": "t1", "output": [1], "is_error": True},
        {"type": "text_delta", "text": "é", "channel": "answer"},
    ]
    changing = {"session_id", "call_id"}
    assert {key: value for key, value in told[-1]["result"].items() if key not in changing} == {
        key: value for key, value in whole.items() if key not in changing
    }


async def test_lines_come_when_things_happen() -> None:
    agent = Speaker()
    async with (
        serving(agent) as (url, _),
        aiohttp.ClientSession() as http,
        http.post(f"{url}/v1/step", json={"action": "first wait second"}, headers=NDJSON) as response,
    ):
        assert json.loads(await response.content.readline())["text"] == "first"
        assert not agent.go_on.is_set()
        agent.go_on.set()
        assert json.loads(await response.content.readline())["text"] == "second"
        assert json.loads(await response.content.readline())["result"]["observation"] == "firstsecond"
        assert await response.content.readline() == b""


async def test_an_error_after_the_first_event_is_the_last_line() -> None:
    async with (
        serving(Speaker()) as (url, _),
        aiohttp.ClientSession() as http,
        http.post(f"{url}/v1/call_tool", json=chat("a fail"), headers=NDJSON) as response,
    ):
        assert response.status == 200
        first, last = await lines(response)
    assert first["text"] == "a"
    assert last["error"]["code"] == "agent_failed"
    assert "secret" not in str(last)


async def test_an_error_before_the_first_event_keeps_its_status() -> None:
    async with serving(Speaker()) as (url, _), aiohttp.ClientSession() as http:
        for body, status in ((chat("fail"), 500), (chat("a") | {"session_id": "s-x"}, 404)):
            async with http.post(f"{url}/v1/call_tool", json=body, headers=NDJSON) as response:
                assert response.status == status
                assert response.content_type == "application/json"
                assert (await response.json())["error"]["code"]


async def test_a_long_silence_is_kept_alive() -> None:
    agent = Speaker()
    async with (
        serving(agent, keep_alive_seconds=0.02) as (url, _),
        aiohttp.ClientSession() as http,
        http.post(f"{url}/v1/call_tool", json=chat("wait a"), headers=NDJSON) as response,
    ):
        for _ in range(3):
            assert json.loads(await response.content.readline()) == {"type": "keep_alive"}
        agent.go_on.set()
        rest = [json.loads(line) for line in (await response.content.read()).splitlines()]
    assert [line.get("text") for line in rest if line.get("type") == "text_delta"] == ["a"]
    assert rest[-1]["result"]["text"] == "a"


async def test_verbs_without_events_answer_in_one_piece() -> None:
    async with (
        serving(Speaker()) as (url, _),
        aiohttp.ClientSession() as http,
        http.post(f"{url}/v1/reset", json={}, headers=NDJSON) as response,
    ):
        assert response.content_type == "application/json"


async def test_a_reader_that_leaves_in_the_middle_stops_the_speaker() -> None:
    agent = Speaker()
    async with serving(agent) as (url, _), aiohttp.ClientSession() as http:
        async with http.post(f"{url}/v1/call_tool", json=chat("a wait"), headers=NDJSON) as response:
            await response.content.readline()
            response.close()
        with anyio.fail_after(5):
            await agent.stopped.wait()


async def test_a_face_that_stops_tells_its_callers_so(caplog: pytest.LogCaptureFixture) -> None:
    agent = Speaker()
    async with serving(agent) as (url, face), aiohttp.ClientSession() as http:

        async def call(message: str, headers: dict[str, str]) -> tuple[int, dict[str, Any]]:
            async with http.post(f"{url}/v1/call_tool", json=chat(message), headers=headers) as response:
                return response.status, (await lines(response))[-1]

        whole = asyncio.create_task(call("wait", {}))
        streamed = asyncio.create_task(call("a wait", NDJSON))
        with anyio.fail_after(10):
            await agent.waits.acquire()
            await agent.waits.acquire()
            async with face.running():
                pass  # entered again and left: as when the app stops
            (status, error), (_, last) = await whole, await streamed
    assert (status, error["error"]["code"]) == (502, "transport_error")
    assert last["error"]["code"] == "transport_error"
    assert "nothing was changed" in last["error"]["message"]
