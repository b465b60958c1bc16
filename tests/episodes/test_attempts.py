"""Attempts: which answers an agent went on with, as far as the marks of its calls tell."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agent_env.episodes import CallRecord
from agent_env.episodes.attempts import unheard_calls


def call(name: str, **fields: Any) -> CallRecord:
    return CallRecord(name, "t", "a", "A", started=float(name[1:].split(".")[0]), **fields)


def failed(name: str, **fields: Any) -> CallRecord:
    return call(name, status="transport_error", **fields)


def test_a_retry_of_one_among_several_answered_calls_leaves_all_of_them_in_doubt() -> None:
    calls = [call("k1"), call("k2"), call("k3"), call("k4", retry_among=["k1", "k2"])]
    assert unheard_calls(calls) == dict.fromkeys(("k1", "k2"), "ambiguous retry")


def test_of_those_that_a_retry_may_repeat_it_repeats_the_one_that_failed() -> None:
    """The gateway sees that a caller has gone away a little later than the call which it made instead."""
    calls = [call("k1"), failed("k2"), call("k3", retry_among=["k1", "k2"])]
    assert unheard_calls(calls) == {}
    again = call("k4", retry_among=["k1", "k2"])
    assert unheard_calls([*calls, again]) == {"k1": "retried"}


def test_what_another_retry_repeats_is_repeated_by_no_other() -> None:
    calls = [call("k1"), call("k2"), call("k3", retry_among=["k1", "k2"]), call("k4", retry_of="k2")]
    assert unheard_calls(calls) == {"k1": "retried", "k2": "retried"}


def test_a_call_that_nobody_recorded_may_be_the_one_as_well() -> None:
    assert unheard_calls([call("k1"), call("k2", retry_among=["k1", "gone"])]) == {"k1": "ambiguous retry"}
    assert unheard_calls([call("k1"), call("k2", retry_among=["gone", "lost"])]) == {}


def test_a_retry_by_its_count_alone_repeats_the_latest_try_before_it_that_asked_the_same() -> None:
    """As where the gateway was started again in between, and what it knew of its calls is gone."""
    asked: dict[str, Any] = {"request": {"messages": ["a"]}}
    assert unheard_calls([call("k1", **asked), call("k2", attempt=1, **asked)]) == {"k1": "retried"}
    assert unheard_calls([call("k1", **asked), call("k2", attempt=2, **asked)]) == {"k1": "retried"}
    assert unheard_calls([call("k1", request={}), call("k2", attempt=1, **asked)]) == {}
    elsewhere = CallRecord("k2", "t2", "a", "A", started=2.0, attempt=1, **asked)
    assert unheard_calls([call("k1", **asked), elsewhere]) == {}
    both = [call("k1", **asked), call("k2", **asked), call("k3", attempt=1, **asked)]
    assert unheard_calls(both) == dict.fromkeys(("k1", "k2"), "ambiguous retry")
    chain = [call("k1", **asked), call("k2", attempt=1, **asked), call("k3", attempt=2, **asked)]
    assert unheard_calls(chain) == {"k1": "retried", "k2": "retried"}


@pytest.mark.parametrize("status", ["ok", "transport_error"])
def test_finding_what_many_equal_retries_repeat_takes_as_long_as_they_are_many_and_not_as_their_square(
    instructions: Callable[[Callable[[], object]], int], status: str
) -> None:
    def tried(count: int) -> int:
        calls = [call(f"k{number}", request={}, status=status) for number in range(count)]
        calls += [call(f"k{number}", request={}, attempt=1) for number in range(count, 2 * count)]
        found: dict[str, Any] = {}
        taken = instructions(lambda: found.update(unheard_calls(calls)))
        doubt = [f"k{number}" for number in range(count)] if status == "ok" else []
        assert found == dict.fromkeys(doubt, "ambiguous retry")
        return taken

    assert tried(1024) < 10 * tried(128)


def test_equal_calls_that_come_between_two_retries_are_in_doubt_as_well() -> None:
    asked: dict[str, Any] = {"request": {}}
    calls = [call("k1", **asked), call("k2", **asked), call("k3", attempt=1, **asked), call("k4", **asked)]
    assert unheard_calls([*calls, call("k5", attempt=1, **asked)]) == dict.fromkeys(
        ("k1", "k2", "k4"), "ambiguous retry"
    )


def test_a_call_that_names_itself_is_heard() -> None:
    assert unheard_calls([call("k1", retry_among=["k1", "gone"])]) == {}
    assert unheard_calls([call("k1"), call("k2", retry_among=["k1", "k2"])]) == {"k1": "retried"}
    assert unheard_calls([call("k1", retry_of="k1"), call("k2", retry_among=["k2"])]) == {}


def test_a_retry_that_failed_still_says_that_an_answer_was_not_heard() -> None:
    """Which is no reason to leave it out where it is the only one: it is all that the agent may have gone on with."""
    calls = [call("k1"), failed("k2", retry_of="k1")]
    assert unheard_calls(calls) == {}


def test_the_choices_of_an_answer_are_replaced_together() -> None:
    first = [call("k1"), call("k1.1", choice_of="k1"), call("k1.2", choice_of="k1")]
    again = [call("k2", retry_of="k1"), call("k2.1", choice_of="k2", retry_of="k1")]
    assert unheard_calls([*first, *again]) == dict.fromkeys(("k1", "k1.1", "k1.2"), "retried")
    doubt = [call("k3", retry_among=["k1", "k2"])]
    found = unheard_calls([*first, call("k2"), *doubt])
    assert found == dict.fromkeys(("k1", "k1.1", "k1.2", "k2"), "ambiguous retry")


@given(st.data())
def test_whatever_the_marks_an_answer_that_no_mark_names_is_heard(data: st.DataObject) -> None:
    names = [f"k{number}" for number in range(data.draw(st.integers(1, 8)))]
    calls: list[CallRecord] = []
    for name in names:
        status = data.draw(st.sampled_from(["ok", "ok", "transport_error"]))
        earlier = [one.call_id for one in calls]
        among = data.draw(st.lists(st.sampled_from([*earlier, "gone"]), unique=True, max_size=3))
        marks = {"retry_among": among} if len(among) > 1 else {"retry_of": among[0]} if among else {}
        calls.append(call(name, status=status, **marks))
    found = unheard_calls(calls)
    named = {name for one in calls for name in (*(one.retry_among or ()), one.retry_of)}
    retries = {one.call_id for one in calls if one.retry_of or one.retry_among}
    assert all(one.status == "ok" for one in calls if one.call_id in found)
    assert found.keys() <= named | retries
    # One of all answers was the last, and that one is in nobody's place.
    answered = [one.call_id for one in calls if one.status == "ok"]
    assert not answered or len(found) < len(answered) or "ambiguous retry" in found.values()
