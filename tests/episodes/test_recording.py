"""Recording in this process: the frame that calls find, and what becomes of failures."""

from __future__ import annotations

import asyncio
from typing import Any

import anyio
import pytest

from agent_env import AgentEnvironment, Environment
from agent_env.context import Run, current_frame
from agent_env.episodes import EpisodeRecorder, TurnRecord, recording
from agent_env.errors import AgentFailed, PeerFailed, ProtocolError, TransportError

pytestmark = pytest.mark.anyio

TURN = {"kind": "turn", "call_id": "c1", "agent": "a@1.0.0", "session": "s"}


async def test_the_block_is_the_root_of_the_tree_and_records_into_the_episode() -> None:
    assert current_frame() is None
    async with recording(task="boat", group="boats", budget=3, seconds=60) as episode:
        frame = current_frame()
        assert frame is not None and frame.recorder is not None
        assert (frame.agent, frame.seat, frame.call_id, frame.chain) == (None, None, "", ())
        assert frame.episode == episode.id and frame.budget.left == 3
        left = frame.seconds_left()
        assert left is not None and 50 < left <= 60
        await frame.recorder.record([{**TURN, "episode": episode.id}])
        assert [trace.agent for trace in episode.traces] == ["a@1.0.0"]
        frame.outbox.append({"kind": "edge", "edge_id": "e1", "callee": "a@1.0.0", "callee_call_id": "c1"})
    assert current_frame() is None
    assert [edge.edge_id for edge in episode.edges] == ["e1"]
    assert (episode.task, episode.group, episode.ok) == ("boat", "boats", True)
    assert episode.started is not None and episode.seconds is not None and episode.seconds >= 0


async def test_without_bounds_there_are_none() -> None:
    async with recording("mine") as episode:
        frame = current_frame()
        assert frame is not None and frame.budget.left is None and frame.deadline is None
    assert episode.id == "mine"


async def test_a_run_names_the_episode() -> None:
    run = Run("http://127.0.0.1:1", "r1", "e1", "sender")
    async with recording(run=run) as episode:
        frame = current_frame()
        assert frame is not None and frame.run is run
    assert (episode.id, episode.run) == ("e1", "r1")


async def test_an_error_that_leaves_the_block_marks_the_episode_and_goes_on() -> None:
    with pytest.raises(TransportError):
        async with recording() as episode:
            raise TransportError("the agent is gone")
    assert not episode.ok
    assert [(failure.boundary, failure.code) for failure in episode.failures] == [("transport", "transport_error")]


async def test_a_failed_call_that_the_block_handled_leaves_the_episode_ok_and_is_told_by_its_edge() -> None:
    async with recording() as episode:
        frame = current_frame()
        assert frame is not None
        error = TransportError("gone").to_wire()
        frame.outbox.append(
            {"kind": "edge", "edge_id": "e1", "callee": "a", "status": "transport_error", "error": error}
        )
    assert episode.ok and [edge.status for edge in episode.edges] == ["transport_error"]


async def test_a_record_that_belongs_elsewhere_is_refused() -> None:
    async with recording("mine") as episode:
        recorder = EpisodeRecorder(episode)
        with pytest.raises(ProtocolError):
            await recorder.record([TurnRecord("c1", "a@1.0.0", "s", "other").to_json()])


class Team:
    """A manager that asks three workers at once; the second breaks while the others are still at work."""

    def __init__(self) -> None:
        self.broken = asyncio.Event()

    async def work(self, message: str) -> str:
        await self.broken.wait()
        return message.upper()

    async def fail(self, message: str) -> str:
        self.broken.set()
        raise ValueError("the worker's own secret")

    async def manage(self, message: str, peers: Any) -> str:
        asked = (peers[name](message) for name in ("first", "second", "third"))
        told = await asyncio.gather(*asked, return_exceptions=True)
        return " ".join(type(reply).__name__ if isinstance(reply, Exception) else reply for reply in told)

    async def trust(self, message: str, peers: Any) -> str:
        return str(await peers["second"](message))

    def environment(self, agent: Any) -> AgentEnvironment:
        peers = {
            "first": AgentEnvironment(self.work, name="first"),
            "second": AgentEnvironment(self.fail, name="second"),
            "third": AgentEnvironment(self.work, name="third"),
        }
        return AgentEnvironment(agent, name="manager", peers=peers)


async def test_a_callee_that_fails_ends_no_call_beside_it() -> None:
    team = Team()
    with anyio.fail_after(20):
        async with recording() as episode, Environment(team.environment(team.manage)) as manager:
            assert (await manager.chat("go")).text == f"GO {AgentFailed.__name__} GO"
    assert episode.ok and episode.failures == []
    turns = {turn.agent.partition("@")[0]: turn for trace in episode.traces for turn in trace.turns}
    assert {name: turn.status for name, turn in turns.items()} == {
        "manager": "ok",
        "first": "ok",
        "second": AgentFailed.code,
        "third": "ok",
    }
    assert (turns["first"].reply, turns["third"].reply) == ("GO", "GO")
    (root,) = episode.tree().children
    assert sorted(str(child.edge and child.edge.status) for child in root.children) == [AgentFailed.code, "ok", "ok"]
    assert "secret" not in str(episode.to_json())


async def test_a_callee_that_fails_its_caller_fails_the_episode_at_the_boundary_that_failed() -> None:
    team = Team()
    with anyio.fail_after(20), pytest.raises(PeerFailed):
        async with recording() as episode, Environment(team.environment(team.trust)) as manager:
            await manager.chat("go")
    assert not episode.ok
    assert [(failure.boundary, failure.code) for failure in episode.failures] == [("peer", PeerFailed.code)]
    # No reward was given, and none of 0.0 is made up.
    assert episode.reward() is None and "rewards" in episode.to_json() and episode.rewards == []
