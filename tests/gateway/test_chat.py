"""Model calls through the gateway: forwarded, answered, recorded; and what is refused before that."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable
from contextlib import AbstractAsyncContextManager
from pathlib import Path
from typing import Any

import anyio
import pytest

from agent_env.context import Run
from agent_env.episodes import CallRecord, record_from_json
from agent_env.gateway import RunHandle, SeatPolicy, running
from agent_env.net import shared_http

pytestmark = pytest.mark.anyio

ADMIN = "admin-token"
COMPLETION: dict[str, Any] = json.loads((Path(__file__).parent / "completion.json").read_text())
TAKEN = ("prompt_token_ids", "policy_version", "usage", "choices")
Upstream = Any
"""The model server of the fixture `upstream`."""
Chat = Callable[..., Awaitable[Any]]
Serve = Callable[..., AbstractAsyncContextManager[str]]


async def records(run: RunHandle, episode: str = "e1") -> list[dict[str, Any]]:
    return (await run.collect([episode]))[episode]


async def test_a_call_reaches_the_seats_policy_and_its_answer_comes_back_byte_for_byte(
    run: RunHandle, upstream: Upstream, chat: Chat
) -> None:
    body = {
        "model": "agents-own",
        "messages": [{"role": "user", "content": "boat"}],
        "temperature": 0.3,
        "tools": [{"type": "function", "function": {"name": "f"}}],
        "field_of_the_future": [1, {"x": None}],
    }
    answer = await chat(run.episode("e1", "a"), body)
    assert (answer.status, answer.body) == (200, COMPLETION)
    assert upstream.asked == [{**body, "model": "A", "logprobs": True, "return_token_ids": True}]


async def test_a_record_has_what_rows_are_cut_from_and_each_thing_once(
    run: RunHandle, upstream: Upstream, chat: Chat
) -> None:
    seen = run.episode("e1", "b")
    body = {"model": "agents-own", "messages": [{"role": "user", "content": "boat"}]}
    await chat(seen, body, call_id="turn-1")
    (record,) = await records(run)
    assert record.pop("started") > 1_500_000_000 and 0 < record.pop("seconds") < 10 and len(record.pop("call_id")) == 16
    kept = {key: value for key, value in COMPLETION.items() if key not in TAKEN}
    choice = {"index": 0, "message": {"role": "assistant", "content": "zip zap"}, "finish_reason": "stop"}
    assert record == {
        "kind": "model",
        "parent_call_id": "turn-1",
        "run": "r1",
        "episode": "e1",
        "seat": "b",
        "model": "B",
        "policy": "B",
        "api": "chat",
        "stream": False,
        "request": body,
        "response": {**kept, "choices": [choice]},
        "prompt_token_ids": [5, 6],
        "token_ids": [8, 9, 1],
        "logprobs": [-1.0, -0.5, -0.25],
        "policy_version": 7,
        "finish_reason": "stop",
        "usage": COMPLETION["usage"],
        "status": "ok",
        "http_status": 200,
    }


async def test_an_agent_that_asked_for_logprobs_itself_has_them_in_the_record_too(run: RunHandle, chat: Chat) -> None:
    await chat(run.episode("e1", "a"), {"messages": [], "logprobs": True, "top_logprobs": 2})
    (record,) = await records(run)
    assert record["logprobs"] == [-1.0, -0.5, -0.25]
    assert record["response"]["choices"][0]["logprobs"] == COMPLETION["choices"][0]["logprobs"]


async def test_a_server_that_gives_no_tokens_leaves_a_record_that_says_so(
    run: RunHandle, upstream: Upstream, chat: Chat
) -> None:
    upstream.answer = {"choices": [{"message": {"content": "hi"}, "logprobs": None}]}
    assert (await chat(run.episode("e1", "a"))).status == 200
    (record,) = await records(run)
    assert record["status"] == "ok"
    assert not {"token_ids", "prompt_token_ids", "logprobs", "policy_version", "usage"} & record.keys()
    assert record["missing"] == dict.fromkeys(("prompt_token_ids", "token_ids", "logprobs"), "not_given")


async def test_a_seat_without_tokens_asks_for_nothing_and_settings_go_before_the_agents_own(
    gateway: str, upstream: Upstream, chat: Chat
) -> None:
    seat = SeatPolicy("gpt", (upstream.url,), "vendor-key", {"temperature": 0.0}, tokens=False)
    async with await RunHandle.open(gateway, ADMIN, {"a": seat}) as run:
        await chat(run.episode("e1", "a"), {"messages": [], "temperature": 1.0})
        (record,) = await records(run)
        (record,) = await records(run)
    assert (record["temperature"], record["request"]["temperature"]) == (0.0, 1.0)
    assert upstream.asked == [{"messages": [], "temperature": 0.0, "model": "gpt"}]
    assert upstream.headers[0]["authorization"] == "Bearer vendor-key"
    told = {"token_ids": [8, 9, 1], "logprobs": [-1.0, -0.5, -0.25]}
    assert "missing" not in record and told.items() <= record.items()


async def test_no_key_and_no_token_of_the_caller_go_upstream(
    run: RunHandle, upstream: Upstream, monkeypatch: pytest.MonkeyPatch, chat: Chat
) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", "the-owners-key")
    seen = run.episode("e1", "a")
    await chat(seen)
    assert seen.route is not None
    sent = json.dumps([upstream.headers, upstream.asked])
    assert "authorization" not in upstream.headers[0]
    assert seen.route.token not in sent and "the-owners-key" not in sent


async def test_an_upstreams_error_comes_back_with_its_own_status_and_is_recorded(
    run: RunHandle, upstream: Upstream, chat: Chat
) -> None:
    upstream.status, upstream.answer = 429, {"error": {"message": "slow down"}}
    upstream.extra = [(b"retry-after", b"7"), (b"x-internal", b"secret")]
    answer = await chat(run.episode("e1", "a"))
    assert (answer.status, answer.body) == (429, {"error": {"message": "slow down"}})
    assert answer.headers["retry-after"] == "7" and "x-internal" not in answer.headers
    (record,) = await records(run)
    assert (record["status"], record["http_status"]) == ("upstream_error", 429)
    assert answer.headers["agent-env-model-call"] == record["call_id"]
    assert json.loads(record["error"]["message"]) == {"error": {"message": "slow down"}}
    assert "response" not in record


@pytest.mark.parametrize("answer", [b"not json", b"[1]", b'{"choices": [{"finish_reason": 5}]}'])
async def test_an_answer_that_is_no_completion_is_a_protocol_error(
    run: RunHandle, upstream: Upstream, answer: bytes, chat: Chat
) -> None:
    upstream.answer = answer
    got = await chat(run.episode("e1", "a"))
    assert got.status == 502 and got.body["error"]["code"] == "protocol_error"
    assert got.body["error"]["message"].startswith("the model's server answered with what is ")
    (record,) = await records(run)
    assert (record["status"], record["http_status"]) == ("protocol_error", 200)
    assert got.body["error"]["data"] == {"model_call": record["call_id"]}


async def test_a_server_that_is_not_there_is_a_transport_error_without_its_address_in_the_way(
    gateway: str, chat: Chat
) -> None:
    async with await RunHandle.open(gateway, ADMIN, {"a": SeatPolicy("A", ("http://127.0.0.1:9/v1",))}) as run:
        answer = await chat(run.episode("e1", "a"))
        assert answer.status == 502 and answer.body["error"]["code"] == "transport_error"
        (record,) = await records(run)
        assert record["status"] == "transport_error" and "http_status" not in record


async def test_a_server_that_never_answers_is_given_up_in_time(
    tmp_path: Path, upstream: Upstream, chat: Chat, serve: Serve
) -> None:
    upstream.hold = asyncio.Event()
    async with serve(tmp_path, model_seconds=0.2) as gateway:
        async with await RunHandle.open(gateway, ADMIN, {"a": SeatPolicy("A", (upstream.url,))}) as run:
            with anyio.fail_after(10):
                answer = await chat(run.episode("e1", "a"))
            assert answer.status == 504 and answer.body["error"]["code"] == "deadline_exceeded"
            assert (await records(run))[0]["status"] == "deadline_exceeded"
    with anyio.fail_after(10):
        await upstream.gone.wait()


async def test_a_caller_that_goes_away_ends_the_upstreams_work_and_is_recorded(
    run: RunHandle, upstream: Upstream, chat: Chat
) -> None:
    upstream.hold = asyncio.Event()
    call = asyncio.ensure_future(chat(run.episode("e1", "a")))
    with anyio.fail_after(10):
        await upstream.arrived.wait()
        call.cancel()
        await upstream.gone.wait()
        while not (found := await records(run)):
            pass
    assert [record["status"] for record in found] == ["cancelled"]


async def test_an_answer_beyond_the_limit_is_refused(
    tmp_path: Path, upstream: Upstream, chat: Chat, serve: Serve
) -> None:
    upstream.answer = {**COMPLETION, "padding": "x" * 2000}
    async with serve(tmp_path, max_reply_bytes=1000) as gateway:
        async with await RunHandle.open(gateway, ADMIN, {"a": SeatPolicy("A", (upstream.url,))}) as run:
            for length in ([], [(b"content-length", str(len(json.dumps(upstream.answer, indent=1))).encode())]):
                upstream.extra = length
                answer = await chat(run.episode("e1", "a"))
                assert answer.status == 413 and "more than 1000 bytes" in answer.body["error"]["message"]
            upstream.answer = {"choices": []}
            upstream.extra = []
            assert (await chat(run.episode("e1", "a"))).status == 200


@pytest.mark.parametrize("declared", [True, False])
async def test_a_body_beyond_the_limit_is_refused_and_nothing_is_written(
    tmp_path: Path, upstream: Upstream, declared: bool, serve: Serve
) -> None:
    async with serve(tmp_path, max_body_bytes=1000) as gateway:
        async with await RunHandle.open(gateway, ADMIN, {"a": SeatPolicy("A", (upstream.url,))}) as run:
            seen = run.episode("e1", "a")
            assert seen.route is not None

            async def pieces() -> Any:
                for _ in range(5):
                    yield b"x" * 400

            async with shared_http().post(
                seen.model_url("c1") + "/chat/completions",
                data=b"x" * 2000 if declared else pieces(),
                headers={"Authorization": f"Bearer {seen.route.token}"},
            ) as response:
                assert response.status == 413
                error = (await response.json())["error"]
                assert error["code"] == "message_too_large" and error["data"] == {"limit": 1000}
            assert await records(run) == [] and upstream.asked == []


@pytest.mark.parametrize("body", [b"", b"not json", b"[1]", b"[" * 100_000])
async def test_a_body_that_is_no_object_is_refused(run: RunHandle, upstream: Upstream, body: bytes, chat: Chat) -> None:
    answer = await chat(run.episode("e1", "a"), body)
    assert answer.status == 400 and answer.body["error"]["type"] == "invalid_arguments"
    assert upstream.asked == [] and await records(run) == []


async def test_every_token_but_the_seats_own_is_refused_and_nothing_is_written(
    gateway: str, run: RunHandle, upstream: Upstream, chat: Chat
) -> None:
    seen = run.episode("e1", "a")
    seats = {seat: SeatPolicy("X", (upstream.url,)) for seat in ("a", "b")}
    async with await RunHandle.open(gateway, ADMIN, seats) as other:
        foreign = [
            other.episode("e1", "a").routes["a"].token,
            seen.routes["b"].token,
            run.episode("e2", "a").routes["a"].token,
            ADMIN,
            "",
            "nonsense-\udcff",
        ]
        for token in foreign:
            answer = await chat(seen, token=token.encode("ascii", "replace").decode() or "x")
            assert answer.status == 401 and answer.body["error"]["code"] == "unauthenticated"
        assert (await chat(Run(gateway, "r1", "e1", "a"))).status == 401
        assert (await chat(Run(gateway, "nowhere", "e1", "a", seen.routes))).status == 401
        unseated = Run(gateway, "r1", "e1", "c", {"c": seen.routes["a"]})
        assert (await chat(unseated)).status == 401
        assert await records(run) == [] == await records(other)
    assert upstream.asked == []


async def test_one_episode_stays_with_one_server_and_many_use_all(gateway: str, upstream: Upstream, chat: Chat) -> None:
    second = type(upstream)()
    async with running(second) as url:
        seats = {"a": SeatPolicy("A", (upstream.url, f"{url}/v1/"))}
        async with await RunHandle.open(gateway, ADMIN, seats) as run:
            for number in range(20):
                before = len(upstream.asked), len(second.asked)
                for turn in range(3):
                    assert (await chat(run.episode(f"e{number}", "a"), call_id=f"c{turn}")).status == 200
                grown = len(upstream.asked) - before[0], len(second.asked) - before[1]
                assert grown in ((3, 0), (0, 3))
    assert len(upstream.asked) + len(second.asked) == 60
    assert upstream.asked and second.asked


async def test_a_client_that_lists_models_finds_the_seats_own(run: RunHandle) -> None:
    seen = run.episode("e1", "b")
    assert seen.route is not None
    headers = {"Authorization": f"Bearer {seen.route.token}"}
    async with shared_http().get(seen.model_url("c1") + "/models", headers=headers) as response:
        assert [model["id"] for model in (await response.json())["data"]] == ["B"]


async def test_a_journal_that_cannot_be_written_fails_the_call_and_not_the_gateway(
    run: RunHandle, tmp_path: Path, chat: Chat
) -> None:
    import resource
    import signal

    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    handler = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (200, hard))
    try:
        answer = await chat(run.episode("e1", "a"))
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
        signal.signal(signal.SIGXFSZ, handler)
    assert answer.status == 502 and "journal takes no record: File too large" in answer.body["error"]["message"]
    assert (await chat(run.episode("e2", "a"))).status == 200
    assert await records(run, "e1") == [] and len(await records(run, "e2")) == 1


@pytest.mark.parametrize(
    "odd",
    [
        {"usage": "much"},
        {"choices": [{**COMPLETION["choices"][0], "finish_reason": ["stop"]}]},
    ],
)
async def test_fields_that_no_record_can_hold_are_no_completion_and_the_record_can_be_read(
    run: RunHandle, upstream: Upstream, chat: Chat, odd: dict[str, Any]
) -> None:
    upstream.answer = {**COMPLETION, **odd}
    assert (await chat(run.episode("e1", "a"))).status == 502
    (record,) = (await run.collect(["e1"]))["e1"]
    read = record_from_json(record)
    assert isinstance(read, CallRecord) and read.status == "protocol_error" and read.token_ids is None
