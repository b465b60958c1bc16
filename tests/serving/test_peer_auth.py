"""The tokens of peers: the matchmaker counts on them, and each leaves for the peer that it belongs to alone."""

from __future__ import annotations

import json
import logging
from collections.abc import AsyncGenerator, Mapping
from contextlib import asynccontextmanager
from typing import Any

import anyio
import pytest
from starlette.types import ASGIApp, Receive, Scope, Send

from agent_env import AgentEnvironment, Environment, Need, recording
from agent_env.client.lanes.websocket import close_sockets
from agent_env.errors import ConfigurationError, Forbidden, NeedUnmet, PeerFailed
from agent_env.net import Keyring, bound_url, listen
from agent_env.net.serving import served
from agent_env.runtime.local import withdraw
from agent_env.serving.server import Server

pytestmark = pytest.mark.anyio

TOKEN = "s3cret-of-the-solver"


async def solver(message: str) -> str:
    """Solves."""
    return f"solved {message}"


async def manager(message: str, peers: Mapping[str, Any]) -> str:
    """Asks whoever it got."""
    return " | ".join([await ask(message) for ask in peers.values()])


def needing(**options: Any) -> AgentEnvironment:
    given = {"name": "manager", "version": "1.0.0", "needs": [Need("worker", skills=["math"])], **options}
    return AgentEnvironment(manager, **given)


@asynccontextmanager
async def guarded(name: str = "solver", agent: Any = solver, token: str = TOKEN) -> AsyncGenerator[Server]:
    """A peer that asks for a token and, as far as this process knows, is another process."""
    env = AgentEnvironment(agent, name=name, version="1.0.0", skills=["math"], auth={token: ["chat"]})
    async with env.serving() as server:
        withdraw(server.url)
        yield server
        await close_sockets()


class Spy:
    """Keeps every header that reaches an app."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app
        self.headers: list[str] = []

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        self.headers += [value.decode("latin-1") for _, value in scope.get("headers", ())]
        await self._app(scope, receive, send)


@asynccontextmanager
async def spied(env: AgentEnvironment) -> AsyncGenerator[tuple[str, Spy]]:
    listener = listen()
    url = bound_url(listener)
    spy = Spy(env.app(local=True))
    async with served(spy, listener, max_frame_bytes=1_000_000):
        yield url, spy


# ── whom the matchmaker chooses ────────────────────────────────────────────────────────────────────────────────────


async def test_without_a_token_nobody_who_asks_for_one_is_chosen() -> None:
    async with guarded(), Environment(needing(peer_auth={"another": TOKEN})) as env:
        with pytest.raises(NeedUnmet, match=r"solver@1\.0\.0 fails at auth"):
            await env.chat("a")


@pytest.mark.parametrize("by", ["name", "origin"])
async def test_a_need_is_filled_by_a_peer_whose_token_is_held(by: str) -> None:
    async with guarded() as solving, recording() as episode:
        key = {"name": "solver", "origin": solving.url}[by]
        async with Environment(needing(peer_auth={key: TOKEN})) as env:
            assert (await env.chat("a")).text == "solved a"
    managing = next(trace for trace in episode.traces if trace.agent == "manager@1.0.0")
    assert (managing.turns[0].pairings or {})["worker"]["rules"]["auth"] == "yes"


async def test_of_two_that_fit_the_one_is_chosen_whose_token_is_held() -> None:
    async def other(message: str) -> str:
        return "other"

    async with guarded("aaa", other, "another-token"), guarded():
        for _ in range(3):
            async with Environment(needing(peer_auth={"solver": TOKEN})) as env:
                assert (await env.chat("a")).text == "solved a"


async def test_of_several_instances_only_the_one_at_the_origin_of_the_token_is_asked() -> None:
    async with guarded() as mine, guarded(token="the-token-of-others"):
        for _ in range(6):  # which instance would be asked is chance
            async with Environment(needing(peer_auth={mine.url: TOKEN})) as env:
                assert (await env.chat("a")).text == "solved a"


# ── who is named ───────────────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("how", ["reference", "url", "client"])
@pytest.mark.parametrize("by", ["seat", "name", "origin"])
async def test_a_named_peer_gets_its_token(how: str, by: str) -> None:
    async with guarded() as solving:
        key = {"seat": "worker", "name": "solver", "origin": solving.url}[by]
        named = {"reference": "solver", "url": solving.url, "client": Environment(solving.url, lane="http")}[how]
        managing = needing(peers={"worker": named}, peer_auth=Keyring({key: TOKEN}))
        async with Environment(managing) as env:
            if by == "name" and how != "reference":
                # Only the hub tells whose name it is; what a card at an address says, anybody could say.
                with pytest.raises((PeerFailed, NeedUnmet)) as refused:
                    await env.chat("a")
                assert refused.value.data["error"]["code"] == "unauthenticated"
            else:
                assert (await env.chat("a")).text == "solved a"


async def test_a_client_with_a_token_of_its_own_keeps_it() -> None:
    async with guarded() as solving:
        named = Environment(solving.url, lane="http", auth=TOKEN)
        async with Environment(needing(peers={"worker": named}, peer_auth={"worker": "wrong"})) as env:
            assert (await env.chat("a")).text == "solved a"


# ── nobody else gets it ────────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("lane", ["websocket", "http", "mcp", "a2a"])
async def test_a_token_leaves_for_nobody_but_its_peer(lane: Any) -> None:
    # A stranger that says the same name, and sits beside the peer in the same conversation.
    stranger = AgentEnvironment(solver, name="solver", version="1.0.0", skills=["math"], hub=False)
    with anyio.fail_after(30):
        async with guarded() as solving, spied(stranger) as (url, spy):
            peers = {"worker": Environment(solving.url, lane=lane), "stranger": Environment(url, lane=lane)}
            for keys in ({"worker": TOKEN, "solver": TOKEN}, {solving.url: TOKEN}):
                async with Environment(needing(peers=peers, peer_auth=keys)) as env:
                    assert (await env.chat("a")).text == "solved a | solved a"
            await close_sockets()
    assert spy.headers and not [value for value in spy.headers if TOKEN in value]


@pytest.mark.parametrize("lane", [None, "websocket", "http", "mcp"])
async def test_a_card_cannot_send_a_token_to_another_origin(lane: Any) -> None:
    stranger = AgentEnvironment(solver, name="solver", version="1.0.0", skills=["math"], hub=False)
    async with guarded() as solving, spied(stranger) as (url, spy):
        ways = [face.model_copy(update={"url": url + face.url}) for face in solving.card.interfaces]
        card = solving.card.model_copy(update={"interfaces": ways}).to_json().encode()

        async def misleading(scope: Scope, receive: Receive, send: Send) -> None:
            await send(
                {"type": "http.response.start", "status": 200, "headers": [(b"content-type", b"application/json")]}
            )
            await send({"type": "http.response.body", "body": card})

        listener = listen()
        here = bound_url(listener)
        async with served(misleading, listener, lifespan=False):
            for auth in (TOKEN, Keyring({here: TOKEN})):
                with pytest.raises(Forbidden, match="another origin"):
                    await Environment(here, lane=lane, auth=auth).initialize()
            async with Environment(here, lane=lane) as without_a_token:
                assert (await without_a_token.chat("a")).text == "solved a"
            await close_sockets()
    assert not [value for value in spy.headers if TOKEN in value]


async def test_a_token_is_in_no_episode_and_no_log(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG)
    async with guarded() as solving, recording() as episode:
        for lane in ("websocket", "http", "mcp", "a2a"):
            named = Environment(solving.url, lane=lane)  # type: ignore[arg-type]
            async with Environment(needing(peers={"worker": named}, peer_auth={"worker": TOKEN})) as env:
                assert (await env.chat("a")).text == "solved a"
        async with Environment(needing(peers={"worker": solving.url}, peer_auth={"worker": "wrong-token"})) as env:
            with pytest.raises((PeerFailed, NeedUnmet)) as refused:
                await env.chat("a")
    told = json.dumps(episode.to_json()) + json.dumps(refused.value.to_wire())
    for token in (TOKEN, "wrong-token"):
        assert token not in told
        assert not [
            record for record in caplog.records if record.name.startswith("agent_env") and token in record.getMessage()
        ]


async def test_tokens_may_be_added_until_the_environment_runs() -> None:
    async with guarded():
        managing = needing()
        managing.add_peer_auth({"solver": TOKEN})
        async with Environment(managing) as env:
            assert (await env.chat("a")).text == "solved a"
            with pytest.raises(ConfigurationError, match="runs already"):
                managing.add_peer_auth({"other": TOKEN})


async def test_a_key_that_is_no_origin_is_refused_when_the_environment_is_made() -> None:
    with pytest.raises(ConfigurationError, match="more than an origin"):
        needing(peer_auth={"https://agents.example/v1": TOKEN})
