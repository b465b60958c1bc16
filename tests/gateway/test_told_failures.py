"""Servers that tell an error in an answer of status 200: it is no answer, whoever asked in which dialect, and no row."""

from __future__ import annotations

import json
from typing import Any

import aiohttp
import anyio
import pytest

from agent_env.context import Run
from agent_env.gateway import RunHandle, SeatPolicy
from agent_env.gateway.capture import told_failure

pytestmark = pytest.mark.anyio

ADMIN = "admin-token"
Json = dict[str, Any]
WORDS = "out of memory"
ERROR: Json = {"error": {"message": WORDS, "type": "server_error", "code": 500}}
DELTA: Json = {"index": 0, "delta": {"content": "zip"}, "token_ids": [8], "logprobs": {"content": [{"logprob": -1.0}]}}
PATHS = {"chat": "chat/completions", "completions": "completions", "responses": "responses", "messages": "messages"}
TURN: Json = {"messages": [{"role": "user", "content": "boat"}]}
ASKED: dict[str, Json] = {
    "chat": TURN,
    "completions": {"prompt": "boat"},
    "responses": {"input": "boat"},
    "messages": {**TURN, "max_tokens": 9},
}
FAILED: Json = {
    "id": "resp_1",
    "status": "failed",
    "error": {"code": "server_error", "message": WORDS},
    "output": [],
    "output_messages": [{"type": "raw_message_tokens", "message": "zip", "tokens": [8]}],
}
"""A response that failed, as the dialect has it."""


def events(*told: Json | str) -> bytes:
    return b"".join(b"data: %b\n\n" % (one if isinstance(one, str) else json.dumps(one)).encode() for one in told)


STREAMS: dict[str, bytes] = {
    "chat": events({"prompt_token_ids": [5, 6], "choices": [DELTA]}, ERROR, "[DONE]"),
    "completions": events({"choices": [{"index": 0, "text": "zip", "token_ids": [8]}]}, ERROR, "[DONE]"),
    "responses": events(
        {"type": "response.created", "response": {**FAILED, "status": "in_progress", "error": None}},
        {"type": "response.failed", "response": FAILED},
    ),
    "messages": events({"type": "message_start", "message": {"content": []}}, {"type": "error", **ERROR}),
}
WHOLES: dict[str, Json] = {
    "chat": ERROR,
    "completions": ERROR,
    "responses": FAILED,
    "messages": {"type": "error", **ERROR},
}
CASES = [
    *((dialect, dialect) for dialect in PATHS),
    ("responses", "chat"),
    ("messages", "chat"),
]


async def asked(gateway: str, upstream: Any, dialect: str, spoken: str, stream: bool) -> tuple[int, bytes, Json]:
    """What a plain caller gets, and the record of its call."""
    seats = {"a": SeatPolicy("A", (upstream.url,), dialects=(spoken,))}
    body = {"model": "x", "stream": stream, **ASKED[dialect]}
    with anyio.fail_after(20):
        async with (
            await RunHandle.open(gateway, ADMIN, seats, keep_journal=False) as run,
            aiohttp.ClientSession() as session,
        ):
            seen: Run = run.episode("e1", "a")
            assert seen.route is not None
            headers = {"Authorization": f"Bearer {seen.route.token}", "x-api-key": seen.route.token}
            async with session.post(f"{seen.model_url('t1')}/{PATHS[dialect]}", json=body, headers=headers) as answer:
                status, told = answer.status, await answer.read()
            (record,) = (await run.collect(["e1"]))["e1"]
    return status, told, record


def assert_failed(record: Json) -> None:
    assert record["status"] in ("upstream_error", "protocol_error") and WORDS in record["error"]["message"]
    assert (record.get("token_ids"), record.get("logprobs")) == (None, None)


@pytest.mark.parametrize("stream", [True, False], ids=["stream wanted", "whole wanted"])
@pytest.mark.parametrize(("dialect", "spoken"), CASES)
async def test_an_error_that_ends_a_stream_fails_the_call(
    gateway: str, upstream: Any, dialect: str, spoken: str, stream: bool
) -> None:
    upstream.pieces = [STREAMS[spoken]]
    status, told, record = await asked(gateway, upstream, dialect, spoken, stream)
    assert_failed(record)
    assert WORDS.encode() in told and status == (200 if stream else 502)
    if stream and dialect == spoken:
        assert told.startswith(STREAMS[spoken])  # the server's own words, which its clients know


@pytest.mark.parametrize("stream", [True, False], ids=["stream wanted", "whole wanted"])
@pytest.mark.parametrize(("dialect", "spoken"), CASES)
async def test_an_error_in_place_of_a_whole_answer_fails_the_call(
    gateway: str, upstream: Any, dialect: str, spoken: str, stream: bool
) -> None:
    upstream.answer = WHOLES[spoken]
    status, told, record = await asked(gateway, upstream, dialect, spoken, stream)
    assert_failed(record)
    assert WORDS.encode() in told
    assert status == (200 if not stream and dialect == spoken else 502)


@pytest.mark.parametrize(
    "answer",
    [{"error": None, "choices": []}, {"status": "incomplete", "error": None}, {"type": "message"}, {"response": None}],
)
def test_an_answer_that_names_no_error_tells_none(answer: Json) -> None:
    assert told_failure(answer) is None


@pytest.mark.parametrize("answer", [{"error": "oom"}, {"type": "error"}, {"status": "failed"}, {"error": {"code": 3}}])
def test_an_error_of_any_form_is_told_in_words(answer: Json) -> None:
    assert str(told_failure(answer)).startswith("the model's server told an error in its answer: ")
