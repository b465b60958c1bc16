"""What was cancelled and runs on all the same is counted, bounded, and let go of when it ends."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Awaitable, Callable
from typing import Any

import anyio
import pytest
from scripted_agents import within

from agent_env import Limits
from agent_env.errors import AtCapacity, ConfigurationError, DeadlineExceeded
from agent_env.runtime import abandoned
from agent_env.runtime.caller import Caller
from agent_env.runtime.environment import Runtime

pytestmark = pytest.mark.anyio

Say = Callable[..., Awaitable[Any]]


@pytest.fixture(autouse=True)
def short_grace(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(abandoned, "CANCEL_GRACE", 0.05)


class Stubborn:
    """Agents and functions that do not heed their cancellation until they are released."""

    def __init__(self) -> None:
        self.released = asyncio.Event()
        self.thread = threading.Event()

    async def chat(self, message: str) -> str:
        while message == "hang" and not self.released.is_set():
            try:
                await self.released.wait()
            except asyncio.CancelledError:
                continue
        return message

    def blocking_chat(self, message: str) -> str:
        if message == "hang":
            self.thread.wait(20)
        return message

    async def work(self, word: str) -> str:
        """Works."""
        return await self.chat(word)

    def blocking_work(self, word: str) -> str:
        """Works."""
        return self.blocking_chat(word)

    def release(self) -> None:
        self.released.set()
        self.thread.set()


async def call(runtime: Runtime, tool: str, word: str, caller: Caller | None = None) -> Any:
    argument = {"message": word} if tool == "chat" else {"word": word}
    return await runtime.call_tool(tool, argument, caller=caller or Caller())


async def until_none_are_left(runtime: Runtime) -> None:
    with anyio.fail_after(5):
        while len(runtime.definition.abandoned):  # noqa: ASYNC110 - threads tell nobody that they end
            await anyio.sleep(0.01)


@pytest.mark.parametrize("kind", ["chat", "blocking_chat", "work", "blocking_work"])
@pytest.mark.parametrize("how", ["deadline", "cancelled"])
async def test_calls_that_are_left_behind_are_bounded_until_they_end(runtime_of: Any, kind: str, how: str) -> None:
    stubborn = Stubborn()
    agent = stubborn.blocking_chat if kind == "blocking_chat" else stubborn.chat
    tool = "chat" if kind.endswith("chat") else kind
    tools = {"work": stubborn.work, "blocking_work": stubborn.blocking_work}
    runtime: Runtime = await runtime_of(agent, tools=tools, limits=Limits(max_abandoned=2))
    try:
        with anyio.fail_after(10):
            for count in (1, 2):
                if how == "deadline":
                    with pytest.raises(DeadlineExceeded):
                        await call(runtime, tool, "hang", within(0.05))
                else:
                    with anyio.move_on_after(0.05):  # it cancels again and again
                        await call(runtime, tool, "hang")
                while len(runtime.definition.abandoned) < count:  # noqa: ASYNC110
                    await anyio.sleep(0.01)
            for _ in range(3):
                with pytest.raises(AtCapacity, match="2 cancelled calls of agent@1") as refused:
                    await call(runtime, tool, "hello")
                assert refused.value.retryable and refused.value.retry_after == 1.0
            assert len(runtime.sessions) == 0
    finally:
        stubborn.release()
    await until_none_are_left(runtime)
    assert (await call(runtime, tool, "hello")).text == "hello"


async def test_there_are_never_more_of_them_than_sessions(runtime_of: Any, say: Say) -> None:
    stubborn = Stubborn()
    runtime = await runtime_of(stubborn.chat, limits=Limits(max_sessions=1))
    try:
        with anyio.fail_after(10):
            with pytest.raises(DeadlineExceeded):
                await say(runtime, "hang", caller=within(0.05))
            with pytest.raises(AtCapacity):
                await say(runtime, "hello")
    finally:
        stubborn.release()
    await until_none_are_left(runtime)


async def test_what_heeds_its_cancellation_is_not_counted(runtime_of: Any, say: Say) -> None:
    async def obedient(message: str) -> str:
        await asyncio.Event().wait()
        return message

    runtime = await runtime_of(obedient, limits=Limits(max_abandoned=1))
    for _ in range(3):
        with anyio.fail_after(5), pytest.raises(DeadlineExceeded):
            await say(runtime, "a", caller=within(0.02))
        assert len(runtime.definition.abandoned) == 0


async def test_the_session_of_a_call_that_was_left_behind_goes_on(runtime_of: Any, say: Say) -> None:
    stubborn = Stubborn()
    runtime = await runtime_of(stubborn.chat)
    try:
        with anyio.fail_after(10):
            session_id = (await say(runtime, "a")).session_id
            with pytest.raises(DeadlineExceeded):
                await say(runtime, "hang", session_id, caller=within(0.05))
            assert (await say(runtime, "b", session_id)).text == "b"
            state = await runtime.state(session_id=session_id, caller=Caller())
            assert [message["content"] for message in state["messages"]] == ["a", "a", "b", "b"]
    finally:
        stubborn.release()
    await until_none_are_left(runtime)


async def test_a_thread_of_an_agent_that_another_one_calls_counts_for_its_own_environment(runtime_of: Any) -> None:
    stubborn = Stubborn()
    inner: Runtime = await runtime_of(stubborn.blocking_chat, name="inner")

    async def calls(message: str) -> str:
        return str((await call(inner, "chat", message)).text)

    outer: Runtime = await runtime_of(calls, name="outer")
    try:
        with anyio.fail_after(10):
            with pytest.raises(DeadlineExceeded):
                await call(outer, "chat", "hang", within(0.05))
            assert (len(outer.definition.abandoned), len(inner.definition.abandoned)) == (0, 1)
    finally:
        stubborn.release()
    await until_none_are_left(inner)


@pytest.mark.parametrize("bound", [0, -1])
def test_a_bound_that_nothing_stays_within_is_refused(bound: int) -> None:
    with pytest.raises(ConfigurationError, match="max_abandoned"):
        Limits(max_abandoned=bound)
