"""The call context: where in a tree of calls one call stands, and which calls it refuses."""

from __future__ import annotations

import time

import pytest

from agent_env.context import (
    Budget,
    CallContext,
    Frame,
    Grant,
    Link,
    Route,
    Run,
    current_frame,
    entered,
    new_call_id,
    new_trace_id,
    session_hash,
)
from agent_env.errors import BudgetExhausted, CallCycle, DeadlineExceeded, ReentrantCall, TooDeep

BOUNDS = {"max_depth": 3, "max_visits": 2}


def test_a_call_outside_any_tree_may_start() -> None:
    CallContext().check("a@1.0.0", "", **BOUNDS)


def test_a_chain_at_its_bound_is_too_deep_and_the_message_shows_it() -> None:
    context = CallContext(chain=tuple(Link(f"{name}@1.0.0", "s") for name in "abc"))
    assert context.depth == 3
    with pytest.raises(TooDeep, match=r"a@1\.0\.0 -> b@1\.0\.0 -> c@1\.0\.0 -> d@1\.0\.0 is 4 deep; .* allows 3"):
        context.check("d@1.0.0", "", **BOUNDS)
    CallContext(chain=context.chain[:2]).check("d@1.0.0", "", **BOUNDS)


def test_an_environment_is_entered_as_often_as_its_owner_allows() -> None:
    once = CallContext(chain=(Link("a@1.0.0", "one"),))
    once.check("a@1.0.0", "two", **BOUNDS)
    twice = CallContext(chain=(Link("a@1.0.0", "one"), Link("a@1.0.0", "two")))
    with pytest.raises(CallCycle, match="3 times; its owner allows 2"):
        twice.check("a@1.0.0", "three", **BOUNDS)


def test_a_session_that_the_chain_holds_is_not_waited_for() -> None:
    context = CallContext(chain=(Link("a@1.0.0", "held"), Link("b@1.0.0", "other")))
    with pytest.raises(ReentrantCall, match="call it in a new session") as refused:
        context.check("a@1.0.0", "held", **BOUNDS)
    assert refused.value.data["chain"] == ["a@1.0.0", "b@1.0.0"]
    with pytest.raises(ReentrantCall):
        context.check_reentry("a@1.0.0", "held")
    context.check_reentry("a@1.0.0", "free")


def test_a_callback_in_a_new_session_is_no_reentry_even_from_a_tool_without_one() -> None:
    context = CallContext(chain=(Link("a@1.0.0", ""),))
    context.check("a@1.0.0", "", **BOUNDS)


def test_no_calls_left_is_refused_and_the_last_one_is_not() -> None:
    CallContext(calls=0).check("a@1.0.0", "", **BOUNDS)
    with pytest.raises(BudgetExhausted, match="raise the episode's budget"):
        CallContext(calls=-1).check("a@1.0.0", "", **BOUNDS)


def test_a_deadline_that_is_over_is_refused_before_work() -> None:
    context = CallContext().within(0)
    assert context.seconds_left() == 0
    with pytest.raises(DeadlineExceeded, match=r"was over before 'a@1\.0\.0' started"):
        context.check("a@1.0.0", "", **BOUNDS)


def test_within_never_gives_more_time_than_there_was() -> None:
    context = CallContext(deadline=time.monotonic() + 5)
    assert context.within(None) is context
    assert context.within(100).deadline == context.deadline
    shorter = context.within(1).seconds_left()
    assert shorter is not None
    assert shorter <= 1
    assert CallContext().seconds_left() is None


def test_ids_have_the_width_of_w3c_ids() -> None:
    assert len(new_call_id()) == 16
    assert len(new_trace_id()) == 32
    assert int(new_call_id(), 16) >= 0


def test_a_hash_tells_sessions_apart_and_gives_no_id_away() -> None:
    assert session_hash("alice", "s-1") != session_hash("bob", "s-1")
    assert "s-1" not in session_hash("alice", "s-1")
    assert session_hash("alice", "s-1") == session_hash("alice", "s-1")


def _frame(**fields: object) -> Frame:
    known: dict[str, object] = {
        "trace_id": "0" * 31 + "1",
        "call_id": "c" * 16,
        "agent": "a@1.0.0",
        "seat": None,
        "episode": "e1",
        "chain": (Link("a@1.0.0", "s"),),
        "deadline": None,
        "budget": Budget(None),
    }
    return Frame(**(known | fields))  # type: ignore[arg-type]


def test_the_child_of_a_frame_carries_its_tree() -> None:
    frame = _frame(deadline=time.monotonic() + 9)
    child = frame.child(Grant(4), seconds=100)
    assert (child.trace_id, child.call_id, child.episode) == (frame.trace_id, frame.call_id, "e1")
    assert (child.chain, child.calls, child.deadline) == (frame.chain, 4, frame.deadline)
    left = frame.seconds_left()
    assert left is not None
    assert 8 < left <= 9
    assert _frame().seconds_left() is None


def test_a_frame_is_current_inside_its_block_alone() -> None:
    assert current_frame() is None
    outer, inner = _frame(), _frame(agent="b@1.0.0")
    with entered(outer):
        with entered(inner):
            assert current_frame() is inner
        assert current_frame() is outer
    assert current_frame() is None


def test_a_run_says_where_model_calls_and_records_go() -> None:
    run = Run("http://gateway", "r1", "e1", "solver", {"solver": Route("t", "tiny")})
    assert run.model_url("c1") == "http://gateway/runs/r1/e1/solver/c1/v1"
    assert run.collector_url() == "http://gateway/runs/r1/e1/records"
    assert run.route == Route("t", "tiny")
    assert run.at("manager").route is None
    assert run.at("manager").seat == "manager"
