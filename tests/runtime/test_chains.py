"""Agents that call agents in one process: depth, cycles, budgets, deadlines, places, and the records they leave."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import anyio
import pytest

from agent_env import AgentEnvironment, Environment, Limits, recording
from agent_env.errors import AtCapacity, BudgetExhausted, DeadlineExceeded, PeerFailed

pytestmark = pytest.mark.anyio


@pytest.fixture(autouse=True)
def own_hub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AGENT_ENV_HUB", str(tmp_path / "hub.db"))


@pytest.fixture
async def serve() -> AsyncIterator[Callable[..., AgentEnvironment]]:
    """Makes environments that end with the test."""
    made: list[AgentEnvironment] = []

    def make(agent: Any, **settings: Any) -> AgentEnvironment:
        made.append(AgentEnvironment(agent, version="1.0.0", hub=False, **settings))
        return made[-1]

    yield make
    for env in made:
        await env.aclose()


def relay(callee: Any) -> Callable[[str], Awaitable[str]]:
    """An agent that passes on what it is told."""

    async def agent(message: str) -> str:
        async with Environment(callee) as peer:
            return f"({(await peer.chat(message)).text})"

    return agent


async def echo(message: str) -> str:
    return message


def _root(error: BaseException) -> str:
    """The code of the failure at the far end of a chain of failed peers."""
    assert isinstance(error, PeerFailed)
    wire = error.to_wire()
    while wire["code"] == "peer_failed":
        wire = wire["data"]["error"]
    return str(wire["code"])


async def test_a_chain_of_three_is_recorded_with_no_code_of_the_agents(serve: Any) -> None:
    c = serve(echo, name="c")
    b = serve(relay(c), name="b")
    a = serve(relay(b), name="a")
    async with recording() as episode, Environment(a) as env:
        assert (await env.chat("x")).text == "((x))"
    edges = {edge.callee: edge for edge in episode.edges}
    assert [edges[f"{name}@1.0.0"].caller for name in "abc"] == [None, "a@1.0.0", "b@1.0.0"]
    assert {edge.protocol for edge in episode.edges} == {"inprocess"}
    turns = {turn.agent: turn for trace in episode.traces for turn in trace.turns}
    assert edges["b@1.0.0"].caller_call_id == turns["a@1.0.0"].call_id
    assert edges["b@1.0.0"].callee_call_id == turns["b@1.0.0"].call_id
    assert turns["c@1.0.0"].parent_call_id == turns["b@1.0.0"].call_id
    assert len({turn.trace_id for turn in turns.values()}) == 1
    assert {(turn.request, turn.status) for turn in turns.values()} == {("x", "ok")}
    assert episode.ok


async def test_a_chain_that_is_too_deep_is_refused_at_its_end(serve: Any) -> None:
    callee = serve(echo, name="end", limits=Limits(max_depth=2))
    for name in ("c", "b", "a"):
        callee = serve(relay(callee), name=name)
    async with Environment(callee) as env:
        with pytest.raises(PeerFailed) as failed:
            await env.chat("x")
    assert _root(failed.value) == "too_deep"


async def test_an_agent_that_calls_itself_ends_at_the_visits_that_its_owner_allows(serve: Any) -> None:
    visits: list[str] = []

    async def looping(message: str) -> str:
        visits.append(message)
        async with Environment(env) as myself:
            return (await myself.chat(message + "!")).text

    env = serve(looping, limits=Limits(max_visits=3))
    async with Environment(env) as caller:
        with pytest.raises(PeerFailed) as failed:
            await caller.chat("x")
    assert visits == ["x", "x!", "x!!"]
    assert _root(failed.value) == "call_cycle"
    assert len((await env.runtime()).sessions) == 0


async def test_an_agent_that_calls_its_own_session_back_is_refused_at_once(serve: Any) -> None:
    async def calling_back(message: str) -> str:
        if message == "hello":
            return "hi"
        async with Environment(env, session_id=message) as myself:
            return (await myself.chat("hello")).text

    env = serve(calling_back)
    with anyio.fail_after(5):
        async with Environment(env) as caller:
            session_id = (await caller.chat("hello")).session_id
            with pytest.raises(PeerFailed) as failed:
                await caller.chat(session_id)
            assert _root(failed.value) == "reentrant_call"
            assert (await caller.chat("hello")).text == "hi"


# ── budgets ────────────────────────────────────────────────────────────────────────────────────────────────────


async def test_a_tree_makes_no_more_calls_than_its_budget(serve: Any) -> None:
    answered: list[str] = []

    async def leaf(message: str) -> str:
        answered.append(message)
        return message

    async def asking(message: str) -> str:
        async with Environment(worker) as peer:
            for number in range(10):
                await peer.chat(str(number))
        return "done"

    worker = serve(leaf, name="worker")
    asker = serve(asking, name="asker")
    async with recording(budget=4), Environment(asker) as env:
        with pytest.raises(PeerFailed) as failed:
            await env.chat("x")
        assert _root(failed.value) == "budget_exhausted"
        assert answered == ["0", "1", "2"]  # the call of the asker was the fourth
        with pytest.raises(BudgetExhausted):
            await env.chat("again")


async def test_what_a_callee_did_not_spend_is_its_callers_again(serve: Any) -> None:
    worker = serve(echo, name="worker")
    asker = serve(relay(worker), name="asker")
    async with recording(budget=6) as episode, Environment(asker) as env:
        for _ in range(3):
            await env.chat("x")  # two calls each
        with pytest.raises(BudgetExhausted):
            await env.chat("x")
    assert sum(edge.status == "ok" for edge in episode.edges) == 6


async def test_a_failed_callee_gives_back_what_it_did_not_spend_too(serve: Any) -> None:
    async def failing(message: str) -> str:
        raise ValueError("x")

    broken, working = serve(failing, name="broken"), serve(echo, name="working")
    async with recording(budget=3), Environment(broken) as bad, Environment(working) as good:
        for _ in range(2):
            with pytest.raises(Exception, match="raised ValueError"):
                await bad.chat("x")
        assert (await good.chat("y")).text == "y"
        with pytest.raises(BudgetExhausted):
            await good.chat("y")


async def test_parallel_callees_share_equally_and_none_starves(serve: Any) -> None:
    worker = serve(echo, name="worker")
    asker = serve(relay(worker), name="asker")
    async with recording(budget=8), AsyncExitStack() as stack:
        envs = [await stack.enter_async_context(Environment(asker)) for _ in range(4)]
        with anyio.fail_after(10):
            replies = await asyncio.gather(*(env.chat("x") for env in envs))
        assert [reply.text for reply in replies] == ["(x)"] * 4
        assert sum(reply.calls_left or 0 for reply in replies) == 0


# ── deadlines ──────────────────────────────────────────────────────────────────────────────────────────────────


async def test_a_deadline_holds_for_the_whole_chain(serve: Any) -> None:
    ended: list[str] = []

    async def hanging(message: str) -> str:
        try:
            await asyncio.Event().wait()
        finally:
            ended.append(message)
        return ""

    asker = serve(relay(serve(hanging, name="hanging")), name="asker")
    async with Environment(asker) as env:
        with anyio.fail_after(5), pytest.raises(DeadlineExceeded):
            await env.call_tool("chat", {"message": "x"}, timeout=0.1)
    assert ended == ["x"]


async def test_cancelling_the_root_cancels_the_whole_chain(serve: Any) -> None:
    started, ended = asyncio.Event(), asyncio.Event()

    async def hanging(message: str) -> str:
        started.set()
        try:
            await asyncio.Event().wait()
        finally:
            ended.set()
        return ""

    bottom = serve(hanging, name="bottom")
    top = serve(relay(bottom), name="top")
    async with recording() as episode, Environment(top) as env:
        call = asyncio.create_task(env.chat("x"))
        with anyio.fail_after(5):
            await started.wait()
            call.cancel()
            await asyncio.wait({call})
            await ended.wait()
    assert {edge.callee: edge.status for edge in episode.edges} == {
        "top@1.0.0": "cancelled",
        "bottom@1.0.0": "cancelled",
    }
    assert {turn.status for trace in episode.traces for turn in trace.turns} == {"cancelled"}
    for env in (bottom, top):
        assert len((await env.runtime()).sessions) == 0


# ── places ─────────────────────────────────────────────────────────────────────────────────────────────────────


async def test_agents_three_deep_with_few_places_all_finish(serve: Any) -> None:
    few = Limits(max_sessions=2, queue_seconds=30)
    c = serve(echo, name="c", limits=Limits(max_sessions=1, queue_seconds=30))
    b = serve(relay(c), name="b", limits=few)
    a = serve(relay(b), name="a", limits=few)

    async def converse(number: int) -> str:
        async with Environment(a) as env:
            return (await env.chat(str(number))).text

    with anyio.fail_after(20):
        replies = await asyncio.gather(*(converse(number) for number in range(20)))
    assert replies == [f"(({number}))" for number in range(20)]


async def test_agents_that_wait_for_each_others_places_are_refused_in_time(serve: Any) -> None:
    one = Limits(max_sessions=1, queue_seconds=0.2)

    async def ping(message: str) -> str:
        async with Environment(b) as peer:
            return (await peer.chat(message)).text

    async def pong(message: str) -> str:
        async with Environment(a) as peer:
            return (await peer.chat(message)).text

    a, b = serve(ping, name="a", limits=one), serve(pong, name="b", limits=one)
    with anyio.fail_after(10):
        async with Environment(a) as env:
            with pytest.raises(PeerFailed) as failed:
                await env.chat("x")
    assert _root(failed.value) == AtCapacity.code


async def test_64_sync_agents_that_call_sync_agents_three_deep_finish(serve: Any) -> None:
    def bottom(message: str) -> str:
        return message[::-1]

    def middle(message: str, peers: Any) -> str:
        return f"<{peers['bottom'](message)}>"

    def top(message: str, peers: Any) -> str:
        return f"[{peers['middle'](message)}]"

    c = serve(bottom)
    b = serve(middle, peers={"bottom": c})
    a = serve(top, peers={"middle": b})

    async def converse(number: int) -> str:
        async with Environment(a) as env:
            return (await env.chat(f"n{number}")).text

    with anyio.fail_after(30):
        replies = await asyncio.gather(*(converse(number) for number in range(64)))
    assert replies == [f"[<{f'n{number}'[::-1]}>]" for number in range(64)]
