"""Token ids and logprobs that are none: the agent has its answer, the record says what is missing, and no row is made."""

from __future__ import annotations

import itertools
import json
from collections.abc import AsyncGenerator
from typing import Any

import anyio
import pytest
from hypothesis import HealthCheck, example, given, settings
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


@pytest.mark.parametrize(
    "change",
    [
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
