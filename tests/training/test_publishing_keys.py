"""Serving from further places that want a key: each server is shown its own, and no other one."""

from __future__ import annotations

import json
from collections.abc import AsyncGenerator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any

import anyio
import pytest

from agent_env.errors import AgentEnvError, InvalidArguments, PublishFailed, Refusal, TransportError
from agent_env.gateway import Gateway, PolicyHandle, PolicyState, RunHandle, SeatPolicy, running
from agent_env.net import shared_http
from agent_env.training import InMemory, Policy, PolicyServer, PublishedPolicy, VllmLora
from agent_env.training.tiny import WordTokenizer, make_model

pytestmark = [pytest.mark.anyio, pytest.mark.timeout(60)]

ADMIN = "admin"


class Keyed:
    """A server in front of an app that refuses whoever does not show its key, and notes what it is shown."""

    def __init__(self, app: Any, key: str | None) -> None:
        self.app = app
        self.wanted = None if key is None else f"Bearer {key}"
        self.shown: list[str | None] = []

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        headers = {name.lower(): value.decode() for name, value in scope["headers"]}
        self.shown.append(headers.get(b"authorization"))
        if self.wanted is None or self.shown[-1] == self.wanted:
            await self.app(scope, receive, send)
            return
        await send({"type": "http.response.start", "status": 401, "headers": []})
        await send({"type": "http.response.body", "body": b'{"error": "Unauthorized"}'})


class Adapters:
    """Takes adapters as vLLM does, and answers with the name of the model that it is asked for."""

    def __init__(self) -> None:
        self.names = {"base"}
        self.loaded = 0

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        body, more = b"", True
        while more:
            message = await receive()
            body, more = body + message["body"], message.get("more_body")
        asked = json.loads(body)
        match scope["path"].rsplit("/", 1)[1]:
            case "load_lora_adapter" if asked["lora_name"] in self.names:
                await refuse(send, 400, "The lora adapter has already been loaded.")
                return
            case "unload_lora_adapter" if asked["lora_name"] not in self.names:
                await refuse(send, 404, "The lora adapter cannot be found.")
                return
            case "load_lora_adapter":
                self.loaded += 1
                self.names.add(asked["lora_name"])
            case "unload_lora_adapter":
                self.names.remove(asked["lora_name"])
            case _:
                assert asked["model"] in self.names
        message = {"role": "assistant", "content": asked.get("model")}
        answer = {"choices": [{"index": 0, "message": message, "finish_reason": "stop"}]}
        await send({"type": "http.response.start", "status": 200, "headers": [(b"content-type", b"application/json")]})
        await send({"type": "http.response.body", "body": json.dumps(answer).encode()})


async def refuse(send: Any, status: int, message: str) -> None:
    head = [(b"content-type", b"application/json")]
    await send({"type": "http.response.start", "status": status, "headers": head})
    await send({"type": "http.response.body", "body": json.dumps({"error": {"message": message}}).encode()})


@asynccontextmanager
async def opened(tmp_path: Path, *servers: Keyed, key: str | None) -> AsyncGenerator[tuple[RunHandle, list[str]]]:
    """A run whose seat `a` is played by the first of the servers, and the endpoints of them all."""
    gateway = Gateway(tmp_path, admin_token=ADMIN)
    async with AsyncExitStack() as stack:
        stack.enter_context(anyio.fail_after(50))
        url = await stack.enter_async_context(running(gateway))
        urls = [f"{await stack.enter_async_context(running(server))}/v1" for server in servers]
        seats = {"a": SeatPolicy("base", (urls[0],), key, policy="solver")}
        yield await stack.enter_async_context(await RunHandle.open(url, ADMIN, seats)), urls
    gateway.close()


async def status_of(run: RunHandle, episode: str) -> int:
    seen = run.episode(episode, "a")
    assert seen.route is not None
    headers = {"Authorization": f"Bearer {seen.route.token}"}
    body = {"messages": [{"role": "user", "content": "boat"}], "max_tokens": 2}
    async with shared_http().post(seen.model_url("c1") + "/chat/completions", json=body, headers=headers) as response:
        return response.status


async def test_a_policy_is_served_from_a_further_place_with_a_key_of_its_own(tmp_path: Path) -> None:
    tokenizer = WordTokenizer(["boat", "ship"])
    served = Policy("base", make_model(tokenizer, seed=1), tokenizer)
    server = PolicyServer([served])
    first, second = Keyed(server, "one"), Keyed(server, "two")
    async with opened(tmp_path, first, second, key="one") as (run, (here, there)):
        policy = PublishedPolicy(run.policy("solver"), InMemory(served))
        assert await status_of(run, "e1") == 200
        with pytest.raises(InvalidArguments, match="the api_key of the policy 'solver' was not given for"):
            await policy.serve_from([there])
        assert second.shown == [] and (await policy.policy.state()).endpoints == (here,)
        assert (await policy.serve_from([there], api_key="two")).endpoints == (there,)
        assert await status_of(run, "e2") == 200
        assert await policy.publish(served.model.state_dict()) == 1
        assert await status_of(run, "e3") == 200
        await policy.serve_from([there], api_key=None)
        assert await status_of(run, "e4") == 401
    assert set(first.shown) == {"Bearer one"} and second.shown == ["Bearer two"] * 2 + [None]


async def test_adapters_get_to_a_further_place_with_its_key_and_the_first_key_does_not(tmp_path: Path) -> None:
    first, second, third = Keyed(Adapters(), "one"), Keyed(Adapters(), "two"), Keyed(Adapters(), None)
    async with opened(tmp_path, first, second, third, key="one") as (run, (here, there, open_)):
        policy = PublishedPolicy(run.policy("solver"), VllmLora(api_key="one"))
        await policy.publish(tmp_path / "adapter-1")
        with pytest.raises(InvalidArguments, match="VllmLora was not given for"):
            await policy.serve_from([here, there])
        assert second.shown == []
        with pytest.raises(PublishFailed, match="said 401: Unauthorized"):
            await policy.serve_from([there], api_key="wrong")
        state = await policy.policy.state()
        assert state.endpoints == (here,) and await status_of(run, "e1") == 200
        await policy.serve_from([there], api_key="two")
        assert state.model in second.app.names and await status_of(run, "e2") == 200
        assert await policy.publish(tmp_path / "adapter-2") == 2
        assert await status_of(run, "e3") == 200
        # Back to the first, whose key the policy does not have any more.
        assert (await policy.serve_from([here], api_key="one")).version == 2 and await status_of(run, "e4") == 200
        assert (await policy.serve_from([open_], api_key=None)).version == 2 and await status_of(run, "e5") == 200
    assert set(first.shown) == {"Bearer one"} and set(third.shown) == {None}
    assert set(second.shown) == {"Bearer wrong", "Bearer two"}


async def test_an_address_more_of_the_same_server_needs_no_key_again(tmp_path: Path) -> None:
    server = Keyed(Adapters(), "one")
    async with opened(tmp_path, server, key="one") as (run, (here,)):
        policy = PublishedPolicy(run.policy("solver"), VllmLora(api_key="one"))
        more = here.removesuffix("/v1") + "/other/v1"
        assert (await policy.serve_from([here, more])).endpoints == (here, more)
        assert {await status_of(run, f"e{number}") for number in range(6)} == {200}


async def test_the_key_of_a_server_is_changed_where_it_is(tmp_path: Path) -> None:
    server = Keyed(Adapters(), "one")
    async with opened(tmp_path, server, key="one") as (run, (here,)):
        policy = PublishedPolicy(run.policy("solver"), VllmLora(api_key="one"))
        await policy.publish("/a/1")
        server.wanted = "Bearer two"
        await policy.serve_from([here], api_key="two")
        assert await policy.publish("/a/2") == 2 and await status_of(run, "e1") == 200


async def test_a_server_that_was_left_out_is_taken_back(tmp_path: Path) -> None:
    first, second = Keyed(Adapters(), None), Keyed(Adapters(), None)
    async with opened(tmp_path, first, second, key=None) as (run, (here, there)):
        policy = PublishedPolicy(run.policy("solver"), VllmLora())
        await policy.serve_from([here, there])
        await policy.publish("/a/1")
        await policy.serve_from([here])
        state = await policy.serve_from([here, there])
        assert state.endpoints == (here, there) and state.model in second.app.names
        assert {await status_of(run, f"e{number}") for number in range(6)} == {200}


async def test_a_server_that_the_gateway_was_given_alone_is_not_shown_the_publishers_key(tmp_path: Path) -> None:
    first, second = Keyed(Adapters(), "one"), Keyed(Adapters(), "two")
    async with opened(tmp_path, first, second, key="one") as (run, (_, there)):
        policy = PublishedPolicy(run.policy("solver"), VllmLora(api_key="one"))
        await policy.publish("/a/1")
        await run.policy("solver").change(endpoints=[there], api_key="two")
        with pytest.raises(InvalidArguments, match="was not given for"):
            await policy.publish("/a/2")
        assert second.shown == []
        await policy.serve_from([there], api_key="two")
        assert await policy.publish("/a/2") == 2 and set(second.shown) == {"Bearer two"}


async def test_a_join_that_fails_leaves_the_key_as_it_was(tmp_path: Path) -> None:
    server = Keyed(Adapters(), "one")
    async with opened(tmp_path, server, key="one") as (run, (here,)):
        policy = PublishedPolicy(run.policy("solver"), VllmLora(api_key="one"))
        await policy.publish("/a/1")
        with pytest.raises(PublishFailed):
            await policy.serve_from([here, here.removesuffix("/v1") + "/second/v1"], api_key="wrong")
        assert await policy.publish("/a/2") == 2 and await status_of(run, "e1") == 200


async def test_a_trainer_that_was_started_again_says_that_it_cannot_bring_what_it_did_not_load(tmp_path: Path) -> None:
    first, second = Keyed(Adapters(), None), Keyed(Adapters(), None)
    async with opened(tmp_path, first, second, key=None) as (run, (here, there)):
        await PublishedPolicy(run.policy("solver"), VllmLora()).publish("/a/1")
        again = PublishedPolicy(run.policy("solver"), VllmLora())
        with pytest.raises(PublishFailed, match="publish, and it serves what you publish"):
            await again.serve_from([here, there])
        assert (await again.policy.state()).endpoints == (here,)
        await again.publish("/a/2")
        await again.serve_from([here, there])
        assert {await status_of(run, f"e{number}") for number in range(6)} == {200}


async def test_a_further_place_that_the_gateway_refuses_is_left_without_the_adapters_it_was_given(
    tmp_path: Path,
) -> None:
    first, second = Keyed(Adapters(), None), Keyed(Adapters(), None)
    async with opened(tmp_path, first, second, key="one") as (run, (here, there)):
        lora = VllmLora(keep=1)
        policy = PublishedPolicy(run.policy("solver"), lora)
        for number in (1, 2):
            await policy.publish(tmp_path / f"adapter-{number}")
        # The publisher has no key of its own to mind; the gateway's goes to no other server.
        with pytest.raises(InvalidArguments, match="the api_key of the policy 'solver' was not given for"):
            await policy.serve_from([here, there])
        assert second.app.loaded == 2 and second.app.names == {"base"} and len(first.app.names) == 3
        assert (await policy.policy.state()).endpoints == (here,) and await status_of(run, "e1") == 200

        other = Refused(run, Refusal("somebody else published"))
        with pytest.raises(Refusal, match="somebody else"):
            await PublishedPolicy(other, lora).serve_from([here, there], api_key="two")
        assert second.app.loaded == 4 and second.app.names == {"base"}
        second.shown.clear()
        assert (await policy.serve_from([here, there], api_key=None)).endpoints == (here, there)
        assert second.app.names == first.app.names and set(second.shown) == {None}


async def test_a_further_place_of_which_the_gateways_answer_is_lost_keeps_what_calls_may_ask_for(
    tmp_path: Path,
) -> None:
    first, second = Keyed(Adapters(), None), Keyed(Adapters(), None)
    async with opened(tmp_path, first, second, key=None) as (run, (_, there)):
        lora = VllmLora()
        policy = PublishedPolicy(run.policy("solver"), lora)
        await policy.publish(tmp_path / "adapter-1")
        with pytest.raises(TransportError, match="cut off"):
            await PublishedPolicy(Refused(run, TransportError("cut off"), made=True), lora).serve_from([there])
        assert (await policy.policy.state()).endpoints == (there,) and await status_of(run, "e1") == 200
        assert (await policy.serve_from([there])).endpoints == (there,) and await status_of(run, "e2") == 200


class Refused(PolicyHandle):
    """The way to a gateway on which each change ends with an error, though it may be `made`."""

    def __init__(self, run: RunHandle, error: AgentEnvError, *, made: bool = False) -> None:
        super().__init__(run.gateway, ADMIN, "solver", run=run.run)
        self.error = error
        self.made = made

    async def change(self, **fields: Any) -> PolicyState:
        if self.made:
            await super().change(**fields)
        raise self.error
