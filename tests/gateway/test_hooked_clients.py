"""Agents whose model cannot be set, pointed at the gateway by the hook on their client, with no change of their code."""

from __future__ import annotations

import json
import sys
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import anyio
import pytest
from anthropic import APIConnectionError, AsyncAnthropic, DefaultAsyncHttpxClient
from langchain_anthropic import ChatAnthropic
from langchain_core.messages import HumanMessage
from langchain_openai import ChatOpenAI
from openai import AsyncOpenAI

from agent_env.gateway import RunHandle, SeatPolicy
from agent_env_wrappers import anthropic_client_hook
from agent_env_wrappers.contract import ModelRoute, WrapError
from agent_env_wrappers.openai_client_hook import routed

pytestmark = pytest.mark.anyio

ADMIN = "admin-token"
COMPLETION: dict[str, Any] = json.loads((Path(__file__).parent / "completion.json").read_text())
HEAD = {key: COMPLETION[key] for key in ("id", "created", "model", "prompt_token_ids", "policy_version")}
SAID = {**COMPLETION["choices"][0], "delta": COMPLETION["choices"][0]["message"]}
CHUNK = {**HEAD, "object": "chat.completion.chunk", "choices": [SAID]}
PIECES = [b"data: " + json.dumps(CHUNK).encode() + b"\n\n", b"data: [DONE]\n\n"]
OWN = "http://own.invalid/v1"
Upstream = Any
"""The model server of the fixture `upstream`."""


@asynccontextmanager
async def route_of(gateway: str, upstream: Upstream) -> AsyncGenerator[tuple[ModelRoute, RunHandle], None]:
    async with await RunHandle.open(gateway, ADMIN, {"a": SeatPolicy("A", (upstream.url,))}) as run:
        seen = run.episode("e1", "a")
        assert seen.route is not None
        yield ModelRoute(seen.model_url("t1"), "A", seen.route.token), run


@pytest.mark.parametrize(("responses", "api"), [(True, "responses"), (False, "chat")])
@pytest.mark.parametrize("streamed", [False, True])
async def test_a_langchain_model_is_recorded_in_the_dialect_that_it_speaks(
    gateway: str, upstream: Upstream, responses: bool, api: str, streamed: bool
) -> None:
    upstream.pieces = PIECES if streamed else None
    model = ChatOpenAI(base_url=OWN, api_key="own", model="own", use_responses_api=responses, max_retries=0)  # type: ignore[arg-type]
    async with route_of(gateway, upstream) as (route, run):
        with routed(route), anyio.fail_after(20):
            asked = [HumanMessage("boat")]
            said = [part async for part in model.astream(asked)] if streamed else [await model.ainvoke(asked)]
        (record,) = (await run.collect(["e1"]))["e1"]
    assert "".join(part.text for part in said) == "zip zap"  # type: ignore[attr-defined]
    assert (record["api"], record["stream"], record["parent_call_id"]) == (api, streamed, "t1")
    assert (record["prompt_token_ids"], record["token_ids"]) == ([5, 6], [8, 9, 1])


async def test_a_hooked_clients_retry_keeps_its_mark(gateway: str, upstream: Upstream) -> None:
    upstream.status, upstream.answer = 503, {"error": {"message": "busy"}}
    upstream.extra = [(b"retry-after-ms", b"1")]
    async with route_of(gateway, upstream) as (route, run), AsyncOpenAI(base_url=OWN, api_key="own") as client:
        with routed(route), anyio.fail_after(20), pytest.raises(Exception, match="busy"):
            await client.with_options(max_retries=1).chat.completions.create(model="own", messages=[])
        first, second = (await run.collect(["e1"]))["e1"]
    assert (second["attempt"], second["retry_of"]) == (1, first["call_id"])


@pytest.mark.parametrize("streamed", [False, True])
async def test_a_graph_of_an_anthropic_model_is_recorded_with_its_tokens(
    gateway: str, upstream: Upstream, streamed: bool
) -> None:
    upstream.pieces = PIECES if streamed else None
    model = ChatAnthropic(base_url="http://own.invalid", api_key="own", model="own", max_retries=0)  # type: ignore[call-arg,arg-type]
    async with route_of(gateway, upstream) as (route, run):
        with routed(route), anyio.fail_after(20):
            asked = [HumanMessage("boat")]
            said = [part async for part in model.astream(asked)] if streamed else [await model.ainvoke(asked)]
        (record,) = (await run.collect(["e1"]))["e1"]
    assert "".join(part.text for part in said) == "zip zap"  # type: ignore[attr-defined]
    assert (record["api"], record["upstream_api"], record["stream"]) == ("messages", "chat", streamed)
    assert (record["prompt_token_ids"], record["token_ids"]) == ([5, 6], [8, 9, 1])
    assert "own" not in (record["model"], upstream.asked[0]["model"])


async def test_only_the_routes_key_and_model_go_along_with_a_message(gateway: str, upstream: Upstream) -> None:
    sent: list[Any] = []

    async def note(request: Any) -> None:
        sent.append((str(request.url), dict(request.headers), json.loads(request.content)))

    http = DefaultAsyncHttpxClient(event_hooks={"request": [note]})
    headers = {"X-Own": "secret", "anthropic-beta": "b1"}
    asked: Any = {"model": "own", "max_tokens": 3, "messages": [{"role": "user", "content": "x"}]}
    async with route_of(gateway, upstream) as (route, run):
        async with AsyncAnthropic(
            base_url="http://own.invalid", api_key="secret", default_headers=headers, http_client=http, max_retries=0
        ) as client:
            with routed(route):
                await client.beta.messages.create(**asked)
            with routed(None), pytest.raises(APIConnectionError):
                await client.messages.create(**asked)
        assert len((await run.collect(["e1"]))["e1"]) == 1
    (url, told, body), (own_url, own_told, _) = sent
    assert url == f"{route.base_url}/messages" and body["model"] == "A" and "secret" not in str(told)
    assert told["authorization"] == f"Bearer {route.api_key}" and told["anthropic-beta"] == "b1"
    assert own_url == "http://own.invalid/v1/messages" and "secret" in str(own_told)


def test_a_version_of_the_anthropic_sdk_that_builds_requests_otherwise_is_named(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    import anthropic
    from anthropic._base_client import BaseClient

    for broken in (None, lambda self, options: None):
        monkeypatch.setattr(BaseClient, "_build_request", broken)
        with pytest.raises(WrapError, match=f"anthropic {anthropic.__version__} no longer builds its requests"):
            anthropic_client_hook.install()
    monkeypatch.undo()
    assert anthropic_client_hook.install() == anthropic_client_hook.install() == anthropic.__version__
    monkeypatch.setitem(sys.modules, "anthropic", None)
    assert anthropic_client_hook.install() is None
