"""Answers to questions: whose they are, and what is a yes."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agent_env_wrappers.answers import NO, YES, answer_of, approval, refuse_answers
from agent_env_wrappers.contract import AgentError, Answer, DataPart, Message, Turn


@pytest.mark.parametrize("value", [True, "yes", " Yes! ", "OK", "approve", "TRUE", {"approved": True}])
def test_a_clear_yes_approves(value: Any) -> None:
    assert approval(value) == (True, None)


@pytest.mark.parametrize("value", [False, "no", "No.", "deny", {"approved": False}, {"approved": False, "reason": 3}])
def test_a_clear_no_rejects(value: Any) -> None:
    assert approval(value) == (False, None)


def test_a_no_may_say_why() -> None:
    assert approval({"approved": False, "reason": "it rains"}) == (False, "it rains")


JSON = st.recursive(
    st.none() | st.integers() | st.floats(allow_nan=False) | st.text(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
)


@given(JSON)
def test_nothing_unclear_ever_approves(value: Any) -> None:
    word = value.strip().strip(".!").lower() if isinstance(value, str) else None
    if word in YES | NO or (isinstance(value, dict) and isinstance(value.get("approved"), bool)):
        return
    with pytest.raises(AgentError, match="neither yes nor no") as unclear:
        approval(value)
    assert unclear.value.kind == "refused"


def test_an_answer_is_found_by_its_id_and_else_it_is_the_message() -> None:
    answers = [Answer("other", 1), Answer("mine", 2)]
    assert answer_of(Turn(Message.of("x"), answers=answers), "mine") == 2
    assert answer_of(Turn(Message.of("x")), "mine") == "x"
    assert answer_of(Turn(Message((DataPart({"a": 1}),))), "mine") == {"a": 1}


def test_an_answer_to_another_question_is_refused_with_the_open_one() -> None:
    with pytest.raises(AgentError, match="'other' is not open; answer 'mine'"):
        answer_of(Turn(Message.of("x"), answers=[Answer("other", 1)]), "mine")


def test_an_answer_without_a_question_is_refused() -> None:
    refuse_answers(Turn(Message.of("x")))
    with pytest.raises(AgentError, match="no question is open"):
        refuse_answers(Turn(Message.of("x"), answers=[Answer("other", 1)]))
