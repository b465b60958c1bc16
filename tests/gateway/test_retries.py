"""Calls that are made again: by the gateway while nothing was sent, by clients that mark it, and never by a guess."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Awaitable, Callable
from typing import Any

import anyio
import pytest
from hypothesis import given
from hypothesis import strategies as st

from agent_env.episodes import CallRecord
from agent_env.episodes.attempts import unheard_calls
from agent_env.episodes.records import read
from agent_env.gateway import RunHandle, SeatPolicy, running
from agent_env.gateway.retries import Mark, RecentCalls, mark_of, tell
from agent_env.net import bound_url, listen, shared_http

pytestmark = pytest.mark.anyio

ADMIN = "admin-token"
Upstream = Any
"""The model server of the fixture `upstream`."""
Chat = Callable[..., Awaitable[Any]]


def free_url() -> str:
    """Where nobody listens."""
    with listen("127.0.0.1", 0) as listener:
        return bound_url(listener)


async def send(run: RunHandle, body: bytes = b'{"messages":[]}', turn: str = "t1", **headers: str) -> int:
    seen = run.episode("e1", "a")
    assert seen.route is not None
    fields = {name.replace("_", "-"): value for name, value in headers.items()}
    async with shared_http().post(
        seen.model_url(turn) + "/chat/completions",
        data=body,
        headers={"Authorization": f"Bearer {seen.route.token}", **fields},
    ) as response:
        await response.read()
        return response.status


async def records(run: RunHandle) -> list[dict[str, Any]]:
    return (await run.collect(["e1"]))["e1"]


async def test_a_place_that_cannot_be_reached_is_passed_over_and_the_record_says_so(
    gateway: str, upstream: Upstream, chat: Chat
) -> None:
    seats = {"a": SeatPolicy("A", (f"{free_url()}/v1", upstream.url))}
    async with await RunHandle.open(gateway, ADMIN, seats) as run:
        for number in range(12):
            assert (await chat(run.episode(f"e{number}", "a"))).status == 200
        found = await run.collect([f"e{number}" for number in range(12)])
    tried = [record.get("retries") for (record,) in found.values()]
    assert set(tried) == {None, 1} and len(upstream.asked) == 12


async def test_a_server_that_comes_up_a_little_later_is_reached(gateway: str, upstream: Upstream) -> None:
    # The port is held, so that nobody else gets it, but nobody listens there yet.
    import socket

    with socket.socket() as held:
        held.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        held.bind(("127.0.0.1", 0))
        seats = {"a": SeatPolicy("A", (f"http://127.0.0.1:{held.getsockname()[1]}/v1",))}
        async with await RunHandle.open(gateway, ADMIN, seats) as run:
            assert await send(run) == 502
            (record,) = await records(run)
            assert (record["retries"], record["status"]) == (2, "transport_error")
            assert "cannot be reached" in record["error"]["message"]


async def test_a_call_that_was_sent_is_not_sent_again(gateway: str) -> None:
    arrived = 0

    async def hang_up(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal arrived
        await reader.readuntil(b"\r\n\r\n")
        arrived += 1
        writer.close()

    server = await asyncio.start_server(hang_up, "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    async with server:
        seats = {"a": SeatPolicy("A", (f"http://127.0.0.1:{port}/v1",))}
        async with await RunHandle.open(gateway, ADMIN, seats) as run:
            with anyio.fail_after(10):
                assert await send(run) == 502
            (record,) = await records(run)
    assert arrived == 1 and "retries" not in record and "without an answer" in record["error"]["message"]


async def test_the_sdks_own_retry_is_marked_and_names_the_call_that_it_repeats(
    run: RunHandle, upstream: Upstream
) -> None:
    from openai import AsyncOpenAI

    class FailsOnce(type(upstream)):  # type: ignore[misc]
        async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
            self.status = 200 if self.asked else 503
            self.extra = [(b"retry-after-ms", b"1")]
            await super().__call__(scope, receive, send)

    server = FailsOnce()
    async with running(server) as url:
        seats = {"a": SeatPolicy("A", (f"{url}/v1",))}
        async with await RunHandle.open(run.gateway, ADMIN, seats) as own:
            seen = own.episode("e1", "a")
            assert seen.route is not None
            async with AsyncOpenAI(base_url=seen.model_url("t1"), api_key=seen.route.token, max_retries=1) as client:
                with anyio.fail_after(20):
                    await client.chat.completions.create(model="x", messages=[])
                    await client.chat.completions.create(model="x", messages=[])
            first, second, third = await records(own)
    assert (first["status"], second["status"], third["status"]) == ("upstream_error", "ok", "ok")
    assert (second["retry_of"], second["attempt"]) == (first["call_id"], 1)
    assert not {"retry_of", "attempt"} & (first.keys() | third.keys())


async def test_equal_prompts_are_never_taken_for_retries(run: RunHandle) -> None:
    for _ in range(3):
        assert await send(run, x_stainless_retry_count="0") == 200
        assert await send(run) == 200
    found = await records(run)
    assert len(found) == 6 and not any("retry_of" in record or "attempt" in record for record in found)


async def test_an_idempotency_key_that_comes_again_marks_a_retry(run: RunHandle) -> None:
    await send(run, idempotency_key="k1")
    await send(run, idempotency_key="k2")
    await send(run, idempotency_key="k1", agent_env_retry_count="1")
    await send(run, turn="t2", idempotency_key="k1")
    first, other, again, elsewhere = await records(run)
    assert again["retry_of"] == first["call_id"] and again["attempt"] == 1
    assert not any("retry_of" in record for record in (first, other, elsewhere))


async def test_a_retry_whose_first_try_never_came_is_marked_without_a_name(run: RunHandle) -> None:
    await send(run, agent_env_retry_count="2")
    (record,) = await records(run)
    assert record["attempt"] == 2 and "retry_of" not in record


@pytest.mark.parametrize("count", ["-1", "x", "", "1" * 10, "1.0"])
async def test_a_count_that_is_none_marks_nothing(count: str) -> None:
    assert mark_of({b"x-stainless-retry-count": count.encode()}) == Mark(0, None)


def test_one_key_for_different_bodies_marks_no_retry() -> None:
    """As a client has that sets the header once for all it asks."""
    calls, place = RecentCalls(), ("e", "a", "t")
    assert [calls.add(place, Mark(0, b"k"), body, "c")[1] for body in (b"x", b"y", b"z")] == [(), (), ()]
    assert calls.add(place, Mark(0, b"k"), b"x", "again")[1] == ("c",)


def test_of_equal_calls_the_one_that_failed_is_repeated_and_then_the_only_other() -> None:
    calls, place = RecentCalls(), ("e", "a", "t")
    calls.add(place, Mark(0, None), b"x", "answered")
    failed, _ = calls.add(place, Mark(0, None), b"x", "failed")
    failed.failed = True
    assert calls.add(place, Mark(1, None), b"x", "r1")[1] == ("failed",)
    # Its client saw none of the answer after all.
    assert calls.add(place, Mark(1, None), b"x", "r2")[1] == ("answered",)
    assert calls.add(place, Mark(1, None), b"x", "r3")[1] is None
    assert calls.add(place, Mark(2, None), b"y", "r4")[1] is None


def test_of_several_equal_calls_of_which_none_failed_it_is_not_guessed_which_is_repeated() -> None:
    calls, place = RecentCalls(), ("e", "a", "t")
    tries = [calls.add(place, Mark(0, None), b"x", name)[0] for name in ("k1", "k2", "k3")]
    assert calls.add(place, Mark(1, None), b"x", "r1")[1] == ("k1", "k2", "k3")
    tries[1].failed = True
    assert calls.add(place, Mark(1, None), b"x", "r2")[1] == ("k2",)
    assert calls.add(place, Mark(1, None), b"x", "r3")[1] == ("k1", "k3")
    assert calls.add(place, Mark(2, None), b"x", "r4")[1] == ("r1", "r2", "r3")


def test_a_try_that_was_lost_on_its_way_does_not_hide_the_one_before_it() -> None:
    calls, place = RecentCalls(), ("e", "a", "t")
    calls.add(place, Mark(0, None), b"x", "k0")
    assert calls.add(place, Mark(2, None), b"x", "k2")[1] == ("k0",)
    assert calls.add(place, Mark(3, None), b"x", "k3")[1] == ("k2",)
    assert calls.add(place, Mark(10**9, None), b"y", "k4")[1] is None


def test_the_one_that_failed_is_found_among_many_equal_calls() -> None:
    calls, place = RecentCalls(), ("e", "a", "t")
    calls.add(place, Mark(0, None), b"x", "failed")[0].failed = True
    for number in range(2000):
        calls.add(place, Mark(0, None), b"x", f"k{number}")
    assert calls.add(place, Mark(1, None), b"x", "again")[1] == ("failed",)


def test_of_very_many_equal_calls_a_retry_names_none_and_its_count_leaves_all_of_them_in_doubt() -> None:
    calls, place = RecentCalls(), ("e", "a", "t")
    names = [f"k{number}" for number in range(65)]
    tries = [calls.add(place, Mark(0, None), b"x", name)[0] for name in names]
    assert calls.add(place, Mark(1, None), b"x", "r1")[1] is None
    asked = [CallRecord(name, "t", "a", "A", started=float(at), request={}) for at, name in enumerate(names)]
    again = CallRecord("r1", "t", "a", "A", started=99.0, request={}, attempt=1)
    assert unheard_calls([*asked, again]) == dict.fromkeys(names, "ambiguous retry")
    tries[40].failed = True
    assert calls.add(place, Mark(1, None), b"x", "r2")[1] == ("k40",)
    assert calls.add(place, Mark(1, None), b"x", "r3")[1] == (*names[:40], *names[41:])


@pytest.mark.parametrize("fails", [False, True])
def test_retries_of_many_equal_calls_take_as_long_as_the_calls_are_many_and_not_as_their_square(
    instructions: Callable[[Callable[[], object]], int], fails: bool
) -> None:
    def tried(count: int) -> int:
        calls, place = RecentCalls(), ("e", "a", "t")

        def all_of_them() -> None:
            for number in range(count):
                calls.add(place, Mark(0, None), b"x", f"k{number}")[0].failed = fails
            for number in range(count):
                calls.add(place, Mark(1, None), b"x", f"r{number}")

        return instructions(all_of_them)

    assert tried(1024) < 10 * tried(128)


async def test_a_retry_that_fits_several_answered_calls_names_them_all(run: RunHandle) -> None:
    for _ in range(2):
        assert await send(run) == 200
    assert await send(run, x_stainless_retry_count="1") == 200
    first, second, again = await records(run)
    assert again["retry_among"] == [first["call_id"], second["call_id"]] and "retry_of" not in again


async def test_a_retry_of_what_was_refused_repeats_no_equal_call_that_was_answered(run: RunHandle) -> None:
    policy = run.policy("A")
    assert await send(run) == 200
    await policy.pause(hold=0.0)
    assert await send(run) == 429
    assert await send(run, x_stainless_retry_count="1") == 429
    await policy.resume()
    assert await send(run, x_stainless_retry_count="2") == 200
    first, second = await records(run)
    assert (second["attempt"], second["retry_among"]) == (2, []) and "retry_of" not in second
    assert unheard_calls([read(CallRecord, first), read(CallRecord, second)]) == {}


@given(
    st.lists(st.tuples(st.sampled_from("xy"), st.lists(st.sampled_from(["refused", "failed"]), max_size=4)), max_size=9)
)
def test_of_a_client_whose_tries_all_came_every_answer_counts(asked: list[tuple[str, list[str]]]) -> None:
    """However often it asks the same, and whatever became of the tries before the one that was answered."""
    calls, place, records = RecentCalls(), ("e", "a", "t"), list[CallRecord]()
    for body, troubles in asked:
        for attempt, became in enumerate([*troubles, "ok"]):
            mark = Mark(attempt, None)
            if became == "refused":
                calls.refuse(place, mark, body.encode())
                continue
            record = CallRecord(f"c{len(records)}", "t", "a", "A", started=float(len(records)), request={"said": body})
            record.status = became
            this, repeats = calls.add(place, mark, body.encode(), record.call_id)
            tell(record, mark, repeats)
            this.failed = became == "failed"
            records.append(record)
    assert unheard_calls(records) == {}


@given(st.lists(st.tuples(st.sampled_from("xy"), st.integers(0, 3), st.booleans()), max_size=40))
def test_no_call_is_repeated_twice_and_every_retry_follows_the_try_before_it(
    tries: list[tuple[str, int, bool]],
) -> None:
    calls, ids = RecentCalls(), map(str, itertools.count())
    seen: dict[str, tuple[str, int]] = {}
    repeated: set[str] = set()
    for body, attempt, fails in tries:
        call = next(ids)
        this, found = calls.add(("e", "a", "t"), Mark(attempt, None), body.encode(), call)
        this.failed = fails
        assert all(seen[of][0] == body and seen[of][1] < attempt and of not in repeated for of in found or ())
        assert len({seen[of][1] for of in found or ()}) <= 1
        if found is not None and len(found) == 1:
            repeated.update(found)
        seen[call] = (body, attempt)


@pytest.mark.parametrize("turns", [1, 7, 10**6])
def test_what_is_remembered_is_bounded(turns: int) -> None:
    calls = RecentCalls()
    for number in range(40_000):
        key = None if number % 3 else b"k" * 10_000
        calls.add(("e", "a", str(number % turns)), Mark(0, key), b"x", "c")
    known = calls._tries  # pyright: ignore[reportPrivateUsage]
    assert 1000 < sum(map(len, known.values())) <= 16_384
    assert all(len(repr(place)) < 200 for place in known)
