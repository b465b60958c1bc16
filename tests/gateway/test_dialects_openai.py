"""OpenAI's own SDK against the gateway: every dialect, streamed and not, with tools, natively and translated."""

from __future__ import annotations

import copy
import json
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from typing import Any

import pytest
from openai import AsyncOpenAI, BadRequestError, NotFoundError, RateLimitError

from agent_env.gateway import RunHandle, SeatPolicy

pytestmark = pytest.mark.anyio

ADMIN = "admin-token"
ALL = ("chat", "completions", "responses", "messages")
Upstream = Any
"""The model server of the fixture `upstream`."""

TOOL = {"name": "look_up", "description": "Looks a word up.", "parameters": {"type": "object", "properties": {}}}
LOGPROBS = {"content": [{"token": "zip", "logprob": -1.0}, {"token": "", "logprob": -0.25}]}
CHAT: dict[str, Any] = {
    "id": "chatcmpl-1",
    "object": "chat.completion",
    "created": 1,
    "model": "upstream-name",
    "prompt_token_ids": [5, 6],
    "policy_version": 7,
    "choices": [
        {
            "index": 0,
            "message": {"role": "assistant", "content": "zip"},
            "finish_reason": "stop",
            "token_ids": [8, 1],
            "logprobs": LOGPROBS,
        }
    ],
    "usage": {"prompt_tokens": 2, "completion_tokens": 2, "total_tokens": 4},
}
CALLS = [
    {"id": "call_1", "type": "function", "function": {"name": "look_up", "arguments": '{"word": "boat"}'}},
    {"id": "call_2", "type": "function", "function": {"name": "look_up", "arguments": "{}"}},
]
COMPLETION: dict[str, Any] = {
    "id": "cmpl-1",
    "object": "text_completion",
    "created": 1,
    "model": "upstream-name",
    "choices": [
        {
            "index": 0,
            "text": "zip zap",
            "finish_reason": "length",
            "token_ids": [8, 9],
            "prompt_token_ids": [5, 6],
            "logprobs": {"tokens": ["zip", " zap"], "token_logprobs": [-1.0, -0.5], "text_offset": [0, 3]},
        }
    ],
    "usage": {"prompt_tokens": 2, "completion_tokens": 2, "total_tokens": 4},
}
RESPONSE: dict[str, Any] = {
    "id": "resp_1",
    "object": "response",
    "created_at": 1,
    "status": "completed",
    "model": "upstream-name",
    "output": [
        {
            "type": "message",
            "id": "msg_1",
            "role": "assistant",
            "status": "completed",
            "content": [{"type": "output_text", "text": "zip", "annotations": [], "logprobs": LOGPROBS["content"]}],
        }
    ],
    "parallel_tool_calls": True,
    "tool_choice": "auto",
    "tools": [],
    "usage": {
        "input_tokens": 2,
        "input_tokens_details": {"cached_tokens": 0},
        "output_tokens": 2,
        "output_tokens_details": {"reasoning_tokens": 0},
        "total_tokens": 4,
    },
    "input_messages": [{"type": "raw_message_tokens", "message": "boat", "tokens": [5, 6]}],
    "output_messages": [{"type": "raw_message_tokens", "message": "zip", "tokens": [8, 1]}],
}


def event(value: Any, kind: str = "") -> bytes:
    return (f"event: {kind}\n" if kind else "").encode() + b"data: " + json.dumps(value).encode() + b"\n\n"


def chunk(delta: Any, finish: str | None = None, **fields: Any) -> bytes:
    choice = {"index": 0, "delta": delta, "finish_reason": finish}
    return event(
        {"id": "c", "object": "chat.completion.chunk", "created": 1, "model": "m", "choices": [choice | fields]}
    )


def token(text: str, number: int, logprob: float, finish: str | None = None) -> bytes:
    entry = {"content": [{"token": text, "logprob": logprob, "bytes": None, "top_logprobs": []}]}
    return chunk({"content": text}, finish, token_ids=[number], logprobs=entry)


def told(usage: Any) -> bytes:
    return event(
        {"id": "c", "object": "chat.completion.chunk", "created": 1, "model": "m", "choices": [], "usage": usage}
    )


FIRST = event({**{key: CHAT[key] for key in ("id", "model", "prompt_token_ids", "policy_version")}, "choices": []})
DONE = b"data: [DONE]\n\n"
WORDS = [FIRST, token("zi", 8, -1.0), token("p", 1, -0.25, "stop"), told(CHAT["usage"]), DONE]
TOOLS = [
    FIRST,
    chunk(
        {
            "role": "assistant",
            "tool_calls": [{"index": 0, **CALLS[0], "function": {"name": "look_up", "arguments": ""}}],
        }
    ),
    chunk({"tool_calls": [{"index": 0, "function": {"arguments": '{"word": '}}]}),
    chunk({"tool_calls": [{"index": 0, "function": {"arguments": '"boat"}'}}]}),
    chunk({"tool_calls": [{"index": 1, **CALLS[1]}]}),
    chunk({}, "tool_calls"),
    DONE,
]


@asynccontextmanager
async def client_of(
    gateway: str, upstream: Upstream, **options: Any
) -> AsyncGenerator[tuple[AsyncOpenAI, RunHandle], None]:
    seats = {"a": SeatPolicy("A", (upstream.url,), **options)}
    async with await RunHandle.open(gateway, ADMIN, seats, keep_journal=False) as run:
        seen = run.episode("e1", "a")
        assert seen.route is not None
        async with AsyncOpenAI(base_url=seen.model_url("t1"), api_key=seen.route.token, max_retries=0) as client:
            yield client, run


async def record_of(run: RunHandle) -> dict[str, Any]:
    (record,) = (await run.collect(["e1"]))["e1"]
    return record


def tokens_of(record: dict[str, Any]) -> Any:
    return record["prompt_token_ids"], record["token_ids"], record["logprobs"]


async def test_chat_with_tools_streamed(gateway: str, upstream: Upstream) -> None:
    upstream.pieces = TOOLS
    async with client_of(gateway, upstream) as (client, run):
        tools: Any = [{"type": "function", "function": TOOL}]
        asked: Any = [{"role": "user", "content": "boat"}]
        async with client.chat.completions.stream(model="x", messages=asked, tools=tools) as stream:
            final = await stream.get_final_completion()
        calls = final.choices[0].message.tool_calls
        assert calls is not None and [call.function.arguments for call in calls] == ['{"word": "boat"}', "{}"]
        record = await record_of(run)
    assert record["finish_reason"] == "tool_calls" and record["request"]["tools"] == tools
    kept = record["response"]["choices"][0]["message"]["tool_calls"]
    assert [call["function"]["arguments"] for call in kept] == ['{"word": "boat"}', "{}"]


@pytest.mark.parametrize("streamed", [False, True])
async def test_completions(gateway: str, upstream: Upstream, streamed: bool) -> None:
    choice = COMPLETION["choices"][0]
    first = {**choice, "text": "zip", "token_ids": [8], "finish_reason": None}
    first["logprobs"] = {"tokens": ["zip"], "token_logprobs": [-1.0], "text_offset": [0]}
    last = {**choice, "text": " zap", "token_ids": [9], "prompt_token_ids": None}
    last["logprobs"] = {"tokens": [" zap"], "token_logprobs": [-0.5], "text_offset": [3]}
    upstream.answer = COMPLETION
    if streamed:
        upstream.pieces = [event({**COMPLETION, "choices": [part], "usage": None}) for part in (first, last)] + [DONE]
    async with client_of(gateway, upstream) as (client, run):
        answer: Any = await client.completions.create(model="x", prompt="boat", max_tokens=2, stream=streamed)
        parts = [part async for part in answer] if streamed else [answer]
        text = "".join(part.choices[0].text for part in parts)
        record = await record_of(run)
    assert text == "zip zap" and upstream.paths == ["/v1/completions"]
    assert (upstream.asked[0]["logprobs"], upstream.asked[0]["return_token_ids"]) == (1, True)
    assert (record["api"], record["finish_reason"], record["usage"]) == ("completions", "length", COMPLETION["usage"])
    assert tokens_of(record) == ([5, 6], [8, 9], [-1.0, -0.5]) and "missing" not in record
    assert record["response"]["choices"][0]["text"] == "zip zap"
    assert "logprobs" not in record["response"]["choices"][0] and "upstream_api" not in record


async def test_completions_that_echo_their_prompt_keep_the_logprobs_of_what_was_sampled(
    gateway: str, upstream: Upstream
) -> None:
    upstream.answer = copy.deepcopy(COMPLETION)
    upstream.answer["choices"][0]["logprobs"]["token_logprobs"] = [None, -3.0, -1.0, -0.5]
    async with client_of(gateway, upstream) as (client, run):
        await client.completions.create(model="x", prompt="boat", echo=True)
        assert tokens_of(await record_of(run)) == ([5, 6], [8, 9], [-1.0, -0.5])


async def test_completions_cannot_be_put_in_chat(gateway: str, upstream: Upstream) -> None:
    async with client_of(gateway, upstream, dialects=("chat",)) as (client, run):
        with pytest.raises(Exception, match="asked in chat, and completions cannot be put in these") as told:
            await client.completions.create(model="x", prompt="boat")
        assert getattr(told.value, "status_code", None) == 400
        assert (await run.collect(["e1"]))["e1"] == [] and upstream.asked == []


@pytest.mark.parametrize("streamed", [False, True])
async def test_responses_natively(gateway: str, upstream: Upstream, streamed: bool) -> None:
    upstream.answer = RESPONSE
    if streamed:
        begun = {**RESPONSE, "status": "in_progress", "output": []}
        delta = {"item_id": "msg_1", "output_index": 0, "content_index": 0, "delta": "zip", "logprobs": []}
        item = {**RESPONSE["output"][0], "content": []}
        part = {"type": "output_text", "text": "", "annotations": []}
        upstream.pieces = [
            event({"type": kind, "sequence_number": number, **fields}, kind)
            for number, (kind, fields) in enumerate(
                [
                    ("response.created", {"response": begun}),
                    ("response.output_item.added", {"output_index": 0, "item": item}),
                    (
                        "response.content_part.added",
                        {"item_id": "msg_1", "output_index": 0, "content_index": 0, "part": part},
                    ),
                    ("response.output_text.delta", delta),
                    ("response.completed", {"response": RESPONSE}),
                ]
            )
        ]
    async with client_of(gateway, upstream, dialects=ALL) as (client, run):
        if streamed:
            async with client.responses.stream(model="x", input="boat") as stream:
                final: Any = await stream.get_final_response()
        else:
            final = await client.responses.create(model="x", input="boat")
        record = await record_of(run)
    assert final.output_text == "zip" and upstream.paths == ["/v1/responses"]
    (asked,) = upstream.asked
    assert (asked["include"], asked["enable_response_messages"]) == (["message.output_text.logprobs"], True)
    assert (record["api"], record["finish_reason"], record["usage"]) == ("responses", "stop", CHAT["usage"])
    assert tokens_of(record) == ([5, 6], [8, 1], [-1.0, -0.25]) and "missing" not in record
    assert record["response"]["output"][0]["content"][0] == {"type": "output_text", "text": "zip", "annotations": []}
    assert "input_messages" not in record["response"] and "upstream_api" not in record


async def test_responses_whose_logprobs_are_not_of_every_token_have_none_and_say_so(
    gateway: str, upstream: Upstream
) -> None:
    call = {"type": "function_call", "id": "fc", "call_id": "c", "name": "look_up", "arguments": "{}"}
    upstream.answer = copy.deepcopy(RESPONSE)
    upstream.answer["output"].append({**call, "status": "completed"})
    upstream.answer["output_messages"][0]["tokens"] = [8, 1, 3, 3]
    async with client_of(gateway, upstream, dialects=ALL) as (client, run):
        await client.responses.create(model="x", input="boat")
        record = await record_of(run)
    assert record["token_ids"] == [8, 1, 3, 3] and record["finish_reason"] == "tool_calls"
    assert record["missing"] == {"logprobs": "incomplete"} and "logprobs" not in record


async def test_a_native_response_without_raw_messages_says_what_is_missing(gateway: str, upstream: Upstream) -> None:
    upstream.answer = {key: value for key, value in RESPONSE.items() if not key.endswith("_messages")}
    upstream.answer = upstream.answer | {"status": "incomplete", "incomplete_details": {"reason": "max_output_tokens"}}
    async with client_of(gateway, upstream, dialects=ALL) as (client, run):
        await client.responses.create(model="x", input="boat", include=["message.output_text.logprobs"])
        record = await record_of(run)
    assert record["missing"] == {"prompt_token_ids": "not_given", "token_ids": "not_given"}
    assert record["finish_reason"] == "length" and record["logprobs"] == [-1.0, -0.25]
    assert record["response"]["output"][0]["content"][0]["logprobs"] == LOGPROBS["content"]


@pytest.mark.parametrize("streamed", [False, True])
async def test_responses_are_answered_by_chat_completions_with_their_tokens(
    gateway: str, upstream: Upstream, streamed: bool
) -> None:
    upstream.answer, upstream.pieces = CHAT, WORDS if streamed else None
    async with client_of(gateway, upstream) as (client, run):
        if streamed:
            async with client.responses.stream(model="x", input="boat", instructions="Zip.") as stream:
                kinds = [part.type async for part in stream]
                final: Any = await stream.get_final_response()
            assert kinds[:2] == ["response.created", "response.in_progress"] and kinds[-1] == "response.completed"
        else:
            final = await client.responses.create(model="x", input="boat", instructions="Zip.")
        record = await record_of(run)
    assert final.output_text == "zip" and final.usage.input_tokens == 2 and final.usage.output_tokens == 2
    assert upstream.paths == ["/v1/chat/completions"]
    asked = [{"role": "system", "content": "Zip."}, {"role": "user", "content": "boat"}]
    assert upstream.asked[0]["messages"] == asked and upstream.asked[0]["return_token_ids"] is True
    assert (record["api"], record["upstream_api"]) == ("responses", "chat")
    assert tokens_of(record) == ([5, 6], [8, 1], [-1.0, -0.25]) and "missing" not in record
    assert (record["finish_reason"], record["usage"], record["policy_version"]) == ("stop", CHAT["usage"], 7)
    assert record["request"]["input"] == "boat" and record["response"]["id"] == final.id
    assert record["response"]["output"][0]["content"][0]["text"] == "zip"


@pytest.mark.parametrize("streamed", [False, True])
async def test_responses_with_tools_go_round_through_chat_completions(
    gateway: str, upstream: Upstream, streamed: bool
) -> None:
    message = {"role": "assistant", "content": None, "tool_calls": CALLS}
    called = {**CHAT, "choices": [{"index": 0, "message": message, "finish_reason": "tool_calls"}]}
    upstream.answer, upstream.pieces = called, TOOLS if streamed else None
    tools: Any = [{"type": "function", "strict": False, **TOOL}]
    asked: Any = [{"role": "user", "content": "boat"}]
    async with client_of(gateway, upstream) as (client, _):
        if streamed:
            async with client.responses.stream(model="x", input=asked, tools=tools) as stream:
                first: Any = await stream.get_final_response()
        else:
            first = await client.responses.create(model="x", input=asked, tools=tools)
        assert [(item.name, item.arguments) for item in first.output] == [
            *(("look_up", '{"word": "boat"}'), ("look_up", "{}"))
        ]
        upstream.answer, upstream.pieces = CHAT, None
        results: Any = [
            {"type": "function_call_output", "call_id": item.call_id, "output": "a ship"} for item in first.output
        ]
        again = [*asked, *(item.model_dump(exclude_none=True) for item in first.output), *results]
        await client.responses.create(model="x", input=again, tools=tools, tool_choice="required")
    assert upstream.asked[0]["tools"] == [{"type": "function", "function": {**TOOL, "strict": False}}]
    assert upstream.asked[1]["tool_choice"] == "required"
    assert upstream.asked[1]["messages"] == [
        {"role": "user", "content": "boat"},
        {"role": "assistant", "content": None, "tool_calls": CALLS},
        {"role": "tool", "tool_call_id": "call_1", "content": "a ship"},
        {"role": "tool", "tool_call_id": "call_2", "content": "a ship"},
    ]


async def test_a_response_that_needs_what_chat_has_not_is_refused_as_the_sdk_reads_it(
    gateway: str, upstream: Upstream
) -> None:
    async with client_of(gateway, upstream) as (client, run):
        with pytest.raises(Exception, match="no 'previous_response_id': nothing of earlier calls is kept"):
            await client.responses.create(model="x", input="boat", previous_response_id="resp_0")
        with pytest.raises(Exception, match="no tools of type 'web_search'"):
            await client.responses.create(model="x", input="boat", tools=[{"type": "web_search"}])
        assert (await run.collect(["e1"]))["e1"] == []


async def test_an_error_of_the_model_server_is_told_in_the_agents_dialect(gateway: str, upstream: Upstream) -> None:
    upstream.status, upstream.answer = 429, {"error": {"message": "slow down", "code": "busy"}}
    async with client_of(gateway, upstream) as (client, run):
        with pytest.raises(RateLimitError, match="slow down") as told_:
            await client.responses.create(model="x", input="boat")
        assert told_.value.code == "busy"
        upstream.status, upstream.answer = 400, b"no JSON at all"
        with pytest.raises(BadRequestError, match="no JSON at all"):
            await client.responses.create(model="x", input="boat")
        records = (await run.collect(["e1"]))["e1"]
    assert [record["status"] for record in records] == ["upstream_error"] * 2


async def test_a_dialect_that_there_is_not_is_not_found(gateway: str, upstream: Upstream) -> None:
    async with client_of(gateway, upstream) as (client, _):
        with pytest.raises(NotFoundError, match="the gateway has no POST"):
            await client.embeddings.create(model="x", input="boat")


async def test_a_translated_stream_that_breaks_is_raised_by_the_sdk_and_recorded(
    gateway: str, upstream: Upstream
) -> None:
    from openai import APIError

    upstream.pieces = WORDS[:2]
    async with client_of(gateway, upstream) as (client, run):
        with pytest.raises(APIError, match="ended its stream"):
            async for _ in await client.responses.create(model="x", input="boat", stream=True):
                pass
        record = await record_of(run)
    assert record["status"] == "transport_error" and record["api"] == "responses"


@pytest.mark.parametrize("dialects", [[], ["chat", "telegraph"], "chat", [["chat"]], None])
async def test_dialects_that_there_are_not_seat_nobody(gateway: str, dialects: Any) -> None:
    from agent_env.errors import InvalidArguments
    from agent_env.net import bearer_headers, post_json

    body = {"seats": {"a": {"model": "A", "endpoints": ["http://127.0.0.1:9/v1"], "dialects": dialects}}}
    with pytest.raises(InvalidArguments, match="the dialects of the seat 'a' must be a list of some of chat, compl"):
        await post_json(f"{gateway}/runs", body, headers=bearer_headers(ADMIN))


async def test_a_native_response_stream_that_breaks_is_raised_by_the_sdk_and_leaves_what_came(
    gateway: str, upstream: Upstream
) -> None:
    from openai import APIError

    item = {**RESPONSE["output"][0], "content": []}
    call = {"type": "function_call", "id": "fc", "call_id": "c", "name": "look_up", "arguments": "{}"}
    upstream.pieces = [
        event({"type": kind, "sequence_number": number, **fields}, kind)
        for number, (kind, fields) in enumerate(
            [
                ("response.created", {"response": {**RESPONSE, "status": "in_progress", "output": []}}),
                ("response.output_item.added", {"output_index": 0, "item": item}),
                ("response.output_text.delta", {"output_index": 0, "delta": "zi"}),
                ("response.output_text.delta", {"output_index": 0, "delta": "p"}),
                ("response.output_item.done", {"output_index": 1, "item": call}),
            ]
        )
    ]
    async with client_of(gateway, upstream, dialects=ALL) as (client, run):
        with pytest.raises(APIError, match="ended its stream"):
            async for _ in await client.responses.create(model="x", input="boat", stream=True):
                pass
        record = await record_of(run)
    said, called = record["response"]["output"]
    assert said["content"][0]["text"] == "zip" and called == call and record["status"] == "transport_error"


@pytest.mark.parametrize("dialects", [("chat",), ALL])
@pytest.mark.parametrize("answer", [{"choices": [{"message": 5}]}, {"choices": 5}, {"output": 5}, {"output": [{}]}])
async def test_an_answer_that_is_none_is_a_protocol_error(
    gateway: str, upstream: Upstream, dialects: tuple[str, ...], answer: Any
) -> None:
    from openai import InternalServerError

    if "output" in answer and dialects == ("chat",):
        answer = {"choices": [{"message": {"tool_calls": "none"}}]}
    upstream.answer = answer
    async with client_of(gateway, upstream, dialects=dialects) as (client, run):
        with pytest.raises(InternalServerError, match="answered with what is no"):
            await client.responses.create(model="x", input="boat")
        assert (await record_of(run))["status"] == "protocol_error"


async def test_a_stream_that_comes_to_a_halt_is_given_up_in_time(tmp_path: Any, upstream: Upstream, serve: Any) -> None:
    import asyncio

    from openai import APIError

    upstream.pieces, upstream.hold = WORDS[:2], asyncio.Event()
    async with serve(tmp_path, model_seconds=0.3) as gateway:
        async with client_of(gateway, upstream) as (client, run):
            with pytest.raises(APIError, match="did not answer within the time allowed"):
                async for _ in await client.chat.completions.create(model="x", messages=[], stream=True):
                    pass
            record = await record_of(run)
    assert record["status"] == "deadline_exceeded"
    assert record["response"]["choices"][0]["message"]["content"] == "zi"


async def test_a_stream_without_usage_has_it_counted_and_half_a_surrogate_harms_nothing(
    gateway: str, upstream: Upstream
) -> None:
    odd = b'data: {"choices":[{"index":0,"delta":{"content":"\\ud83d"},"token_ids":[4]}]}\n\n'
    upstream.pieces = [FIRST, token("zi", 8, -1.0), odd, DONE]
    async with client_of(gateway, upstream) as (client, run):
        async for _ in await client.chat.completions.create(model="x", messages=[], stream=True):
            pass
        record = await record_of(run)
    assert record["usage"] == {"prompt_tokens": 2, "completion_tokens": 2, "total_tokens": 4}
    assert record["missing"] == {"logprobs": "incomplete"}
    assert record["response"]["choices"][0]["message"]["content"] == "zi\ud83d"
