"""Answers of several choices: each of them was sampled, so each of them has a record."""

from __future__ import annotations

import json
from typing import Any

import pytest

from agent_env.episodes import CallRecord, Episode, TurnRecord, message_graph, record_from_json
from agent_env.gateway import RunHandle
from agent_env.net import shared_http
from agent_env.training.rows import cut_rows

pytestmark = pytest.mark.anyio

Upstream = Any
"""The model server of the fixture `upstream`."""
PATHS = {"chat": "chat/completions", "completions": "completions"}
SAID = {"content": "zip", "role": "assistant"}


def logprobs(dialect: str, *values: float) -> dict[str, Any]:
    if dialect == "chat":
        return {"content": [{"token": "x", "logprob": value} for value in values]}
    return {"token_logprobs": list(values)}


def choice(dialect: str, index: int, tokens: list[int], reason: str) -> dict[str, Any]:
    said: dict[str, Any] = {"message": SAID} if dialect == "chat" else {"text": "zip"}
    told = logprobs(dialect, *(-0.5 - index for _ in tokens))
    return {"index": index, **said, "token_ids": tokens, "logprobs": told, "finish_reason": reason}


def answered(dialect: str) -> dict[str, Any]:
    choices = [choice(dialect, 0, [7, 8], "stop"), choice(dialect, 1, [7], "length"), choice(dialect, 2, [9], "stop")]
    usage = {"prompt_tokens": 2, "completion_tokens": 4, "total_tokens": 6}
    whole: dict[str, Any] = {"id": "c", "model": "A", "choices": choices, "usage": usage, "policy_version": 4}
    if dialect == "chat":
        return {**whole, "prompt_token_ids": [1, 2]}
    for one in choices:
        one["prompt_token_ids"] = [1, 2]
    return whole


def streamed(dialect: str) -> list[bytes]:
    """The same answer, its choices told in turns."""
    whole = answered(dialect)
    chunks: list[dict[str, Any]] = []
    for place in range(2):
        for one in whole["choices"]:
            if place < len(one["token_ids"]):
                last = place == len(one["token_ids"]) - 1
                piece: dict[str, Any] = {"delta": SAID if place == 0 else {}} if dialect == "chat" else {"text": "z"}
                piece |= {"index": one["index"], "token_ids": [one["token_ids"][place]]}
                piece["logprobs"] = logprobs(dialect, -0.5 - one["index"])
                piece["finish_reason"] = one["finish_reason"] if last else None
                if dialect != "chat" and place == 0:
                    piece["prompt_token_ids"] = [1, 2]
                chunks.append({"id": "c", "model": "A", "choices": [piece]})
    if dialect == "chat":
        chunks[0]["prompt_token_ids"] = [1, 2]
    chunks[-1]["policy_version"] = 4
    return [*map(event, chunks), b"data: [DONE]\n\n"]


def event(chunk: dict[str, Any]) -> bytes:
    return b"data: " + json.dumps(chunk).encode() + b"\n\n"


async def ask(run: RunHandle, dialect: str, **fields: Any) -> bytes:
    seen = run.episode("e1", "a")
    assert seen.route is not None
    body = {"model": "x", "n": 3, "prompt": "boat", "messages": [{"role": "user", "content": "boat"}], **fields}
    headers = {"Authorization": f"Bearer {seen.route.token}"}
    async with shared_http().post(f"{seen.model_url('t1')}/{PATHS[dialect]}", json=body, headers=headers) as response:
        assert response.status == 200
        return await response.read()


async def kept(run: RunHandle) -> list[CallRecord]:
    records = [record_from_json(record) for record in (await run.collect(["e1"]))["e1"]]
    return [record for record in records if isinstance(record, CallRecord)]


@pytest.mark.parametrize("stream", [False, True], ids=["whole", "streamed"])
@pytest.mark.parametrize("dialect", [*PATHS])
async def test_each_choice_of_an_answer_has_a_record_and_is_trained_once(
    run: RunHandle, upstream: Upstream, dialect: str, stream: bool
) -> None:
    upstream.answer = answered(dialect)
    upstream.pieces = streamed(dialect) if stream else None
    upstream.usage = event({"id": "c", "model": "A", "choices": [], "usage": answered(dialect)["usage"]})
    told = await ask(run, dialect, stream=stream)
    assert told == b"".join(streamed(dialect)) if stream else json.loads(told) == answered(dialect)

    calls = await kept(run)
    first, *others = calls
    assert [call.token_ids for call in calls] == [[7, 8], [7], [9]]
    assert [call.logprobs for call in calls] == [[-0.5, -0.5], [-1.5], [-2.5]]
    assert [call.finish_reason for call in calls] == ["stop", "length", "stop"]
    assert [call.prompt_token_ids for call in calls] == [[1, 2]] * 3 and {call.policy_version for call in calls} == {4}
    assert [one["index"] for call in calls for one in call.response["choices"]] == [0, 1, 2]
    assert first.choice_of is None and {call.choice_of for call in others} == {first.call_id}
    assert [call.usage for call in calls] == [answered(dialect)["usage"], None, None]
    assert {call.missing is None for call in calls} == {True} and len({call.call_id for call in calls}) == 3

    made = Episode("e1")
    made.add([TurnRecord("t1", "a@1.0.0", "s1"), *calls])
    made.score("x", 1.0)
    assert first.request["n"] == 3 and {call.request is None for call in others} == {True}
    graph = message_graph(made.traces[0])
    assert [node.token_ids for node in graph if node.sampled] == [[7, 8], [7], [9]]
    assert [node.message["content"] for node in graph if not node.sampled] == ["boat"]
    rows, report = cut_rows([made])
    assert sorted((row.token_ids, row.loss_mask) for row in rows) == [
        ([1, 2, 7], [0, 0, 1]),
        ([1, 2, 7, 8], [0, 0, 1, 1]),
        ([1, 2, 9], [0, 0, 1]),
    ]
    assert report.delivered_tokens == report.captured_tokens == 4 and sum(row.weight for row in rows) == 1.0


async def test_one_choice_that_is_none_costs_the_call_and_nothing_is_half_recorded(
    run: RunHandle, upstream: Upstream
) -> None:
    upstream.answer = answered("chat")
    upstream.answer["choices"][1]["finish_reason"] = ["stop"]
    status, _ = await refused(run, n=3)
    (call,) = await kept(run)
    assert status == 502 and call.status == "protocol_error" and call.token_ids is None


async def test_more_choices_than_are_recorded_are_refused_before_they_are_sampled(
    run: RunHandle, upstream: Upstream
) -> None:
    status, told = await refused(run, n=129)
    assert status == 400 and "at most 128 choices" in told and upstream.asked == [] and await kept(run) == []


async def test_an_answer_of_more_choices_than_are_recorded_is_told_as_the_servers_fault(
    run: RunHandle, upstream: Upstream
) -> None:
    upstream.answer = {**answered("chat"), "choices": [choice("chat", index, [7], "stop") for index in range(129)]}
    status, told = await refused(run)
    (call,) = await kept(run)
    assert status == 502 and "129 choices" in told and call.status == "protocol_error" and call.token_ids is None


@pytest.mark.parametrize("dialect", ["responses", "messages"])
async def test_a_translated_answer_has_one_choice(run: RunHandle, upstream: Upstream, dialect: str) -> None:
    """Of several, the agent would hear of one, and the others would have been sampled for nobody."""
    path, body = dialect, {"input": "boat", "messages": [{"role": "user", "content": "b"}], "max_tokens": 5}
    status, told = await refused(run, path=path, n=3, **body)
    assert status == 400 and "one choice" in told and upstream.asked == []
    for choices in ([choice("chat", 1, [7], "stop")], [choice("chat", 1, [7], "stop"), choice("chat", 0, [8], "stop")]):
        upstream.answer = {**answered("chat"), "choices": choices}
        status, told = await refused(run, path=path, **body)
        assert status == 502 and "no chat completion" in told
    assert [call.token_ids for call in await kept(run)] == [None, None]


async def refused(run: RunHandle, *, path: str = PATHS["chat"], **fields: Any) -> tuple[int, str]:
    seen = run.episode("e1", "a")
    assert seen.route is not None
    headers = {"Authorization": f"Bearer {seen.route.token}"}
    url = f"{seen.model_url('t1')}/{path}"
    async with shared_http().post(url, json={"model": "x", "messages": [], **fields}, headers=headers) as response:
        return response.status, str((await response.json())["error"]["message"])
