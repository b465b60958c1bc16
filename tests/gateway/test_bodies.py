"""Bodies and answers of every shape, in all dialects: what is wrong is told in the dialect's words, and never hangs."""

from __future__ import annotations

import copy
import itertools
import json
from collections.abc import AsyncGenerator, Iterator
from typing import Any

import anyio
import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from agent_env.gateway import RunHandle, SeatPolicy
from agent_env.gateway.dialects import DIALECTS
from agent_env.net import shared_http

pytestmark = [pytest.mark.anyio, pytest.mark.timeout(120)]

ADMIN = "admin-token"
Upstream = Any
"""The model server of the fixture `upstream_server`."""

SCHEMA = {"type": "object", "properties": {"a": {"type": "string"}}}
URL = "data:image/png;base64,AAAA"

WHOLE: dict[str, dict[str, Any]] = {
    "chat": {
        "model": "x",
        "messages": [{"role": "user", "content": [{"type": "text", "text": "boat"}]}],
        "temperature": 0.5,
        "logprobs": True,
        "top_logprobs": 1,
        "n": 1,
        "tools": [{"type": "function", "function": {"name": "f", "parameters": SCHEMA}}],
        "stream": False,
    },
    "completions": {"model": "x", "prompt": "boat", "logprobs": 1, "echo": True, "temperature": 1, "n": 1},
    "responses": {
        "model": "x",
        "instructions": "Zip.",
        "input": [
            {"role": "user", "content": [{"type": "input_text", "text": "a"}]},
            {"role": "user", "content": [{"type": "input_image", "image_url": URL, "detail": "low"}]},
            {"type": "reasoning", "summary": [{"type": "summary_text", "text": "s"}], "content": [{"text": "r"}]},
            {"type": "message", "role": "assistant", "content": [{"type": "refusal", "refusal": "no"}]},
            {"type": "function_call", "call_id": "c1", "name": "f", "arguments": "{}"},
            {"type": "function_call_output", "call_id": "c1", "output": "ok"},
        ],
        "text": {"verbosity": "low", "format": {"type": "json_schema", "name": "n", "schema": SCHEMA}},
        "reasoning": {"effort": "low"},
        "include": ["message.output_text.logprobs"],
        "tools": [{"type": "function", "name": "f", "parameters": SCHEMA}],
        "tool_choice": {"type": "function", "name": "f"},
        "temperature": 0.5,
        "truncation": "disabled",
        "stream": False,
    },
    "messages": {
        "model": "x",
        "max_tokens": 5,
        "system": [{"type": "text", "text": "Zip."}],
        "messages": [
            {"role": "user", "content": [{"type": "text", "text": "a"}]},
            {"role": "user", "content": [{"type": "image", "source": {"type": "url", "url": URL}}]},
            {
                "role": "assistant",
                "content": [
                    {"type": "thinking", "thinking": "t"},
                    {"type": "text", "text": "b"},
                    {"type": "tool_use", "id": "c1", "name": "f", "input": {"a": 1}},
                ],
            },
            {"role": "user", "content": [{"type": "tool_result", "tool_use_id": "c1", "content": "ok"}]},
        ],
        "metadata": {"user_id": "u"},
        "output_config": {"effort": "low", "format": {"type": "json_schema", "schema": SCHEMA}},
        "tools": [{"name": "f", "description": "d", "input_schema": SCHEMA}],
        "tool_choice": {"type": "tool", "name": "f", "disable_parallel_tool_use": True},
        "temperature": 0.5,
        "stream": False,
    },
}
"""A request of each dialect that says all there is to say; it is broken at one place or several."""

CHUNK: dict[str, Any] = {
    "id": "c",
    "object": "chat.completion.chunk",
    "model": "x",
    "prompt_token_ids": [1],
    "usage": {
        "prompt_tokens": 1,
        "completion_tokens": 1,
        "total_tokens": 2,
        "prompt_tokens_details": {"cached_tokens": 0},
    },
    "choices": [
        {
            "index": 0,
            "delta": {
                "role": "assistant",
                "reasoning_content": "r",
                "content": "zip",
                "tool_calls": [{"index": 0, "id": "t", "function": {"name": "f", "arguments": "{}"}}],
            },
            "token_ids": [2],
            "logprobs": {"content": [{"token": "zip", "logprob": -0.5}]},
            "finish_reason": "stop",
        }
    ],
}
COMPLETION: dict[str, Any] = {
    **CHUNK,
    "object": "chat.completion",
    "choices": [{**CHUNK["choices"][0], "message": CHUNK["choices"][0]["delta"]}],
}

ODD = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-2, 9)
    | st.just(10**400)
    | st.floats(allow_nan=False)
    | st.sampled_from(["", "text", "function", "assistant", "\ud800"]),
    lambda inner: (
        st.lists(inner, max_size=2) | st.dictionaries(st.sampled_from(["type", "text", "x"]), inner, max_size=2)
    ),
    max_leaves=4,
)


def places(value: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    inner = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, child in inner:
        yield (*path, key)
        yield from places(child, (*path, key))


def replaced(whole: Any, path: tuple[Any, ...], value: Any) -> Any:
    changed = copy.deepcopy(whole)
    node = changed
    for key in path[:-1]:
        node = node[key]
    node[path[-1]] = value
    return changed


@st.composite
def broken(draw: st.DrawFn, whole: dict[str, Any]) -> Any:
    """The value with something else at one place, or at two of it."""
    changed = whole
    for _ in range(draw(st.integers(1, 2))):
        changed = replaced(changed, draw(st.sampled_from([*places(changed)])), draw(ODD))
    return changed


@pytest.fixture(scope="module")
async def opened(gateway: str, upstream_server: Upstream) -> AsyncGenerator[RunHandle, None]:
    """A run whose seats are asked as agents ask, and translated."""
    seats = {
        "plain": SeatPolicy("P", (upstream_server.url,), dialects=tuple(DIALECTS)),
        "translated": SeatPolicy("T", (upstream_server.url,), dialects=("chat", "completions")),
    }
    async with await RunHandle.open(gateway, ADMIN, seats, keep_journal=False) as run:
        yield run


_episodes = map("e{}".format, itertools.count())


async def asked(run: RunHandle, seat: str, dialect: str, body: bytes) -> tuple[int, bytes, list[dict[str, Any]]]:
    """The answer to a body, and what was recorded of the call."""
    episode = next(_episodes)
    seen = run.episode(episode, seat)
    assert seen.route is not None
    url = f"{seen.model_url('c1')}/{DIALECTS[dialect].path}"
    with anyio.fail_after(10):
        async with shared_http().post(
            url, data=body, headers={"Authorization": f"Bearer {seen.route.token}"}
        ) as response:
            answer = await response.read()
        return response.status, answer, (await run.collect([episode]))[episode]


def check_refusal(dialect: str, status: int, answer: bytes) -> None:
    assert status in (400, 502), answer
    body = json.loads(answer)
    assert body["error"]["code"] and body["error"]["message"]
    assert dialect != "messages" or body["type"] == "error"


SLOW = settings(max_examples=60, suppress_health_check=[HealthCheck.function_scoped_fixture])


BODIES = st.sampled_from([*DIALECTS]).flatmap(lambda dialect: st.tuples(st.just(dialect), broken(WHOLE[dialect])))


@pytest.mark.parametrize("seat", ["plain", "translated"])
@settings(SLOW, max_examples=150)
@given(sent=BODIES)
async def test_a_body_of_any_shape_is_forwarded_and_recorded_or_refused_in_the_dialect(
    opened: RunHandle, upstream_server: Upstream, seat: str, sent: tuple[str, Any]
) -> None:
    dialect, body = sent
    upstream_server.reset()
    upstream_server.answer = COMPLETION
    status, answer, records = await asked(opened, seat, dialect, json.dumps(body).encode())
    if status != 200:
        check_refusal(dialect, status, answer)
    calls = [record for record in records if "choice_of" not in record]
    assert len(calls) == len(upstream_server.asked) and (status != 200 or calls)


@pytest.mark.parametrize("dialect", ["responses", "messages"])
@pytest.mark.parametrize("place", [*places(WHOLE["responses"]), *places(WHOLE["messages"])], ids=str)
async def test_each_place_of_a_translated_body_may_hold_anything(
    opened: RunHandle, upstream_server: Upstream, dialect: str, place: tuple[Any, ...]
) -> None:
    if place not in set(places(WHOLE[dialect])):
        return
    upstream_server.reset()
    upstream_server.answer = COMPLETION
    for odd in (3, True, "text", ["text"], {"type": ["text"]}, {"text": 3}, [3], [{"text": 3}], [{"type": {}}]):
        body = replaced(WHOLE[dialect], place, odd)
        status, answer, _ = await asked(opened, "translated", dialect, json.dumps(body).encode())
        if status != 200:
            check_refusal(dialect, status, answer)


@pytest.mark.parametrize("dialect", ["chat", "responses", "messages"])
@SLOW
@given(answer=broken(COMPLETION))
@example(answer={})
async def test_an_answer_of_any_shape_is_passed_on_or_told_as_the_servers_fault(
    opened: RunHandle, upstream_server: Upstream, dialect: str, answer: Any
) -> None:
    upstream_server.reset()
    upstream_server.answer = answer
    body = json.dumps({"model": "x", "max_tokens": 5, "input": "boat", "messages": [{"role": "user", "content": "b"}]})
    status, told, (record, *others) = await asked(opened, "translated", dialect, body.encode())
    assert status == 200 if record["status"] == "ok" else status == 502
    assert all(other["choice_of"] == record["call_id"] for other in others)
    if status != 200:
        check_refusal(dialect, status, told)


# The same again and again, too: what one chunk tells grows by the next, and nothing else may grow with it.
STREAMS = st.lists(st.just(CHUNK) | broken(CHUNK), max_size=3) | broken(CHUNK).map(lambda chunk: [chunk] * 3)


@pytest.mark.parametrize("dialect", ["chat", "responses", "messages"])
@SLOW
@given(chunks=STREAMS, whole=st.booleans())
@example(chunks=[replaced(CHUNK, ("choices", 0, "delta", "tool_calls", 0, "id"), {"x": ""})] * 2, whole=True)
@example(chunks=[replaced(CHUNK, ("choices", 0, "logprobs", "content", 0, "index"), 0)] * 2, whole=True)
async def test_a_stream_of_any_shape_ends_in_the_dialects_words_and_leaves_a_record(
    opened: RunHandle, upstream_server: Upstream, dialect: str, chunks: list[Any], whole: bool
) -> None:
    upstream_server.reset()
    upstream_server.pieces = [b"data: " + json.dumps(chunk).encode() + b"\n\n" for chunk in chunks]
    upstream_server.pieces += [b"data: [DONE]\n\n"] if whole else []
    said = {"role": "user", "content": "b"}
    body = json.dumps({"model": "x", "max_tokens": 5, "input": "boat", "messages": [said], "stream": True})
    status, told, (record, *others) = await asked(opened, "translated", dialect, body.encode())
    assert status == 200
    ends = {"chat": b"[DONE]", "responses": b"event: response.", "messages": b"event: message_stop"}
    last = told.strip().rsplit(b"\n\n", 1)[-1]
    assert (ends[dialect] in last) if record["status"] == "ok" else (b'"error"' in last), told
    assert record["status"] in ("ok", "transport_error", "protocol_error"), record
    assert all(other["choice_of"] == record["call_id"] for other in others)
