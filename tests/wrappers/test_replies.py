"""What becomes of an agent's reply."""

from __future__ import annotations

import json
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from agent_env_wrappers.contract import Done, Message
from agent_env_wrappers.replies import ending, to_json

JSON = st.recursive(
    st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
)


@given(JSON)
def test_every_json_value_is_a_reply_whose_text_is_its_json(value: Any) -> None:
    done = ending(value)
    assert isinstance(done, Done)
    if isinstance(value, str):
        assert done == Done(value)
    else:
        assert done.data == value
        assert json.loads(done.text) == value


@given(st.text())
def test_a_message_of_text_is_that_text(text: str) -> None:
    assert ending(Message.of(text)) == Done(text)


def test_tuples_and_keys_become_what_json_knows() -> None:
    assert to_json({1: (True, None)}) == {"1": [True, None]}
