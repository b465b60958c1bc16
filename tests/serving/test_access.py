"""Who may call what: tokens and scopes, pages in browsers, and runs, the same on every face."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Sequence
from contextlib import asynccontextmanager
from typing import Any

import aiohttp
import anyio
import pytest
from starlette.types import ASGIApp, Receive, Scope, Send

from agent_env import AgentEnvironment, Environment, Limits
from agent_env.client.lanes.websocket import close_sockets
from agent_env.client.resolution import LaneName
from agent_env.context import RUN_HEADER, CallContext, Principal, Record, Route, Run, encode_run
from agent_env.errors import AgentEnvError, ConfigurationError, Forbidden, Unauthenticated, UnknownSession
from agent_env.net import OutwardGuard, Tokens, bound_url, listen
from agent_env.net.serving import served
from agent_env.serving.access import Access
from agent_env.serving.address import PublicAddress

pytestmark = pytest.mark.anyio

LANES: Sequence[LaneName] = ("websocket", "http", "mcp", "a2a")
TOKENS = {
    "t-alice": Principal("alice", frozenset({"chat"})),
    "t-bob": Principal("bob", frozenset({"chat"})),
    "t-trainer": Principal("trainer", frozenset({"chat", "orchestrate"})),
    "t-nobody": Principal("nobody", frozenset()),
}
INITIALIZE = {
    "jsonrpc": "2.0",
    "id": 1,
    "method": "initialize",
    "params": {"protocolVersion": "2025-11-25", "capabilities": {}, "clientInfo": {"name": "test", "version": "1"}},
}


async def counting(message: str, history: list[dict[str, str]]) -> str:
    return f"{len(history) // 2 + 1}: {message}"


@asynccontextmanager
async def guarded(**options: Any) -> AsyncGenerator[str]:
    """An environment that asks for tokens, with everything that a scope may be needed for."""
    env = AgentEnvironment(counting, name="counting", auth=TOKENS, **options)

    @env.function
    def peek() -> int:
        return 42

    @env.reward
    def one() -> float:
        return 1.0

    with anyio.fail_after(30):
        async with env.serving(register=False) as server:
            yield server.url
            await close_sockets()


# ── tokens ─────────────────────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("lane", LANES)
@pytest.mark.parametrize("token", [None, "wrong"])
async def test_without_a_good_token_nobody_is_answered(lane: LaneName, token: str | None) -> None:
    async with guarded() as url:
        env = Environment(url, lane=lane, auth=token)
        assert (await env.initialize()).card.auth is not None  # the card says what to bring
        with pytest.raises(Unauthenticated, match="token"):
            await env.chat("hi")


@pytest.mark.parametrize("lane", LANES)
async def test_a_scope_is_needed_for_every_verb_and_named_in_the_refusal(lane: LaneName) -> None:
    async with guarded() as url:
        async with Environment(url, lane=lane, auth="t-alice") as alice:
            assert (await alice.chat("hi")).text == "1: hi"
            assert (await alice.state())["turns"] == 1
            assert [tool["name"] for tool in await alice.list_tools()] == ["chat"]
            for refused in (
                alice.reset(),
                alice.step("hi"),
                alice.fork(),
                alice.call_function("peek"),
                alice.call_reward("one"),
            ):
                with pytest.raises(Forbidden, match="'orchestrate'"):
                    await refused
            assert (await alice.chat("again")).text == "2: again"
        async with Environment(url, lane=lane, auth="t-trainer") as trainer:
            assert (await trainer.step("hi")).reward == 1.0
            assert await trainer.call_function("peek") == 42
            assert await trainer.call_reward("one") == 1.0
        nobody = Environment(url, lane=lane, auth="t-nobody")
        with pytest.raises(Forbidden, match="'chat'"):
            await nobody.chat("hi")


@pytest.mark.parametrize("lane", LANES)
async def test_a_session_belongs_to_its_principal(lane: LaneName) -> None:
    async with guarded() as url, Environment(url, lane=lane, auth="t-alice") as alice:
        session_id = (await alice.chat("a secret")).session_id
        bob = Environment(url, lane=lane, auth="t-bob", session_id=session_id)
        for attempt in (bob.chat("what was it?"), bob.state()):
            with pytest.raises(UnknownSession):
                await attempt
        await bob.release()
        assert (await alice.chat("still mine")).text == "2: still mine"


# ── binding and the network ────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("host", ["0.0.0.0", "::"])
async def test_beyond_loopback_tokens_are_needed_or_a_word_of_the_owner(host: str) -> None:
    env = AgentEnvironment(counting)
    with pytest.raises(ConfigurationError, match=r"lets everybody on the network in.*insecure=True"):
        async with env.serving(host):
            raise AssertionError("it must not be served")
    assert env._runtime is None
    async with AgentEnvironment(counting, auth=TOKENS).serving("0.0.0.0", register=False) as server:
        async with Environment(server.url, lane="http", auth="t-alice") as alice:
            assert (await alice.chat("hi")).text == "1: hi"


def coming_from(client: str, app: ASGIApp) -> ASGIApp:
    """The app as somebody at this address reaches it."""

    async def app_from(scope: Scope, receive: Receive, send: Send) -> None:
        await app({**scope, "client": (client, 4711)} if scope["type"] != "lifespan" else scope, receive, send)

    return app_from


async def test_an_app_on_somebody_elses_server_answers_this_machine_alone() -> None:
    async def chat(app: ASGIApp, lane: LaneName) -> str:
        listener = listen()
        async with served(app, listener, max_frame_bytes=2**20):
            try:
                async with Environment(bound_url(listener), lane=lane) as env:
                    return (await env.chat("hi")).text
            finally:
                await close_sockets()

    with anyio.fail_after(30):
        for lane in LANES:
            with pytest.raises(Unauthenticated, match="answers only this machine"):
                await chat(coming_from("203.0.113.9", AgentEnvironment(counting).app()), lane)
        assert await chat(coming_from("203.0.113.9", AgentEnvironment(counting).app(insecure=True)), "http") == "1: hi"
        for local in ("127.0.0.1", "::1", "testclient"):
            assert await chat(coming_from(local, AgentEnvironment(counting).app()), "http") == "1: hi"


# ── pages in browsers ──────────────────────────────────────────────────────────────────────────────────────────────

FACES = [
    ("POST", "/v1/call_tool", {"name": "chat", "arguments": {"message": "hi"}}),
    ("GET", "/v1/list_tools", None),
    ("POST", "/mcp", INITIALIZE),
    ("POST", "/a2a", {"jsonrpc": "2.0", "id": 1, "method": "GetTask", "params": {"id": "t"}}),
    ("GET", "/v1/ws", None),
]


async def status(url: str, method: str, body: Any, **headers: str) -> tuple[int, str]:
    accept = {"Accept": "application/json, text/event-stream", "A2A-Version": "1.0"}
    async with aiohttp.ClientSession() as session:
        async with session.request(method, url, json=body, headers={**accept, **headers}) as response:
            return response.status, await response.text()


@pytest.mark.parametrize(("method", "path", "body"), FACES)
async def test_pages_of_other_origins_get_no_answer_on_any_face(method: str, path: str, body: Any) -> None:
    async with AgentEnvironment(counting).serving(register=False) as server:
        url = server.url + path
        allowed = 426 if path == "/v1/ws" else 200  # a plain request for a socket is told to make one
        own = {"Origin": server.url}
        assert (await status(url, method, body, **own))[0] == allowed
        assert (await status(url, method, body))[0] == allowed
        refused, told = await status(url, method, body, Origin="https://evil.example")
        assert refused == 403 and "evil.example" in told
        # A name of the page's own, which leads here (DNS rebinding), makes it the same origin.
        rebound = {"Host": "evil.example:80", "Origin": "http://evil.example:80"}
        refused, told = await status(url, method, body, **rebound)
        assert refused == 403 and "evil.example" in told


async def test_the_public_name_is_an_own_name_too() -> None:
    async with AgentEnvironment(counting).serving(register=False, public_url="https://agents.example/a") as server:
        for method, path, body in FACES[:4]:
            named = {"Host": "agents.example", "Origin": "https://agents.example"}
            assert (await status(server.local_url + path, method, body, **named))[0] == 200
            # Behind a proxy that keeps the inner Host, the page's origin is the public one.
            assert (await status(server.local_url + path, method, body, Origin="https://agents.example"))[0] == 200


async def test_where_tokens_are_asked_for_any_name_will_do() -> None:
    async with guarded() as url:
        bearer = {"Authorization": "Bearer t-alice", "Host": "inner.example"}
        assert (await status(f"{url}/v1/list_tools", "GET", None, **bearer))[0] == 200


async def test_a_socket_of_another_origin_is_not_opened() -> None:
    async with AgentEnvironment(counting).serving(register=False) as server, aiohttp.ClientSession() as session:
        with pytest.raises(aiohttp.WSServerHandshakeError) as refused:
            await session.ws_connect(f"{server.url}/v1/ws", headers={"Origin": "https://evil.example"})
        assert refused.value.status == 403


# ── runs ───────────────────────────────────────────────────────────────────────────────────────────────────────────

RUN = Run("http://127.0.0.1:9", "r", "e", "solver", {"solver": Route("token", "policy")})


def access(**fields: Any) -> Access:
    return Access(**fields)


@pytest.mark.parametrize("host", ["127.0.0.1", "::1", "127.8.8.8"])
async def test_a_run_is_taken_from_this_machine(host: str) -> None:
    caller = access(guard=OutwardGuard(local=True)).caller(Principal(), {}, encode_run(RUN), host)
    assert caller.run == RUN and caller.recorder is not None


@pytest.mark.parametrize("host", ["203.0.113.9", "10.0.0.1", None, ""])
async def test_a_run_is_not_taken_from_elsewhere_without_a_token(host: str | None) -> None:
    with pytest.raises(Forbidden, match="only from loopback"):
        access(insecure=True).caller(Principal(), {}, encode_run(RUN), host)


async def test_with_tokens_a_run_needs_the_scope_wherever_it_comes_from() -> None:
    tokens = Tokens(TOKENS)
    with pytest.raises(Forbidden) as refused:
        access(tokens=tokens).caller(TOKENS["t-alice"], {}, encode_run(RUN), "127.0.0.1")
    assert refused.value.data["scope"] == "orchestrate"
    caller = access(tokens=tokens).caller(TOKENS["t-trainer"], {}, encode_run(RUN), "203.0.113.9")
    assert caller.run == RUN


async def test_without_a_run_records_go_where_the_owner_said() -> None:
    class Kept:
        async def record(self, records: Sequence[Record]) -> None: ...

    kept = Kept()
    assert access(recorder=kept).caller(Principal(), {}, None, None).recorder is kept
    unrouted = Run("http://127.0.0.1:9", "r", "e", "critic", {"solver": Route("token", "policy")})
    assert access(recorder=kept).caller(Principal(), {}, encode_run(unrouted), "127.0.0.1").recorder is kept


async def test_a_run_cannot_make_a_server_call_what_its_guard_forbids() -> None:
    for gateway in ("http://169.254.169.254/latest", "http://127.0.0.1:9"):
        run = Run(gateway, "r", "e", "solver", {"solver": Route("token", "policy")})
        caller = access(tokens=Tokens(TOKENS)).caller(TOKENS["t-trainer"], {}, encode_run(run), "203.0.113.9")
        assert caller.recorder is not None
        with pytest.raises(Forbidden, match="does not call"):
            await caller.recorder.record([{"kind": "turn"}])


@pytest.mark.parametrize("lane", LANES)
async def test_a_run_is_refused_on_every_face_from_who_may_not_bring_one(lane: LaneName) -> None:
    from agent_env.client.lanes.contract import Outgoing
    from agent_env.client.resolution import reach

    async with guarded() as url:
        for token, allowed in (("t-alice", False), ("t-trainer", True)):
            reached = await reach(url, lane=lane, token=token, hub=None, seconds=10)
            run = Run("http://127.0.0.1:9", "r", "e", "critic", {"solver": Route("token", "policy")})
            outgoing = Outgoing(CallContext().within(10), run)
            arguments = {"name": "chat", "arguments": {"message": "hi"}}
            if allowed:
                assert (await reached.lane.perform("call_tool", arguments, outgoing))["text"] == "1: hi"
            else:
                with pytest.raises(AgentEnvError) as refused:
                    await reached.lane.perform("call_tool", arguments, outgoing)
                assert refused.value.code == "forbidden" and RUN_HEADER in refused.value.message
            await reached.aclose()


async def test_a_page_is_known_by_the_address_that_a_trusted_proxy_told() -> None:
    address = PublicAddress("http://127.0.0.1:8000")
    headers = {"origin": "https://agents.example", "host": "inner:80", "x-forwarded-host": "agents.example"}
    raw = [(name.encode(), value.encode()) for name, value in headers.items()]
    scope = {"type": "http", "scheme": "http", "headers": raw, "client": ("127.0.0.1", 5000), "root_path": ""}
    assert Access().admit(scope, headers, address).id == "local"
    with pytest.raises(Forbidden):
        Access().admit({**scope, "client": ("127.0.0.1", 1)}, headers, PublicAddress("http://x", None, ["10.0.0.1"]))


async def test_limits_hold_before_a_caller_is_known() -> None:
    async with guarded(limits=Limits(max_message_bytes=100)) as url:
        body = {"name": "chat", "arguments": {"message": "x" * 10_000}}
        assert (await status(f"{url}/v1/call_tool", "POST", body, Authorization="Bearer t-alice"))[0] == 413
        assert (await status(f"{url}/v1/call_tool", "POST", body))[0] == 401
