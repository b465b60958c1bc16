"""Streamed model calls: passed on as they come, recorded as if they had come whole."""

from __future__ import annotations

import asyncio
import copy
import itertools
import json
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import anyio
import pytest
from hypothesis import given
from hypothesis import strategies as st

from agent_env.episodes import CallRecord
from agent_env.errors import ProtocolError
from agent_env.gateway import RunHandle, SeatPolicy
from agent_env.gateway.dialects import CHAT
from agent_env.gateway.dialects.chat import ChatStream as StreamCapture

pytestmark = pytest.mark.anyio

ADMIN = "admin-token"
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
    CHAT.capture(record, copy.deepcopy(response), keep_logprobs=True)
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


@pytest.mark.parametrize("own", [{}, {"stream_options": {"include_usage": True}}], ids=["unasked", "asked"])
async def test_a_stream_passes_unchanged_and_is_recorded_before_its_end(
    run: RunHandle, upstream: Upstream, chat: Chat, own: dict[str, Any]
) -> None:
    upstream.pieces, upstream.usage = [*STREAM[:-2], STREAM[-1]], STREAM[-2]
    answer = await chat(run.episode("e1", "a"), {"messages": [], "stream": True, **own})
    assert answer.body == b"".join(STREAM if own else upstream.pieces)
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
        (STREAM[:3], True, "transport_error"),
        ([*STREAM[:3], b"data: {broken\n\n"], False, "protocol_error"),
        ([chunk({}, {"finish_reason": ["stop"]}), b"data: [DONE]\n\n"], False, "protocol_error"),
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


@pytest.mark.parametrize("index", ["a", 1.5, True, [1], {}])
@pytest.mark.parametrize("place", ["choice", "tool call"])
def test_an_index_that_is_no_whole_number_is_told(index: Any, place: str) -> None:
    seen = StreamCapture()
    seen.feed(chunk({"tool_calls": [{"index": 0}]}))
    odd = chunk({}, {"index": index}) if place == "choice" else chunk({"tool_calls": [{"index": index}]})
    with pytest.raises(ProtocolError, match="no whole number"):
        seen.feed(odd)
    assert seen.finish()["choices"][0]["message"]["tool_calls"] == [{"index": 0}]


def test_what_follows_the_end_of_a_stream_is_passed_over() -> None:
    seen = StreamCapture()
    seen.feed(token("zip", 8, -1.0) + b"data: [DONE]\n\n" + token("zap", 9, -1.0) + b"data: {broken\n\n")
    assert seen.done and seen.finish()["choices"][0]["message"]["content"] == "zip"


def test_a_list_that_came_inside_an_object_grows_by_index_as_well() -> None:
    seen = StreamCapture()
    seen.feed(chunk({"audio": {"parts": [{"index": 0, "text": "a"}]}}))
    seen.feed(chunk({"audio": {"parts": [{"index": 0, "text": "b"}, {"index": 1, "text": "c"}, {"text": "d"}]}}))
    assert seen.finish()["choices"][0]["message"]["audio"]["parts"] == [
        *({"index": 0, "text": "ab"}, {"index": 1, "text": "c"}, {"text": "d"})
    ]


@pytest.mark.parametrize(
    "pieces",
    [
        [event({"choices": [{"delta": {"tool_calls": [{"index": index}]}}]}) for index in range(40_000)],
        [b"data: " + b"x" * 20_000] + [b"x" * 20_000] * 1500,
        [event({"choices": [{"delta": {"content": "x" * 500}}]})] * 40_000,
    ],
    ids=["tool calls", "one line", "one text"],
)
def test_the_cost_of_a_stream_grows_with_its_length_alone(pieces: list[bytes]) -> None:
    def cost(part: list[bytes]) -> float:
        seen, begun = StreamCapture(), time.process_time()
        for piece in part:
            seen.feed(piece)
        return time.process_time() - begun

    quarter = max(cost(pieces[: len(pieces) // 4]) for _ in range(3))
    # Four times the length: four times the cost if linear, sixteen times if quadratic. Of what takes no time at all, page
    # faults and the clock tell more than the length does; a quadratic cost takes seconds here.
    assert cost(pieces) < 10 * max(quarter, 0.02)


async def test_a_stream_beyond_the_bound_is_ended_and_recorded(
    tmp_path: Path, upstream: Upstream, serve: Callable[..., Any], chat: Chat
) -> None:
    upstream.pieces = [*STREAM[:3], *[token("y" * 1000, 1, -1.0)] * 100, *STREAM[3:]]
    async with serve(tmp_path, max_reply_bytes=20_000) as gateway:
        async with await RunHandle.open(gateway, ADMIN, {"a": SeatPolicy("A", (upstream.url,))}) as run:
            with anyio.fail_after(10):
                answer = await chat(run.episode("e1", "a"), {"messages": [], "stream": True})
            (record,) = (await run.collect(["e1"]))["e1"]
    last = json.loads(answer.body.strip().rsplit(b"data: ", 1)[1])
    assert last["error"]["code"] == "message_too_large" and len(answer.body) < 22_000
    assert record["status"] == "message_too_large" and "more than 20000 bytes" in record["error"]["message"]
    assert "choices" in record["response"]


async def test_a_stream_with_an_odd_index_leaves_its_record(run: RunHandle, upstream: Upstream, chat: Chat) -> None:
    upstream.pieces = [*STREAM[:3], chunk({"content": "a"}, {"index": "a"}), b"data: [DONE]\n\n"]
    answer = await chat(run.episode("e1", "a"), {"messages": [], "stream": True})
    assert b'"code":"protocol_error"' in answer.body
    (record,) = (await run.collect(["e1"]))["e1"]
    assert record["status"] == "protocol_error" and "index 'a'" in record["error"]["message"]
    assert record["response"]["choices"][0]["message"]["content"] == "zip"


async def test_a_fault_of_the_gateway_leaves_a_record_as_well(
    run: RunHandle, upstream: Upstream, chat: Chat, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(*_: Any, **__: Any) -> None:
        raise ZeroDivisionError("a fault")

    monkeypatch.setattr("agent_env.gateway.dialects.chat.Chat.capture", broken)
    answer = await chat(run.episode("e1", "a"))
    assert answer.status == 500
    (record,) = (await run.collect(["e1"]))["e1"]
    assert record["status"] == "internal" and record["error"]["message"].endswith("ZeroDivisionError: a fault")


async def test_an_answer_that_is_too_deep_to_be_written_leaves_a_record(
    tmp_path: Path, upstream: Upstream, serve: Callable[..., Any], chat: Chat
) -> None:
    depths = range(400, 1000, 20)
    async with serve(tmp_path) as gateway:
        async with await RunHandle.open(gateway, ADMIN, {"a": SeatPolicy("A", (upstream.url,))}, run="r1") as run:
            for depth in depths:
                upstream.answer = b'{"choices":[],"x":' + b"[" * depth + b"]" * depth + b"}"
                assert (await chat(run.episode("e1", "a"))).status in (200, 502)
            # Whatever was kept can be read, from here too.
            assert len((await run.collect(["e1"]))["e1"]) == len(depths)
    _, *records = (tmp_path / "r1.jsonl").read_text().splitlines()
    assert len(records) == len(depths)
    assert '"status":"ok"' in records[0] and '"status":"protocol_error"' in records[-1]


@pytest.mark.parametrize("place", ["usage", "policy_version"])
async def test_a_part_of_an_answer_that_is_too_deep_to_be_written_leaves_a_record(
    run: RunHandle, upstream: Upstream, chat: Chat, place: str
) -> None:
    deep = b"[" * 700 + b"]" * 700
    whole = json.dumps({**COMPLETION, place: {"x": "HERE"}}).encode().replace(b'"HERE"', deep)
    upstream.answer = whole
    assert (await chat(run.episode("e1", "a"))).status == 200
    (record,) = (await run.collect(["e1"]))["e1"]
    assert record["status"] == "protocol_error" and "nested" in record["error"]["message"]
