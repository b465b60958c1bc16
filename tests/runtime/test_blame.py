"""Who failed: each failure is told as that of whoever it belongs to."""

from __future__ import annotations

import asyncio
import contextlib
import threading
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from typing import Any

import anyio
import pytest
from scripted_agents import Scripted, within

from agent_env.context import CallContext
from agent_env.errors import (
    AgentEnvError,
    AgentFailed,
    AtCapacity,
    DeadlineExceeded,
    NotSupported,
    PeerFailed,
    TransportError,
    UnknownSession,
)
from agent_env.runtime.caller import Caller
from agent_env_wrappers.callable import CallableWrapper
from agent_env_wrappers.contract import (
    AgentError,
    Done,
    Event,
    Status,
    TextDelta,
    Turn,
    WrapError,
)
from agent_env_wrappers.threads import Threads

pytestmark = pytest.mark.anyio

Say = Callable[..., Awaitable[Any]]


async def _raising(error: BaseException, runtime_of: Any, say: Say) -> AgentEnvError:
    async def play(turn: Turn) -> AsyncIterator[Event]:
        raise error
        yield Done("")

    runtime = await runtime_of(Scripted(play))
    with anyio.fail_after(5), pytest.raises(AgentEnvError) as caught:
        await say(runtime, "a")
    return caught.value


async def test_what_an_agent_says_of_its_failure_is_told(runtime_of: Any, say: Say) -> None:
    error = await _raising(AgentError("the model is overloaded", kind="model", retryable=True), runtime_of, say)
    assert type(error) is AgentFailed
    assert error.message == "the model is overloaded"
    assert error.data == {"kind": "model", "retry": True, "agent": "agent@1.0.0"}


async def test_what_a_wrapper_cannot_do_is_not_supported(runtime_of: Any, say: Say) -> None:
    error = await _raising(WrapError("this agent cannot take a model; build it with a factory"), runtime_of, say)
    assert type(error) is NotSupported
    assert "factory" in error.message


async def test_a_peer_that_fails_an_agent_is_named_with_its_own_error(runtime_of: Any, say: Say) -> None:
    failure = AgentError("the tool raised")
    failure.__cause__ = UnknownSession("the peer forgot me")
    error = await _raising(failure, runtime_of, say)
    assert type(error) is PeerFailed
    assert error.data["error"]["code"] == "unknown_session"
    assert error.data["agent"] == "agent@1.0.0"


async def test_a_peers_own_failure_is_never_the_callers(runtime_of: Any, say: Say) -> None:
    error = await _raising(AgentFailed("the peer's model is down", agent="peer@1.0.0"), runtime_of, say)
    assert type(error) is PeerFailed
    assert error.data["error"]["data"]["agent"] == "peer@1.0.0"


@pytest.mark.parametrize(
    ("error", "asked"),
    [
        (AgentFailed("out of ideas", agent="peer@1.0.0"), "peer@1.0.0, which failed: out of ideas"),
        (AgentFailed("peer@1.0.0 raised X", agent="peer@1.0.0"), "another agent, which failed: peer@1.0.0 raised X"),
        (TransportError("it is gone", model_call="c1"), "its model, which failed: it is gone"),
        (TransportError("it is gone"), "another agent, or its model, which failed: it is gone"),
        (AgentFailed("out of ideas", agent=["x"]), "another agent, or its model, which failed: out of ideas"),
    ],
)
async def test_whom_an_agent_asked_is_told_once(error: AgentEnvError, asked: str, runtime_of: Any, say: Say) -> None:
    assert (await _raising(error, runtime_of, say)).message == f"agent@1.0.0 asked {asked}"


async def test_a_peers_failure_is_found_inside_a_group(runtime_of: Any, say: Say) -> None:
    group = ExceptionGroup("two tools", [ExceptionGroup("inner", [TransportError("gone")]), ValueError("x")])
    error = await _raising(group, runtime_of, say)
    assert type(error) is PeerFailed
    assert error.data["error"]["code"] == "transport_error"


async def test_a_chain_of_causes_that_bites_its_tail_ends(runtime_of: Any, say: Say) -> None:
    one, other = ValueError("one"), ValueError("other")
    one.__cause__, other.__cause__ = other, one
    assert type(await _raising(one, runtime_of, say)) is AgentFailed


async def test_an_agent_that_cancels_itself_has_failed(runtime_of: Any, say: Say) -> None:
    error = await _raising(asyncio.CancelledError(), runtime_of, say)
    assert type(error) is AgentFailed
    assert "cancelled itself" in error.message


async def test_an_agent_that_cancels_its_own_task_has_failed(runtime_of: Any, say: Say) -> None:
    async def agent(message: str) -> str:
        task = asyncio.current_task()
        assert task is not None
        task.cancel()
        await asyncio.Event().wait()
        return message

    runtime = await runtime_of(agent)
    with anyio.fail_after(5), pytest.raises(AgentFailed, match="cancelled itself"):
        await say(runtime, "a")


class Panic(BaseException):
    """As the panics of native extensions are: no `Exception`."""


FATAL = [SystemExit(3), KeyboardInterrupt(), GeneratorExit(), asyncio.CancelledError(), Panic("secret")]


@pytest.mark.parametrize(
    "where", ["agent", "streaming", "thread", "tool", "sync tool", "function", "reward", "on_reset"]
)
@pytest.mark.parametrize("error", FATAL, ids=lambda error: type(error).__name__)
async def test_whatever_the_owners_code_raises_is_its_failure_and_leaves_a_record(
    error: BaseException, where: str, runtime_of: Any, say: Say
) -> None:
    def fatal() -> None:
        raise error

    async def fatal_later() -> None:
        raise error

    async def agent(message: str) -> AsyncIterator[str]:
        if where == "streaming":
            yield "so "
        if where in ("agent", "streaming"):
            raise error
        yield "well"

    def blocking(message: str) -> str:
        raise error

    async def on_reset(session: Any) -> str:
        if where == "on_reset":
            raise error
        return "ready"

    async def reward() -> float:
        if where == "reward":
            raise error
        return 1.0

    kept: list[Mapping[str, Any]] = []

    class Journal:
        async def record(self, records: Sequence[Mapping[str, Any]]) -> None:
            kept.extend(records)

    runtime = await runtime_of(
        blocking if where == "thread" else agent,
        tools=[fatal, fatal_later],
        functions={"ask": fatal_later},
        rewards=[reward],
        on_reset=on_reset,
    )
    caller = Caller(recorder=Journal())
    with anyio.fail_after(5), pytest.raises(AgentFailed) as caught:
        match where:
            case "tool" | "sync tool":
                await runtime.call_tool("fatal" if where == "sync tool" else "fatal_later", {}, caller=caller)
            case "function":
                await runtime.call_function("ask", {}, caller=caller)
            case "on_reset":
                await runtime.reset(caller=caller)
            case _:
                await say(runtime, "a", caller=caller)
    assert "secret" not in str(caught.value.to_wire())
    assert [record["status"] for record in kept] == ["agent_failed"]


async def test_a_peer_that_was_late_with_its_caller_is_one_deadline(runtime_of: Any, say: Say) -> None:
    async def play(turn: Turn) -> AsyncIterator[Event]:
        with contextlib.suppress(asyncio.CancelledError):
            await asyncio.Event().wait()
        raise DeadlineExceeded("the peer did not answer in time")
        yield Done("")

    async def impatient(turn: Turn) -> AsyncIterator[Event]:
        # The peer's lane noticed first; by the time it is told, this turn's own deadline is over.
        time.sleep(0.1)  # noqa: ASYNC251 - the loop must see both at once
        raise DeadlineExceeded("the peer did not answer in time")
        yield Done("")

    for script in (play, impatient):
        runtime = await runtime_of(Scripted(script))
        with anyio.fail_after(5), pytest.raises(DeadlineExceeded, match=r"agent@1\.0\.0"):
            await say(runtime, "a", caller=within(0.05))

    async def early(turn: Turn) -> AsyncIterator[Event]:
        raise DeadlineExceeded("the peer allows itself less")
        yield Done("")

    runtime = await runtime_of(Scripted(early))
    with pytest.raises(PeerFailed):
        await say(runtime, "a", caller=within(60))


async def test_a_turn_without_an_end_has_failed(runtime_of: Any, say: Say) -> None:
    async def play(turn: Turn) -> AsyncIterator[Event]:
        yield TextDelta("and then")

    runtime = await runtime_of(Scripted(play))
    with pytest.raises(AgentFailed, match="without a Done or an Interrupt"):
        await say(runtime, "a")


async def test_an_event_after_the_end_has_failed_the_turn(runtime_of: Any, say: Say) -> None:
    closed: list[bool] = []

    async def play(turn: Turn) -> AsyncIterator[Event]:
        try:
            yield Done("x")
            yield Status("one more thing")
        finally:
            closed.append(True)

    runtime = await runtime_of(Scripted(play))
    with pytest.raises(AgentFailed, match="yielded Status after the turn's end"):
        await say(runtime, "a")
    assert closed == [True]


async def test_events_come_in_order_and_the_terminal_one_is_the_result(runtime_of: Any, say: Say) -> None:
    async def play(turn: Turn) -> AsyncIterator[Event]:
        yield Status("thinking")
        yield TextDelta("a")
        yield TextDelta("b")
        yield Done("ab", data={"n": 1}, stop="max_tokens")

    seen: list[Event] = []

    async def listen(event: Event) -> None:
        seen.append(event)

    runtime = await runtime_of(Scripted(play))
    result = await say(runtime, "x", on_event=listen)
    assert seen == [Status("thinking"), TextDelta("a"), TextDelta("b")]
    assert (result.text, result.data, result.stop) == ("ab", {"n": 1}, "max_tokens")
    assert result.content == [{"type": "text", "text": "ab"}, {"type": "data", "data": {"n": 1}}]
    assert (await say(runtime, "x")).text == "ab"


async def test_a_listener_that_raises_is_not_the_agents_failure(runtime_of: Any, say: Say) -> None:
    async def play(turn: Turn) -> AsyncIterator[Event]:
        yield TextDelta("a")
        yield Done("a", state=1)

    async def deaf(event: Event) -> None:
        raise LookupError("the listener's own bug")

    runtime = await runtime_of(Scripted(play))
    with pytest.raises(LookupError, match="own bug"):
        await say(runtime, "x", on_event=deaf)
    assert len(runtime.sessions) == 0


async def once(turn: Turn) -> AsyncIterator[Event]:
    yield Done("x")


async def test_closing_a_runtime_closes_its_wrapper(runtime_of: Any, say: Say) -> None:
    wrapper = Scripted(once)
    runtime = await runtime_of(wrapper)
    await say(runtime, "a")
    await runtime.aclose()
    assert wrapper.closed
    assert runtime.closing
    assert len(runtime.sessions) == 0


async def test_an_agent_whose_threads_are_all_given_up_has_no_room_for_now(runtime_of: Any, say: Say) -> None:
    release = threading.Event()

    def slow(message: str) -> str:
        release.wait(20)
        return "done"

    wrapper = CallableWrapper(slow)
    wrapper.threads = Threads(max_leaked=2)
    runtime = await runtime_of(wrapper)
    try:
        with anyio.fail_after(10):
            for _ in range(2):
                with pytest.raises(DeadlineExceeded):
                    await say(runtime, "a", caller=Caller(context=CallContext().within(0.05)))
            with pytest.raises(AtCapacity, match="make the agent async") as refused:
                await say(runtime, "a", caller=Caller(context=CallContext().within(5)))
        assert refused.value.retryable
        assert refused.value.retry_after == 1.0
        assert len(runtime.sessions) == 0
    finally:
        release.set()
    with anyio.fail_after(5):
        while wrapper.threads.leaked:  # noqa: ASYNC110 - threads tell nobody that they end
            await anyio.sleep(0.01)
    assert (await say(runtime, "a")).text == "done"
