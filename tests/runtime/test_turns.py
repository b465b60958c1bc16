"""One turn of an agent: what is committed, what is rolled back, and how long it may take."""

from __future__ import annotations

import asyncio
import gc
import logging
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

import anyio
import pytest
from scripted_agents import Scripted, within

from agent_env.errors import (
    AgentFailed,
    DeadlineExceeded,
)
from agent_env.net.limits import Limits
from agent_env.runtime.caller import Caller
from agent_env_wrappers.contract import (
    Done,
    Event,
    Turn,
)

pytestmark = pytest.mark.anyio

Say = Callable[..., Awaitable[Any]]


async def tallying(turn: Turn) -> AsyncIterator[Event]:
    count = (turn.state or 0) + 1
    if turn.message.text == "fail":
        raise RuntimeError("secret internals")
    yield Done(str(count), state=count)


async def test_state_goes_in_and_comes_out(runtime_of: Any, say: Say) -> None:
    runtime = await runtime_of(Scripted(tallying))
    first = await say(runtime, "a")
    second = await say(runtime, "b", first.session_id)
    assert (first.text, second.text) == ("1", "2")
    assert first.call_id != second.call_id
    assert (first.stop, first.is_error, first.reward, first.usage) == ("end_turn", False, None, None)


async def test_a_failed_turn_leaves_its_session_as_it_was(runtime_of: Any, say: Say) -> None:
    runtime = await runtime_of(Scripted(tallying))
    first = await say(runtime, "a")
    before = await runtime.state(session_id=first.session_id, caller=Caller())
    with pytest.raises(AgentFailed):
        await say(runtime, "fail", first.session_id)
    assert await runtime.state(session_id=first.session_id, caller=Caller()) == before
    assert (await say(runtime, "b", first.session_id)).text == "2"


async def test_a_failed_first_turn_leaves_no_session(runtime_of: Any, say: Say) -> None:
    runtime = await runtime_of(Scripted(tallying))
    with pytest.raises(AgentFailed):
        await say(runtime, "fail")
    assert len(runtime.sessions) == 0


async def test_a_failed_first_turn_under_an_id_of_the_client_leaves_the_turn_behind_it_its_session(
    runtime_of: Any, say: Say
) -> None:
    runtime = await runtime_of(Scripted(tallying))
    with anyio.fail_after(5):
        failed, answered = await asyncio.gather(
            say(runtime, "fail", open_as="thread"), say(runtime, "a", open_as="thread"), return_exceptions=True
        )
    assert isinstance(failed, AgentFailed)
    assert (answered.text, answered.session_id) == ("1", "thread")
    assert (await say(runtime, "b", open_as="thread")).text == "2"
    with pytest.raises(AgentFailed):
        await asyncio.gather(say(runtime, "fail", open_as="other"), say(runtime, "fail", open_as="other"))
    assert [session.id for session in runtime.sessions if not session.using] == ["thread"]


async def test_no_text_of_internals_crosses_and_the_log_has_it(
    runtime_of: Any, say: Say, caplog: pytest.LogCaptureFixture
) -> None:
    runtime = await runtime_of(Scripted(tallying))
    with caplog.at_level(logging.ERROR), pytest.raises(AgentFailed, match="raised RuntimeError") as failed:
        await say(runtime, "fail")
    assert "secret" not in str(failed.value.to_wire())
    assert "secret internals" in caplog.text


async def test_an_agent_that_never_answers_is_ended_at_the_deadline(runtime_of: Any, say: Say) -> None:
    ended = asyncio.Event()

    async def endless(message: str) -> str:
        try:
            await asyncio.Event().wait()
        finally:
            ended.set()
        return ""

    runtime = await runtime_of(endless)
    with anyio.fail_after(5):
        with pytest.raises(DeadlineExceeded, match="Allow more time"):
            await say(runtime, "a", caller=within(0.05))
        await ended.wait()
    assert len(runtime.sessions) == 0


async def test_a_caller_without_a_deadline_has_the_owners(runtime_of: Any, say: Say) -> None:
    async def endless(message: str) -> str:
        await asyncio.Event().wait()
        return ""

    runtime = await runtime_of(endless, limits=Limits(turn_seconds=0.05))
    with anyio.fail_after(5), pytest.raises(DeadlineExceeded):
        await say(runtime, "a")


async def test_an_agent_that_swallows_its_cancellation_holds_nobody(
    runtime_of: Any, say: Say, caplog: pytest.LogCaptureFixture
) -> None:
    release = asyncio.Event()

    async def stubborn(message: str, history: list[Any]) -> str:
        while not release.is_set():
            try:
                await release.wait()
            except asyncio.CancelledError:
                continue
        raise RuntimeError("too late to be heard")

    runtime = await runtime_of(stubborn)
    before = time.monotonic()
    with anyio.fail_after(10), pytest.raises(DeadlineExceeded):
        await say(runtime, "a", caller=within(0.05))
    assert time.monotonic() - before < 5
    assert "ignores its cancellation" in caplog.text
    release.set()
    await asyncio.sleep(0)
    gc.collect()  # an exception that nobody fetched would be told now, as a warning


async def test_a_cancelled_turn_is_rolled_back_and_its_agent_stopped(runtime_of: Any, say: Say) -> None:
    started, stopped = asyncio.Event(), asyncio.Event()

    async def slow(message: str, history: list[Any]) -> str:
        if message == "slow":
            started.set()
            try:
                await asyncio.Event().wait()
            finally:
                stopped.set()
        return str(len(history))

    runtime = await runtime_of(slow)
    session_id = (await say(runtime, "a")).session_id
    turn = asyncio.create_task(say(runtime, "slow", session_id))
    with anyio.fail_after(5):
        await started.wait()
        turn.cancel()
        await asyncio.wait({turn})
        assert turn.cancelled()
        assert stopped.is_set()
        assert (await say(runtime, "b", session_id)).text == "2"


async def test_a_sync_agent_is_let_go_at_the_deadline(runtime_of: Any, say: Say) -> None:
    import threading

    release = threading.Event()

    def blocking(message: str) -> str:
        release.wait(10)
        return "late"

    runtime = await runtime_of(blocking)
    with anyio.fail_after(5), pytest.raises(DeadlineExceeded):
        await say(runtime, "a", caller=within(0.05))
    release.set()


async def test_a_deadline_that_is_over_starts_no_turn(runtime_of: Any, say: Say) -> None:
    played: list[str] = []

    async def agent(message: str) -> str:
        played.append(message)
        return ""

    runtime = await runtime_of(agent)
    with pytest.raises(DeadlineExceeded, match="was over before"):
        await say(runtime, "a", caller=within(0))
    assert played == []


async def test_an_agent_that_plays_one_turn_at_a_time_is_asked_one_at_a_time(runtime_of: Any, say: Say) -> None:
    playing, most = 0, 0

    async def play(turn: Turn) -> AsyncIterator[Event]:
        nonlocal playing, most
        playing += 1
        most = max(most, playing)
        for _ in range(5):
            await asyncio.sleep(0)
        playing -= 1
        yield Done("x")

    runtime = await runtime_of(Scripted(play, concurrency="lock"))
    with anyio.fail_after(5):
        await asyncio.gather(*(say(runtime, "a") for _ in range(10)))
    assert most == 1
    free = await runtime_of(Scripted(play))
    with anyio.fail_after(5):
        await asyncio.gather(*(say(free, "a") for _ in range(10)))
    assert most == 10


async def test_waiting_for_another_conversation_ends_at_the_deadline(runtime_of: Any, say: Say) -> None:
    async def play(turn: Turn) -> AsyncIterator[Event]:
        if turn.message.text == "block":
            await asyncio.Event().wait()
        yield Done("x")

    runtime = await runtime_of(Scripted(play, concurrency="lock"))
    blocking = asyncio.create_task(say(runtime, "block"))
    await asyncio.sleep(0)
    with anyio.fail_after(5), pytest.raises(DeadlineExceeded, match=r"another conversation of agent@1\.0\.0"):
        await say(runtime, "a", caller=within(0.05))
    blocking.cancel()
    await asyncio.wait({blocking})
    assert (await say(runtime, "a")).text == "x"


async def test_two_conversations_are_played_at_once_and_stay_apart(runtime_of: Any, say: Say) -> None:
    runtime = await runtime_of(Scripted(tallying))
    one, other = await asyncio.gather(say(runtime, "a"), say(runtime, "a"))
    await say(runtime, "b", one.session_id)
    assert (await say(runtime, "c", one.session_id)).text == "3"
    assert (await say(runtime, "c", other.session_id)).text == "2"
    assert runtime.in_flight == 0
