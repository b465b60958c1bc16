"""The usage of a stream: the gateway asks for it, and who did not ask has the stream as it was without."""

from __future__ import annotations

import copy
import itertools
import json
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any

import anyio
import pytest
from hypothesis import given
from hypothesis import strategies as st
from openai import APIError, AsyncOpenAI

from agent_env.gateway import RunHandle, SeatPolicy, running
from agent_env.gateway.dialects import DIALECTS
from agent_env.gateway.dialects.usage import WithoutUsage
from agent_env.training import Policy, PolicyServer, WordTokenizer, make_model

pytestmark = pytest.mark.anyio

ADMIN = "admin-token"
Upstream = Any
"""The model server of the fixture `upstream`."""
Chat = Callable[..., Awaitable[Any]]

USAGE = {"prompt_tokens": 2, "completion_tokens": 2, "total_tokens": 4}
BOAT: Any = [{"role": "user", "content": "boat"}]


def data(value: Any, end: str = "\n") -> bytes:
    return f"data: {json.dumps(value)}{end}".encode()


def chunk(text: str, **fields: Any) -> dict[str, Any]:
    return {"id": "c", "choices": [{"index": 0, "delta": {"content": text}}], **fields}


TOLD = {"id": "c", "choices": [], "usage": USAGE}
KEPT: list[Any] = [
    *(chunk("zip"), chunk("zap", usage=None), chunk("zop", usage=USAGE), chunk('data: {"choices": [], "usage": {}}')),
    *({"id": "c", "choices": []}, {"choices": [], "usage": None}, {"choices": [], "prompt_filter_results": [{}]}),
    *({"error": {"message": "x"}, "usage": USAGE}, {"choices": [], "told": {"usage": {"prompt_tokens": 1}}}),
]
"""Data of events that are not the one of the usage."""


@st.composite
def events(draw: st.DrawFn) -> list[tuple[bytes, bytes]]:
    """The events of a stream, each with what of it goes on."""
    told: list[tuple[bytes, bytes]] = []
    for _ in range(draw(st.integers(0, 6))):
        end = draw(st.sampled_from(["\n", "\r\n"]))
        comments = [f": {name}{end}".encode() for name in draw(st.lists(st.sampled_from("ab"), max_size=2))]
        fields = [
            f"{name}{end}".encode() for name in draw(st.lists(st.sampled_from(["id: 1", "event: x"]), max_size=2))
        ]
        before = draw(st.permutations([*comments, *fields]))
        blank = end.encode()
        match draw(st.sampled_from(["kept", "usage", "nothing", "end"])):
            case "usage":
                space = draw(st.sampled_from([(", ", ": "), (",", ":")]))
                line = f"data: {json.dumps(TOLD, separators=space)}{end}".encode()
                after = draw(st.sampled_from([b"", b"id: 2\n"]))
                told.append(
                    (b"".join([*before, line, after, blank]), b"".join(one for one in before if one[:1] == b":"))
                )
            case "nothing":
                whole = b"".join([*before, blank])
                told.append((whole, whole))
            case kind:
                line = f"data: [DONE]{end}".encode() if kind == "end" else data(draw(st.sampled_from(KEPT)), end)
                whole = b"".join([*before, line, blank])
                told.append((whole, whole))
    return told


@given(events(), st.data())
def test_however_a_stream_is_cut_all_but_the_usage_goes_on_as_soon_as_it_is_whole(
    told: list[tuple[bytes, bytes]], choosing: st.DataObject
) -> None:
    stream, expected = b"".join(event for event, _ in told), b"".join(goes_on for _, goes_on in told)
    ends = list(itertools.accumulate(len(event) for event, _ in told))
    cuts = sorted(choosing.draw(st.lists(st.integers(0, len(stream)), max_size=12)))
    without, gone_on = WithoutUsage(), b""
    for begin, end in itertools.pairwise([0, *cuts, len(stream)]):
        gone_on += without.pass_on(stream[begin:end])
        whole = b"".join(goes_on for (_, goes_on), at in zip(told, ends, strict=True) if at <= end)
        assert gone_on.startswith(whole) and expected.startswith(gone_on)
    assert gone_on == expected and without.rest() == b""


@pytest.mark.parametrize(
    ("pieces", "goes_on"),
    [
        ([b"data: 1\n"], [b"data: 1\n"]),
        ([b": still here\n"], [b": still here\n"]),
        ([data(chunk("a")) + b"\n" + data(TOLD)[:30], data(TOLD)[30:] + b"\n"], [data(chunk("a")) + b"\n", b""]),
        ([data(chunk("a")) + data(TOLD) + b"data: [DONE]\n"], [data(chunk("a")) + b"data: [DONE]\n"]),
        ([data(TOLD) + b"data: [DONE]\n\n"], [b"data: [DONE]\n\n"]),
        ([data(TOLD), b": c\n", b"id: 1\n", b"\n", b"data: 2\n\n"], [b"", b": c\n", b"", b"", b"data: 2\n\n"]),
        ([b'data: {"usage": {\n\n'], [b'data: {"usage": {\n\n']),
        ([b'data: ["usage", {"usage": {}}]\n\n'], [b'data: ["usage", {"usage": {}}]\n\n']),
    ],
    ids=["line", "comment", "cut usage", "line by line", "no blank line", "between", "no JSON", "no object"],
)
def test_lines_go_on_at_once(pieces: list[bytes], goes_on: list[bytes]) -> None:
    without = WithoutUsage()
    assert [without.pass_on(piece) for piece in pieces] == goes_on


def test_what_waited_at_the_end_is_not_lost() -> None:
    without = WithoutUsage()
    assert without.pass_on(b"data: [DONE]\nid: 1\n\nevent: x\nid: 2") == b"data: [DONE]\nid: 1\n\n"
    assert without.rest() == b"event: x\nid: 2" and without.rest() == b""


STREAMED = {"stream": True}
ASKED = {"include_usage": True}


@pytest.mark.parametrize("dialect", ["chat", "completions"])
@pytest.mark.parametrize(
    ("body", "options"),
    [
        (STREAMED, ASKED),
        ({**STREAMED, "stream_options": None}, ASKED),
        ({**STREAMED, "stream_options": {}}, ASKED),
        ({**STREAMED, "stream_options": {"include_usage": False}}, ASKED),
        ({**STREAMED, "stream_options": {"include_usage": None}}, ASKED),
        ({**STREAMED, "stream_options": {"include_obfuscation": False}}, {"include_obfuscation": False, **ASKED}),
    ],
)
def test_a_stream_is_asked_for_its_usage_where_its_caller_does_not_ask(
    dialect: str, body: dict[str, Any], options: Any
) -> None:
    sent, own = dict(body), copy.deepcopy(body)
    assert DIALECTS[dialect].ask_for_usage(sent) is True
    assert sent == {**body, "stream_options": options} and body == own


@pytest.mark.parametrize(
    ("dialect", "body"),
    [
        *(("chat", body) for body in ({}, {"stream": False}, {"stream": None}, {"stream": "yes"})),
        ("completions", {"stream": False, "stream_options": {}}),
        ("chat", {**STREAMED, "stream_options": ASKED}),
        ("chat", {**STREAMED, "stream_options": {"include_usage": "true"}}),
        ("chat", {**STREAMED, "stream_options": {"continuous_usage_stats": True}}),
        ("chat", {**STREAMED, "stream_options": {"include_usage": False, "continuous_usage_stats": True}}),
        ("chat", {**STREAMED, "stream_options": "all"}),
        ("responses", STREAMED),
        ("messages", STREAMED),
    ],
)
def test_what_is_no_stream_or_asks_itself_stays_as_it_is(dialect: str, body: dict[str, Any]) -> None:
    sent = copy.deepcopy(body)
    assert DIALECTS[dialect].ask_for_usage(sent) is False and sent == body


@asynccontextmanager
async def client_of(gateway: str, endpoint: str, **options: Any) -> AsyncGenerator[tuple[AsyncOpenAI, RunHandle], None]:
    seats = {"a": SeatPolicy("tiny", (endpoint,), **options)}
    async with await RunHandle.open(gateway, ADMIN, seats, keep_journal=False) as run:
        seen = run.episode("e1", "a")
        assert seen.route is not None
        async with AsyncOpenAI(base_url=seen.model_url("t1"), api_key=seen.route.token, max_retries=0) as client:
            yield client, run


async def record_of(run: RunHandle) -> dict[str, Any]:
    (record,) = (await run.collect(["e1"]))["e1"]
    return record


@pytest.mark.parametrize("own", [None, {"include_usage": False}, {"include_usage": True}])
async def test_the_stock_client_has_of_a_policy_what_it_asked_for(gateway: str, own: Any) -> None:
    tokenizer = WordTokenizer(["boat", "night"])
    policy = Policy("tiny", make_model(tokenizer, seed=0), tokenizer, trainable=False)
    options: dict[str, Any] = {} if own is None else {"stream_options": own}
    with anyio.fail_after(30):
        async with running(PolicyServer([policy])) as models, client_of(gateway, f"{models}/v1") as (client, run):
            told = [
                part
                async for part in await client.chat.completions.create(
                    model="x", messages=BOAT, max_tokens=3, stream=True, **options
                )
            ]
            record = await record_of(run)
    asked = own == {"include_usage": True}
    assert [bool(part.choices) for part in told] == [True] * (len(told) - asked) + [False] * asked
    assert [part.usage is not None for part in told] == [False] * (len(told) - asked) + [True] * asked
    counts = record["usage"]["prompt_tokens"], record["usage"]["completion_tokens"]
    assert counts == (len(record["prompt_token_ids"]), len(record["token_ids"])) and "missing" not in record
    assert record["request"].get("stream_options") == own


TEXTS = [data({"id": "c", "choices": [{"index": 0, "delta": {"content": "zip"}}]}) + b"\n"]
DONE = b"data: [DONE]\n\n"


async def test_the_usage_of_a_server_without_token_ids_is_recorded(gateway: str, upstream: Upstream) -> None:
    upstream.pieces, upstream.usage = [*TEXTS, DONE], data(TOLD) + b"\n"
    async with client_of(gateway, upstream.url) as (client, run):
        async for _ in await client.chat.completions.create(model="x", messages=BOAT, stream=True):
            pass
        assert (await record_of(run))["usage"] == USAGE


@pytest.mark.parametrize("settings", [{}, {"stream_options": {"include_usage": True}}], ids=["agent", "settings"])
async def test_a_seat_without_tokens_and_settings_have_a_stream_as_the_server_tells_it(
    gateway: str, upstream: Upstream, chat: Chat, settings: dict[str, Any]
) -> None:
    upstream.pieces = [*TEXTS, data(TOLD) + b"\n", DONE]
    seat = SeatPolicy("gpt", (upstream.url,), settings=settings, tokens=bool(settings))
    async with await RunHandle.open(gateway, ADMIN, {"a": seat}, keep_journal=False) as run:
        answer = await chat(run.episode("e1", "a"), {"messages": [], "stream": True})
        assert answer.body == b"".join(upstream.pieces) and (await record_of(run))["usage"] == USAGE
    assert upstream.asked[0].get("stream_options") == settings.get("stream_options")
    assert settings or upstream.asked == [{"messages": [], "stream": True, "model": "gpt"}]


@pytest.mark.parametrize("cut", [10, 40, len(data(TOLD)) - 1, len(data(TOLD))])
async def test_a_stream_that_breaks_within_its_usage_ends_with_the_error_alone(
    gateway: str, upstream: Upstream, cut: int
) -> None:
    upstream.pieces = [*TEXTS, data(TOLD)[:cut]]
    said: list[Any] = []
    async with client_of(gateway, upstream.url) as (client, run):
        with anyio.fail_after(20), pytest.raises(APIError, match="ended its stream before its last event"):
            async for part in await client.chat.completions.create(model="x", messages=BOAT, stream=True):
                said += [choice.delta.content for choice in part.choices] or ["no choice"]
        record = await record_of(run)
    assert said == ["zip"] and record["status"] == "transport_error"
    assert record["response"]["choices"][0]["message"]["content"] == "zip"


@pytest.mark.parametrize("last", [b"data: [DONE]\n", b"data: [DONE]\r\n\r\n", DONE + b": bye", DONE + b"id: 1\n"])
async def test_the_end_of_a_stream_goes_on_whatever_its_form(
    gateway: str, upstream: Upstream, chat: Chat, last: bytes
) -> None:
    upstream.pieces, upstream.usage = [*TEXTS, last], data(TOLD) + b"\n"
    async with client_of(gateway, upstream.url) as (_, run):
        answer = await chat(run.episode("e1", "a"), {"messages": [], "stream": True})
        assert answer.body == b"".join(upstream.pieces)
        record = await record_of(run)
    assert (record["status"], record["usage"]) == ("ok", USAGE)
