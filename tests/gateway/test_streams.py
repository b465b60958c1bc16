"""Streamed model calls: passed on as they come, recorded as if they had come whole."""

from __future__ import annotations

import asyncio
import copy
import itertools
import json
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import anyio
import pytest
from hypothesis import given
from hypothesis import strategies as st

from agent_env.episodes import CallRecord
from agent_env.errors import ProtocolError
from agent_env.gateway import RunHandle
from agent_env.gateway.capture import StreamCapture, capture

pytestmark = pytest.mark.anyio

COMPLETION: dict[str, Any] = json.loads((Path(__file__).parent / "completion.json").read_text())
Upstream = Any
"""The model server of the fixture `upstream`."""
Chat = Callable[..., Awaitable[Any]]

HEAD = {key: COMPLETION[key] for key in ("id", "created", "model", "policy_version", "vendor_field")}


def event(value: Any) -> bytes:
    return b"data: " + json.dumps(value).encode() + b"\n\n"


def chunk(delta: Any, choice: Any = None, **fields: Any) -> bytes:
    entry = {"index": 0, "delta": delta, "finish_reason": None, **(choice or {})}
    return event({**HEAD, "object": "chat.completion.chunk", **fields, "choices": [entry]})


def token(text: str, number: int, logprob: float, **choice: Any) -> bytes:
    entry = {"token_ids": [number], "logprobs": {"content": [{"token": text.strip(), "logprob": logprob}]}}
    return chunk({"content": text}, entry | choice)


STREAM = [
    chunk({"role": "assistant", "content": ""}, prompt_token_ids=[5, 6]),
    b": a comment\n\n",
    token("zip", 8, -1.0),
    token(" zap", 9, -0.5),
    token("", 1, -0.25, finish_reason="stop"),
    event({**HEAD, "choices": [], "usage": COMPLETION["usage"]}),
    b"data: [DONE]\n\n",
]


def recorded(response: dict[str, Any]) -> CallRecord:
    record = CallRecord("k", "c", "a", "A")
    capture(record, copy.deepcopy(response), keep_logprobs=True)
    return record


@given(st.lists(st.integers(0, sum(map(len, STREAM))), max_size=12))
def test_however_a_stream_is_cut_it_is_the_unstreamed_answer(cuts: list[int]) -> None:
    whole, seen = b"".join(STREAM), StreamCapture()
    places = [0, *sorted(cuts), len(whole)]
    for begin, end in itertools.pairwise(places):
        seen.feed(whole[begin:end])
    assert seen.done
    assert recorded(seen.finish()) == recorded(COMPLETION)


def test_tool_calls_of_several_choices_come_together_by_their_index() -> None:
    seen = StreamCapture()
    for index, delta in (
        (0, {"role": "assistant", "content": None}),
        (0, {"tool_calls": [{"index": 0, "id": "t0", "type": "function", "function": {"name": "f", "arguments": ""}}]}),
        (1, {"content": "a"}),
        (0, {"tool_calls": [{"index": 0, "function": {"arguments": '{"x"'}}]}),
        (
            0,
            {"tool_calls": [{"index": 1, "id": "t1", "type": "function", "function": {"name": "g", "arguments": "{"}}]},
        ),
        (1, {"content": "b"}),
        (
            0,
            {
                "tool_calls": [
                    {"index": 1, "id": "t1", "function": {"arguments": "}"}},
                    {"index": 0, "function": {"arguments": ":1}"}},
                ]
            },
        ),
    ):
        seen.feed(chunk(delta, {"index": index}))
    first, second = seen.finish()["choices"]
    assert [(call["id"], call["function"]) for call in first["message"]["tool_calls"]] == [
        ("t0", {"name": "f", "arguments": '{"x":1}'}),
        ("t1", {"name": "g", "arguments": "{}"}),
    ]
    assert first["message"]["content"] is None and second["message"]["content"] == "ab"


@pytest.mark.parametrize("data", [b"data: nonsense\n\n", b"data: [1]\n\n", b'data: {"choices": [{"delta": 3}]}\n\n'])
def test_a_chunk_that_is_none_is_told(data: bytes) -> None:
    with pytest.raises(ProtocolError, match="no chat completion chunk"):
        StreamCapture().feed(data)


async def test_a_stream_passes_unchanged_and_is_recorded_before_its_end(
    run: RunHandle, upstream: Upstream, chat: Chat
) -> None:
    upstream.pieces = STREAM
    answer = await chat(run.episode("e1", "a"), {"messages": [], "stream": True})
    assert answer.body == b"".join(STREAM)
    assert answer.headers["content-type"] == "text/event-stream"
    (record,) = (await run.collect(["e1"]))["e1"]
    assert record["stream"] is True and record["status"] == "ok"
    assert (record["prompt_token_ids"], record["token_ids"]) == ([5, 6], [8, 9, 1])
    assert record["logprobs"] == [-1.0, -0.5, -0.25]
    assert (record["policy_version"], record["finish_reason"]) == (7, "stop")
    assert record["usage"] == COMPLETION["usage"]
    assert record["response"]["choices"][0]["message"] == {"role": "assistant", "content": "zip zap"}


async def test_the_first_words_arrive_while_the_model_still_speaks(run: RunHandle, upstream: Upstream) -> None:
    from agent_env.net import shared_http

    upstream.pieces, upstream.hold = STREAM[:3], asyncio.Event()
    seen = run.episode("e1", "a")
    assert seen.route is not None
    with anyio.fail_after(10):
        async with shared_http().post(
            seen.model_url("c1") + "/chat/completions",
            json={"messages": [], "stream": True},
            headers={"Authorization": f"Bearer {seen.route.token}"},
        ) as response:
            got = b""
            while len(got) < len(b"".join(STREAM[:3])):
                got += await response.content.readany()
        # Leaving the block closes the connection in the middle of the stream.
        await upstream.gone.wait()
        while not (found := (await run.collect(["e1"]))["e1"]):
            pass
    assert found[0]["status"] == "cancelled"
    assert found[0]["response"]["choices"][0]["message"]["content"] == "zip"


@pytest.mark.parametrize(
    ("pieces", "breaks", "code"),
    [
        (STREAM[:3], False, "transport_error"),
        (STREAM[:3], True, "protocol_error"),
        ([*STREAM[:3], b"data: {broken\n\n"], False, "protocol_error"),
        ([chunk({}, {"logprobs": {"content": [{}]}}), b"data: [DONE]\n\n"], False, "protocol_error"),
    ],
)
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
async def test_a_stream_that_breaks_ends_with_an_error_that_clients_raise(
    run: RunHandle, upstream: Upstream, pieces: list[bytes], breaks: bool, code: str
) -> None:
    from openai import APIError, AsyncOpenAI

    upstream.pieces, upstream.breaks = pieces, breaks
    seen = run.episode("e1", "a")
    assert seen.route is not None
    async with AsyncOpenAI(base_url=seen.model_url("c1"), api_key=seen.route.token, max_retries=0) as client:
        with anyio.fail_after(10), pytest.raises(APIError):
            async for _ in await client.chat.completions.create(model="x", messages=[], stream=True):
                pass
    (record,) = (await run.collect(["e1"]))["e1"]
    assert record["status"] == code and record["error"]["code"] == code
    assert "choices" in record["response"]
