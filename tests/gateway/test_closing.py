"""Runs that are closed while calls are under way, or held: each call ends with a record and with word to its caller."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from pathlib import Path
from typing import Any

import anyio
import pytest
from aiohttp import ClientResponse

from agent_env.episodes import TurnRecord
from agent_env.errors import TransportError
from agent_env.gateway import Gateway, PolicyHandle, RunHandle, RunRecorder, SeatPolicy, running
from agent_env.gateway.journal import Journal
from agent_env.net import shared_http

pytestmark = [pytest.mark.anyio, pytest.mark.timeout(60)]

ADMIN = "admin-token"
Upstream = Any
"""The model server of the fixture `upstream`."""
Chat = Callable[..., Awaitable[Any]]
Serve = Callable[..., AbstractAsyncContextManager[str]]

MESSAGES: Any = [{"role": "user", "content": "boat"}]
WORD = b'data: {"choices": [{"index": 0, "delta": {"role": "assistant", "content": "zip"}}]}\n\n'
END = b'data: {"choices": [{"index": 0, "delta": {}, "finish_reason": "stop"}]}\n\ndata: [DONE]\n\n'
DIALECTS: dict[str, Any] = {
    "chat/completions": {"messages": MESSAGES},
    "completions": {"prompt": "boat"},
    "responses": {"input": "boat"},
    "messages": {"messages": MESSAGES, "max_tokens": 9},
}


async def ask(
    run: RunHandle, path: str = "chat/completions", episode: str = "e1", whole: bool = True
) -> tuple[int, bytes]:
    """Asks the model of the seat `a` in a dialect; gives the status and the bytes of what comes back."""
    seen = run.episode(episode, "a")
    assert seen.route is not None
    headers = {"Authorization": f"Bearer {seen.route.token}"}
    data = json.dumps({"model": "own", **DIALECTS[path]}).encode() if whole else b"no JSON"
    async with shared_http().post(f"{seen.model_url('c1')}/{path}", data=data, headers=headers) as response:
        return response.status, await response.read()


def journal(directory: Path, run: str = "r1") -> list[dict[str, Any]]:
    """The records that are on disk."""
    return [json.loads(line) for line in (directory / f"{run}.jsonl").read_text().splitlines()[1:]]


@asynccontextmanager
async def opened(
    serve: Serve, directory: Path, endpoint: str, *, seconds: float = 30.0, keep: bool = True
) -> AsyncGenerator[RunHandle]:
    """A run at a gateway of its own, which waits so long for calls that are under way."""
    with anyio.fail_after(30):
        async with serve(directory, close_seconds=seconds) as gateway:
            seats = {"a": SeatPolicy("A", (endpoint,))}
            yield await RunHandle.open(gateway, ADMIN, seats, run="r1", keep_journal=keep)


async def until_closing(run: RunHandle) -> None:
    """Waits until the run takes no more calls, which it says before it looks at what is asked."""
    while (status := (await ask(run, episode="late", whole=False))[0]) != 410:
        assert status == 400


@pytest.mark.parametrize("path", [*DIALECTS])
async def test_closing_a_run_waits_for_the_call_that_is_under_way(
    tmp_path: Path, upstream: Upstream, serve: Serve, path: str
) -> None:
    upstream.hold = asyncio.Event()
    if path == "completions":
        upstream.answer = {**upstream.answer, "choices": [{"index": 0, "text": "zip zap", "finish_reason": "stop"}]}
    async with opened(serve, tmp_path, upstream.url) as run:
        asking = asyncio.ensure_future(ask(run, path))
        await upstream.arrived.wait()
        closing = asyncio.ensure_future(run.aclose())
        await until_closing(run)
        assert not closing.done() and not asking.done()
        # Its turn, which ends after its calls, still gets its record into the journal.
        await RunRecorder(run.episode("e1", "a")).record([TurnRecord("c1", "a@1", "s", "e1", seat="a").to_json()])
        upstream.hold.set()
        status, answer = await asking
        assert status == 200 and b"zip zap" in answer
        await closing
        assert (await ask(run))[0] == 401
    assert [(record["kind"], record["status"]) for record in journal(tmp_path)] == [("turn", "ok"), ("model", "ok")]


class Speaker:
    """A model server that streams a word, and the end of its answer when it is let."""

    def __init__(self) -> None:
        self.go_on = asyncio.Event()
        self.word = WORD

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        head = [(b"content-type", b"text/event-stream")]
        await send({"type": "http.response.start", "status": 200, "headers": head})
        await send({"type": "http.response.body", "body": self.word, "more_body": True})
        await self.go_on.wait()
        await send({"type": "http.response.body", "body": END})


@asynccontextmanager
async def speaking(run: RunHandle, path: str = "chat/completions") -> AsyncGenerator[ClientResponse]:
    """The answer to a streamed call whose first word has come."""
    seen = run.episode("e1", "a")
    assert seen.route is not None
    headers = {"Authorization": f"Bearer {seen.route.token}"}
    body = {"model": "own", "stream": True, **DIALECTS[path]}
    async with shared_http().post(f"{seen.model_url('c1')}/{path}", json=body, headers=headers) as response:
        got = b""
        while b"zip" not in got:
            got += await response.content.readany()
        yield response


async def test_closing_a_run_waits_for_the_end_of_a_stream(tmp_path: Path, serve: Serve) -> None:
    speaker = Speaker()
    async with running(speaker) as url, opened(serve, tmp_path, f"{url}/v1") as run, speaking(run) as answer:
        closing = asyncio.ensure_future(run.aclose())
        await until_closing(run)
        speaker.go_on.set()
        assert await answer.read() == END
        await closing
    (record,) = journal(tmp_path)
    assert record["status"] == "ok" and record["response"]["choices"][0]["message"]["content"] == "zip"


TOLD: dict[str, Callable[[Any], Any]] = {
    "chat/completions": lambda body: body["error"]["code"],
    "completions": lambda body: body["error"]["code"],
    "responses": lambda body: body["error"]["code"],
    "messages": lambda body: body["error"]["code"] if body["type"] == "error" else None,
}


@pytest.mark.parametrize("path", [*DIALECTS])
async def test_a_call_that_takes_longer_ends_with_a_record_and_is_told_so_in_its_dialect(
    tmp_path: Path, upstream: Upstream, serve: Serve, path: str
) -> None:
    upstream.hold = asyncio.Event()
    async with opened(serve, tmp_path, upstream.url, seconds=0.05) as run:
        asking = asyncio.ensure_future(ask(run, path))
        await upstream.arrived.wait()
        await run.aclose()
        status, answer = await asking
        assert status == 410 and TOLD[path](json.loads(answer)) == "run_closed"
        assert b"'r1' was closed" in answer
        await upstream.gone.wait()  # the server's work for it has ended
    (record,) = journal(tmp_path)
    assert (record["status"], record["error"]["code"]) == ("run_closed", "run_closed")
    assert record["request"]["model"] == "own" and "response" not in record


@pytest.mark.parametrize("path", ["chat/completions", "responses", "messages"])
async def test_a_stream_that_takes_longer_ends_with_an_error_event_and_a_record_of_what_came(
    tmp_path: Path, serve: Serve, path: str
) -> None:
    speaker = Speaker()
    async with (
        running(speaker) as url,
        opened(serve, tmp_path, f"{url}/v1", seconds=0.05) as run,
        speaking(run, path) as answer,
    ):
        await run.aclose()
        rest = await answer.read()
        assert b"run_closed" in rest and b"'r1' was closed" in rest and b"[DONE]" not in rest
        speaker.go_on.set()
    (record,) = journal(tmp_path)
    assert record["status"] == "run_closed"
    assert record["response"]["choices"][0]["message"]["content"] == "zip"


async def test_openais_client_raises_the_end_of_the_run_and_does_not_try_again(
    tmp_path: Path, upstream: Upstream, serve: Serve
) -> None:
    from openai import APIStatusError, AsyncOpenAI

    upstream.hold = asyncio.Event()
    async with opened(serve, tmp_path, upstream.url, seconds=0.05) as run:
        seen = run.episode("e1", "a")
        assert seen.route is not None
        async with AsyncOpenAI(base_url=seen.model_url("c1"), api_key=seen.route.token) as client:
            asking = asyncio.ensure_future(client.chat.completions.create(model="own", messages=MESSAGES))
            await upstream.arrived.wait()
            await run.aclose()
            with pytest.raises(APIStatusError, match="'r1' was closed before this call had its answer") as raised:
                await asking
    assert raised.value.status_code == 410 and len(upstream.asked) == len(journal(tmp_path)) == 1


async def test_a_caller_that_does_not_read_keeps_no_run_open(
    tmp_path: Path, serve: Serve, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("agent_env.gateway.proxy._LAST_SECONDS", 0.05)
    speaker = Speaker()
    speaker.word = WORD + b": nothing\n\n" * 2_000_000
    async with (
        running(speaker) as url,
        opened(serve, tmp_path, f"{url}/v1", seconds=0.05) as run,
        speaking(run),
    ):
        await run.aclose()
        speaker.go_on.set()
    (record,) = journal(tmp_path)
    assert record["status"] == "run_closed"


async def test_what_is_dropped_is_not_waited_for_and_its_callers_are_told_all_the_same(
    tmp_path: Path, upstream: Upstream, serve: Serve
) -> None:
    upstream.hold = asyncio.Event()
    async with opened(serve, tmp_path, upstream.url, keep=False) as run:
        asking = asyncio.ensure_future(ask(run))
        await upstream.arrived.wait()
        with anyio.fail_after(5):
            await run.aclose()
        assert (await asking)[0] == 410
    assert not (tmp_path / "r1.jsonl").exists()


async def test_a_run_that_is_being_closed_is_opened_again_and_closed_twice_when_it_is_gone(
    tmp_path: Path, upstream: Upstream, serve: Serve
) -> None:
    upstream.hold = asyncio.Event()
    async with opened(serve, tmp_path, upstream.url) as run:
        asking = asyncio.ensure_future(ask(run))
        await upstream.arrived.wait()
        closing = [asyncio.ensure_future(run.aclose()) for _ in range(2)]
        await until_closing(run)
        opening = asyncio.ensure_future(
            RunHandle.open(run.gateway, ADMIN, run.seats, run="r1", secret=run.secret)  # waits, and finds the record
        )
        assert await run.collect(["e1"]) == {"e1": []}
        upstream.hold.set()
        assert (await asking)[0] == 200
        await asyncio.gather(*closing)
        again = await opening
        assert [record["status"] for record in (await again.collect(["e1"]))["e1"]] == ["ok"]
        assert (await ask(again))[0] == 200
    assert len(journal(tmp_path)) == 2


async def test_a_gateway_that_stops_leaves_a_record_of_each_call_that_was_under_way(
    tmp_path: Path, upstream: Upstream
) -> None:
    upstream.hold = asyncio.Event()
    app = Gateway(tmp_path, admin_token=ADMIN)
    with anyio.fail_after(30):
        async with running(app) as gateway:
            run = await RunHandle.open(gateway, ADMIN, {"a": SeatPolicy("A", (upstream.url,))}, run="r1")
            asking = asyncio.ensure_future(ask(run))
            await upstream.arrived.wait()
        app.close()
        assert (await asking)[0] == 500  # which clients try again, at the gateway that comes after
    (record,) = journal(tmp_path)
    assert record["status"] == "cancelled"


async def test_a_journal_that_is_closed_says_that_it_takes_no_record(tmp_path: Path) -> None:
    closed = Journal(tmp_path / "r1.jsonl", "r1", "secret")
    written = closed.append("e1", [b'{"episode":"e1"}\n'])
    closed.close()
    await written
    with anyio.fail_after(5), pytest.raises(TransportError, match=r"'r1\.jsonl' is closed and takes no record"):
        await closed.append("e1", [b'{"episode":"e1"}\n'])
    assert len(journal(tmp_path)) == 1


async def until_held(policy: PolicyHandle, count: int) -> None:
    while (await policy.state()).held != count:
        await anyio.lowlevel.checkpoint()


async def test_a_call_that_is_held_is_refused_when_its_run_is_closed_and_those_of_other_runs_stay_held(
    tmp_path: Path, upstream: Upstream, serve: Serve
) -> None:
    seats = {"a": SeatPolicy("A", (upstream.url,), policy="solver")}
    with anyio.fail_after(30):
        async with serve(tmp_path) as gateway:
            policy = PolicyHandle(gateway, ADMIN, "solver")
            closed, other = [await RunHandle.open(gateway, ADMIN, seats, run=name) for name in ("r1", "r2")]
            await policy.pause(hold=3600)
            refused, held = (asyncio.ensure_future(ask(run)) for run in (closed, other))
            await until_held(policy, 2)
            await closed.aclose()
            status, answer = await refused
            assert status == 410 and json.loads(answer)["error"]["code"] == "run_closed"
            assert (await policy.state()).held == 1 and not held.done() and upstream.asked == []
            await policy.resume()
            assert (await held)[0] == 200
            await other.aclose()
    assert journal(tmp_path) == [] and len(journal(tmp_path, "r2")) == 1


async def test_a_call_that_is_held_is_refused_when_its_seat_leaves_the_run(run: RunHandle, upstream: Upstream) -> None:
    with anyio.fail_after(30):
        await run.policy("A").pause(hold=3600)
        asking = asyncio.ensure_future(ask(run))
        await until_held(run.policy("A"), 1)
        seats = {"b": run.seats["b"]}
        await RunHandle.open(run.gateway, ADMIN, seats, run=run.run, secret=run.secret)
        status, answer = await asking
        assert status == 404 and b"the seat 'a' has left the run 'r1'" in answer and upstream.asked == []


async def test_a_call_that_is_held_goes_on_with_the_policy_that_its_seat_has_by_then(
    run: RunHandle, upstream: Upstream
) -> None:
    with anyio.fail_after(30):
        await run.policy("A").pause(hold=3600)
        asking = asyncio.ensure_future(ask(run))
        await until_held(run.policy("A"), 1)
        seats = {"a": SeatPolicy("C", (upstream.url,), policy="another"), "b": run.seats["b"]}
        again = await RunHandle.open(run.gateway, ADMIN, seats, run=run.run, secret=run.secret)
        assert (await asking)[0] == 200 and upstream.asked[-1]["model"] == "C"
        assert [record["policy"] for record in (await again.collect(["e1"]))["e1"]] == ["another"]


async def test_a_call_whose_seat_gets_another_paused_policy_is_held_by_that(run: RunHandle, upstream: Upstream) -> None:
    with anyio.fail_after(30):
        await run.policy("A").pause(hold=3600)
        await run.policy("B").pause(hold=3600)
        asking = asyncio.ensure_future(ask(run))
        await until_held(run.policy("A"), 1)
        seats = {"a": run.seats["b"], "b": run.seats["b"]}
        again = await RunHandle.open(run.gateway, ADMIN, seats, run=run.run, secret=run.secret)
        await until_held(again.policy("B"), 1)
        assert not asking.done() and upstream.asked == []
        await again.policy("B").resume()
        assert (await asking)[0] == 200 and upstream.asked[-1]["model"] == "B"
