"""Anthropic's own SDK against the gateway: streamed and not, with tools, natively and translated."""

from __future__ import annotations

import json
import re
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from typing import Any

import pytest
from anthropic import APIStatusError, AsyncAnthropic, AuthenticationError, RateLimitError

from agent_env.gateway import RunHandle, SeatPolicy
from agent_env.net import shared_http

pytestmark = pytest.mark.anyio

ADMIN = "admin-token"
Upstream = Any
"""The model server of the fixture `upstream`."""

BOAT: Any = [{"role": "user", "content": "boat"}]
TOOLS: Any = [{"name": "look_up", "description": "Looks up.", "input_schema": {"type": "object", "properties": {}}}]
MESSAGE: dict[str, Any] = {
    "id": "msg_1",
    "type": "message",
    "role": "assistant",
    "model": "upstream-name",
    "content": [
        {"type": "text", "text": "zip"},
        {"type": "tool_use", "id": "toolu_1", "name": "look_up", "input": {"word": "boat"}},
    ],
    "stop_reason": "tool_use",
    "stop_sequence": None,
    "usage": {"input_tokens": 2, "output_tokens": 3, "cache_read_input_tokens": 4},
}
CHAT: dict[str, Any] = {
    "id": "chatcmpl-1",
    "object": "chat.completion",
    "model": "upstream-name",
    "prompt_token_ids": [5, 6],
    "choices": [
        {
            "index": 0,
            "message": {
                "role": "assistant",
                "reasoning_content": "Hm.",
                "content": "zip",
                "tool_calls": [
                    {"id": "t1", "type": "function", "function": {"name": "look_up", "arguments": '{"word": "boat"}'}},
                    {"id": "t2", "type": "function", "function": {"name": "look_up", "arguments": "{brok"}},
                ],
            },
            "finish_reason": "tool_calls",
            "token_ids": [8, 9, 1],
            "logprobs": {"content": [{"token": "zip", "logprob": -1.0}] * 3},
        }
    ],
    "usage": {"prompt_tokens": 6, "completion_tokens": 3, "prompt_tokens_details": {"cached_tokens": 4}},
}


def event(value: dict[str, Any]) -> bytes:
    return f"event: {value['type']}\ndata: {json.dumps(value)}\n\n".encode()


def chunk(delta: Any, finish: str | None = None, **fields: Any) -> bytes:
    choice = {"index": 0, "delta": delta, "finish_reason": finish, **fields}
    return b"data: " + json.dumps({"id": "c", "model": "upstream-name", "choices": [choice]}).encode() + b"\n\n"


def pieces_of(chat: dict[str, Any]) -> list[bytes]:
    """The completion as its server streams it."""
    choice = chat["choices"][0]
    message = choice["message"]
    first = {key: value for key, value in chat.items() if key != "usage"} | {"choices": []}
    said = [
        chunk({"role": "assistant", "reasoning_content": "H"}, token_ids=[8]),
        chunk({"reasoning_content": "m."}, token_ids=[9]),
        chunk({"content": "zi"}),
        chunk({"content": "p"}),
        *(chunk({"tool_calls": [{"index": number, **call}]}) for number, call in enumerate(message["tool_calls"])),
        chunk({}, "tool_calls", token_ids=[1], logprobs=choice["logprobs"]),
    ]
    usage = b"data: " + json.dumps({**first, "usage": chat["usage"]}).encode() + b"\n\n"
    return [b"data: " + json.dumps(first).encode() + b"\n\n", *said, usage, b"data: [DONE]\n\n"]


NATIVE = [
    event({"type": "message_start", "message": {**MESSAGE, "content": [], "stop_reason": None}}),
    event({"type": "content_block_start", "index": 0, "content_block": {"type": "text", "text": ""}}),
    event({"type": "ping"}),
    event({"type": "content_block_delta", "index": 0, "delta": {"type": "text_delta", "text": "zi"}}),
    event({"type": "content_block_delta", "index": 0, "delta": {"type": "text_delta", "text": "p"}}),
    event({"type": "content_block_stop", "index": 0}),
    event({"type": "content_block_start", "index": 1, "content_block": {**MESSAGE["content"][1], "input": {}}}),
    event(
        {"type": "content_block_delta", "index": 1, "delta": {"type": "input_json_delta", "partial_json": '{"word": '}}
    ),
    event(
        {"type": "content_block_delta", "index": 1, "delta": {"type": "input_json_delta", "partial_json": '"boat"}'}}
    ),
    event({"type": "content_block_stop", "index": 1}),
    event(
        {
            "type": "message_delta",
            "delta": {"stop_reason": "tool_use", "stop_sequence": None},
            "usage": {"output_tokens": 3},
        }
    ),
    event({"type": "message_stop"}),
]


@asynccontextmanager
async def client_of(
    gateway: str, upstream: Upstream, **options: Any
) -> AsyncGenerator[tuple[AsyncAnthropic, RunHandle], None]:
    seats = {"a": SeatPolicy("A", (upstream.url,), **options)}
    async with await RunHandle.open(gateway, ADMIN, seats, keep_journal=False) as run:
        seen = run.episode("e1", "a")
        assert seen.route is not None
        # This SDK appends /v1 itself.
        base = seen.model_url("t1").removesuffix("/v1")
        async with AsyncAnthropic(base_url=base, api_key=seen.route.token, max_retries=0) as client:
            yield client, run


async def ask(client: AsyncAnthropic, streamed: bool, **fields: Any) -> Any:
    if not streamed:
        return await client.messages.create(**{"model": "x", "max_tokens": 9, "messages": BOAT, **fields})
    async with client.messages.stream(**{"model": "x", "max_tokens": 9, "messages": BOAT, **fields}) as stream:
        return await stream.get_final_message()


async def record_of(run: RunHandle) -> dict[str, Any]:
    (record,) = (await run.collect(["e1"]))["e1"]
    return record


@pytest.mark.parametrize("streamed", [False, True])
async def test_messages_natively(gateway: str, upstream: Upstream, streamed: bool) -> None:
    upstream.answer, upstream.pieces = MESSAGE, NATIVE if streamed else None
    async with client_of(gateway, upstream, api_key="vendor-key", dialects=("messages",)) as (client, run):
        final = await ask(client, streamed, tools=TOOLS)
        record = await record_of(run)
    assert [block.type for block in final.content] == ["text", "tool_use"] and final.content[1].input == {
        "word": "boat"
    }
    assert upstream.paths == ["/v1/messages"]
    assert upstream.headers[0]["x-api-key"] == "vendor-key" and "authorization" not in upstream.headers[0]
    assert re.fullmatch(r"20\d\d-\d\d-\d\d", upstream.headers[0]["anthropic-version"])
    assert upstream.asked[0]["model"] == "A" and "logprobs" not in upstream.asked[0]
    assert (record["api"], record["finish_reason"], record["stream"]) == ("messages", "tool_calls", streamed)
    assert record["usage"] == {"prompt_tokens": 6, "completion_tokens": 3, "total_tokens": 9}
    assert record["missing"] == dict.fromkeys(("prompt_token_ids", "token_ids", "logprobs"), "no_field")
    assert record["response"] == MESSAGE


@pytest.mark.parametrize("streamed", [False, True])
async def test_messages_are_answered_by_chat_completions_with_their_tokens(
    gateway: str, upstream: Upstream, streamed: bool
) -> None:
    upstream.answer, upstream.pieces = CHAT, pieces_of(CHAT) if streamed else None
    async with client_of(gateway, upstream) as (client, run):
        final = await ask(client, streamed, tools=TOOLS, system="Zip.", stop_sequences=["."], extra_body={"top_k": 3})
        record = await record_of(run)
    assert [block.type for block in final.content] == ["thinking", "text", "tool_use", "tool_use"]
    assert (final.content[0].thinking, final.content[1].text) == ("Hm.", "zip")
    assert [block.input for block in final.content[2:]] == [{"word": "boat"}, {"INVALID_JSON": "{brok"}]
    assert (final.stop_reason, final.usage.input_tokens, final.usage.output_tokens) == ("tool_use", 2, 3)
    assert final.usage.cache_read_input_tokens == 4
    (asked,) = upstream.asked
    assert upstream.paths == ["/v1/chat/completions"]
    assert asked["messages"] == [{"role": "system", "content": "Zip."}, *BOAT]
    assert (asked["max_completion_tokens"], asked["stop"], asked["top_k"]) == (9, ["."], 3)
    schema = TOOLS[0]["input_schema"]
    function = {"name": "look_up", "description": "Looks up.", "parameters": schema}
    assert asked["tools"] == [{"type": "function", "function": function}]
    assert (record["api"], record["upstream_api"], record["finish_reason"]) == ("messages", "chat", "tool_calls")
    assert record["prompt_token_ids"] == [5, 6] and record["token_ids"] == [8, 9, 1]
    assert record["logprobs"] == [-1.0] * 3 and "missing" not in record and record["usage"] == CHAT["usage"]
    assert record["response"]["id"] == final.id and record["request"]["system"] == "Zip."


async def test_what_the_model_said_goes_back_to_it_as_it_said_it(gateway: str, upstream: Upstream) -> None:
    upstream.answer = CHAT
    async with client_of(gateway, upstream) as (client, _):
        first = await ask(client, False, tools=TOOLS)
        result = [
            {"type": "tool_result", "tool_use_id": "t1", "content": [{"type": "text", "text": "a ship"}]},
            {"type": "tool_result", "tool_use_id": "t2", "content": "no JSON", "is_error": True},
            {"type": "text", "text": "Go on."},
        ]
        said = first.model_dump(exclude_none=True)["content"]
        again = [*BOAT, {"role": "assistant", "content": said}, {"role": "user", "content": result}]
        await ask(client, False, tools=TOOLS, messages=again)
    calls = CHAT["choices"][0]["message"]["tool_calls"]
    broken = {**calls[1], "function": {"name": "look_up", "arguments": '{"INVALID_JSON": "{brok"}'}}
    assert upstream.asked[1]["messages"] == [
        *BOAT,
        {"role": "assistant", "content": "zip", "reasoning_content": "Hm.", "tool_calls": [calls[0], broken]},
        {"role": "tool", "tool_call_id": "t1", "content": "a ship"},
        {"role": "tool", "tool_call_id": "t2", "content": "no JSON"},
        {"role": "user", "content": "Go on."},
    ]


async def test_a_token_is_taken_in_either_header_and_another_one_is_refused(gateway: str, upstream: Upstream) -> None:
    upstream.answer = CHAT
    async with client_of(gateway, upstream) as (client, run):
        url, body = f"{str(client.base_url).rstrip('/')}/v1/messages", {"messages": BOAT}
        async with shared_http().post(url, json=body, headers={"x-api-key": str(client.api_key)}) as response:
            assert response.status == 200
        async with shared_http().post(url, json=body, headers={"x-api-key": "another"}) as response:
            assert response.status == 401
        async with AsyncAnthropic(base_url=client.base_url, auth_token=client.api_key, max_retries=0) as bearer:
            await ask(bearer, False)
        async with AsyncAnthropic(base_url=client.base_url, api_key="another", max_retries=0) as wrong:
            with pytest.raises(AuthenticationError) as told:
                await ask(wrong, False)
        assert told.value.body["error"]["type"] == "authentication_error"  # type: ignore[index,call-overload]
        assert len((await run.collect(["e1"]))["e1"]) == 2


async def test_errors_are_told_as_the_sdk_reads_them(gateway: str, upstream: Upstream) -> None:
    upstream.status, upstream.answer = 429, {"error": {"message": "slow down"}}
    async with client_of(gateway, upstream) as (client, run):
        with pytest.raises(RateLimitError, match="slow down") as told:
            await ask(client, False)
        assert told.value.body["type"] == "error"  # type: ignore[index,call-overload]
        upstream.status, upstream.pieces = 200, pieces_of(CHAT)[:3]
        with pytest.raises(APIStatusError, match="ended its stream"):
            await ask(client, True)
        with pytest.raises(APIStatusError, match="no 'container'"):
            await ask(client, False, extra_body={"container": "c1"})
        records = (await run.collect(["e1"]))["e1"]
    assert [record["status"] for record in records] == ["upstream_error", "transport_error"]


async def test_a_native_stream_that_breaks_leaves_what_came(gateway: str, upstream: Upstream) -> None:
    upstream.pieces = NATIVE[:8]
    async with client_of(gateway, upstream, dialects=("messages",)) as (client, run):
        with pytest.raises(APIStatusError, match="ended its stream"):
            await ask(client, True)
        record = await record_of(run)
    assert record["status"] == "transport_error"
    assert [block.get("text") or block["input"] for block in record["response"]["content"]] == ["zip", '{"word": ']
