"""The difference of two JSON values, as a refused publisher sees it."""

from __future__ import annotations

import copy
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from agent_env.hub.difference import difference, summary

json_values: st.SearchStrategy[Any] = st.recursive(
    st.none() | st.booleans() | st.integers(-5, 5) | st.text("ab~/", max_size=3),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text("ab~/", max_size=2), inner, max_size=3),
    max_leaves=8,
)


def at(value: Any, pointer: str) -> Any:
    for step in pointer.split("/")[1:]:
        key = step.replace("~1", "/").replace("~0", "~")
        value = value[int(key)] if isinstance(value, list) else value[key]
    return value


def test_each_place_has_both_sides_or_the_one_there_is() -> None:
    before = {"tools": [{"name": "chat"}, {"name": "x"}], "a/b": 1, "same": [1]}
    after = {"tools": [{"name": "talk"}], "a/b": True, "same": [1], "new": None}
    assert difference(before, after) == [
        {"pointer": "/tools/0/name", "published": "chat", "offered": "talk"},
        {"pointer": "/tools/1", "published": {"name": "x"}},
        {"pointer": "/a~1b", "published": 1, "offered": True},
        {"pointer": "/new", "offered": None},
    ]


def test_a_long_difference_is_cut() -> None:
    places = difference(list(range(100)), list(range(1, 101)))
    assert len(places) == 50
    assert summary(places) == "/0, /1, /2 and 47 more"
    assert summary(difference(1, 2)) == "/"


@given(json_values)
def test_a_value_does_not_differ_from_itself(value: Any) -> None:
    assert difference(value, copy.deepcopy(value)) == []


@given(json_values, json_values)
def test_every_pointer_leads_to_what_it_says(before: Any, after: Any) -> None:
    places = difference(before, after)
    if repr(before) != repr(after) and before != after:
        assert places
    for place in places:
        if "published" in place:
            assert at(before, place["pointer"]) == place["published"]
        if "offered" in place:
            assert at(after, place["pointer"]) == place["offered"]
