"""What the gateway has never heard of: in each dialect it goes to the model's server and comes back as it was sent."""

from __future__ import annotations

import json
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

import anyio
import pytest

from agent_env.gateway import RunHandle, SeatPolicy
from agent_env.net import shared_http

pytestmark = pytest.mark.anyio

ADMIN = "admin-token"
NEW: Any = {"deep": [1, {"x": None}], "größe": 2.5}
"""What stands in a field that no release of a dialect has had."""
SAID: list[Any] = [{"role": "user", "content": "boat", "mood_of_the_future": NEW}]
TOOLS: list[Any] = [{"type": "function", "function": {"name": "f", "limit_of_the_future": NEW}}]
Upstream = Any
"""The model server of the fixture `upstream`."""


@dataclass(frozen=True)
class Spoken:
    """A dialect as it is spoken: a request, its answer, and the events of the answer that is streamed."""

    path: str
    request: dict[str, Any]
    answer: dict[str, Any]
    events: list[dict[str, Any]]
    asked_for: dict[str, Any]
    """What the gateway itself puts in the request beside the seat's model."""
    ends: bytes = b""
    asked_for_streamed: dict[str, Any] = field(default_factory=dict[str, Any])
    """What it puts in that of a stream as well."""


USAGE = {"prompt_tokens": 2, "completion_tokens": 1, "total_tokens": 3, "joules_of_the_future": NEW}
TEXT = {"type": "output_text", "text": "zip", "annotations": [], "tone_of_the_future": NEW}
ITEM = {"type": "message", "id": "m", "role": "assistant", "status": "completed", "content": [TEXT]}
RESPONSE = {"id": "r", "object": "response", "status": "completed", "output": [ITEM], "field_of_the_future": NEW}
BLOCK = {"type": "text", "text": "zip", "tone_of_the_future": NEW}
MESSAGE = {
    "id": "m",
    "type": "message",
    "role": "assistant",
    "model": "upstream-name",
    "content": [BLOCK],
    "stop_reason": "end_turn",
    "usage": {"input_tokens": 2, "output_tokens": 1, "joules_of_the_future": NEW},
    "field_of_the_future": NEW,
}


def choice(**told: Any) -> dict[str, Any]:
    return {"index": 0, "finish_reason": "stop", "tone_of_the_future": NEW, **told}


SPOKEN = {
    "chat": Spoken(
        "chat/completions",
        {"messages": SAID, "tools": TOOLS},
        {
            "choices": [choice(message={"role": "assistant", "content": "zip", "mood_of_the_future": NEW})],
            "usage": USAGE,
        },
        [
            {"choices": [choice(finish_reason=None, delta={"role": "assistant", "mood_of_the_future": NEW})]},
            {"choices": [choice(delta={"content": "zip"})]},
            {"choices": [], "told": NEW},
        ],
        {"logprobs": True, "return_token_ids": True},
        b"data: [DONE]\n\n",
        {"stream_options": {"include_usage": True}},
    ),
    "completions": Spoken(
        "completions",
        {"prompt": "boat"},
        {"choices": [choice(text="zip")], "usage": USAGE},
        [{"choices": [choice(text="zi", finish_reason=None)]}, {"choices": [choice(text="p")], "usage": USAGE}],
        {"logprobs": 1, "return_token_ids": True},
        b"data: [DONE]\n\n",
        {"stream_options": {"include_usage": True}},
    ),
    "responses": Spoken(
        "responses",
        {"input": SAID, "tools": TOOLS},
        RESPONSE,
        [
            {"type": "response.created", "response": {**RESPONSE, "status": "in_progress", "output": []}},
            {"type": "response.news_of_the_future", "told": NEW},
            {"type": "response.output_item.added", "output_index": 0, "item": {**ITEM, "content": []}},
            {"type": "response.output_text.delta", "output_index": 0, "content_index": 0, "delta": "zip"},
            {"type": "response.completed", "response": RESPONSE},
        ],
        {"include": ["message.output_text.logprobs"], "enable_response_messages": True},
    ),
    "messages": Spoken(
        "messages",
        {"max_tokens": 9, "messages": SAID, "tools": TOOLS},
        MESSAGE,
        [
            {"type": "message_start", "message": {**MESSAGE, "content": [], "stop_reason": None}},
            {"type": "news_of_the_future", "told": NEW},
            {"type": "content_block_start", "index": 0, "content_block": {**BLOCK, "text": ""}},
            {"type": "content_block_delta", "index": 0, "delta": {"type": "text_delta", "text": "zip"}},
            {"type": "content_block_stop", "index": 0},
            {"type": "message_delta", "delta": {"stop_reason": "end_turn"}, "usage": {"output_tokens": 1}},
            {"type": "message_stop"},
        ],
        {},
    ),
}


def streamed(spoken: Spoken) -> list[bytes]:
    """The stream of an answer, each of whose events has a field of the future."""
    lines = [
        (f"event: {event['type']}\n" if "type" in event else "").encode()
        + b"data: "
        + json.dumps({**event, "field_of_the_future": NEW}).encode()
        + b"\n\n"
        for event in spoken.events
    ]
    return [*lines, spoken.ends] if spoken.ends else lines


@asynccontextmanager
async def asked(
    gateway: str, upstream: Upstream, dialect: str, body: dict[str, Any]
) -> AsyncGenerator[tuple[bytes, dict[str, Any]], None]:
    """Asks a seat whose server speaks the dialect; gives what came back as it came, and the record of the call."""
    seats = {"a": SeatPolicy("A", (upstream.url,), dialects=(dialect,))}
    with anyio.fail_after(20):
        async with await RunHandle.open(gateway, ADMIN, seats, keep_journal=False) as run:
            seen = run.episode("e1", "a")
            assert seen.route is not None
            url, key = f"{seen.model_url('t1')}/{SPOKEN[dialect].path}", {"Authorization": f"Bearer {seen.route.token}"}
            async with shared_http().post(url, json=body, headers=key) as response:
                assert response.status == 200
                answer = await response.read()
            (record,) = (await run.collect(["e1"]))["e1"]
            yield answer, record


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("dialect", SPOKEN)
async def test_a_field_that_the_gateway_does_not_know_reaches_the_server_and_comes_back(
    gateway: str, upstream: Upstream, dialect: str, stream: bool
) -> None:
    spoken = SPOKEN[dialect]
    pieces = streamed(spoken)
    upstream.answer, upstream.pieces = {**spoken.answer, "field_of_the_future": NEW}, pieces if stream else None
    upstream.usage = b"data: " + json.dumps({"choices": [], "usage": USAGE}).encode() + b"\n\n"
    body = {"model": "agents-own", "stream": stream, "field_of_the_future": NEW, **spoken.request}
    async with asked(gateway, upstream, dialect, body) as (answer, record):
        # The server has all that was sent, and no more than the gateway is known to ask for.
        asked_for = spoken.asked_for | (spoken.asked_for_streamed if stream else {})
        assert upstream.asked == [{**body, "model": "A", **asked_for}]
        # The caller has all that the server said, byte for byte.
        assert answer == (b"".join(pieces) if stream else json.dumps(upstream.answer, indent=1).encode())
    assert (record["status"], record["api"], record["stream"], record["request"]) == ("ok", dialect, stream, body)
    if not stream:
        assert record["response"]["field_of_the_future"] == NEW
