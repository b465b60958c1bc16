"""From a reference to a lane: what is found, over which way, and what becomes of it when it is lost."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import anyio
import pytest
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse
from starlette.routing import Route

from agent_env import AgentEnvironment, Environment, Limits
from agent_env.client import card_cache, resolution
from agent_env.client.card_cache import forget_card, read_card
from agent_env.client.lanes.websocket import close_sockets
from agent_env.client.resolution import Seated, reach
from agent_env.errors import (
    AtCapacity,
    ConfigurationError,
    Forbidden,
    InvalidArguments,
    InvalidCard,
    LaunchFailed,
    NameNotFound,
    NotSupported,
    ProtocolError,
    TransportError,
    VersionNotFound,
)
from agent_env.hub import Hub, shared_hub
from agent_env.hub.snapshot import snapshot
from agent_env.net import bound_url, listen
from agent_env.net.serving import served
from agent_env.serving.server import Server
from agent_env_cards import CARD_PATH, EnvironmentCard, Interface

pytestmark = pytest.mark.anyio


async def counting(message: str, history: list[dict[str, str]]) -> str:
    return f"{len(history) // 2 + 1}: {message}"


@asynccontextmanager
async def serving(
    version: str | None = "1.0.0", *, port: int = 0, register: bool = True, **options: Any
) -> AsyncGenerator[Server]:
    env = AgentEnvironment(counting, name="agent-b", version=version, **options)
    with anyio.fail_after(30):
        async with env.serving(port=port, register=register) as server:
            yield server
            await close_sockets()


@asynccontextmanager
async def card_server(answers: dict[str, Any]) -> AsyncGenerator[str]:
    """Serves `answers["card"]` as the card, and counts how often in `answers["read"]`."""

    async def card(request: Request) -> JSONResponse:
        answers["read"] = answers.get("read", 0) + 1
        return JSONResponse(answers["card"], answers.get("status", 200))

    listener = listen()
    with anyio.fail_after(30):
        async with served(Starlette(routes=[Route(CARD_PATH, card)]), listener):
            yield bound_url(listener)


def written(**facts: Any) -> dict[str, Any]:
    return EnvironmentCard(**{"name": "agent-b", "version": "1.0.0", "description": "Counts.", **facts}).to_dict()


# ── what a reference may be ────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("ref", ["agent-b", "agent-b@1.0.0", "agent-b@^1", "agent-b@>=1,<2"])
async def test_a_reference_is_resolved_by_the_hub(ref: str) -> None:
    async with serving(), Environment(ref, lane="http") as env:
        assert env.card.ref == "agent-b@1.0.0"
        assert (await env.chat("a")).text == "1: a"


async def test_a_digest_pins_the_release() -> None:
    async with serving() as server:
        digest = server.card.digest()
        async with Environment(f"agent-b@1.0.0#{digest}", lane="http") as env:
            assert env.card.digest() == digest
        with pytest.raises(VersionNotFound, match="not the release that was meant"):
            await Environment(f"agent-b@1.0.0#sha256:{'0' * 64}").initialize()


async def test_what_the_hub_does_not_have_is_told_with_what_it_has() -> None:
    async with serving():
        with pytest.raises(NameNotFound, match="did you mean 'agent-b'"):
            await Environment("agent-c").initialize()
        with pytest.raises(VersionNotFound, match=r"it has 1\.0\.0"):
            await Environment("agent-b@^2").initialize()


@pytest.mark.parametrize("ref", ["Agent B", "agent-b@latest", "agent-b@1.0.0#md5:0", ""])
async def test_a_malformed_reference_is_refused_with_the_remedy(ref: str) -> None:
    with pytest.raises(InvalidArguments) as refused:
        await Environment(ref).initialize()
    assert refused.value.data["problems"][0]["clause"].startswith("EC-")


@pytest.mark.parametrize("spelled", ["{url}", "{url}/", "{url}/.well-known/agent-env.json"])
async def test_an_address_may_be_written_in_every_usual_way(spelled: str) -> None:
    async with serving() as server, Environment(spelled.format(url=server.url), lane="websocket") as env:
        assert (await env.chat("a")).text == "1: a"
    async with serving() as server, Environment(spelled.format(url=server.url)) as env:
        assert env.lane == "inprocess"


async def test_an_instance_that_the_hub_gave_is_an_address_too() -> None:
    async with serving(), Hub.open() as hub:
        (instance,) = await hub.instances("agent-b")
        async with Environment(instance, lane="http") as env:
            assert (await env.chat("a")).text == "1: a"


async def test_a_card_leads_to_its_absolute_addresses_alone() -> None:
    async with serving() as server:
        relative = server.card
        with pytest.raises(ConfigurationError, match="only relative addresses; pass the URL where it was fetched"):
            await Environment(relative).initialize()
        mixed = relative.model_copy(
            update={
                "interfaces": [
                    Interface(transport="websocket", url="/v1/ws"),
                    Interface(transport="http", url=f"{server.url}/v1"),
                    Interface(transport="http", url="http://127.0.0.1:9/v1"),
                ]
            }
        )
        async with Environment(mixed) as env:
            assert env.lane == "http"  # of two addresses of one kind the first counts
            assert (await env.chat("a")).text == "1: a"


async def test_whom_an_owner_seats_is_trusted_wherever_it_is() -> None:
    async with serving() as server:
        for ref, trusted in ((server.url, False), (Seated(server.url), True), ("agent-b", True)):
            reached = await reach(ref, lane="http", token=None, hub=None, seconds=10)
            assert reached.trusted is trusted
            await reached.aclose()


# ── lanes ──────────────────────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    ("offered", "taken"),
    [
        (["a2a", "mcp", "http", "websocket"], "websocket"),
        (["a2a", "mcp", "http"], "http"),
        (["a2a", "mcp"], "mcp"),
        (["openenv", "a2a"], "a2a"),
    ],
)
async def test_the_fastest_lane_that_is_offered_is_taken(offered: list[str], taken: str) -> None:
    interfaces = [Interface(transport=name, url=f"/{name}") for name in offered]
    async with card_server({"card": written(interfaces=interfaces)}) as url:
        reached = await reach(url, lane=None, token=None, hub=None, seconds=10)
        assert reached.lane.name == taken
        await reached.aclose()


async def test_a_lane_that_is_not_offered_is_refused_with_those_that_are() -> None:
    async with card_server({"card": written(interfaces=[Interface(transport="http", url="/v1")])}) as url:
        with pytest.raises(NotSupported, match=r"offers \['http'\], and none of mcp"):
            await Environment(url, lane="mcp").initialize()
        with pytest.raises(NotSupported, match="is not in this process"):
            await Environment(url, lane="inprocess").initialize()
    async with card_server({"card": written()}) as url:
        with pytest.raises(NotSupported, match="offers no interface"):
            await Environment(url).initialize()


async def test_a_server_without_a_card_names_the_way_for_foreign_ones() -> None:
    async with card_server({"card": {"detail": "Not Found"}, "status": 404}) as url:
        with pytest.raises(ProtocolError, match=r"serves no Environment Card .* Environment\(url, lane='mcp'\)"):
            await Environment(url).initialize()
        async with Environment(url, lane="mcp") as env:
            assert env.card.name == "foreign-127-0-0-1"


@pytest.mark.parametrize(
    ("card", "told"),
    [
        ({"name": "agent-b", "needs": [{"seat": 7}]}, "/needs/0/seat"),
        ({**written(), "digest": "sha256:" + "0" * 64}, "says its digest is"),
    ],
)
async def test_a_card_that_is_not_valid_is_refused(card: dict[str, Any], told: str) -> None:
    async with card_server({"card": card}) as url:
        with pytest.raises(ProtocolError, match=told) as refused:
            await Environment(url).initialize()
        assert isinstance(refused.value.__cause__, InvalidCard)


# ── what is remembered ─────────────────────────────────────────────────────────────────────────────────────────────


async def test_a_card_is_read_once_for_many_and_again_when_it_was_forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    answers: dict[str, Any] = {"card": written()}
    async with card_server(answers) as url:
        address = url + CARD_PATH
        cards = await asyncio.gather(*(read_card(address) for _ in range(10)))
        assert len({id(read.card) for read in cards}) == 1 and answers["read"] == 1
        await read_card(address, "another token sees another card")
        assert answers["read"] == 2
        forget_card(address)
        await read_card(address)
        assert answers["read"] == 3
        monkeypatch.setattr(card_cache, "CARD_SECONDS", 0.0)
        forget_card(address)
        await read_card(address)
        await read_card(address)
        assert answers["read"] == 5


async def test_a_remembered_card_of_another_release_is_read_again() -> None:
    answers: dict[str, Any] = {"card": written()}
    async with card_server(answers) as url:
        first = await read_card(url + CARD_PATH)
        answers["card"] = written(version="1.1.0")
        assert await read_card(url + CARD_PATH) == first
        newer = EnvironmentCard.parse(answers["card"]).digest()
        assert (await read_card(url + CARD_PATH, digest=newer)).card.version == "1.1.0"
        # Whoever insists on what is not there gets what is.
        assert (await read_card(url + CARD_PATH, digest=first.digest)).card.version == "1.1.0"


async def test_only_so_many_cards_are_remembered(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(card_cache, "_MOST", 2)
    answers: dict[str, Any] = {"card": written()}
    async with card_server(answers) as url:
        for token in "abca":
            await read_card(url + CARD_PATH, token)
        assert answers["read"] == 4
        await read_card(url + CARD_PATH, "c")
        assert answers["read"] == 4


async def test_a_server_that_was_started_anew_at_the_same_address_is_read_anew() -> None:
    async with serving(version=None, description="Before.") as server:
        port = int(server.url.rpartition(":")[2])
        async with Environment("agent-b", lane="http") as env:
            assert env.card.description == "Before."
    async with serving(version=None, description="After.", port=port):
        async with Environment("agent-b", lane="http") as env:
            assert env.card.description == "After."
            assert (await env.chat("a")).text == "1: a"


# ── what is lost ───────────────────────────────────────────────────────────────────────────────────────────────────


def nowhere() -> str:
    with listen() as listener:
        return bound_url(listener)


async def test_an_instance_that_is_gone_is_passed_over_and_doubted() -> None:
    dead = nowhere()
    async with serving() as server, Hub.open() as hub:
        await hub.register(server.card, dead)
        for _ in range(6):
            async with Environment("agent-b@1.0.0", lane="http") as env:
                assert (await env.chat("a")).text == "1: a"
        shared_hub()._chooser._before.clear()  # who was sticky asks again
        snapshot(shared_hub()).forget()
        async with Environment("agent-b@1.0.0", lane="http") as env:
            assert (await env.chat("a")).text == "1: a"
        states = {instance.url: instance.state for instance in await hub.instances("agent-b")}
        assert states[server.url] == "up"


async def test_without_any_instance_that_answers_it_says_how_to_get_one() -> None:
    async with Hub.open() as hub:
        await hub.register(EnvironmentCard.parse(written()), nowhere())
        with pytest.raises(LaunchFailed, match=r"has no instance that answers, .*: serve it, or push it"):
            await Environment("agent-b@1.0.0").initialize()
        assert [instance.state for instance in await hub.instances("agent-b")] == ["suspect"]


async def test_an_instance_that_serves_another_release_now_is_stale() -> None:
    async with serving() as server, Hub.open() as hub:
        lying = EnvironmentCard.parse(written(name="agent-c"))
        await hub.register(lying, server.url.replace("127.0.0.1", "localhost"))
        with pytest.raises(TransportError, match=r"serves agent-b@1\.0\.0 .* its lease is stale"):
            await Environment("agent-c@1.0.0", lane="http").initialize()


async def test_a_call_that_loses_its_environment_tells_the_hub_and_the_next_one_looks_again() -> None:
    env = Environment("agent-b@1.0.0", lane="http")
    async with Hub.open() as hub:
        async with serving(register=False) as server:
            await hub.register(server.card, server.url)
            await env.chat("a")
        # It went without a goodbye: its lease is still there.
        with pytest.raises(TransportError):
            await env.chat("b")
        (instance,) = await hub.instances("agent-b")
        assert instance.state == "suspect"
        with pytest.raises(LaunchFailed):  # and what was remembered of it brings nobody back there
            await Environment("agent-b@1.0.0", lane="http").initialize()
        async with serving() as other, Environment("agent-b@1.0.0", lane="http") as again:
            assert (await again.chat("a")).text == "1: a"
            assert len(other.runtime.sessions) == 1
        with pytest.raises(TransportError):  # its own conversation is lost for good
            await env.chat("c")
        await env.__aexit__(None, None, None)  # and leaving it is no second failure


async def test_before_a_first_answer_there_is_nothing_to_lose_and_the_same_object_looks_again() -> None:
    async with serving() as server:
        url, port = server.url, int(server.url.rpartition(":")[2])
        env = Environment(url, lane="http")
        await env.initialize()
    with pytest.raises(TransportError):
        await env.chat("a")
    async with serving(port=port):
        assert (await env.chat("a")).text == "1: a"
        await env.release()


async def test_a_hub_that_does_not_listen_hides_no_error(monkeypatch: pytest.MonkeyPatch) -> None:
    async def deaf(self: Hub, instance: Any) -> None:
        raise Forbidden("this hub listens to others")

    async def slow(self: Hub, instance: Any) -> None:
        await anyio.sleep_forever()

    monkeypatch.setattr(resolution, "_DOUBT_SECONDS", 0.05)
    async with serving() as server:
        card = server.card
    async with Hub.open() as hub:
        await hub.register(card, nowhere())
        (instance,) = await hub.instances("agent-b")
        for doubt in (deaf, slow):
            monkeypatch.setattr(type(shared_hub()), "doubt", doubt)
            with anyio.fail_after(5), pytest.raises(TransportError, match="cannot be reached"):
                await Environment(instance).initialize()


# ── conversations ──────────────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("lane", ["inprocess", "websocket", "http"])
async def test_a_full_environment_is_asked_again_when_it_said_so(lane: Any) -> None:
    env = AgentEnvironment(counting, hub=False, limits=Limits(max_sessions=1, queue_seconds=0))
    with anyio.fail_after(20):
        async with env.serving() as server:
            ref: object = env if lane == "inprocess" else server.url
            held = (await env.call("chat", {"message": "mine"})).session_id
            async with Environment(ref, lane=lane) as waiting, asyncio.TaskGroup() as tasks:
                reply = tasks.create_task(waiting.chat("a"))
                await anyio.sleep(0.1)
                assert not reply.done()
                await server.runtime.sessions.remove(server.runtime.sessions.find("local", held))
                assert (await reply).text == "1: a"
            await close_sockets()


async def test_it_is_not_asked_again_when_no_time_is_left() -> None:
    env = AgentEnvironment(counting, hub=False, limits=Limits(max_sessions=1, queue_seconds=0))
    await env.call("chat", {"message": "mine"})
    with anyio.fail_after(0.9):
        async with Environment(env, timeout=1.0) as waiting:
            with pytest.raises(AtCapacity):
                await waiting.chat("a")
    await env.aclose()


async def test_leaving_the_block_ends_a_stream_that_was_not_read_to_its_end() -> None:
    cancelled = anyio.Event()

    async def endless(message: str) -> AsyncIterator[str]:
        try:
            while True:
                yield message
                await asyncio.sleep(0)
        finally:
            cancelled.set()

    with anyio.fail_after(10):
        async with Environment(endless) as env:
            stream = env.stream("x")
            await anext(stream)
        await cancelled.wait()
        with pytest.raises((StopAsyncIteration, asyncio.CancelledError)):
            while True:
                await anext(stream)


async def test_a_seat_is_another_conversation_with_the_same_environment() -> None:
    async with serving(auth={"s3cret": ["chat"]}) as server:
        template = Environment(server.url, lane="http", auth="s3cret")
        async with template.seated("solver") as one, template.seated("solver") as other:
            assert [(await env.chat("a")).text for env in (one, other)] == ["1: a", "1: a"]
        assert template.session_id is None


def test_the_mirror_without_an_event_loop_has_forks_and_unread_streams_too() -> None:
    async def words(message: str, history: list[dict[str, str]]) -> AsyncIterator[str]:
        for word in f"{len(history) // 2 + 1}: {message}".split():
            yield word + " "

    with Environment(AgentEnvironment(words)).sync() as env:
        assert env.card.name == "words" and env.session_id is None
        assert env.chat("a").text == "1: a "
        with env.fork() as fork:
            assert fork.chat("b").text == "2: b "
            assert fork.session_id != env.session_id
        assert env.chat("c").text == "2: c "
        stream = env.stream("d e f g")
        next(iter(stream))
    del stream  # what is left of it ended with the block
    with Environment(AgentEnvironment(words)).sync() as env:
        env.chat("a")
        env.release()


async def test_the_openai_form_of_the_tools_is_made_from_the_same_list() -> None:
    async with Environment(AgentEnvironment(counting)) as env:
        (tool,) = await env.list_openai_tools()
        assert json.loads(json.dumps(tool))["function"]["name"] == (await env.list_tools())[0]["name"]
