"""Token ids and logprobs that are none: the agent has its answer, the record says what is missing, and no row is made."""

from __future__ import annotations

import itertools
import json
from collections.abc import AsyncGenerator
from typing import Any

import anyio
import pytest
from hypothesis import HealthCheck, assume, example, given, settings
from hypothesis import strategies as st

from agent_env.episodes import CallRecord, Episode, TurnRecord, message_graph, record_from_json
from agent_env.gateway import RunHandle, SeatPolicy
from agent_env.gateway.dialects import DIALECTS
from agent_env.net import shared_http
from agent_env.training.rows import cut_rows

pytestmark = [pytest.mark.anyio, pytest.mark.timeout(120)]

Upstream = Any
"""The model server of the fixture `upstream_server`."""

LARGEST = 2**31 - 1

ODD_ID = (
    st.integers(max_value=-1)
    | st.integers(min_value=LARGEST + 1)
    | st.just(10**40)
    | st.booleans()
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.none()
    | st.sampled_from(["5", [], [5], {}])
)
IDS = st.lists(st.integers(0, LARGEST), min_size=1, max_size=4)
ODD_IDS = st.builds(lambda ids, odd, at: [*ids[:at], odd, *ids[at:]], IDS, ODD_ID, st.integers(0, 4)) | st.sampled_from(
    [5, "5", True, {"0": 5}, {"type": "x"}]
)
NUMBERS = st.lists(st.floats(-50.0, 0.0), min_size=1, max_size=4)
ODD_NUMBER = st.booleans() | st.none() | st.sampled_from(["-1.0", [], {}, 10**400])
ODD_NUMBERS = st.builds(lambda some, odd: [*some, odd], NUMBERS, ODD_NUMBER)


def is_ids(value: Any) -> bool:
    return type(value) is list and all(type(one) is int and 0 <= one < 2**31 for one in value)


def is_numbers(value: Any) -> bool:
    return type(value) is list and all(type(one) is float or (type(one) is int and abs(one) < 10**300) for one in value)


def answered(dialect: str, prompt: Any, ids: Any, logprobs: list[Any]) -> dict[str, Any]:
    """An answer of a dialect with these tokens."""
    entries = [{"token": "x", "logprob": one} for one in logprobs]
    head = {"id": "a", "model": "A", "created": 1}
    if dialect == "responses":
        part = {"type": "output_text", "text": "zip", "annotations": [], "logprobs": entries}
        said = {"type": "message", "id": "m", "role": "assistant", "status": "completed", "content": [part]}
        raw = {"type": "raw_message_tokens", "message": "zip"}
        sides = {"input_messages": [{**raw, "tokens": prompt}], "output_messages": [{**raw, "tokens": ids}]}
        return {**head, "object": "response", "status": "completed", "output": [said], **sides}
    choice: dict[str, Any] = {"index": 0, "finish_reason": "stop", "token_ids": ids}
    if dialect == "chat":
        choice |= {"message": {"role": "assistant", "content": "zip"}, "logprobs": {"content": entries}}
    else:
        choice |= {"text": "zip", "logprobs": {"token_logprobs": logprobs}}
    kind = "chat.completion" if dialect == "chat" else "text_completion"
    return {**head, "object": kind, "prompt_token_ids": prompt, "choices": [choice]}


def streamed(dialect: str, answer: dict[str, Any]) -> list[bytes]:
    """The answer as a stream, all of it in one event."""
    if dialect == "responses":
        return [event({"type": "response.completed", "sequence_number": 0, "response": answer})]
    (choice,) = answer["choices"]
    if dialect == "chat":
        choice = {**choice, "delta": choice["message"]}
        del choice["message"]
    return [event({**answer, "choices": [choice]}), b"data: [DONE]\n\n"]


def event(value: Any) -> bytes:
    return b"data: " + json.dumps(value).encode() + b"\n\n"


@pytest.fixture(scope="module")
async def opened(gateway: str, upstream_server: Upstream) -> AsyncGenerator[RunHandle, None]:
    seats = {"a": SeatPolicy("A", (upstream_server.url,), dialects=tuple(DIALECTS))}
    async with await RunHandle.open(gateway, "admin-token", seats, keep_journal=False) as run:
        yield run


_episodes = map("e{}".format, itertools.count())


async def asked(run: RunHandle, dialect: str, *, stream: bool) -> tuple[bytes, Episode, CallRecord]:
    """What an agent is answered, and its episode."""
    episode = Episode(next(_episodes))
    seen = run.episode(episode.id, "a")
    assert seen.route is not None
    body = {"model": "x", "stream": stream, "prompt": "b", "input": "b", "messages": [{"role": "user", "content": "b"}]}
    url, headers = f"{seen.model_url('t1')}/{DIALECTS[dialect].path}", {"Authorization": f"Bearer {seen.route.token}"}
    with anyio.fail_after(10):
        async with shared_http().post(url, json=body, headers=headers) as response:
            assert response.status == 200
            told = await response.read()
        (record,) = (await run.collect([episode.id]))[episode.id]
    call = record_from_json(record)
    assert isinstance(call, CallRecord)
    episode.add([TurnRecord("t1", "a@1.0.0", "s1", seat="a"), call])
    episode.score("x", 1.0)
    return told, episode, call


@pytest.mark.parametrize("stream", [False, True], ids=["whole", "streamed"])
@pytest.mark.parametrize("dialect", ["chat", "completions", "responses"])
@settings(max_examples=60, suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
@given(prompt=IDS | ODD_IDS, ids=IDS | ODD_IDS, logprobs=NUMBERS | ODD_NUMBERS)
@example(prompt=[5], ids=[-5], logprobs=[-1.0])
@example(prompt=[5], ids=[10**40], logprobs=[-1.0])
@example(prompt=[5], ids=[LARGEST + 1], logprobs=[-1.0])
@example(prompt=[5], ids=[0, LARGEST], logprobs=[-1.0, 0])
@example(prompt=[True], ids=[5], logprobs=[-1.0])
@example(prompt=[5], ids=[5.0], logprobs=[-1.0])
@example(prompt=[5], ids=[5], logprobs=[-1.0, -1.0])
async def test_what_are_no_tokens_is_left_out_of_the_record_and_makes_no_row(
    opened: RunHandle, upstream_server: Upstream, dialect: str, stream: bool, prompt: Any, ids: Any, logprobs: list[Any]
) -> None:
    upstream_server.reset()
    answer = answered(dialect, prompt, ids, logprobs)
    upstream_server.answer = json.dumps(answer).encode()
    upstream_server.pieces = streamed(dialect, answer) if stream else None
    told, episode, call = await asked(opened, dialect, stream=stream)
    assert told == (b"".join(upstream_server.pieces) if stream else upstream_server.answer)

    assert call.status == "ok" and "zip" in json.dumps(call.response)
    wanted = {"prompt_token_ids": prompt, "token_ids": ids, "logprobs": logprobs}
    missing = {
        name: "malformed" for name, value in wanted.items() if not (is_numbers if name == "logprobs" else is_ids)(value)
    }
    if not missing.keys() & {"token_ids", "logprobs"} and len(ids) != len(logprobs):
        missing["logprobs"] = "incomplete"
    assert (call.missing or {}) == missing
    assert {name: getattr(call, name) for name in wanted} == {
        name: None if name in missing else value for name, value in wanted.items()
    }

    rows, report = cut_rows([episode])
    if not missing:
        assert [row.token_ids for row in rows] == [prompt + ids] and not report.dropped
    else:
        malformed = {name for name, why in missing.items() if why == "malformed"}
        why = (
            "malformed token ids" if malformed - {"logprobs"} else "malformed logprobs" if malformed else "no logprobs"
        )
        assert rows == [] and dict(report.dropped) == {why: 1}


ODD_PART = ODD_IDS.filter(lambda odd: odd != {}) | st.sampled_from(
    [0, 1.5, "", False, {"index": "q"}, [{"index": "q"}]]
)
ODD_LOGPROBS = st.sampled_from([7, 0, "z", "", False, [], [1], ["x"], {}])
ODD_ENTRIES = st.sampled_from(
    [5, "x", "", True, {"a": 1}, [5], ["x"], [{"token": "x"}], [{"logprob": "-1"}], [{"index": "q"}], None, []]
)
PART = st.tuples(IDS, st.floats(-9.0, 0.0))
Spoiled = tuple[str, Any]
SPOILED: st.SearchStrategy[Spoiled] = (
    st.tuples(st.just("ids"), ODD_PART | st.sampled_from([None, []]))
    | st.tuples(st.just("logprobs"), ODD_LOGPROBS | st.none())
    | st.tuples(st.just("entries"), ODD_ENTRIES)
    | st.tuples(st.just("both"), st.tuples(ODD_PART, ODD_LOGPROBS))
    | st.tuples(st.just("all but the usage"), st.none())
)


def chunks_of(
    dialect: str, parts: list[tuple[list[int], float]], at: int, spoiled: Spoiled | None
) -> tuple[list[bytes], bytes]:
    """A streamed answer in chunks, the tokens of each as they are, or as they are spoiled in the one at `at`; and the
    event that tells its usage."""
    events: list[bytes] = []
    list_name = "content" if dialect == "chat" else "token_logprobs"
    for number, (ids, logprob) in enumerate(parts):
        entries: Any = [{"token": "x", "logprob": logprob} if dialect == "chat" else logprob for _ in ids]
        choice: dict[str, Any] = {"index": 0, "token_ids": ids, "logprobs": {list_name: entries}}
        choice |= {"delta": {"content": "zip"}} if dialect == "chat" else {"text": "zip"}
        if spoiled is not None and number == at:
            what, odd = spoiled
            if what == "entries":
                choice["logprobs"] = {list_name: odd}
            if what in ("ids", "both", "all but the usage"):
                choice["token_ids"] = odd[0] if what == "both" else odd
            if what in ("logprobs", "both", "all but the usage"):
                choice["logprobs"] = odd[1] if what == "both" else odd
        events.append(event({"id": "a", "choices": [choice], **({} if number else {"prompt_token_ids": [1, 2]})}))
    count = sum(len(ids) for ids, _ in parts)
    usage = {"prompt_tokens": 2, "completion_tokens": count, "total_tokens": 2 + count}
    return [*events, b"data: [DONE]\n\n"], event({"id": "a", "choices": [], "usage": usage})


@pytest.mark.parametrize("dialect", ["chat", "completions"])
@settings(max_examples=150, suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
@given(parts=st.lists(PART, min_size=2, max_size=4), at=st.integers(0, 3), spoiled=st.none() | SPOILED)
@example(parts=[([5], -1.0), ([6], -1.0), ([7], -2.0)], at=1, spoiled=None)
@example(parts=[([5], -1.0), ([6], -1.0), ([7], -2.0)], at=1, spoiled=("both", ("6", "z")))
@example(parts=[([5], -1.0), ([6], -2.0)], at=0, spoiled=("both", (5, 7)))
@example(parts=[([5], -1.0), ([6], -2.0)], at=0, spoiled=("ids", {}))
@example(parts=[([5], -1.0), ([6], -2.0)], at=1, spoiled=("ids", [{"index": "q"}]))
@example(parts=[([5], -1.0), ([6], -2.0)], at=0, spoiled=("all but the usage", None))
async def test_a_stream_of_which_one_chunk_tells_no_tokens_is_passed_on_and_makes_no_row(
    opened: RunHandle,
    upstream_server: Upstream,
    dialect: str,
    parts: list[tuple[list[int], float]],
    at: int,
    spoiled: Spoiled | None,
) -> None:
    # A number is a whole entry of completions.
    assume(spoiled is None or dialect == "chat" or spoiled != ("entries", [5]))
    upstream_server.reset()
    upstream_server.pieces, upstream_server.usage = chunks_of(dialect, parts, at % len(parts), spoiled)
    told, episode, call = await asked(opened, dialect, stream=True)
    assert told == b"".join(upstream_server.pieces)
    assert call.status == "ok" and "zip" * len(parts) in json.dumps(call.response)
    assert call.prompt_token_ids == [1, 2]

    rows, _ = cut_rows([episode])
    if spoiled is None:
        assert call.missing is None and [row.token_ids for row in rows] == [
            [1, 2, *(i for ids, _ in parts for i in ids)]
        ]
        return
    assert rows == [] and {"malformed", "incomplete"} >= set((call.missing or {"": None}).values())
    assert call.token_ids is None or call.logprobs is None


@pytest.mark.parametrize("dialect", ["chat", "completions"])
@pytest.mark.parametrize("stream", [False, True], ids=["whole", "streamed"])
async def test_fewer_ids_than_the_server_counted_are_incomplete(
    opened: RunHandle, upstream_server: Upstream, dialect: str, stream: bool
) -> None:
    upstream_server.reset()
    answer = answered(dialect, [1], [5], [-1.0])
    answer["usage"] = {"prompt_tokens": 1, "completion_tokens": 2, "total_tokens": 3}
    upstream_server.answer, upstream_server.pieces = answer, streamed(dialect, answer) if stream else None
    _, episode, call = await asked(opened, dialect, stream=stream)
    assert call.missing == {"token_ids": "incomplete", "logprobs": "incomplete"}
    assert call.token_ids is call.logprobs is None and cut_rows([episode])[0] == []


@pytest.mark.parametrize("of_choice", [False, True], ids=["of the answer", "of the choice"])
@pytest.mark.parametrize(
    ("first", "second", "missing"),
    [
        ([1, 2], [1, 2], None),
        ([1, 2], None, None),
        ([1], [2], {"prompt_token_ids": "malformed"}),
        ([1, 2], [True, 2], {"prompt_token_ids": "malformed"}),
        ("1", [1, 2], {"prompt_token_ids": "malformed"}),
    ],
)
async def test_a_prompt_that_is_told_twice_is_one_where_both_are_the_same(
    opened: RunHandle, upstream_server: Upstream, first: Any, second: Any, missing: Any, of_choice: bool
) -> None:
    upstream_server.reset()
    answer = answered("completions", None, [5], [-1.0])
    last = {**answer, "choices": [{"index": 0, "text": "", "finish_reason": "stop"}]}
    pieces = [json.loads(json.dumps(piece)) for piece in (answer, last)]
    for piece, prompt in zip(pieces, (first, second), strict=True):
        (piece["choices"][0] if of_choice else piece)["prompt_token_ids"] = prompt
    upstream_server.pieces = [*map(event, pieces), b"data: [DONE]\n\n"]
    _, episode, call = await asked(opened, "completions", stream=True)
    assert call.missing == missing
    assert [row.token_ids for row in cut_rows([episode])[0]] == ([] if missing else [[1, 2, 5]])


@pytest.mark.parametrize(
    "change",
    [
        {"logprobs": 5},
        {"logprobs": {"content": 5}},
        {"logprobs": {"content": ["x"]}},
        {"logprobs": {"content": [{"token": "zip"}]}},
        {"logprobs": {"content": [{"logprob": -1.0, "id": -5}]}, "token_ids": None},
    ],
)
async def test_logprobs_of_another_form_cost_the_agent_no_answer(
    opened: RunHandle, upstream_server: Upstream, change: dict[str, Any]
) -> None:
    upstream_server.reset()
    upstream_server.answer = answered("chat", [1], [5], [-1.0])
    upstream_server.answer["choices"][0] |= change
    upstream_server.answer["usage"] = {"prompt_tokens": 1, "completion_tokens": 1, "total_tokens": 2}
    told, episode, call = await asked(opened, "chat", stream=False)
    field = "token_ids" if "token_ids" in change else "logprobs"
    assert json.loads(told) == upstream_server.answer and call.missing == {field: "malformed"}
    assert cut_rows([episode])[0] == []


@given(prompt=IDS | ODD_IDS.filter(lambda ids: isinstance(ids, list)), ids=IDS)
def test_a_record_of_others_whose_ids_are_none_makes_no_row_and_no_tokens_of_its_messages(
    prompt: list[Any], ids: list[int]
) -> None:
    request, response = {"messages": [{"role": "user", "content": "b"}]}, answered("chat", prompt, ids, [])
    call = CallRecord("c1", "t1", "a", "m", request=request, response=response, prompt_token_ids=prompt, token_ids=ids)
    call.logprobs = [-1.0] * len(ids)
    episode = Episode("e")
    episode.add([TurnRecord("t1", "a@1.0.0", "s1", seat="a"), call])
    episode.score("x", 1.0)
    rows, report = cut_rows([episode])
    tokens = [token for node in message_graph(episode.traces[0]) for token in node.token_ids]
    if is_ids(prompt):
        assert len(rows) == 1 and tokens == prompt + ids
    else:
        assert rows == [] and dict(report.dropped) == {"malformed token ids": 1} and tokens == []
