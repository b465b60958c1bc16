"""What a call leaves behind: one record, kept before the call answers, whatever came of it."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any

import anyio
import pytest
from scripted_agents import ANYBODY, add, counting

from agent_env.context import CallContext, Record, Route, Run, current_frame
from agent_env.episodes.records import TurnRecord, record_from_json
from agent_env.errors import AgentEnvError, AgentFailed, DeadlineExceeded, RunClosed, TransportError, Unauthenticated
from agent_env.net.limits import Limits
from agent_env.runtime import calls
from agent_env.runtime.caller import Caller
from agent_env.runtime.definition import SessionView
from agent_env_wrappers.contract import ModelRoute

pytestmark = pytest.mark.anyio

Say = Callable[..., Awaitable[Any]]


class Journal:
    """Keeps what it is given, unless it is broken."""

    def __init__(self) -> None:
        self.batches: list[Sequence[Record]] = []
        self.broken: BaseException | None = None
        self.stuck = False

    async def record(self, records: Sequence[Record]) -> None:
        if self.stuck:
            await asyncio.Event().wait()
        if self.broken is not None:
            raise self.broken
        self.batches.append(list(records))

    @property
    def turns(self) -> list[Mapping[str, Any]]:
        return [record for batch in self.batches for record in batch if record["kind"] == "turn"]


def told(journal: Journal, **context: Any) -> Caller:
    return Caller(context=CallContext(**context), recorder=journal)


async def test_a_turn_leaves_one_record_that_episodes_can_read(runtime_of: Any, say: Say) -> None:
    journal = Journal()
    runtime = await runtime_of(counting)
    caller = told(journal, episode="e1", call_id="a" * 16)
    result = await say(runtime, "hi", caller=caller)
    (turn,) = journal.turns
    assert isinstance(record_from_json(turn), TurnRecord)
    assert (turn["call_id"], turn["parent_call_id"]) == (result.call_id, "a" * 16)
    assert (turn["trace_id"], turn["episode"]) == (caller.context.trace_id, "e1")
    assert (turn["agent"], turn["tool"], turn["request"], turn["reply"]) == ("agent@1.0.0", "chat", "hi", "1: hi")
    assert (turn["status"], turn["error"], turn["stop"], turn["reward"]) == ("ok", None, "end_turn", None)
    assert result.session_id not in str(turn)  # session ids are secrets
    assert turn["seconds"] >= 0


async def test_the_record_is_safe_before_the_call_answers_and_else_nothing_happened(runtime_of: Any, say: Say) -> None:
    journal = Journal()
    runtime = await runtime_of(counting)
    session_id = (await say(runtime, "a", caller=told(journal))).session_id
    journal.broken = TransportError("the collector is gone")
    with pytest.raises(TransportError, match="the collector is gone"):
        await say(runtime, "b", session_id, caller=told(journal))
    journal.broken = None
    assert (await say(runtime, "c", session_id, caller=told(journal))).text == "2: c"


async def test_failed_late_and_cancelled_turns_are_recorded_as_such(runtime_of: Any, say: Say) -> None:
    started = asyncio.Event()

    async def agent(message: str) -> str:
        if message == "fail":
            raise ValueError("secret")
        started.set()
        await asyncio.Event().wait()
        return ""

    journal = Journal()
    runtime = await runtime_of(agent, limits=Limits(turn_seconds=0.05))
    with anyio.fail_after(5):
        with pytest.raises(AgentFailed):
            await say(runtime, "fail", caller=told(journal))
        with pytest.raises(DeadlineExceeded):
            await say(runtime, "hang", caller=told(journal))
        started.clear()
        turn = asyncio.create_task(say(runtime, "hang", caller=told(journal)))
        await started.wait()
        turn.cancel()
        await asyncio.wait({turn})
    assert [turn["status"] for turn in journal.turns] == ["agent_failed", "deadline_exceeded", "cancelled"]
    assert journal.turns[0]["error"]["code"] == "agent_failed"
    assert "secret" not in str(journal.turns)
    assert journal.turns[2]["error"] is None


async def test_a_listener_that_raises_leaves_a_record_of_the_server(runtime_of: Any, say: Say) -> None:
    async def words(message: str) -> Any:
        yield message

    async def deaf(event: Any) -> None:
        raise LookupError("secret")

    journal = Journal()
    runtime = await runtime_of(words)
    with pytest.raises(LookupError):
        await say(runtime, "x", caller=told(journal), on_event=deaf)
    assert [turn["status"] for turn in journal.turns] == ["internal"]
    assert "secret" not in str(journal.turns)


async def cancel_a_turn(runtime_of: Any, say: Say, journal: Journal) -> None:
    """Cancels a turn that is under way, whose record goes to the journal."""
    started = asyncio.Event()

    async def agent(message: str) -> str:
        started.set()
        await asyncio.Event().wait()
        return ""

    runtime = await runtime_of(agent)
    turn = asyncio.create_task(say(runtime, "x", caller=told(journal)))
    with anyio.fail_after(5):
        await started.wait()
        turn.cancel()
        await asyncio.wait({turn})
    assert turn.cancelled()


@pytest.mark.parametrize("trouble", ["stuck", "broken"])
async def test_a_cancelled_call_does_not_wait_for_its_record_for_ever(
    runtime_of: Any, say: Say, trouble: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(calls, "RECORD_GRACE", 0.05)
    journal = Journal()
    journal.stuck = trouble == "stuck"
    journal.broken = TransportError("gone") if trouble == "broken" else None
    await cancel_a_turn(runtime_of, say, journal)
    assert "could not be kept" in caplog.text


@pytest.mark.parametrize("refusal", [RunClosed("it is closed"), Unauthenticated("which run?")])
async def test_a_cancelled_call_of_a_run_that_is_gone_says_nothing(
    runtime_of: Any, say: Say, refusal: AgentEnvError, caplog: pytest.LogCaptureFixture
) -> None:
    """Whoever stops a run with a thousand calls under way would read of each."""
    journal = Journal()
    journal.broken = refusal
    await cancel_a_turn(runtime_of, say, journal)
    assert not [record for record in caplog.records if record.levelno > logging.DEBUG]


async def test_edges_go_with_the_record_of_the_turn_that_made_them(runtime_of: Any, say: Say) -> None:
    async def agent(message: str) -> str:
        frame = current_frame()
        assert frame is not None
        frame.outbox.append({"kind": "edge", "edge_id": message})
        return message

    journal = Journal()
    runtime = await runtime_of(agent)
    await say(runtime, "e1", caller=told(journal))
    (batch,) = journal.batches
    assert [record["kind"] for record in batch] == ["edge", "turn"]


async def test_rewards_stand_in_the_record_one_by_one(runtime_of: Any, say: Say) -> None:
    def good(session: SessionView) -> float:
        return 1.0

    def unknown(session: SessionView) -> None:
        return None

    journal = Journal()
    runtime = await runtime_of(counting, rewards=[good, unknown])
    await say(runtime, "x", caller=told(journal))
    assert journal.turns[0]["rewards"] == {"good": 1.0, "unknown": None}
    assert journal.turns[0]["reward"] == 1.0


async def test_what_the_owner_declared_is_recorded_as_it_was_asked(runtime_of: Any) -> None:
    def start(session: SessionView) -> str:
        return "ready"

    def score(session: SessionView) -> float:
        return 0.5

    journal = Journal()
    runtime = await runtime_of(counting, tools=[add], on_reset=start, rewards=[score])
    caller = told(journal)
    await runtime.call_tool("add", {"a": 2}, caller=caller)
    reset = await runtime.reset(seed=3, caller=caller)
    await runtime.call_reward("score", session_id=reset.session_id, caller=caller)
    assert [(turn["tool"], turn["request"], turn["reply"]) for turn in journal.turns] == [
        ("add", {"a": 2}, 3),
        ("reset", {"seed": 3, "options": None}, "ready"),
        ("score", {}, 0.5),
    ]
    assert journal.turns[2]["reward"] is None  # it scores what was, and earns nothing itself


async def test_a_run_seats_the_agent_and_routes_its_model(runtime_of: Any, say: Say) -> None:
    routes: list[ModelRoute | None] = []

    async def agent(message: str, model: ModelRoute | None, context: dict[str, Any]) -> str:
        routes.append(model)
        return f"{context['seat']} in {context['episode']}"

    run = Run("http://gateway", "r1", "e7", "solver", {"solver": Route("token", "tiny")})
    journal = Journal()
    runtime = await runtime_of(agent)
    result = await say(runtime, "x", caller=Caller(run=run, recorder=journal))
    assert result.text == "solver in e7"
    assert routes == [ModelRoute(f"http://gateway/runs/r1/e7/solver/{result.call_id}/v1", "tiny", api_key="token")]
    assert (journal.turns[0]["seat"], journal.turns[0]["episode"]) == ("solver", "e7")
    await say(runtime, "x", caller=Caller(run=run.at("guest")))
    assert routes[1] is None  # no policy plays that seat


async def test_the_budget_that_is_left_goes_back_with_answers_and_with_errors(runtime_of: Any, say: Say) -> None:
    async def agent(message: str) -> str:
        if message == "fail":
            raise ValueError
        return message

    runtime = await runtime_of(agent)
    bounded = Caller(context=CallContext(calls=5))
    assert (await say(runtime, "x", caller=bounded)).calls_left == 5
    assert (await say(runtime, "x", caller=ANYBODY)).calls_left is None
    with pytest.raises(AgentFailed) as failed:
        await say(runtime, "fail", caller=bounded)
    assert failed.value.data["calls_left"] == 5
