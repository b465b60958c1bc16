"""Threads of sync agents: one each, at any depth, and what becomes of them when a turn is cancelled."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Mapping
from contextvars import ContextVar
from typing import Any

import anyio
import pytest
from driving import done, peer, threads_end

from agent_env_wrappers.callable import CallableWrapper
from agent_env_wrappers.contract import AgentError, PeerTool
from agent_env_wrappers.registry import wrap
from agent_env_wrappers.threads import AHEAD, Threads, TurnAbandoned, blocking

pytestmark = pytest.mark.anyio


async def test_64_sync_agents_that_call_sync_agents_three_deep_finish() -> None:
    all_at_the_bottom = threading.Barrier(64)

    def leaf(message: str) -> str:
        all_at_the_bottom.wait(20)
        return f"leaf({message})"

    def middle(message: str, peers: Mapping[str, Any]) -> str:
        return f"middle({peers['next'](message)})"

    def top(message: str, peers: Mapping[str, Any]) -> str:
        return f"top({peers['next'](message)})"

    leaves, middles, tops = wrap(leaf), wrap(middle), wrap(top)

    def chain(wrapper: Any, tools: list[PeerTool]) -> PeerTool:
        async def ask(message: str) -> str:
            return (await done(wrapper, message, tools=tools)).text

        return peer(ask, "next")

    below = chain(middles, [chain(leaves, [])])
    with anyio.fail_after(30):
        replies = await asyncio.gather(*(done(tops, str(number), tools=[below]) for number in range(64)))
    assert [reply.text for reply in replies] == [f"top(middle(leaf({number})))" for number in range(64)]


async def test_context_variables_reach_the_thread_and_the_peers_it_calls() -> None:
    depth: ContextVar[int] = ContextVar("depth", default=0)
    seen: list[int] = []

    async def look(message: str) -> str:
        seen.append(depth.get())
        return "ok"

    def agent(message: str, peers: Mapping[str, Any]) -> str:
        seen.append(depth.get())
        depth.set(2)
        return str(peers["solver"](message))

    depth.set(1)
    await done(wrap(agent), tools=[peer(look)])
    assert seen == [1, 2]
    assert depth.get() == 1


async def test_a_cancelled_thread_is_counted_until_it_ends() -> None:
    started, release = threading.Event(), threading.Event()
    threads = Threads(name="counted")

    def work() -> None:
        started.set()
        release.wait(20)

    task = asyncio.create_task(threads.run(work))
    await asyncio.to_thread(started.wait, 5)
    assert (threads.running, threads.leaked) == (1, 0)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert (threads.running, threads.leaked) == (1, 1)
    release.set()
    await threads_end("counted")
    assert (threads.running, threads.leaked) == (0, 0)


async def test_an_agent_whose_threads_never_end_is_refused_more_of_them() -> None:
    release, started = threading.Event(), threading.Semaphore(0)
    threads = Threads(max_leaked=2)

    def work() -> None:
        started.release()
        release.wait(20)

    for _ in range(2):
        task = asyncio.create_task(threads.run(work))
        await asyncio.to_thread(started.acquire)
        task.cancel()
        await asyncio.wait({task}, timeout=5)
    with pytest.raises(AgentError, match="make the agent async") as refused:
        await threads.run(work)
    assert (refused.value.kind, refused.value.retryable) == ("limit", True)
    release.set()


async def test_a_cancelled_turn_cancels_the_peer_that_its_thread_waits_for() -> None:
    asked, peer_cancelled = asyncio.Event(), asyncio.Event()
    unwound: list[type[BaseException]] = []

    async def never(message: str) -> str:
        asked.set()
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            peer_cancelled.set()
            raise
        return "never"

    def stubborn(message: str, peers: Mapping[str, Any]) -> str:
        try:
            try:
                return str(peers["solver"](message))
            except Exception:  # noqa: BLE001 - as careless agents do
                return "swallowed"
        except BaseException as error:
            unwound.append(type(error))
            with pytest.raises(TurnAbandoned):
                peers["solver"]("again")
            raise

    wrapper = CallableWrapper(stubborn)
    with anyio.fail_after(10):
        task = asyncio.create_task(done(wrapper, tools=[peer(never)]))
        await asked.wait()
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        await peer_cancelled.wait()
        await threads_end("stubborn")
    assert unwound == [TurnAbandoned]
    assert (wrapper.threads.running, wrapper.threads.leaked) == (0, 0)


async def test_a_peer_that_is_cancelled_by_itself_fails_the_call() -> None:
    async def cancelled(message: str) -> str:
        raise asyncio.CancelledError

    with pytest.raises(AgentError, match="CancelledError"):
        await done(wrap(lambda message, peers: peers["solver"](message)), tools=[peer(cancelled)])


async def test_a_thread_that_is_far_ahead_of_its_reader_waits() -> None:
    made = threading.Semaphore(0)

    def work(emit: Any) -> None:
        for number in range(10 * AHEAD):
            made.release()
            emit(number)

    stream = Threads(name="hasty").play(work)
    assert await anext(stream) == 0
    for _ in range(AHEAD + 2):
        assert await asyncio.to_thread(made.acquire, timeout=5)
    assert not await asyncio.to_thread(made.acquire, timeout=0.1)
    await stream.aclose()
    await threads_end("hasty")


async def test_a_blocking_call_in_the_event_loop_is_refused() -> None:
    async def answer() -> str:
        return "x"

    with pytest.raises(RuntimeError, match="await the async one"):
        blocking(asyncio.get_running_loop(), answer)()


async def test_a_blocking_call_works_in_any_thread() -> None:
    async def answer(word: str) -> str:
        return word

    call = blocking(asyncio.get_running_loop(), answer)
    assert await asyncio.to_thread(call, "hi") == "hi"


def test_a_thread_that_outlives_its_loop_ends_by_itself() -> None:
    started, release, ended = threading.Event(), threading.Event(), threading.Event()

    async def answer() -> str:
        return "x"

    async def main() -> None:
        call = blocking(asyncio.get_running_loop(), answer)

        def work() -> None:
            started.set()
            release.wait(20)
            try:
                call()
            finally:
                ended.set()

        task = asyncio.create_task(Threads().run(work))
        await asyncio.to_thread(started.wait, 5)
        task.cancel()
        await asyncio.wait({task})

    asyncio.run(main())
    release.set()
    assert ended.wait(5)


def test_a_call_into_a_closed_loop_fails_and_warns_of_nothing() -> None:
    async def answer() -> str:
        return "x"

    loop = asyncio.new_event_loop()
    loop.close()
    with pytest.raises(RuntimeError, match="closed"):
        blocking(loop, answer)()
