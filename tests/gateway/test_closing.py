"""Runs that are closed while calls are under way: each call ends with a record and with word to its caller."""

from __future__ import annotations

import asyncio
import json
import socket
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import anyio
import pytest
from aiohttp import ClientResponse

from agent_env.episodes import TurnRecord
from agent_env.errors import AgentEnvError, RunClosed, TransportError
from agent_env.gateway import RunHandle, RunRecorder, SeatPolicy, running
from agent_env.gateway.journal import Journal
from agent_env.gateway.policies import Policies
from agent_env.gateway.runs import OpenRun, Seating
from agent_env.net import shared_http

pytestmark = [pytest.mark.anyio, pytest.mark.timeout(60)]

ADMIN = "admin-token"
COMPLETION: dict[str, Any] = json.loads((Path(__file__).parent / "completion.json").read_text())
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


def journal(directory: Path) -> list[dict[str, Any]]:
    """The records that are on disk."""
    return [json.loads(line) for line in (directory / "r1.jsonl").read_text().splitlines()[1:]]


@asynccontextmanager
async def opened(
    serve: Serve, directory: Path, endpoint: str, *, seconds: float = 30.0, keep: bool = True, **options: Any
) -> AsyncGenerator[RunHandle]:
    """A run at a gateway of its own, which waits so long for calls that are under way."""
    with anyio.fail_after(30):
        async with serve(directory, close_seconds=seconds, **options) as gateway:
            seats = {"a": SeatPolicy("A", (endpoint,))}
            yield await RunHandle.open(gateway, ADMIN, seats, run="r1", keep_journal=keep)


async def until_kept(run: RunHandle, count: int) -> None:
    """Waits until so many records of the episode are on disk."""
    while len((await run.collect(["e1"]))["e1"]) < count:
        pass


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
        assert b"'r1' was closed" in answer and b"model_call" not in answer  # the model did not fail
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
    monkeypatch.setattr("agent_env.gateway.presence._LAST_SECONDS", 0.05)
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


async def test_a_caller_that_does_not_read_its_whole_answer_keeps_no_run_open_either(
    tmp_path: Path, upstream: Upstream, serve: Serve
) -> None:
    upstream.answer = {**upstream.answer, "padding": "x" * 20_000_000}
    async with opened(serve, tmp_path, upstream.url) as run:
        seen = run.episode("e1", "a")
        assert seen.route is not None
        headers = {"Authorization": f"Bearer {seen.route.token}"}
        url = f"{seen.model_url('c1')}/chat/completions"
        async with shared_http().post(url, json={"messages": MESSAGES}, headers=headers) as response:
            assert response.status == 200
            with anyio.fail_after(5):
                await run.aclose()
    assert [record["status"] for record in journal(tmp_path)] == ["ok"]


async def test_a_call_that_does_not_end_when_it_is_told_to_is_logged_and_keeps_no_run_open(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr("agent_env.gateway.runs.ENDING_SECONDS", 0.05)

    class Endless:
        told: AgentEnvError | None = None

        def end(self, error: AgentEnvError) -> None:
            self.told = error

    seats = {"a": SeatPolicy("A", ("http://127.0.0.1:9/v1",))}
    closed = OpenRun("r1", "secret", Seating("r1", seats, Policies()), Journal(tmp_path / "r1.jsonl", "r1", "secret"))
    call = Endless()
    with anyio.fail_after(5), closed.under_way(call):
        await closed.close(0.0)
    assert isinstance(call.told, RunClosed) and closed.journal.closed
    assert "1 calls of the run 'r1' have not ended 0.05 s after they were told to" in caplog.text


class Slow:
    """A model server that answers each call after another time, and counts those that came."""

    def __init__(self) -> None:
        self.asked = 0
        self.enough = asyncio.Event()

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        self.asked += 1
        if self.asked == 40:
            self.enough.set()
        await anyio.sleep(0.002 * (self.asked * 7 % 40))
        await send({"type": "http.response.start", "status": 200, "headers": [(b"content-type", b"application/json")]})
        message = {"role": "assistant", "content": "zip"}
        answer = {"choices": [{"index": 0, "message": message, "finish_reason": "stop"}]}
        await send({"type": "http.response.body", "body": json.dumps(answer).encode()})


async def test_of_many_calls_each_that_came_to_the_server_has_the_record_of_what_its_caller_was_told(
    tmp_path: Path, serve: Serve
) -> None:
    server = Slow()
    async with running(server) as url, opened(serve, tmp_path, f"{url}/v1", seconds=0.02) as run:

        async def work(worker: int) -> list[tuple[str, int]]:
            told: list[tuple[str, int]] = []
            while not told or told[-1][1] == 200:
                episode = f"{worker}-{len(told)}"
                told.append((episode, (await ask(run, episode=episode))[0]))
            return told

        working = asyncio.gather(*(work(worker) for worker in range(16)))
        await server.enough.wait()
        await run.aclose()
        told = dict(pair for pairs in await working for pair in pairs)
    records = {record["episode"]: record["status"] for record in journal(tmp_path)}
    assert len(records) == len(journal(tmp_path)) == server.asked
    codes = {200: "ok", 410: "run_closed"}
    assert all(codes[told[episode]] == status for episode, status in records.items())
    # Whoever came later, while the run was being closed or when it was gone, was refused and left none.
    assert {status for episode, status in told.items() if episode not in records} <= {401, 410}
    assert set(records.values()) == {"ok", "run_closed"}


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


@pytest.mark.parametrize("first", ["", "?journal=drop"])
async def test_a_run_whose_journal_is_dropped_while_it_is_being_closed_leaves_none(
    tmp_path: Path, upstream: Upstream, serve: Serve, first: str
) -> None:
    upstream.hold = asyncio.Event()
    async with opened(serve, tmp_path, upstream.url) as run:
        asking = asyncio.ensure_future(ask(run))
        await upstream.arrived.wait()

        async def delete(query: str) -> int:
            headers = {"Authorization": f"Bearer {ADMIN}"}
            async with shared_http().delete(f"{run.gateway}/runs/{run.run}{query}", headers=headers) as response:
                return response.status

        closing = asyncio.ensure_future(delete(first))
        await until_closing(run)
        dropping = asyncio.ensure_future(delete("" if first else "?journal=drop"))
        upstream.hold.set()
        assert await closing == 200 and await dropping in (200, 404)
        assert (await asking)[0] in (200, 410)
        if not first:
            assert await dropping == 200
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


async def test_a_journal_that_is_closed_says_that_it_takes_no_record(tmp_path: Path) -> None:
    closed = Journal(tmp_path / "r1.jsonl", "r1", "secret")
    written = closed.append("e1", [b'{"episode":"e1"}\n'])
    closed.close()
    await written
    with anyio.fail_after(5), pytest.raises(TransportError, match=r"'r1\.jsonl' is closed and takes no record"):
        await closed.append("e1", [b'{"episode":"e1"}\n'])
    assert len(journal(tmp_path)) == 1


@pytest.mark.parametrize("stream", [False, True], ids=["whole", "streamed"])
async def test_a_caller_that_does_not_read_holds_no_policy_and_leaves_its_records(
    tmp_path: Path, upstream: Upstream, serve: Serve, monkeypatch: pytest.MonkeyPatch, stream: bool
) -> None:
    """It asks twice on one connection, and the first answer, which it leaves there, is in the way of the second."""
    monkeypatch.setattr("agent_env.gateway.presence._LAST_SECONDS", 0.2)
    async with opened(serve, tmp_path, upstream.url, model_seconds=4.0) as run:
        seen = run.episode("e1", "a")
        assert seen.route is not None
        token, url = seen.route.token, urlsplit(seen.model_url("t1") + "/chat/completions")

        def request(**fields: Any) -> bytes:
            body = json.dumps({"model": "x", "messages": [], **fields}).encode()
            head = f"POST {url.path} HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer {token}\r\n"
            return f"{head}Content-Length: {len(body)}\r\n\r\n".encode() + body

        message = {**COMPLETION["choices"][0], "message": {"role": "assistant", "content": "x" * 20_000_000}}
        upstream.answer = {**COMPLETION, "choices": [message]}
        loop = asyncio.get_running_loop()
        with socket.create_connection((url.hostname, url.port or 80)) as caller, anyio.fail_after(30):
            caller.setblocking(False)
            await loop.sock_sendall(caller, request())
            await until_kept(run, 1)
            upstream.answer = COMPLETION
            upstream.pieces = [b"data: [DONE]\n\n"] if stream else None
            await loop.sock_sendall(caller, request(stream=stream))
            await until_kept(run, 2)
            async with run.policy("A").quiet(drain_seconds=5):
                assert (await run.policy("A").state()).in_flight == 0
    first, second = journal(tmp_path)
    assert first["status"] == "ok" and second["status"] in ("ok", "deadline_exceeded")
