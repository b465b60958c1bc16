"""A caller leaves while its request is served: at every moment at which the gateway waits for anything."""

from __future__ import annotations

import asyncio
import json
import logging
import socket
import struct
from collections.abc import Callable, Generator
from pathlib import Path
from typing import Any

import anyio
import pytest

from agent_env.episodes import TurnRecord
from agent_env.gateway import Gateway, RunHandle, SeatPolicy, running

pytestmark = pytest.mark.anyio

ADMIN = "admin-token"
COMPLETION: dict[str, Any] = json.loads((Path(__file__).parent / "completion.json").read_text())
Upstream = Any
"""The model server of the fixture `upstream`."""

PADDING = b": " + b"x" * 3_000_000 + b"\n\n"
"""More of a stream than the sockets between two programs take that nobody reads from."""
ASKED = {"model": "own", "max_tokens": 9, "messages": [{"role": "user", "content": "boat"}]}
STREAM = [
    b'data: {"choices":[{"index":0,"delta":{"role":"assistant","content":"zip"},"finish_reason":"stop"}]}\n\n',
    PADDING,
    b"data: [DONE]\n\n",
]


class Caller:
    """Sends one request on a socket of its own, and leaves for good when it is told to."""

    def __init__(self, url: str, path: str, token: str, body: Any) -> None:
        self._host, self._port = url.removeprefix("http://").split(":")
        self._body = json.dumps(body).encode()
        self._head = (
            f"POST {path} HTTP/1.1\r\nHost: {self._host}\r\nAuthorization: Bearer {token}\r\n"
            f"Connection: close\r\nContent-Type: application/json\r\nContent-Length: {len(self._body)}\r\n\r\n"
        ).encode()
        self._writer: asyncio.StreamWriter | None = None

    async def ask(self) -> bytes:
        """Sends the request and reads until the connection ends."""
        reader, self._writer = await asyncio.open_connection(self._host, int(self._port))
        self._writer.write(self._head + self._body)
        try:
            return await reader.read()
        except ConnectionError:
            return b""
        finally:
            self._writer.close()

    def leave(self) -> None:
        """Resets the connection, as the system does for a process that is killed."""
        assert self._writer is not None
        raw = self._writer.get_extra_info("socket")
        raw.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self._writer.transport.abort()


class Leaving:
    """The gateway behind a door: one handler is stopped at the moment of that number at which it waits, the caller
    leaves, and the handler goes on when the server knows it."""

    def __init__(self, gateway: Gateway, *, faulty: bool = False) -> None:
        self._gateway, self._faulty = gateway, faulty
        self._caller: Caller | None = None
        self._moment = 0
        self._left = False
        self._ended = asyncio.Event()

    async def leave_at_each(self, caller: Callable[[int], Caller]) -> int:
        """Has a caller leave at the first moment, one at the second, and so on; tells how many made their requests, of
        whom the last one stayed to the end."""
        number, self._left = 0, True
        while self._left:
            leaving = self._caller = caller(number)
            self._moment, self._left, self._ended = number, False, asyncio.Event()
            asking = asyncio.ensure_future(leaving.ask())
            await self._ended.wait()
            await asking
            number += 1
        return number

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        if self._caller is None:
            return await self._gateway(scope, receive, send)
        caller, self._caller = self._caller, None
        handler = asyncio.current_task()
        reading = False

        async def seen() -> Any:
            nonlocal reading
            reading = asyncio.current_task() is handler
            try:
                return await receive()
            finally:
                reading = False

        async def leave() -> None:
            assert not reading, "the body was sent with the head"
            self._left = True
            caller.leave()
            while (await receive())["type"] != "http.disconnect":
                pass

        async def fail(message: Any) -> None:
            raise RuntimeError("the server's fault")

        try:
            await _Stepped(self._gateway(scope, seen, fail if self._faulty else send), self._moment, leave)
        finally:
            self._ended.set()


class _Stepped:
    """Awaits work, and something else first at one of the moments at which the work waits."""

    def __init__(self, work: Any, moment: int, then: Callable[[], Any]) -> None:
        self._work, self._moment, self._then = work, moment, then

    def __await__(self) -> Generator[Any, Any, Any]:
        thrown: BaseException | None = None
        while True:
            try:
                waited = self._work.send(None) if thrown is None else self._work.throw(thrown)
            except StopIteration as end:
                return end.value
            thrown = None
            try:
                if self._moment == 0:
                    yield from self._then().__await__()
            except asyncio.CancelledError as error:
                # As a task does it: what it waits for is cancelled, and itself only where that is done already.
                if waited is None or not waited.cancel():
                    thrown = error
            self._moment -= 1
            try:
                if thrown is None:
                    yield waited
            except BaseException as error:  # noqa: BLE001 - which the work is given
                thrown = error


def whole(upstream: Upstream) -> dict[str, Any]:
    return {}


def asked_apart(upstream: Upstream) -> dict[str, Any]:
    """A server that tells the tokens that were sampled is asked for those of the prompt."""
    upstream.answer = json.loads(json.dumps(COMPLETION))
    del upstream.answer["prompt_token_ids"]
    return {}


def no_answer(upstream: Upstream) -> dict[str, Any]:
    upstream.answer = b"none"
    return {}


def error_status(upstream: Upstream) -> dict[str, Any]:
    upstream.status, upstream.answer = 500, {"error": {"message": "out of memory"}}
    return {}


def late(upstream: Upstream) -> dict[str, Any]:
    upstream.hold = asyncio.Event()
    return {}


def streamed(upstream: Upstream) -> dict[str, Any]:
    upstream.pieces = STREAM
    return {"stream": True}


def stream_that_breaks(upstream: Upstream) -> dict[str, Any]:
    upstream.pieces, upstream.breaks = STREAM[:-1], True
    return {"stream": True}


def stream_that_ends_early(upstream: Upstream) -> dict[str, Any]:
    upstream.pieces = STREAM[:1]
    return {"stream": True}


def problems(caplog: pytest.LogCaptureFixture) -> list[str]:
    """What was printed as an error, save by the model server that breaks on purpose."""
    return [
        record.getMessage()
        for record in caplog.records
        if record.levelno >= logging.ERROR
        and not (record.exc_info and isinstance(record.exc_info[1], ConnectionAbortedError))
    ]


MODELS: list[tuple[Callable[[Upstream], dict[str, Any]], str]] = [
    (whole, "ok"),
    (asked_apart, "ok"),
    (no_answer, "protocol_error"),
    (error_status, "upstream_error"),
    (late, "deadline_exceeded"),
    (streamed, "ok"),
    (stream_that_breaks, "transport_error"),
    (stream_that_ends_early, "transport_error"),
]


def model_call(run: RunHandle, episode: str, asked: dict[str, Any], dialect: str = "chat/completions") -> Caller:
    seen = run.episode(episode, "a")
    assert seen.route is not None
    path = f"{seen.model_url('c1')}/{dialect}".removeprefix(run.gateway)
    return Caller(run.gateway, path, seen.route.token, asked)


async def statuses(run: RunHandle, episodes: int) -> list[list[str]]:
    """The statuses of the records of each episode."""
    found = await run.collect([f"e{number}" for number in range(episodes)])
    return [[record["status"] for record in records] for records in found.values()]


@pytest.mark.parametrize(("model", "status"), MODELS, ids=[model.__name__ for model, _ in MODELS])
@pytest.mark.parametrize("dialect", ["chat/completions", "messages"])
async def test_a_caller_that_leaves_at_any_moment_costs_no_record_and_no_traceback(
    tmp_path: Path,
    upstream: Upstream,
    caplog: pytest.LogCaptureFixture,
    model: Callable[[Upstream], dict[str, Any]],
    status: str,
    dialect: str,
) -> None:
    door = Leaving(Gateway(tmp_path, admin_token=ADMIN, model_seconds=0.2 if model is late else 20.0))
    asked = {**ASKED, **model(upstream)}
    with anyio.fail_after(50), caplog.at_level(logging.DEBUG):
        async with running(door) as url:
            run = await RunHandle.open(url, ADMIN, {"a": SeatPolicy("A", (upstream.url,))}, run="r1")
            moments = await door.leave_at_each(lambda moment: model_call(run, f"e{moment}", asked, dialect))
            told = await statuses(run, moments)
            assert (await run.policy("A").state()).in_flight == 0
    assert told[-1] == [status] and moments > 2
    assert [found for found in told if found not in ([status], ["cancelled"])] == []
    assert problems(caplog) == []


async def test_a_fault_is_told_with_its_record_also_where_the_caller_leaves_meanwhile(
    tmp_path: Path, upstream: Upstream, caplog: pytest.LogCaptureFixture
) -> None:
    upstream.pieces = STREAM
    door = Leaving(Gateway(tmp_path, admin_token=ADMIN), faulty=True)
    with anyio.fail_after(50), caplog.at_level(logging.DEBUG):
        async with running(door) as url:
            run = await RunHandle.open(url, ADMIN, {"a": SeatPolicy("A", (upstream.url,))}, run="r1")
            asked = {**ASKED, "stream": True}
            moments = await door.leave_at_each(lambda moment: model_call(run, f"e{moment}", asked))
            told = await statuses(run, moments)
    assert told[-2:] == [["internal"]] * 2, "the last moment is that at which the record is kept"
    assert [found for found in told if found not in (["internal"], ["cancelled"])] == []
    faults = [record.exc_info[1] for record in caplog.records if record.levelno >= logging.ERROR and record.exc_info]
    assert [type(fault) for fault in faults] == [RuntimeError] * told.count(["internal"])


async def test_a_held_call_whose_caller_leaves_makes_no_record_and_no_traceback(
    tmp_path: Path, upstream: Upstream, caplog: pytest.LogCaptureFixture
) -> None:
    door = Leaving(Gateway(tmp_path, admin_token=ADMIN))
    with anyio.fail_after(50), caplog.at_level(logging.DEBUG):
        async with running(door) as url:
            run = await RunHandle.open(url, ADMIN, {"a": SeatPolicy("A", (upstream.url,))}, run="r1")
            await run.policy("A").pause(hold=0.1, seconds=60)
            moments = await door.leave_at_each(lambda moment: model_call(run, f"e{moment}", ASKED))
            assert await statuses(run, moments) == [[]] * moments and moments > 1
            state = await run.policy("A").state()
    assert (state.in_flight, state.held) == (0, 0)
    assert problems(caplog) == []


def turn(episode: str) -> dict[str, Any]:
    return TurnRecord("c1", "a@1.0.0", "s1", episode, seat="a", reply="ja").to_json()


def keep(run: RunHandle, episode: str) -> Caller:
    seat = run.episode(episode, "a")
    assert seat.route is not None
    return Caller(run.gateway, f"/runs/r1/{episode}/records", seat.route.token, [turn(episode)])


def keep_several(run: RunHandle, episode: str) -> Caller:
    seat = run.episode(episode, "a")
    assert seat.route is not None
    items = [{"episode": episode, "token": seat.route.token, "records": [turn(episode)]}]
    return Caller(run.gateway, "/runs/r1/records", "", items)


@pytest.mark.parametrize("ask", [keep, keep_several])
async def test_records_whose_sender_leaves_at_any_moment_are_kept(
    tmp_path: Path, upstream: Upstream, caplog: pytest.LogCaptureFixture, ask: Callable[[RunHandle, str], Caller]
) -> None:
    door = Leaving(Gateway(tmp_path, admin_token=ADMIN))
    with anyio.fail_after(50), caplog.at_level(logging.DEBUG):
        async with running(door) as url:
            run = await RunHandle.open(url, ADMIN, {"a": SeatPolicy("A", (upstream.url,))}, run="r1")
            moments = await door.leave_at_each(lambda moment: ask(run, f"e{moment}"))
            found = await run.collect([f"e{moment}" for moment in range(moments)])
    assert found == {episode: [turn(episode)] for episode in found} and moments > 1
    assert problems(caplog) == []
