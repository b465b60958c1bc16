"""Copies of conversations."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

import anyio
import pytest
from scripted_agents import ANYBODY, Handles, counting, remember

from agent_env.errors import (
    AgentFailed,
    AtCapacity,
    NotSupported,
)
from agent_env.net.limits import Limits
from agent_env_wrappers.contract import AgentInfo, Caps, Done, Event, Turn

pytestmark = pytest.mark.anyio

Say = Callable[..., Awaitable[Any]]


async def test_a_fork_goes_on_from_the_same_past_apart(runtime_of: Any, say: Say) -> None:
    runtime = await runtime_of(counting, tools=[remember])
    session_id = (await say(runtime, "a")).session_id
    await runtime.call_tool("remember", {"word": "x"}, session_id=session_id, caller=ANYBODY)
    fork = (await runtime.fork(session_id=session_id, caller=ANYBODY))["session_id"]
    assert fork != session_id
    assert (await say(runtime, "b", fork)).text == "2: b"
    assert (await say(runtime, "c", session_id)).text == "2: c"
    assert (await runtime.call_tool("remember", {"word": "y"}, session_id=fork, caller=ANYBODY)).text == "x y"
    assert (await runtime.call_tool("remember", {"word": "z"}, session_id=session_id, caller=ANYBODY)).text == "x z"


async def test_a_handle_is_forked_and_released_by_its_wrapper(runtime_of: Any, say: Say) -> None:
    wrapper = Handles()
    runtime = await runtime_of(wrapper)
    session_id = (await say(runtime, "a")).session_id
    fork = (await runtime.fork(session_id=session_id, caller=ANYBODY))["session_id"]
    assert (await say(runtime, "b", fork)).text == "a b"
    assert (await say(runtime, "c", session_id)).text == "a c"
    await runtime.release(session_id=fork, caller=ANYBODY)
    assert set(wrapper.kept) == {"h0"}


async def test_a_fork_that_finds_no_place_leaves_no_handle(runtime_of: Any, say: Say) -> None:
    wrapper = Handles()
    runtime = await runtime_of(wrapper, limits=Limits(max_sessions=1, queue_seconds=0.02))
    session_id = (await say(runtime, "a")).session_id
    with pytest.raises(AtCapacity):
        await runtime.fork(session_id=session_id, caller=ANYBODY)
    assert wrapper.kept == {"h0": ["a"]}


async def test_a_full_environment_still_lets_a_session_be_released_while_a_fork_waits(
    runtime_of: Any, say: Say
) -> None:
    runtime = await runtime_of(counting, limits=Limits(max_sessions=1, queue_seconds=30))
    session_id = (await say(runtime, "a")).session_id
    forking = asyncio.create_task(runtime.fork(session_id=session_id, caller=ANYBODY))
    for _ in range(5):
        await asyncio.sleep(0)
    with anyio.fail_after(5):
        await runtime.release(session_id=session_id, caller=ANYBODY)
        fork = (await forking)["session_id"]
        assert (await say(runtime, "b", fork)).text == "2: b"


async def test_a_wrapper_that_fails_to_fork_or_to_release_is_told_apart(
    runtime_of: Any, say: Say, caplog: pytest.LogCaptureFixture
) -> None:
    wrapper = Handles()
    runtime = await runtime_of(wrapper)
    session_id = (await say(runtime, "a")).session_id
    wrapper.fails = "fork"
    with pytest.raises(AgentFailed, match="raised RuntimeError"):
        await runtime.fork(session_id=session_id, caller=ANYBODY)
    wrapper.fails = "release"
    assert (await runtime.release(session_id=session_id, caller=ANYBODY))["released"]
    assert "did not release the state" in caplog.text
    assert len(runtime.sessions) == 0


async def test_an_agent_that_cannot_be_forked_says_what_to_do_instead(runtime_of: Any, say: Say) -> None:
    async def stateless(message: str) -> str:
        return message

    runtime = await runtime_of(stateless)
    session_id = (await say(runtime, "a")).session_id
    with pytest.raises(NotSupported, match="play the messages of `state` again"):
        await runtime.fork(session_id=session_id, caller=ANYBODY)


async def test_a_state_that_cannot_be_copied_is_not_supported(runtime_of: Any, say: Say) -> None:
    class Locked(Handles):
        async def describe(self) -> AgentInfo:
            return AgentInfo(self.framework, Caps(state="value", fork=True))

        async def run(self, turn: Turn) -> AsyncIterator[Event]:
            import threading

            yield Done("x", state=threading.Lock())

        async def release(self, state: Any) -> None:
            pass

    runtime = await runtime_of(Locked())
    session_id = (await say(runtime, "a")).session_id
    with pytest.raises(NotSupported, match="cannot be copied"):
        await runtime.fork(session_id=session_id, caller=ANYBODY)
