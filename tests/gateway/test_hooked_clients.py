"""Agents whose model cannot be set, pointed at the gateway by the hook on their client, with no change of their code."""

from __future__ import annotations

import json
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import anyio
import pytest
from langchain_core.messages import HumanMessage
from langchain_openai import ChatOpenAI
from openai import AsyncOpenAI

from agent_env.gateway import RunHandle, SeatPolicy
from agent_env_wrappers.contract import ModelRoute
from agent_env_wrappers.openai_client_hook import routed

pytestmark = pytest.mark.anyio

ADMIN = "admin-token"
COMPLETION: dict[str, Any] = json.loads((Path(__file__).parent / "completion.json").read_text())
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
    if streamed:
        head = {key: COMPLETION[key] for key in ("id", "created", "model", "prompt_token_ids", "policy_version")}
        choice = COMPLETION["choices"][0]
        said = {key: value for key, value in choice.items() if key != "message"} | {"delta": choice["message"]}
        chunk = json.dumps({**head, "object": "chat.completion.chunk", "choices": [said]}).encode()
        upstream.pieces = [b"data: " + chunk + b"\n\n", b"data: [DONE]\n\n"]
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
