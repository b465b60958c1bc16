"""Re-pointing the openai SDK for the time of a turn."""

from __future__ import annotations

import asyncio
import contextvars
import sys
from collections.abc import Iterator
from typing import Any

import anyio
import openai
import pytest
from model_server import ModelServer
from openai import AsyncAzureOpenAI, AsyncOpenAI, OpenAI
from openai._base_client import BaseClient

from agent_env_wrappers import openai_client_hook
from agent_env_wrappers.contract import ModelRoute, WrapError
from agent_env_wrappers.openai_client_hook import can_repoint, current_route, install, install_hooks, routed

pytestmark = pytest.mark.anyio

ROUTE = ModelRoute("http://route.invalid/v1", "m", "key")
MESSAGES: Any = [{"role": "user", "content": "hi"}]


async def ask(client: AsyncOpenAI, **more: Any) -> str:
    made = await client.chat.completions.create(model="own-model", messages=MESSAGES, **more)
    return str(made.choices[0].message.content)


async def test_concurrent_turns_keep_their_routes_apart(models: ModelServer) -> None:
    client = models.client()
    both = asyncio.Barrier(2)

    async def turn(word: str) -> list[str]:
        with routed(models.route(word)) as route:
            await both.wait()
            said = [await ask(client), await ask(client)]
            assert route is not None
            assert route.requests == 2
            return said

    with anyio.fail_after(10):
        assert await asyncio.gather(turn("red"), turn("blue")) == [["red seen=1"] * 2, ["blue seen=1"] * 2]
    assert await ask(client) == "seen=1"


async def test_a_thread_that_copies_the_context_is_routed_as_well(models: ModelServer) -> None:
    def blocking() -> str:
        with OpenAI(base_url=models.url, api_key="own-key") as client:
            made = client.chat.completions.create(model="own-model", messages=MESSAGES)
            return str(made.choices[0].message.content)

    with routed(models.route("red")):
        assert await asyncio.to_thread(blocking) == "red seen=1"


async def test_only_the_routes_credentials_and_model_go_to_it(models: ModelServer) -> None:
    client = models.client().with_options(
        default_headers={"X-Own": "secret", "Cookie": "secret"}, default_query={"token": "secret"}
    )
    route = ModelRoute(models.route("red").base_url + "/", "m", "key", headers={"X-Run": "7"})
    with routed(route):
        await ask(client, extra_headers={"api-key": "secret"}, extra_body={"top_k": 3}, extra_query={"q": "secret"})
    (asked,) = models.asked
    assert asked.body == {"model": "m", "messages": MESSAGES, "top_k": 3}
    assert (asked.key, asked.headers["X-Run"]) == ("key", "7")
    assert "secret" not in str(asked.headers)
    assert "own-key" not in str(asked.headers)


async def test_a_route_without_a_key_sends_none(models: ModelServer) -> None:
    with routed(ModelRoute(models.url, "m")):
        await ask(models.client())
    assert "Authorization" not in models.asked[0].headers


async def test_azure_clients_are_routed_too(models: ModelServer) -> None:
    client = AsyncAzureOpenAI(azure_endpoint="http://azure.invalid", api_key="own-key", api_version="1")
    with routed(models.route("red")):
        assert await ask(client) == "red seen=1"
    assert "own-key" not in str(models.asked[0].headers)
    await client.close()


async def test_every_way_to_ask_a_model_takes_the_route_and_embeddings_go_their_own_way(models: ModelServer) -> None:
    client = models.client()
    with routed(models.route("red")) as route:
        # This server speaks chat completions alone, which it says of the route's own paths.
        with pytest.raises(openai.NotFoundError):
            await client.responses.create(model="own-model", input="hi")
        with pytest.raises(openai.NotFoundError):
            await client.completions.create(model="own-model", prompt="hi")
        assert route is not None and route.requests == 2
        with pytest.raises(openai.NotFoundError):
            await client.embeddings.create(model="own-model", input="hi")
        assert route.requests == 2
    assert models.asked == []


async def test_a_client_that_signs_its_requests_is_refused(models: ModelServer) -> None:
    http = openai.DefaultAsyncHttpxClient(auth=("user", "secret"))
    client = AsyncOpenAI(base_url=models.url, api_key="own-key", http_client=http)
    with routed(models.route("red")), pytest.raises(WrapError, match="signs its requests itself"):
        await ask(client)
    await client.close()


async def test_a_turn_inside_another_one_does_not_inherit_its_route(models: ModelServer) -> None:
    client = models.client()
    with routed(models.route("red")) as outer:
        with routed(None):
            assert await ask(client) == "seen=1"
        assert current_route() is outer
        assert await ask(client) == "red seen=1"
    assert current_route() is None


def test_a_turn_that_is_closed_in_another_context_leaves_no_error() -> None:
    def turn() -> Iterator[None]:
        with routed(None):
            yield

    dropped = turn()
    contextvars.copy_context().run(next, dropped)
    dropped.close()


def test_installing_twice_changes_nothing() -> None:
    assert install() == install() == openai.__version__


@pytest.fixture
def uninstalled(monkeypatch: pytest.MonkeyPatch) -> pytest.MonkeyPatch:
    """The SDK as it is by itself, for the time of a test."""
    install()
    hook: Any = BaseClient.__dict__["_build_request"]
    monkeypatch.setattr(BaseClient, "_build_request", hook._original)
    return monkeypatch


def test_a_version_of_the_sdk_that_has_no_such_method_is_named(uninstalled: pytest.MonkeyPatch) -> None:
    uninstalled.delattr(BaseClient, "_build_request")
    with pytest.raises(WrapError, match=f"openai {openai.__version__} no longer builds its requests"):
        install()


@pytest.mark.parametrize("broken", [lambda self, options: None, lambda self, *args: 1 / 0])
def test_a_version_of_the_sdk_that_builds_requests_otherwise_is_named(
    uninstalled: pytest.MonkeyPatch, broken: Any
) -> None:
    uninstalled.setattr(BaseClient, "_build_request", broken)
    with pytest.raises(WrapError, match="hand over a factory"):
        install()
    assert BaseClient._build_request is broken


def test_a_request_that_does_not_take_the_route_is_found_out(uninstalled: pytest.MonkeyPatch) -> None:
    uninstalled.setattr(
        openai_client_hook.BuildRequest, "__call__", lambda self, *args, **kw: self._original(*args, **kw)
    )
    with pytest.raises(WrapError, match="no longer builds its requests"):
        install()


def test_where_neither_sdk_is_installed_both_are_named_with_the_remedy(monkeypatch: pytest.MonkeyPatch) -> None:
    for sdk in ("openai", "anthropic"):
        monkeypatch.setitem(sys.modules, sdk, None)
    assert install() is None and not can_repoint()
    with pytest.raises(WrapError, match="install openai>=2 or anthropic, or hand over"), routed(ROUTE):
        pass
    with routed(None) as route:
        assert route is None


@pytest.mark.parametrize(("missing", "there"), [("openai", "anthropic"), ("anthropic", "openai")])
def test_either_sdk_takes_the_route_without_the_other(
    monkeypatch: pytest.MonkeyPatch, missing: str, there: str
) -> None:
    __import__(there)
    monkeypatch.setitem(sys.modules, missing, None)
    assert can_repoint()
    (hooked,) = install_hooks()
    assert hooked.startswith(f"{there} ")
    with routed(ROUTE) as route:
        assert route is not None and current_route() is route


def test_an_sdk_whose_client_has_moved_is_refused_and_not_passed_over(monkeypatch: pytest.MonkeyPatch) -> None:
    for sdk in ("openai", "anthropic"):
        __import__(sdk)
        with monkeypatch.context() as moved:
            moved.setitem(sys.modules, f"{sdk}._base_client", None)
            with pytest.raises(WrapError, match=f"{sdk} .* no longer builds its requests"):
                install_hooks()
