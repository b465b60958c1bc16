"""A served hub: who may do what, and what bad requests get."""

from __future__ import annotations

import json
from collections.abc import AsyncGenerator, Callable
from pathlib import Path
from typing import Any

import anyio
import httpx
import pytest

from agent_env.context import Principal
from agent_env.errors import (
    AgentEnvError,
    Forbidden,
    InvalidArguments,
    InvalidCard,
    LeaseLost,
    MessageTooLarge,
    ProtocolError,
    TransportError,
    Unauthenticated,
)
from agent_env.hub import TOKEN_VARIABLE, Hub, locate
from agent_env.hub.app import ANYBODY, PUBLISH_SCOPE, hub_app
from agent_env.hub.local import LocalHub
from agent_env.net import Tokens, get_json, post_json, request_json, shared_http
from agent_env_cards import DRAFT_VERSION, EnvironmentCard

pytestmark = pytest.mark.anyio

MakeCard = Callable[..., EnvironmentCard]


@pytest.fixture
async def url(served: Any) -> AsyncGenerator[str, None]:
    async with served() as url:
        yield url


async def test_readers_need_no_token_and_writers_do(served: Any, make_card: MakeCard) -> None:
    tokens = Tokens({"alice": Principal("alice", frozenset({PUBLISH_SCOPE})), "reader": ["chat"]})
    async with served(tokens) as url:
        async with Hub.open(url) as nobody, Hub.open(url, token="reader") as reader:
            with pytest.raises(Unauthenticated, match="Authorization: Bearer"):
                await nobody.publish(make_card())
            with pytest.raises(Forbidden, match="scope 'publish'; yours has: chat"):
                await reader.publish(make_card())
            async with Hub.open(url, token="alice") as alice:
                lease = await alice.register(make_card(), "http://127.0.0.1:1")
            (instance,) = (await nobody.resolve("agent-b")).instances
            with pytest.raises(Unauthenticated):
                await nobody.doubt(instance)
            await reader.doubt(instance)
            assert [found.state for found in await nobody.instances()] == ["suspect"]
            with pytest.raises(Forbidden):
                await reader.renew(lease)


async def test_a_hub_that_has_an_empty_list_of_tokens_lets_nobody_change_it(served: Any, make_card: MakeCard) -> None:
    async with served(Tokens({})) as url, Hub.open(url) as nobody, Hub.open(url, token="s3cret") as guess:
        for hub in (nobody, guess):
            with pytest.raises(Unauthenticated):
                await hub.publish(make_card())
        assert await nobody.list() == []


async def test_only_who_may_launch_is_told_how(served: Any, file: Path, make_card: MakeCard) -> None:
    launch = {
        "kind": "command",
        "command": ["serve"],
        "directory": "agents-of-alice",
        "env": ["SECRET"],
        "machine": "tower",
    }
    async with served(Tokens({"alice": [PUBLISH_SCOPE], "reader": ["chat"]})) as url, Hub.open(file) as us:
        await us.publish(make_card(), launch)
        for token, told in ((None, {"kind": "command"}), ("reader", {"kind": "command"}), ("alice", launch)):
            async with Hub.open(url, token=token) as hub:
                (entry,) = await hub.list()
                (release,) = (await hub.changes()).releases
                resolution = await hub.resolve("agent-b")
                assert entry.release.launch == release.launch == resolution.release.launch == told
                assert entry.liveness == resolution.liveness == "launchable"
                if told != launch:
                    with pytest.raises((Unauthenticated, Forbidden)):
                        await hub.claim_launch("agent-b", "1.0.0", seconds=1)


async def test_a_name_belongs_to_whoever_published_it_first(served: Any, make_card: MakeCard) -> None:
    tokens = Tokens({name: Principal(name, frozenset({PUBLISH_SCOPE})) for name in ("alice", "bob")})
    async with served(tokens) as url, Hub.open(url, token="alice") as alice, Hub.open(url, token="bob") as bob:
        assert (await alice.publish(make_card())).owner == "alice"
        with pytest.raises(Forbidden, match="'agent-b' belongs to 'alice'"):
            await bob.publish(make_card(version="1.1.0"))
        with pytest.raises(Forbidden):
            await bob.register(make_card(), "http://127.0.0.1:1")
        with pytest.raises(Forbidden):
            await bob.yank("agent-b", "1.0.0", "mine now")
        await alice.publish(make_card(version="1.1.0"))
        await bob.publish(make_card(name="agent-c"))


async def test_what_this_machine_published_is_no_token_holders(served: Any, file: Path, make_card: MakeCard) -> None:
    launch = {"kind": "command", "command": ["serve"], "directory": "/"}
    async with served(Tokens({"bob": [PUBLISH_SCOPE]})) as url, Hub.open(url, token="bob") as bob, Hub.open(file) as us:
        published = await us.publish(make_card())
        attempts = (
            lambda: bob.publish(make_card(), launch),
            lambda: bob.publish(make_card(version="1.1.0"), launch),
            lambda: bob.register(make_card(), "http://127.0.0.1:1", launch=launch),
            lambda: bob.yank("agent-b", "1.0.0", "mine now"),
            lambda: bob.unyank("agent-b", "1.0.0"),
            lambda: bob.deprecate("agent-b", "1.0.0", "mine now"),
        )
        for attempt in attempts:
            with pytest.raises(Forbidden, match="'agent-b' belongs to the machine of this hub"):
                await attempt()
        assert [entry.release for entry in await us.list()] == [published]


async def test_nobody_ends_the_lease_of_another_by_registering_at_its_url(
    served: Any, file: Path, make_card: MakeCard, clock: Any
) -> None:
    there, ours = "http://127.0.0.1:1", "http://127.0.0.1:2"
    tokens = Tokens({name: Principal(name, frozenset({PUBLISH_SCOPE})) for name in ("alice", "bob")})
    async with (
        served(tokens) as url,
        Hub.open(url, token="alice") as alice,
        Hub.open(url, token="bob") as bob,
        Hub.open(file, clock=clock) as us,
    ):
        old = await alice.register(make_card("agent-a"), there)
        here = await us.register(make_card("agent-u"), ours)
        for taken in (there, there + "/", ours):
            with pytest.raises(Forbidden, match="is not yours to replace"):
                await bob.register(make_card("agent-b"), taken)
        await alice.renew(old)
        await us.renew(here)
        assert sorted(entry.release.name for entry in await us.list()) == ["agent-a", "agent-u"]
        lease = await alice.register(make_card("agent-a", "1.1.0"), there)
        with pytest.raises(LeaseLost, match="another release was registered"):
            await alice.renew(old)
        clock.advance(31)
        await us.renew(await us.register(make_card("agent-u"), ours))
        await bob.register(make_card("agent-b"), there)
        with pytest.raises(LeaseLost, match="lapsed"):
            await alice.renew(lease)
        with pytest.raises(Forbidden, match="is not yours to replace"):
            await alice.register(make_card("agent-a"), there)
        await us.register(make_card("agent-u"), there)
        assert [instance.name for instance in await us.instances() if instance.url == there] == ["agent-u"]


async def test_only_the_owner_of_a_release_says_how_it_is_launched(
    served: Any, file: Path, make_card: MakeCard, clock: Any
) -> None:
    launch = {"kind": "command", "command": ["serve"], "directory": "/"}
    tokens = Tokens({"bob": Principal("bob", frozenset({PUBLISH_SCOPE}))})
    async with served(tokens) as url, Hub.open(url, token="bob") as bob, Hub.open(file, clock=clock) as us:
        for version in ("1.0.0", DRAFT_VERSION):
            await bob.publish(make_card(version=version))
            with pytest.raises(Forbidden, match="belongs to 'bob'"):
                await us.publish(make_card(version=version), launch)
            await us.publish(make_card(version=version))
            assert (await bob.publish(make_card(version=version), launch)).owner == "bob"
        await us.publish(make_card(version="1.1.0"), launch)
        with pytest.raises(Forbidden, match="belongs to the machine of this hub"):
            await bob.publish(make_card(version="1.1.0"), {**launch, "directory": "/tmp"})
        await bob.publish(make_card(version="1.2.0"))


@pytest.mark.parametrize("header", ["X-Forwarded-For", "Forwarded", "Origin"])
async def test_without_tokens_others_than_this_machine_own_what_they_publish(
    url: str, make_card: MakeCard, header: str
) -> None:
    async def publish(name: str, **headers: str) -> Any:
        body = {"card": make_card(name=name).to_dict(), "launch": {"kind": "python"}}
        return await post_json(f"{url}/v1/publish", body, headers=headers)

    assert (await publish("agent-b"))["owner"] is None
    assert (await publish("agent-c", **{header: "http://elsewhere.example"}))["owner"] == ANYBODY
    with pytest.raises(Forbidden, match="belongs to the machine of this hub"):
        await publish("agent-b", **{header: "http://elsewhere.example"})


async def test_without_tokens_another_machine_owns_what_it_publishes(file: Path, make_card: MakeCard) -> None:
    async with LocalHub(locate(file)) as hub:
        for host, owner in (("10.1.2.3", ANYBODY), ("127.0.0.1", None), ("::1", None)):
            transport = httpx.ASGITransport(hub_app(hub), client=(host, 40000))
            async with httpx.AsyncClient(transport=transport, base_url="http://hub.example.com") as http:
                name = "agent-" + ("c" if owner else "b")
                answer = await http.post("/v1/publish", json={"card": make_card(name=name).to_dict()})
                assert answer.json()["owner"] == owner


async def test_the_token_comes_from_the_environment_too(
    served: Any, make_card: MakeCard, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(TOKEN_VARIABLE, "alice")
    async with served(Tokens({"alice": [PUBLISH_SCOPE]})) as url, Hub.open(url) as hub:
        await hub.publish(make_card())


async def test_a_token_that_the_hub_does_not_know_is_refused_to_readers_too(served: Any, make_card: MakeCard) -> None:
    reads: list[Callable[[Hub], Any]] = [
        lambda hub: hub.list(),
        lambda hub: hub.resolve("agent-b"),
        lambda hub: hub.instances(),
        lambda hub: hub.changes(),
    ]
    async with served(Tokens({"alice": [PUBLISH_SCOPE]})) as url, Hub.open(url, token="alicia") as hub:
        for ask in (*reads, lambda hub: hub.publish(make_card())):
            with pytest.raises(Unauthenticated, match=f"^the hub {url} .*; set {TOKEN_VARIABLE} to "):
                await ask(hub)
        # What a proxy in front asks for is no token of this hub.
        assert await get_json(f"{url}/v1/list", headers={"Authorization": "Basic dTpw"}) == {"entries": []}
    async with served() as url, Hub.open(url, token="alicia") as hub:
        assert await hub.list() == []


async def test_a_refusal_of_the_hub_says_that_it_is_the_hubs_and_whose_token_it_looks_at(
    served: Any, make_card: MakeCard
) -> None:
    async with served(Tokens({"alice": [PUBLISH_SCOPE], "bob": [PUBLISH_SCOPE], "reader": ["chat"]})) as url:
        async with Hub.open(url, token="alice") as alice:
            await alice.publish(make_card())
        for token, kind, match in (
            (None, Unauthenticated, f"^the hub {url} .* wants a token: .*; set {TOKEN_VARIABLE} to "),
            ("reader", Forbidden, f"^the hub {url} .*'publish'; yours has: chat; set {TOKEN_VARIABLE} to "),
            ("bob", Forbidden, f"^the hub {url} .* publish under another name$"),
        ):
            async with Hub.open(url, token=token) as hub:
                with pytest.raises(kind, match=match) as refused:
                    await hub.publish(make_card(version="1.1.0"))
        assert refused.value.data == {}


@pytest.mark.parametrize(
    ("operation", "body", "match"),
    [
        ("publish", [], "is not valid: /: "),
        ("publish", {}, "/card: Field required"),
        ("register", {"card": {}, "url": "http://x", "capacity": "9"}, "/capacity: "),
        ("register", {"card": {}, "url": "http://x", "capacity": 2**31}, "/capacity: "),
        ("register", {"card": {}, "url": "http://x", "capacity": -1}, "/capacity: "),
        ("register", {"card": {}, "url": "http://x", "load": 10**30}, "/load: "),
        ("register", {"card": {}, "url": "http://x", "load": -1}, "/load: "),
        ("renew", {"lease": "x", "load": 10**30}, "/load: "),
        ("claim_launch", {"name": "a", "version": "1.0.0", "seconds": 1e308}, "/seconds: "),
        ("claim_launch", {"name": "a", "version": "1.0.0", "seconds": 0}, "/seconds: "),
        ("renew", {"lease": "x", "lode": 1}, "/lode: Extra inputs"),
        ("yank", {"name": "a", "version": None}, "/version: "),
    ],
)
async def test_a_bad_body_gets_each_problem_with_its_place(url: str, operation: str, body: Any, match: str) -> None:
    with pytest.raises(InvalidArguments, match=match):
        await post_json(f"{url}/v1/{operation}", body)


async def test_bad_requests_get_typed_errors(url: str) -> None:
    with pytest.raises(InvalidArguments, match="needs the query parameter 'ref'"):
        await get_json(f"{url}/v1/resolve")
    with pytest.raises(InvalidArguments, match="since='soon' must be a number"):
        await get_json(f"{url}/v1/changes", params={"since": "soon"})
    for since in ("9" * 30, "0" * 5000, "-1", "1e3"):
        with pytest.raises(InvalidArguments, match="must be a number that an earlier answer gave"):
            await get_json(f"{url}/v1/changes", params={"since": since})
    with pytest.raises(InvalidArguments, match="nothing at /v1/nothing"):
        await get_json(f"{url}/v1/nothing")
    with pytest.raises(InvalidCard, match="name"):
        await post_json(f"{url}/v1/publish", {"card": {"name": 5}})
    with pytest.raises(MessageTooLarge, match="at most 4194304 bytes"):
        await post_json(f"{url}/v1/publish", {"card": {"name": "x" * 5_000_000}})
    async with shared_http().post(f"{url}/v1/publish", data=b"{not json") as response:
        assert response.status == 422
        assert (await response.json())["error"]["code"] == "invalid_arguments"
    with pytest.raises(ProtocolError, match="answered 405"):
        await request_json("DELETE", f"{url}/v1/list")
    assert await get_json(f"{url}/health") == {"status": "healthy"}


@pytest.mark.parametrize("number", ["1e999", "-1e999", "NaN", "Infinity"])
async def test_numbers_that_json_does_not_have_are_refused_wherever_they_are(
    url: str, make_card: MakeCard, number: str
) -> None:
    card = make_card().to_dict()
    bodies = {
        "publish": [{"card": {**card, "x-deep": [{"n": "?"}]}}, {"card": card, "launch": {"a": [{"b": "?"}]}}],
        "register": [{"card": card, "url": "http://x", "launch": {"a": "?"}}],
        "claim_launch": [{"name": "agent-b", "version": "1.0.0", "seconds": "?"}],
    }
    for operation, attempts in bodies.items():
        for body in attempts:
            data = json.dumps(body).replace('"?"', number)
            async with shared_http().post(f"{url}/v1/{operation}", data=data) as response:
                assert (response.status, (await response.json())["error"]["code"]) == (422, "invalid_arguments")
    assert await get_json(f"{url}/v1/list") == {"entries": []}


async def test_a_failure_inside_shows_nothing_of_itself(
    url: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    async def broken(self: LocalHub, name: str | None = None) -> list[Any]:
        raise RuntimeError("secret details")

    monkeypatch.setattr(LocalHub, "list", broken)
    with pytest.raises(AgentEnvError) as failed:
        await get_json(f"{url}/v1/list")
    assert failed.value.code == "internal" and "secret" not in str(failed.value.to_wire())
    assert "secret details" in caplog.text


async def test_a_hub_that_is_not_there_or_is_none_says_so(url: str, file: Path) -> None:
    with pytest.raises(
        TransportError, match=r"the hub http://127\.0\.0\.1:9 cannot be reached .*`agent-env hub serve`"
    ):
        await Hub.open("http://127.0.0.1:9")
    with pytest.raises(InvalidArguments, match="a hub has nothing at"):
        await Hub.open(url + "/elsewhere")


async def test_something_else_than_a_hub_says_so() -> None:
    async def answer(reader: Any, writer: Any) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\nConnection: close\r\n\r\nhello")
        await writer.drain()
        writer.close()

    import asyncio

    async with await asyncio.start_server(answer, "127.0.0.1", 0) as server:
        port = server.sockets[0].getsockname()[1]
        with pytest.raises(ProtocolError, match="does not answer as a hub does"):
            await Hub.open(f"http://127.0.0.1:{port}")


async def test_a_hub_that_wakes_up_does_not_give_up_its_instances(file: Path, clock: Any, make_card: MakeCard) -> None:
    def steady() -> LocalHub:
        return LocalHub(locate(file), clock=clock, monotonic=clock, steady=True)

    async with steady() as hub:
        clock.advance(11)
        lease = await hub.register(make_card(), "http://127.0.0.1:1")
        clock.advance(40)
        assert await hub.instances() == []
    async with steady() as hub:
        assert [instance.state for instance in await hub.instances()] == ["suspect"]
        await hub.renew(lease)
        clock.advance(11)
        assert [instance.state for instance in await hub.instances()] == ["suspect"]
        clock.advance(20)
        assert await hub.instances() == []


async def test_a_clock_that_jumps_does_not_end_anybody(file: Path, clock: Any, make_card: MakeCard) -> None:
    elapsed = [0.0]
    async with LocalHub(locate(file), clock=clock, monotonic=lambda: elapsed[0], steady=True) as hub:
        lease = await hub.register(make_card(), "http://127.0.0.1:1")
        clock.advance(11)
        elapsed[0] += 11
        await hub.renew(lease)
        clock.advance(3600 / 60)
        assert [instance.state for instance in await hub.instances()] == ["suspect"]
        await hub.renew(lease)
        assert [instance.state for instance in await hub.instances()] == ["up"]


async def test_the_application_opens_and_closes_its_hub(file: Path) -> None:
    hub = LocalHub(locate(file))
    app = hub_app(hub)
    with anyio.fail_after(5):
        async with app.router.lifespan_context(app):
            assert hub._database._engine is not None
    assert hub._database._engine is None
