"""A chat-completions endpoint that is busy or away for a moment, and what is asked of it again."""

from __future__ import annotations

import asyncio
import itertools
import json
import time
from contextlib import aclosing
from email.utils import formatdate
from typing import Any

import anyio
import pytest
from driving import done, peer
from endpoint_script import SOON, answer, endpoint, said
from hypothesis import given
from hypothesis import strategies as st

from agent_env_wrappers.contract import AgentError, Limits, Message, TextDelta, Turn
from agent_env_wrappers.openai_endpoint import OpenAIEndpoint, OpenAIEndpointWrapper
from agent_env_wrappers.retries import FIRST_SECONDS, LONGEST_SECONDS, MOST_SECONDS, Tries, named_pause

pytestmark = [pytest.mark.anyio, pytest.mark.timeout(60)]


@pytest.mark.parametrize("status", [408, 409, 429, 500, 502, 503, 529])
async def test_a_model_that_is_busy_is_asked_the_same_again_and_each_try_is_marked(status: int) -> None:
    async with endpoint(answer(status, SOON), answer(status, SOON), said("at last")) as (script, wrapper):
        told = await done(wrapper)
    assert (told.text, told.usage and told.usage.requests) == ("at last", None)
    assert script.marks == [None, "1", "2"]
    assert {(headers["authorization"], body) for headers, body in script.asked} == {("Bearer key", script.asked[0][1])}


@pytest.mark.parametrize(("most", "marks"), [(0, [None]), (1, [None, "1"]), (3, [None, "1", "2", "3"])])
async def test_a_model_that_stays_busy_is_given_up(most: int, marks: list[str | None]) -> None:
    async with endpoint(*[answer(429, SOON)] * 4, max_retries=most) as (script, wrapper):
        with pytest.raises(AgentError, match="the agent's model answered HTTP 429") as failed:
            await done(wrapper)
    assert (failed.value.kind, failed.value.retryable, script.marks) == ("model", True, marks)


@pytest.mark.parametrize("status", [302, 400, 401, 404, 410, 422])
async def test_an_answer_that_would_be_the_same_again_is_not_asked_for_again(status: int) -> None:
    async with endpoint(answer(status, SOON, "Location: /")) as (script, wrapper):
        with pytest.raises(AgentError, match=f"HTTP {status}"):
            await done(wrapper)
    assert len(script.asked) == 1


async def test_a_server_may_say_itself_whether_it_wants_to_be_asked_again() -> None:
    refused = answer(400, SOON, "x-should-retry: true"), answer(503, SOON, "x-should-retry: false")
    async with endpoint(*refused) as (script, wrapper):
        with pytest.raises(AgentError, match="HTTP 503"):
            await done(wrapper)
    assert script.marks == [None, "1"]
    head, body = said("fine").split(b"\r\n", 1)
    async with endpoint(head + b"\r\nx-should-retry: true\r\n" + body) as (script, wrapper):
        assert (await done(wrapper)).text == "fine"


async def test_a_connection_that_breaks_before_an_answer_is_made_again() -> None:
    async with endpoint(b"", said("here"), max_retries=1) as (script, wrapper):
        assert (await done(wrapper)).text == "here"
    assert script.marks == [None, "1"]


async def test_a_model_that_nobody_listens_for_is_tried_again_after_a_moment() -> None:
    wrapper = OpenAIEndpointWrapper(OpenAIEndpoint("http://127.0.0.1:9/v1", "m", max_retries=1))
    began = time.monotonic()
    with anyio.fail_after(20), pytest.raises(AgentError, match="cannot be reached"):
        await done(wrapper)
    assert time.monotonic() - began >= FIRST_SECONDS * 0.75
    await wrapper.aclose()


@pytest.mark.parametrize("sent", [[], ["half"]], ids=["nothing", "a word"])
async def test_an_answer_that_has_begun_is_never_asked_for_again(sent: list[str]) -> None:
    chunks = [b"data: %s\n\n" % json.dumps({"choices": [{"delta": {"content": text}}]}).encode() for text in sent]
    begun = answer(200, "Content-Type: text/event-stream", "Connection: close", body=b": hi\n\n" + b"".join(chunks))
    told: list[Any] = []
    async with endpoint(begun) as (script, wrapper):
        with pytest.raises(AgentError, match="broke off in the middle"):
            async with aclosing[Any](wrapper.run(Turn(Message.of("hello")))) as stream:
                async for event in stream:
                    told.append(event)
    assert (told, len(script.asked)) == ([TextDelta(text) for text in sent], 1)


async def test_every_request_of_a_turn_has_tries_of_its_own() -> None:
    call = {"id": "c", "type": "function", "function": {"name": "ask_solver", "arguments": '{"message": "hi"}'}}
    busy = [answer(503, SOON)] * 2

    async def solve(message: str) -> str:
        return f"solved {message}"

    async with endpoint(*busy, said("", tool_calls=[call]), *busy, said("done")) as (script, wrapper):
        assert (await done(wrapper, tools=[peer(solve)], limits=Limits(steps=2))).text == "done"
    assert script.marks == [None, "1", "2", None, "1", "2"]


async def test_a_pause_that_the_server_names_is_kept() -> None:
    pause = 0.6
    assert pause > FIRST_SECONDS
    async with endpoint(answer(429, f"Retry-After: {pause}"), said("now")) as (_, wrapper):
        began = time.monotonic()
        assert (await done(wrapper)).text == "now"
        assert time.monotonic() - began >= pause


@pytest.mark.parametrize("late", ["Retry-After: 121", "retry-after-ms: 120001", "Retry-After: inf"])
async def test_a_server_that_wants_to_be_left_alone_for_long_is_not_waited_for(late: str) -> None:
    async with endpoint(answer(429, late)) as (script, wrapper):
        with pytest.raises(AgentError, match="HTTP 429"):
            await done(wrapper)
    assert len(script.asked) == 1


@pytest.mark.parametrize("busy", [answer(503, "Retry-After: 60"), answer(503), b""], ids=["named", "own", "nobody"])
async def test_no_try_is_waited_for_that_would_come_after_the_turns_time(busy: bytes) -> None:
    seconds = 50.0 if b"60" in busy else 0.3
    async with endpoint(busy) as (script, wrapper):
        with pytest.raises(AgentError) as failed:
            await done(wrapper, limits=Limits(seconds=seconds))
    assert failed.value.retryable and len(script.asked) == 1


async def test_a_turn_is_cancelled_while_it_waits_for_the_next_try() -> None:
    async with endpoint(answer(503, "Retry-After: 60")) as (script, wrapper):
        turn = asyncio.ensure_future(done(wrapper))
        await script.answered.wait()
        turn.cancel()
        with pytest.raises(asyncio.CancelledError):
            await turn
    assert len(script.asked) == 1


async def test_an_errors_body_that_never_ends_is_left_and_its_connection_closed() -> None:
    async with endpoint(answer(503, SOON, length=1 << 30), said("here")) as (script, wrapper):
        assert (await done(wrapper)).text == "here"
        await script.left.wait()


@pytest.mark.parametrize(
    ("headers", "pause"),
    [
        ({}, None),
        ({"retry-after": "0"}, 0),
        ({"retry-after": "2"}, 2),
        ({"retry-after": "2.5", "retry-after-ms": "20"}, 0.02),
        ({"retry-after": "2", "retry-after-ms": "soon"}, 2),
        ({"retry-after": "-1"}, None),
        ({"retry-after": "nan"}, None),
        ({"retry-after": "soon"}, None),
        ({"retry-after": formatdate(time.time() - 60, usegmt=True)}, None),
    ],
)
async def test_a_pause_is_read_in_every_form(headers: dict[str, str], pause: float | None) -> None:
    assert named_pause(headers) == pause


async def test_a_pause_may_be_a_date() -> None:
    pause = named_pause({"retry-after": formatdate(time.time() + 60, usegmt=True)})
    assert pause is not None and 30 < pause <= 60


@given(st.text() | st.datetimes().map(lambda date: date.strftime("%a, %d %b %Y %H:%M:%S -0000")))
def test_a_pause_in_no_form_is_none(text: str) -> None:
    pause = named_pause({"retry-after": text, "retry-after-ms": text})
    assert pause is None or pause >= 0


@given(st.integers(-1, 40))
def test_pauses_grow_up_to_a_bound_and_the_tries_end(most: int) -> None:
    tries = Tries(most)
    pauses = list(itertools.takewhile(lambda pause: pause is not None, (tries.unanswered() for _ in range(99))))
    assert len(pauses) == tries.made == max(most, 0)
    for number, pause in enumerate(pauses):
        whole = min(FIRST_SECONDS * 2**number, LONGEST_SECONDS)
        assert pause is not None and whole * 0.75 <= pause <= whole < MOST_SECONDS
