"""The HTTP face, as any HTTP client sees it: verbs, statuses, headers, and what is refused."""

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
from starlette.routing import Mount

from agent_env import AgentEnvironment, Limits
from agent_env.context import CallContext, Principal, Route, Run, encode_run, inject
from agent_env.net import Tokens
from agent_env.net.listening import bound_url, listen
from agent_env.net.serving import served
from agent_env.serving.server import Server

pytestmark = pytest.mark.anyio


class Agent:
    """Counts its turns, waits until it is let go, fails, or tells what it knows about the call."""

    def __init__(self) -> None:
        self.started = anyio.Event()
        self.cancelled = anyio.Event()

    async def __call__(self, message: str, history: list[dict[str, str]], context: dict[str, Any]) -> str:
        if message == "wait":
            self.started.set()
            try:
                await asyncio.Event().wait()
            finally:
                self.cancelled.set()
        if message == "fail":
            raise ValueError("secret internals")
        if message == "context":
            return json.dumps(context)
        return f"{len(history) // 2 + 1}: {message}"


def add(a: int) -> int:
    """Adds one."""
    return a + 1


def length(session: Any) -> float:
    """The length of the reply."""
    return float(len(session.reply))


@asynccontextmanager
async def serving(agent: object | None = None, **options: Any) -> AsyncGenerator[Server]:
    env = AgentEnvironment(agent or Agent(), name="agent", version="1.0.0", **options)
    with anyio.fail_after(30):
        async with env.serving(register=False) as server:
            yield server


@pytest.fixture
async def http() -> AsyncIterator[aiohttp.ClientSession]:
    async with aiohttp.ClientSession() as session:
        yield session


class Answer:
    """An answer: its status, headers and body."""

    def __init__(self, response: aiohttp.ClientResponse, body: bytes) -> None:
        self.status = response.status
        self.headers = response.headers
        self.body = body

    @property
    def json(self) -> Any:
        return json.loads(self.body)

    @property
    def code(self) -> str:
        assert set(self.json) == {"error"}
        assert set(self.json["error"]) == {"code", "message", "retryable", "data"}
        return str(self.json["error"]["code"])


async def ask(http: aiohttp.ClientSession, url: str, body: Any = None, **headers: str) -> Answer:
    sent = {name.replace("_", "-"): value for name, value in headers.items()}
    async with http.post(url, json=body, headers=sent) as response:
        return Answer(response, await response.read())


def chat(message: str, session_id: str | None = None) -> dict[str, Any]:
    return {"name": "chat", "arguments": {"message": message}, "session_id": session_id}


async def test_every_verb_is_one_post(http: aiohttp.ClientSession) -> None:
    async with serving(tools=[add], functions=[add], rewards=[length]) as server:

        async def verb(called: str, /, **arguments: Any) -> Any:
            answer = await ask(http, f"{server.url}/v1/{called}", arguments)
            assert answer.status == 200
            assert answer.headers["content-type"] == "application/json"
            return answer.json

        tools = await verb("list_tools")
        assert [tool["name"] for tool in tools["tools"]] == ["chat", "add"]
        first = await verb("call_tool", name="chat", arguments={"message": "a"})
        session_id = first["session_id"]
        assert (first["text"], first["reward"]) == ("1: a", 4.0)
        step = await verb("step", action="b", session_id=session_id)
        assert (step["observation"], step["terminated"], step["truncated"]) == ("2: b", False, False)
        assert (await verb("state", session_id=session_id))["turns"] == 2
        fork = (await verb("fork", session_id=session_id))["session_id"]
        assert (await verb("call_tool", **chat("c", fork)))["text"] == "3: c"
        assert (await verb("call_function", name="add", arguments={"a": 1}))["result"] == 2
        assert (await verb("call_reward", name="length", session_id=session_id))["value"] == 4.0
        reset = await verb("reset", session_id=session_id, seed=1)
        assert reset == {"session_id": session_id, "observation": None, "info": {"environment": "agent@1.0.0"}}
        assert await verb("release", session_id=session_id) == {"released": True, "session_id": session_id}


async def test_tools_can_be_read_with_a_get_and_nothing_else_can(http: aiohttp.ClientSession) -> None:
    async with serving() as server:
        async with http.get(f"{server.url}/v1/list_tools") as response:
            assert (await response.json())["tools"][0]["name"] == "chat"
        async with http.get(f"{server.url}/v1/state") as response:
            assert response.status == 405
            assert response.headers["allow"] == "POST"


async def test_a_post_without_a_body_has_no_arguments(http: aiohttp.ClientSession) -> None:
    async with serving() as server:
        async with http.post(f"{server.url}/v1/reset") as response:
            assert response.status == 200
            assert (await response.json())["session_id"]
        form = {"Content-Type": "application/x-www-form-urlencoded"}
        async with http.post(f"{server.url}/v1/reset", headers=form) as response:
            assert response.status == 415


async def test_health_is_told_to_everybody_in_these_very_words(http: aiohttp.ClientSession) -> None:
    async with serving(auth={"s3cret": ["chat"]}) as server, http.get(f"{server.url}/health") as response:
        assert response.status == 200
        assert await response.json() == {"status": "healthy", "success": True, "data": {"status": "healthy"}}


async def test_the_paths_of_other_protocols_stay_free(http: aiohttp.ClientSession) -> None:
    async with serving() as server:
        for path in (
            "/reset",
            "/step",
            "/state",
            "/schema",
            "/metadata",
            "/functions",
            "/functions/add",
            "/task/reward",
        ):
            assert (await ask(http, server.url + path, {})).status == 404


# ── errors ─────────────────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.clause("EC-62")
@pytest.mark.parametrize(
    ("verb", "body", "status", "code"),
    [
        ("teleport", {}, 404, "unknown_tool"),
        ("call_tool", {"name": "dance"}, 404, "unknown_tool"),
        ("call_tool", {"name": "chat"}, 422, "invalid_arguments"),
        ("call_tool", {"name": "chat", "mood": 1}, 422, "invalid_arguments"),
        ("call_tool", ["chat"], 422, "invalid_arguments"),
        ("call_tool", chat("x" * 2000), 413, "message_too_large"),
        ("call_tool", chat("x", "s-unknown"), 404, "unknown_session"),
        ("call_tool", {"name": "chat", "arguments": {"parts": [{"type": "file", "mediaType": "a/b", "uri": "x:y"}]}},
         415, "unsupported_content"),
        ("call_tool", chat("fail"), 500, "agent_failed"),
        ("call_tool", chat("wait"), 504, "deadline_exceeded"),
        ("state", {"session_id": "s-unknown"}, 404, "unknown_session"),
        ("call_function", {"name": "dance"}, 404, "unknown_tool"),
    ],
)  # fmt: skip
async def test_each_refusal_has_its_status_and_its_code(
    http: aiohttp.ClientSession, verb: str, body: Any, status: int, code: str
) -> None:
    async with serving(limits=Limits(max_message_bytes=1000, turn_seconds=0.2)) as server:
        answer = await ask(http, f"{server.url}/v1/{verb}", body)
        assert (answer.status, answer.code) == (status, code)
        assert b"secret" not in answer.body
        assert b"Traceback" not in answer.body
        assert len(server.runtime.sessions) == 0


@pytest.mark.clause("EC-71")
async def test_a_full_environment_says_in_a_header_when_to_come_back(http: aiohttp.ClientSession) -> None:
    async with serving(limits=Limits(max_sessions=1, queue_seconds=0.05)) as server:
        await ask(http, f"{server.url}/v1/call_tool", chat("a"))
        answer = await ask(http, f"{server.url}/v1/call_tool", chat("b"))
        assert (answer.status, answer.code) == (429, "at_capacity")
        assert answer.headers["retry-after"] == "1"


@pytest.mark.clause("EC-62")
async def test_a_failure_inside_the_server_tells_nothing_of_it(
    http: aiohttp.ClientSession, caplog: pytest.LogCaptureFixture
) -> None:
    class Broken:
        async def record(self, records: Any) -> None:
            raise RuntimeError("secret internals")

    async with serving(recorder=Broken()) as server:
        answer = await ask(http, f"{server.url}/v1/call_tool", chat("a"))
        assert (answer.status, answer.code) == (500, "internal")
        assert b"secret" not in answer.body
    assert "secret internals" in caplog.text


@pytest.mark.parametrize("body", [b"{", b"\xff", b'{"seed": NaN}', b"[" * 100_000])
async def test_a_body_that_is_no_json_is_refused(http: aiohttp.ClientSession, body: bytes) -> None:
    async with (
        serving() as server,
        http.post(f"{server.url}/v1/reset", data=body, headers={"Content-Type": "application/json"}) as response,
    ):
        answer = Answer(response, await response.read())
        assert (answer.status, answer.code) == (400, "bad_request")


@pytest.mark.parametrize("kind", ["application/x-www-form-urlencoded", "text/plain", "multipart/form-data", ""])
async def test_forms_that_any_page_could_send_are_refused(http: aiohttp.ClientSession, kind: str) -> None:
    async with (
        serving() as server,
        http.post(f"{server.url}/v1/reset", data=b"{}", headers={"Content-Type": kind}) as response,
    ):
        answer = Answer(response, await response.read())
        assert (answer.status, answer.code) == (415, "unsupported_content")
        assert len(server.runtime.sessions) == 0


@pytest.mark.parametrize("kind", ["application/json; charset=utf-8", "application/vnd.agent+json", "Application/JSON"])
async def test_json_may_have_other_names(http: aiohttp.ClientSession, kind: str) -> None:
    async with (
        serving() as server,
        http.post(f"{server.url}/v1/reset", data=b"{}", headers={"Content-Type": kind}) as response,
    ):
        assert response.status == 200


async def test_pages_of_other_origins_are_refused_and_the_servers_own_are_not(http: aiohttp.ClientSession) -> None:
    async with serving() as server:
        foreign = await ask(http, f"{server.url}/v1/reset", {}, Origin="http://evil.example")
        assert (foreign.status, foreign.code) == (403, "forbidden")
        assert (await ask(http, f"{server.url}/v1/reset", {}, Origin=server.url)).status == 200
        async with http.get(f"{server.url}/v1/list_tools", headers={"Origin": "http://evil.example"}) as response:
            assert response.status == 403
    async with serving(auth={"t": ["orchestrate"]}) as server:
        proxied = {"X_Forwarded_Host": "agents.example", "X_Forwarded_Proto": "https", "Authorization": "Bearer t"}
        for origin, status in (("https://agents.example", 200), ("https://other.example", 403)):
            assert (await ask(http, f"{server.url}/v1/reset", {}, Origin=origin, **proxied)).status == status


async def test_a_body_beyond_the_limit_is_refused_before_it_is_read(http: aiohttp.ClientSession) -> None:
    async with serving(limits=Limits(max_message_bytes=1000)) as server:
        port = int(server.url.rpartition(":")[2])
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        head = "POST /v1/reset HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nContent-Length: 1000000\r\n\r\n"
        writer.write(head.encode())
        with anyio.fail_after(5):
            assert b" 413 " in await reader.readline()  # though none of the body was sent
        writer.close()
        await writer.wait_closed()


async def test_a_body_of_unknown_length_is_read_up_to_the_limit(http: aiohttp.ClientSession) -> None:
    read = 0

    async def endless() -> AsyncIterator[bytes]:
        nonlocal read
        while read < 50_000_000:
            read += 1000
            yield b"x" * 1000

    async with serving(limits=Limits(max_message_bytes=1000)) as server:
        try:
            async with http.post(
                f"{server.url}/v1/reset", data=endless(), headers={"Content-Type": "application/json"}
            ) as response:
                answer = Answer(response, await response.read())
                assert (answer.status, answer.code) == (413, "message_too_large")
        except aiohttp.ClientOSError:
            pass  # the server may close before all is sent
        small = [b'{"seed"', b": 1}"]

        async def pieces() -> AsyncIterator[bytes]:
            for piece in small:
                yield piece

        async with http.post(
            f"{server.url}/v1/reset", data=pieces(), headers={"Content-Type": "application/json"}
        ) as response:
            assert response.status == 200


async def test_a_message_of_the_full_size_passes_however_it_is_escaped(http: aiohttp.ClientSession) -> None:
    async with serving(limits=Limits(max_message_bytes=1000)) as server:
        for text in ("x" * 1000, "é" * 500, "界" * 333, "🙂" * 250):  # json.dumps of the client escapes them all
            assert (await ask(http, f"{server.url}/v1/call_tool", chat(text))).status == 200


async def test_text_that_is_no_unicode_is_refused_and_told_all_the_same(http: aiohttp.ClientSession) -> None:
    def echo(text: Any) -> None:
        """Fails with what it was given."""

    async with serving(tools=[echo]) as server:
        answer = await ask(http, f"{server.url}/v1/call_tool", chat("\ud800"))
        assert (answer.status, answer.code) == (422, "invalid_arguments")
        answer = await ask(http, f"{server.url}/v1/call_tool", {"name": "\ud800", "arguments": {"text": "\ud800"}})
        assert (answer.status, answer.code) == (404, "unknown_tool")
        answer = await ask(http, f"{server.url}/v1/call_tool", {"name": "echo", "arguments": {"\ud800": 1}})
        assert (answer.status, answer.code) == (422, "invalid_arguments")


# ── who calls ──────────────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.clause("EC-75")
async def test_tokens_give_principals_and_scopes(http: aiohttp.ClientSession) -> None:
    tokens = Tokens({"alice": Principal("alice", frozenset({"chat"})), "bob": ["chat", "orchestrate"]})
    async with serving(auth=tokens) as server:
        url = f"{server.url}/v1/call_tool"
        none = await ask(http, url, chat("a"))
        assert (none.status, none.code) == (401, "unauthenticated")
        assert none.headers["www-authenticate"] == "Bearer"
        assert (await ask(http, url, chat("a"), Authorization="Bearer eve")).status == 401
        opened = await ask(http, url, chat("a"), Authorization="Bearer alice")
        session_id = opened.json["session_id"]
        foreign = await ask(http, url, chat("b", session_id), Authorization="Bearer bob")
        assert (foreign.status, foreign.code) == (404, "unknown_session")
        narrow = await ask(http, f"{server.url}/v1/reset", {}, Authorization="Bearer alice")
        assert (narrow.status, narrow.code) == (403, "forbidden")
        assert narrow.headers["www-authenticate"] == 'Bearer error="insufficient_scope", scope="orchestrate"'
        async with http.get(f"{server.url}/v1/list_tools") as response:
            assert response.status == 401


@pytest.mark.clause("EC-55")
async def test_the_session_header_of_routers_says_what_the_argument_says(http: aiohttp.ClientSession) -> None:
    async with serving() as server:
        url = f"{server.url}/v1/call_tool"
        session_id = (await ask(http, url, chat("a"))).json["session_id"]
        assert (await ask(http, url, chat("b", session_id), Session_Id=session_id)).json["text"] == "2: b"
        assert (await ask(http, url, chat("c"), Session_Id=session_id)).json["text"] == "3: c"
        differs = await ask(http, url, chat("d", session_id), Session_Id="s-other")
        assert (differs.status, differs.code) == (422, "invalid_arguments")
        assert (await ask(http, url, chat("d"), Session_Id="s-other")).code == "unknown_session"
        assert (await ask(http, f"{server.url}/v1/list_tools", {}, Session_Id="s-other")).status == 200


async def test_the_call_context_comes_in_headers(http: aiohttp.ClientSession) -> None:
    async with serving() as server:
        context = CallContext(call_id="ab" * 8, episode="e 1", calls=3)
        answer = await ask(http, f"{server.url}/v1/call_tool", chat("context"), **inject(context))
        told = json.loads(answer.json["text"])
        assert (told["trace_id"], told["episode"], told["depth"]) == (context.trace_id, "e 1", 0)
        assert answer.json["calls_left"] == 3
        late = await ask(http, f"{server.url}/v1/call_tool", chat("wait"), baggage="agent-env.ms=50")
        assert (late.status, late.code) == (504, "deadline_exceeded")
        odd = await ask(http, f"{server.url}/v1/call_tool", chat("a"), baggage="agent-env.calls=many")
        assert (odd.status, odd.code) == (422, "invalid_arguments")


async def test_a_run_is_taken_from_whom_the_owner_allows(http: aiohttp.ClientSession) -> None:
    run = encode_run(Run("http://127.0.0.1:1", "r", "e9", "solver", {"other": Route("t", "m")}))
    async with serving() as server:
        answer = await ask(http, f"{server.url}/v1/call_tool", chat("context"), Agent_Env_Run=run)
        told = json.loads(answer.json["text"])
        assert (told["episode"], told["seat"]) == ("e9", "solver")
        assert (await ask(http, f"{server.url}/v1/call_tool", chat("a"), Agent_Env_Run="%")).code == "invalid_arguments"
    async with serving(auth={"narrow": "chat"}) as server:
        headers = {"Agent_Env_Run": run, "Authorization": "Bearer narrow"}
        answer = await ask(http, f"{server.url}/v1/call_tool", chat("a"), **headers)
        assert (answer.status, answer.code) == (403, "forbidden")


# ── going away ─────────────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("accept", ["application/json", "application/x-ndjson"])
async def test_a_client_that_goes_away_cancels_its_turn_at_once(http: aiohttp.ClientSession, accept: str) -> None:
    agent = Agent()
    async with serving(agent) as server:
        url = f"{server.url}/v1/call_tool"
        session_id = (await ask(http, url, chat("a"))).json["session_id"]
        call = asyncio.create_task(ask(http, url, chat("wait", session_id), Accept=accept))
        with anyio.fail_after(5):
            await agent.started.wait()
            call.cancel()
            await asyncio.wait({call})
            await agent.cancelled.wait()
            assert (await ask(http, url, chat("b", session_id))).json["text"] == "2: b"


async def test_a_client_that_goes_away_while_it_sends_leaves_nothing(http: aiohttp.ClientSession) -> None:
    async with serving() as server:
        port = int(server.url.rpartition(":")[2])
        _, writer = await asyncio.open_connection("127.0.0.1", port)
        head = "POST /v1/reset HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nContent-Length: 100\r\n\r\n{"
        writer.write(head.encode())
        await writer.drain()
        writer.close()
        await writer.wait_closed()
        assert (await ask(http, f"{server.url}/v1/list_tools", {})).status == 200
        assert len(server.runtime.sessions) == 0


async def test_everything_works_under_a_path_prefix(http: aiohttp.ClientSession) -> None:
    env = AgentEnvironment(Agent(), name="agent", version="1.0.0")
    app = env.app(local=True)

    @asynccontextmanager
    async def lifespan(_: Starlette) -> AsyncGenerator[None]:
        # A mounted app has no lifespan of its own: whoever mounts it runs it.
        started, stop = asyncio.Event(), asyncio.Event()
        messages = iter([{"type": "lifespan.startup"}])

        async def receive() -> Any:
            try:
                return next(messages)
            except StopIteration:
                await stop.wait()
                return {"type": "lifespan.shutdown"}

        async def send(message: Any) -> None:
            started.set()

        task = asyncio.create_task(app({"type": "lifespan", "state": {}}, receive, send))
        await started.wait()
        yield
        stop.set()
        await task

    outer = Starlette(routes=[Mount("/sandbox/7", app)], lifespan=lifespan)
    listener = listen()
    url = bound_url(listener)
    with anyio.fail_after(30):
        async with served(outer, listener):
            base = url + "/sandbox/7"
            assert (await ask(http, f"{base}/v1/call_tool", chat("a"))).json["text"] == "1: a"
            assert (await ask(http, f"{url}/v1/call_tool", chat("a"))).status == 404
            async with http.get(f"{base}/health") as response:
                assert response.status == 200
            async with http.get(f"{base}/docs") as response:
                page = await response.text()
                assert "url: 'openapi.json'" in page  # beside the page, wherever that is
            async with http.get(f"{base}/openapi.json") as response:
                assert (await response.json())["servers"] == [{"url": base}]
