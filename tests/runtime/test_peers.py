"""Peers: opened once a session, handed to the agent as tools, let go with the conversation."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from typing import Any

import anyio
import pytest
from scripted_agents import ANYBODY, Scripted, within

from agent_env.context import Peer
from agent_env.errors import DeadlineExceeded, NeedUnmet, TransportError
from agent_env_cards import Need
from agent_env_wrappers.contract import Done, Event, Turn

pytestmark = pytest.mark.anyio

Say = Callable[..., Awaitable[Any]]


class Two:
    """Two peers a session; what is asked of them is kept."""

    def __init__(self) -> None:
        self.opened = 0
        self.closed: list[str] = []
        self.asked: list[tuple[str, str]] = []
        self.fails = ""

    async def open(self) -> Sequence[Peer]:
        if self.fails == "open":
            raise NeedUnmet("nobody solves", rules=["skill"])
        if self.fails == "hang":
            await asyncio.Event().wait()
        self.opened += 1
        return [self._peer("solver"), self._peer("fact-checker")]

    def _peer(self, seat: str) -> Peer:
        name = f"{seat}-{self.opened}"

        async def ask(message: str) -> str:
            self.asked.append((name, message))
            return f"{name}: {message}"

        async def aclose() -> None:
            self.closed.append(name)
            if self.fails == "close":
                raise TransportError("gone")

        return Peer(seat, name, f"Fills {seat}.", ask, aclose, {"seat": seat, "score": 1})


async def asking(turn: Turn) -> AsyncIterator[Event]:
    replies = [await tool.acall(message=turn.message.text) for tool in turn.tools]
    yield Done(" | ".join(replies), state=1)


async def test_peers_are_tools_of_the_turn_without_a_session_id(runtime_of: Any, say: Say) -> None:
    seen: list[Turn] = []

    async def play(turn: Turn) -> AsyncIterator[Event]:
        seen.append(turn)
        async for event in asking(turn):
            yield event

    runtime = await runtime_of(Scripted(play), peers=Two())
    assert (await say(runtime, "x")).text == "solver-1: x | fact-checker-1: x"
    solver, checker = seen[0].tools
    assert (solver.name, checker.name) == ("ask_solver", "ask_fact_checker")
    assert (solver.seat, solver.description) == ("solver", "Fills solver.")
    assert set(solver.parameters["properties"]) == {"message"}
    assert "session" not in str(solver.parameters)


async def test_peers_are_opened_at_the_first_turn_and_stay_for_the_session(runtime_of: Any, say: Say) -> None:
    peers = Two()
    runtime = await runtime_of(Scripted(asking), peers=peers)
    first = await say(runtime, "a")
    await say(runtime, "b", first.session_id)
    assert peers.opened == 1
    assert (await say(runtime, "c")).text.startswith("solver-2")  # another conversation has peers of its own
    await runtime.release(session_id=first.session_id, caller=ANYBODY)
    assert peers.closed == ["solver-1", "fact-checker-1"]


async def test_a_blocking_call_of_a_peer_serves_agents_in_threads(runtime_of: Any, say: Say) -> None:
    def agent(message: str, peers: Any) -> str:
        return str(peers["solver"](message))

    runtime = await runtime_of(agent, peers=Two())
    with anyio.fail_after(5):
        assert (await say(runtime, "x")).text == "solver-1: x"


async def test_a_reset_conversation_has_fresh_peers(runtime_of: Any, say: Say) -> None:
    peers = Two()
    runtime = await runtime_of(Scripted(asking), peers=peers)
    session_id = (await say(runtime, "a")).session_id
    await runtime.reset(session_id=session_id, caller=ANYBODY)
    assert peers.closed == ["solver-1", "fact-checker-1"]
    assert (await say(runtime, "b", session_id)).text.startswith("solver-2")


async def test_a_peer_that_cannot_be_let_go_holds_nobody_up(
    runtime_of: Any, say: Say, caplog: pytest.LogCaptureFixture
) -> None:
    peers = Two()
    runtime = await runtime_of(Scripted(asking), peers=peers)
    session_id = (await say(runtime, "a")).session_id
    peers.fails = "close"
    await runtime.release(session_id=session_id, caller=ANYBODY)
    assert peers.closed == ["solver-1", "fact-checker-1"]
    assert "solver-1 was not released" in caplog.text


async def test_a_need_that_nobody_meets_refuses_the_turn(runtime_of: Any, say: Say) -> None:
    peers = Two()
    peers.fails = "open"
    runtime = await runtime_of(Scripted(asking), peers=peers, needs=[Need("solver")])
    with pytest.raises(NeedUnmet, match="nobody solves") as refused:
        await say(runtime, "a")
    assert refused.value.data == {"rules": ["skill"]}
    assert len(runtime.sessions) == 0


async def test_a_need_without_anything_to_fill_it_is_refused(runtime_of: Any, say: Say) -> None:
    runtime = await runtime_of(Scripted(asking), needs=[Need("solver")])
    with pytest.raises(NeedUnmet, match="nothing here can find any"):
        await say(runtime, "a")


async def test_looking_for_peers_ends_at_the_deadline(runtime_of: Any, say: Say) -> None:
    peers = Two()
    peers.fails = "hang"
    runtime = await runtime_of(Scripted(asking), peers=peers)
    with anyio.fail_after(5), pytest.raises(DeadlineExceeded, match="no peers were found"):
        await say(runtime, "a", caller=within(0.05))


async def test_peers_that_cannot_be_copied_are_opened_anew_for_a_fork(runtime_of: Any, say: Say) -> None:
    peers = Two()
    runtime = await runtime_of(Scripted(asking), peers=peers)
    session_id = (await say(runtime, "a")).session_id
    copy = await runtime.fork(session_id=session_id, caller=ANYBODY)
    assert set(copy["afresh"]) == {"solver", "fact-checker"}
    assert (await say(runtime, "b", copy["session_id"])).text == "solver-2: b | fact-checker-2: b"


@pytest.mark.parametrize("fails", ["deadline", "error"])
async def test_a_fork_whose_peers_fail_leaves_none_of_them_open(runtime_of: Any, say: Say, fails: str) -> None:
    closed: list[str] = []

    def peer(seat: str, fork: Any = None) -> Peer:
        async def ask(message: str) -> str:
            return seat

        async def aclose() -> None:
            closed.append(seat)
            raise TransportError("gone")

        return Peer(seat, seat, "", ask, aclose, {}, fork)

    async def copied() -> Peer:
        return peer("copy")

    async def failing() -> Peer:
        if fails == "error":
            raise NeedUnmet("nobody solves")
        await asyncio.Event().wait()
        raise AssertionError

    class Forkable:
        async def open(self) -> Sequence[Peer]:
            return [peer("one", copied), peer("two", failing)]

    runtime = await runtime_of(Scripted(asking), peers=Forkable())
    session_id = (await say(runtime, "a")).session_id
    with anyio.fail_after(5), pytest.raises(DeadlineExceeded if fails == "deadline" else NeedUnmet):
        await runtime.fork(session_id=session_id, caller=within(0.1))
    assert closed == ["copy"] and len(runtime.sessions) == 1
