"""Servers that answer a stream with a whole, or a whole with a stream: stock clients get what they asked for."""

from __future__ import annotations

import copy
import json
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Any

import anyio
import pytest
from anthropic import APIStatusError as AnthropicStatusError
from anthropic import AsyncAnthropic
from hypothesis import given
from hypothesis import strategies as st
from openai import APIStatusError, AsyncOpenAI

from agent_env.context import Run
from agent_env.gateway import RunHandle, SeatPolicy
from agent_env.gateway.dialects import DIALECTS

pytestmark = pytest.mark.anyio

ADMIN = "admin-token"
Upstream = Any
"""The model server of the fixture `upstream`."""
Json = dict[str, Any]

ARGUMENTS = '{"word": "boat"}'
TOOL: Json = {"name": "look_up", "description": "Looks up.", "parameters": {"type": "object", "properties": {}}}
ENTRIES = [{"token": "zip", "logprob": -1.0}, {"token": "", "logprob": -0.25}]
TOKENS = [5, 6], [8, 1], [-1.0, -0.25]
NO_TOKENS = None, None, None

CHAT: Json = {
    "id": "chatcmpl-1",
    "object": "chat.completion",
    "created": 1,
    "model": "m",
    "prompt_token_ids": TOKENS[0],
    "policy_version": 7,
    "choices": [
        {
            "index": 0,
            "message": {
                "role": "assistant",
                "content": "zip",
                "tool_calls": [
                    {"id": "t1", "type": "function", "function": {"name": "look_up", "arguments": ARGUMENTS}}
                ],
            },
            "finish_reason": "tool_calls",
            "token_ids": TOKENS[1],
            "logprobs": {"content": ENTRIES},
        }
    ],
    "usage": {"prompt_tokens": 2, "completion_tokens": 2, "total_tokens": 4},
}
COMPLETION: Json = {
    "id": "cmpl-1",
    "object": "text_completion",
    "created": 1,
    "model": "m",
    "policy_version": 7,
    "choices": [
        {
            "index": 0,
            "text": "zip",
            "finish_reason": "stop",
            "prompt_token_ids": TOKENS[0],
            "token_ids": TOKENS[1],
            "logprobs": {"tokens": ["zip", ""], "token_logprobs": TOKENS[2], "text_offset": [0, 3]},
        }
    ],
    "usage": {"prompt_tokens": 2, "completion_tokens": 2, "total_tokens": 4},
}
RESPONSE: Json = {
    "id": "resp_1",
    "object": "response",
    "created_at": 1,
    "status": "completed",
    "model": "m",
    "policy_version": 7,
    "output": [
        {"type": "reasoning", "id": "rs_1", "summary": [], "content": [{"type": "reasoning_text", "text": "Hm."}]},
        {
            "type": "message",
            "id": "msg_1",
            "role": "assistant",
            "status": "completed",
            "content": [{"type": "output_text", "text": "zip", "annotations": [], "logprobs": ENTRIES}],
        },
        {
            "type": "function_call",
            "id": "fc_1",
            "call_id": "t1",
            "name": "look_up",
            "arguments": ARGUMENTS,
            "status": "completed",
        },
    ],
    "parallel_tool_calls": True,
    "tool_choice": "auto",
    "tools": [],
    "usage": {"input_tokens": 2, "output_tokens": 2, "total_tokens": 4},
    "input_messages": [{"type": "raw_message_tokens", "message": "boat", "tokens": TOKENS[0]}],
    "output_messages": [{"type": "raw_message_tokens", "message": "zip", "tokens": TOKENS[1]}],
}
MESSAGE: Json = {
    "id": "msg_1",
    "type": "message",
    "role": "assistant",
    "model": "m",
    "policy_version": 7,
    "content": [
        {"type": "thinking", "thinking": "Hm.", "signature": "s1"},
        {"type": "redacted_thinking", "data": "d1"},
        {"type": "text", "text": "zip", "citations": None},
        {"type": "tool_use", "id": "t1", "name": "look_up", "input": json.loads(ARGUMENTS)},
    ],
    "stop_reason": "tool_use",
    "stop_sequence": None,
    "usage": {"input_tokens": 2, "output_tokens": 2},
}
WHOLE: dict[str, Json] = {"chat": CHAT, "completions": COMPLETION, "responses": RESPONSE, "messages": MESSAGE}

CASES = [
    ("chat", "chat", TOKENS),
    ("completions", "completions", TOKENS),
    ("responses", "responses", TOKENS),
    ("responses", "chat", TOKENS),
    ("messages", "messages", NO_TOKENS),
    ("messages", "chat", TOKENS),
]
"""The agent's dialect, the server's, and what a record then has of tokens."""

asked_in_every_dialect = pytest.mark.parametrize(("asked", "spoken", "tokens"), CASES, ids=lambda case: str(case)[:9])
either_way = pytest.mark.parametrize("streamed", [True, False], ids=["stream wanted", "whole wanted"])


def answer_with(upstream: Upstream, spoken: str, *, streamed: bool) -> None:
    """Has the server answer in the form that was not asked for."""
    if streamed:
        upstream.pieces = [DIALECTS[spoken].events(WHOLE[spoken], {"stream_options": {"include_usage": True}})]
    else:
        upstream.answer = WHOLE[spoken]


Said = tuple[str, list[Any]]


async def ask_chat(client: AsyncOpenAI, streamed: bool) -> Said:
    asked: Any = {"model": "x", "messages": [{"role": "user", "content": "boat"}]}
    if streamed:
        async with client.chat.completions.stream(**asked) as stream:
            answer: Any = await stream.get_final_completion()
    else:
        answer = await client.chat.completions.create(**asked)
    message = answer.choices[0].message
    return message.content, [(call.function.name, json.loads(call.function.arguments)) for call in message.tool_calls]


async def ask_completions(client: AsyncOpenAI, streamed: bool) -> Said:
    answer: Any = await client.completions.create(model="x", prompt="boat", stream=streamed)
    parts = [part async for part in answer] if streamed else [answer]
    return "".join(part.choices[0].text for part in parts if part.choices), []


async def ask_responses(client: AsyncOpenAI, streamed: bool) -> Said:
    asked: Any = {"model": "x", "input": "boat", "tools": [{"type": "function", "strict": False, **TOOL}]}
    told: dict[str, str] = {}
    if streamed:
        async with client.responses.stream(**asked) as stream:
            async for event in stream:
                if event.type in ("response.output_text.delta", "response.function_call_arguments.delta"):
                    told[event.type] = told.get(event.type, "") + event.delta
            answer: Any = await stream.get_final_response()
        assert list(told.values()) == ["zip", ARGUMENTS]
    else:
        answer = await client.responses.create(**asked)
    calls = [item for item in answer.output if item.type == "function_call"]
    return answer.output_text, [(call.name, json.loads(call.arguments)) for call in calls]


async def ask_messages(client: AsyncAnthropic, streamed: bool) -> Said:
    asked: Any = {"model": "x", "max_tokens": 9, "messages": [{"role": "user", "content": "boat"}]}
    if streamed:
        async with client.messages.stream(**asked) as stream:
            said = "".join([text async for text in stream.text_stream])
            answer: Any = await stream.get_final_message()
        assert said == "zip"
    else:
        answer = await client.messages.create(**asked)
    assert (answer.stop_reason, answer.usage.output_tokens) == ("tool_use", 2)
    text = "".join(block.text for block in answer.content if block.type == "text")
    return text, [(block.name, block.input) for block in answer.content if block.type == "tool_use"]


ASK: dict[str, Callable[[Any, bool], Awaitable[Said]]] = {
    "chat": ask_chat,
    "completions": ask_completions,
    "responses": ask_responses,
    "messages": ask_messages,
}


@asynccontextmanager
async def client_of(
    gateway: str, upstream: Upstream, asked: str, spoken: str, **options: Any
) -> AsyncGenerator[tuple[Any, RunHandle], None]:
    seats = {"a": SeatPolicy("A", (upstream.url,), dialects=(spoken,), **options)}
    async with AsyncExitStack() as stack:
        stack.enter_context(anyio.fail_after(20))
        run = await stack.enter_async_context(await RunHandle.open(gateway, ADMIN, seats, keep_journal=False))
        seen: Run = run.episode("e1", "a")
        assert seen.route is not None
        given: Json = {"api_key": seen.route.token, "max_retries": 0}
        base = seen.model_url("t1")
        client: Any = (
            AsyncAnthropic(base_url=base.removesuffix("/v1"), **given)
            if asked == "messages"
            else AsyncOpenAI(base_url=base, **given)
        )
        yield await stack.enter_async_context(client), run


async def record_of(run: RunHandle) -> Json:
    (record,) = (await run.collect(["e1"]))["e1"]
    return record


def tokens_of(record: Json) -> Any:
    return record.get("prompt_token_ids"), record.get("token_ids"), record.get("logprobs")


@either_way
@asked_in_every_dialect
async def test_a_client_gets_what_it_asked_for_whatever_the_server_makes_of_it(
    gateway: str, upstream: Upstream, asked: str, spoken: str, tokens: Any, streamed: bool
) -> None:
    answer_with(upstream, spoken, streamed=not streamed)
    async with client_of(gateway, upstream, asked, spoken) as (client, run):
        text, calls = await ASK[asked](client, streamed)
        record = await record_of(run)
    assert text == "zip" and calls == ([] if asked == "completions" else [("look_up", json.loads(ARGUMENTS))])
    assert upstream.asked[0].get("stream", False) is streamed
    assert (record["status"], record["policy_version"]) == ("ok", 7) and tokens_of(record) == tokens
    assert record.get("stream", False) is streamed and record["usage"]["completion_tokens"] == 2


@pytest.mark.parametrize("fault", ["another form", "no JSON"])
@asked_in_every_dialect
async def test_a_whole_that_no_stream_can_tell_is_a_failure_to_its_client_and_in_its_record(
    gateway: str, upstream: Upstream, asked: str, spoken: str, tokens: Any, fault: str
) -> None:
    upstream.answer = {"choices": [8], "output": [8], "content": [8]} if fault == "another form" else b"busy"
    async with client_of(gateway, upstream, asked, spoken) as (client, run):
        with pytest.raises((APIStatusError, AnthropicStatusError)) as failed:
            await ASK[asked](client, True)
        record = await record_of(run)
    assert failed.value.status_code == 502
    assert record["status"] == "protocol_error" and tokens_of(record) == NO_TOKENS


@asked_in_every_dialect
async def test_a_stream_that_breaks_off_is_no_whole(
    gateway: str, upstream: Upstream, asked: str, spoken: str, tokens: Any
) -> None:
    answer_with(upstream, spoken, streamed=True)
    *events, _last, _end = upstream.pieces[0].split(b"\n\n")
    upstream.pieces = [b"\n\n".join(events) + b"\n\n"]
    async with client_of(gateway, upstream, asked, spoken) as (client, run):
        with pytest.raises((APIStatusError, AnthropicStatusError)) as failed:
            await ASK[asked](client, False)
        record = await record_of(run)
    assert failed.value.status_code == 502 and "ended its stream before its last event" in failed.value.message
    assert record["status"] == "transport_error" and tokens_of(record) == NO_TOKENS
    assert record["response"]  # what came of it


@either_way
async def test_the_settings_of_a_seat_may_ask_for_the_other_form(
    gateway: str, upstream: Upstream, streamed: bool
) -> None:
    answer_with(upstream, "chat", streamed=not streamed)
    async with client_of(gateway, upstream, "chat", "chat", settings={"stream": not streamed}) as (client, run):
        assert (await ask_chat(client, streamed))[0] == "zip"
        record = await record_of(run)
    assert upstream.asked[0]["stream"] is not streamed and record["status"] == "ok" and tokens_of(record) == TOKENS


@pytest.mark.parametrize("wished", [True, False])
async def test_who_asks_for_the_usage_of_a_stream_gets_it(gateway: str, upstream: Upstream, wished: bool) -> None:
    upstream.answer = CHAT
    async with client_of(gateway, upstream, "chat", "chat") as (client, run):
        asked: Any = {"stream_options": {"include_usage": True}} if wished else {}
        stream = await client.chat.completions.create(model="x", messages=[], stream=True, **asked)
        usages = [chunk.usage.total_tokens async for chunk in stream if chunk.usage is not None]
        record = await record_of(run)
    assert usages == ([4] if wished else []) and record["usage"] == CHAT["usage"]


texts = st.text(max_size=12)
counts = st.integers(0, 9)


def _chat_of(said: list[tuple[str | None, list[str], list[int]]]) -> Json:
    choices = [
        {
            "index": index,
            "message": {"role": "assistant", "content": text}
            | (
                {
                    "tool_calls": [
                        {"index": at, "id": f"t{at}", "type": "function", "function": {"name": "f", "arguments": call}}
                        for at, call in enumerate(calls)
                    ]
                }
                if calls
                else {}
            ),
            "finish_reason": "stop",
            "token_ids": ids,
        }
        for index, (text, calls, ids) in enumerate(said)
    ]
    return {**CHAT, "choices": choices}


parts = st.builds(lambda text: {"type": "output_text", "text": text, "annotations": [], "logprobs": []}, texts)
refusals = st.builds(lambda text: {"type": "refusal", "refusal": text}, texts)
items = st.one_of(
    st.builds(
        lambda content: {"type": "message", "id": "msg", "content": content}, st.lists(parts | refusals, max_size=3)
    ),
    st.builds(lambda text: {"type": "function_call", "id": "fc", "name": "f", "arguments": text}, texts),
    st.just({"type": "web_search_call", "id": "ws", "status": "completed"}),
)
blocks = st.one_of(
    st.builds(lambda text: {"type": "text", "text": text}, texts),
    st.builds(lambda text: {"type": "thinking", "thinking": text, "signature": text}, texts),
    st.builds(
        lambda given: {"type": "tool_use", "id": "t", "name": "f", "input": given}, st.dictionaries(texts, counts)
    ),
    st.just({"type": "redacted_thinking", "data": "d"}),
)
answers = st.one_of(
    st.builds(
        lambda said: ("chat", _chat_of(said)),
        st.lists(st.tuples(st.none() | texts, st.lists(texts, max_size=2), st.lists(counts, max_size=3)), max_size=3),
    ),
    st.builds(
        lambda said: (
            "completions",
            {**COMPLETION, "choices": [{"index": n, "text": text} for n, text in enumerate(said)]},
        ),
        st.lists(texts, max_size=3),
    ),
    st.builds(
        lambda status, output: ("responses", {**RESPONSE, "status": status, "output": output}),
        st.sampled_from(["completed", "incomplete", "failed"]),
        st.lists(items, max_size=3),
    ),
    st.builds(lambda content: ("messages", {**MESSAGE, "content": content}), st.lists(blocks, max_size=3)),
)


@given(answers)
def test_whatever_an_answer_is_its_stream_tells_the_whole_of_it(told: tuple[str, Json]) -> None:
    spoken, answer = told
    before = copy.deepcopy(answer)
    whole = DIALECTS[spoken].stream()
    whole.feed(DIALECTS[spoken].events(answer, {"stream_options": {"include_usage": True}}))
    assert whole.done and whole.finish() == before == answer
