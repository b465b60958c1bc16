"""The call context over all five lanes: the tree of calls, its bounds, and the run."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any, get_args

import pytest
from lane_places import Journal, chat, served

from agent_env import AgentEnvironment, Environment, recording
from agent_env.client.lanes.contract import Outgoing
from agent_env.client.resolution import LaneName
from agent_env.context import CallContext, Link, Route, Run
from agent_env.errors import (
    AgentEnvError,
    AgentFailed,
    BudgetExhausted,
    CallCycle,
    DeadlineExceeded,
    TooDeep,
)

pytestmark = [pytest.mark.anyio, pytest.mark.parametrize("lane", get_args(LaneName))]


async def test_a_call_is_recorded_as_an_edge_and_a_turn_of_one_tree(lane: LaneName) -> None:
    journal = Journal()
    async with served(lane, recorder=journal) as place:
        async with recording() as episode, place.environment() as env:
            reply = await env.chat("context")
            told = json.loads(reply.text)
        (edge,) = episode.edges
        assert (edge.callee, edge.protocol, edge.status, edge.request) == ("agent@1.0.0", lane, "ok", "context")
        assert edge.callee_call_id == reply.call_id
        turns = journal.turns or [turn.to_json() for trace in episode.traces for turn in trace.turns]
        (turn,) = turns
        assert turn["call_id"] == reply.call_id
        assert (turn["trace_id"], turn["episode"]) == (edge.trace_id, episode.id)
        assert (told["episode"], told["depth"], told["caller"]) == (episode.id, 0, None)


async def test_a_failed_call_leaves_its_edge_too(lane: LaneName) -> None:
    async with served(lane) as place, recording() as episode, place.environment() as env:
        with pytest.raises(AgentFailed):
            await env.chat("fail")
    assert [(edge.protocol, edge.status) for edge in episode.edges] == [(lane, "agent_failed")]


async def test_an_agent_that_calls_it_stands_in_its_chain(lane: LaneName) -> None:
    async with served(lane) as place:

        async def caller(message: str) -> str:
            async with place.environment() as env:
                return (await env.chat(message)).text

        outer = AgentEnvironment(caller, name="outer", version="2.0.0", hub=False)
        async with recording() as episode, Environment(outer) as env:
            told = json.loads((await env.chat("context")).text)
        assert (told["caller"], told["depth"], told["episode"]) == ("outer@2.0.0", 1, episode.id)
        edges = {edge.callee: edge for edge in episode.edges}
        assert edges["agent@1.0.0"].caller == "outer@2.0.0"
        assert edges["agent@1.0.0"].caller_call_id == edges["outer@2.0.0"].callee_call_id
        await outer.aclose()


def _context(**fields: Any) -> CallContext:
    return CallContext(**fields).within(10)


REFUSED: list[tuple[Callable[[], CallContext], type[AgentEnvError]]] = [
    (lambda: _context(chain=tuple(Link(f"e{n}@1.0.0", "s") for n in range(9))), TooDeep),
    (lambda: _context(chain=(Link("agent@1.0.0", "x"), Link("agent@1.0.0", "y"))), CallCycle),
    (lambda: _context(calls=-1), BudgetExhausted),
    (lambda: CallContext().within(0), DeadlineExceeded),
]


async def test_a_call_that_must_not_begin_is_refused(lane: LaneName) -> None:
    async with served(lane) as place:
        for make, kind in REFUSED:
            with pytest.raises(kind):
                await place.call("call_tool", chat("x"), Outgoing(make()))
        assert len(place.server.runtime.sessions) == 0


async def test_what_is_left_of_a_budget_comes_back(lane: LaneName) -> None:
    async with served(lane) as place:
        answer = await place.call("call_tool", chat("x"), Outgoing(_context(calls=5)))
        assert answer["calls_left"] == 5
        with pytest.raises(AgentFailed) as failed:
            await place.call("call_tool", chat("fail"), Outgoing(_context(calls=5)))
        assert failed.value.data["calls_left"] == 5


async def test_a_run_reaches_the_agent(lane: LaneName) -> None:
    run = Run("http://127.0.0.1:9", "r1", "e42", "solver", {"other": Route("t", "m")})
    async with served(lane) as place:
        answer = await place.call("call_tool", chat("context"), Outgoing(_context(), run))
        told = json.loads(answer["text"])
        assert (told["episode"], told["seat"]) == ("e42", "solver")
