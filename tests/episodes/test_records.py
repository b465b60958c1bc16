"""Records: to JSON and back, and what is refused."""

from __future__ import annotations

import json
import math
import re
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agent_env.episodes import (
    RECORD_KINDS,
    CallRecord,
    EdgeRecord,
    Episode,
    RewardRecord,
    TurnRecord,
    record_from_json,
    render_tree,
)
from agent_env.episodes.records import record_id
from agent_env.errors import InvalidArguments, ProtocolError

text = st.text(max_size=12)
numbers = st.floats(allow_nan=False, allow_infinity=False)
json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | numbers | text,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(text, inner, max_size=3),
    max_leaves=8,
)
objects = st.dictionaries(text, json_values, max_size=3)

VALUES: dict[str, st.SearchStrategy[Any]] = {
    "str": text,
    "str | None": st.none() | text,
    "float": numbers,
    "float | None": st.none() | numbers,
    "int | None": st.none() | st.integers(0, 599),
    "bool": st.booleans(),
    "Json": json_values,
    "dict[str, Json] | None": st.none() | objects,
    "list[int] | None": st.none() | st.lists(st.integers(0, 1000), max_size=4),
    "list[str] | None": st.none() | st.lists(text, max_size=3),
    "list[float] | None": st.none() | st.lists(numbers, max_size=4),
    "Target": st.sampled_from(["episode", "seat", "trace", "call"]),
}


def of_kind(kind: type[Any]) -> st.SearchStrategy[Any]:
    return st.builds(kind, **{name: VALUES[kind.__annotations__[name]] for name in kind.__match_args__})


any_record = st.one_of([of_kind(kind) for kind in RECORD_KINDS.values()])


@given(any_record)
def test_a_record_written_as_json_text_reads_as_the_same_record(record: Any) -> None:
    wire = json.loads(json.dumps(record.to_json()))
    assert record_from_json(wire) == record
    assert type(record).from_json(wire) == record
    assert record_from_json(wire).to_json() == wire


@given(any_record)
def test_what_nobody_gave_is_not_written(record: Any) -> None:
    wire = record.to_json()
    assert None not in wire.values()
    assert next(iter(wire)) == "kind"


def test_no_value_is_not_zero() -> None:
    unscored, zero = RewardRecord("named"), RewardRecord("named", 0.0)
    assert "value" not in unscored.to_json() and zero.to_json()["value"] == 0.0
    assert RewardRecord.from_json(unscored.to_json()).value is None
    assert RewardRecord.from_json(zero.to_json()).value == 0.0


def test_a_field_of_a_newer_release_is_passed_over() -> None:
    wire = TurnRecord("c1", "a@1.0.0", "s1").to_json() | {"colour": "red"}
    assert record_from_json(wire) == TurnRecord("c1", "a@1.0.0", "s1")


def test_a_missing_field_is_named() -> None:
    with pytest.raises(ProtocolError, match="a 'turn' record lacks agent, session"):
        record_from_json({"kind": "turn", "call_id": "c1"})


@pytest.mark.parametrize("kind", ["episode", None, 7])
def test_an_unknown_kind_is_refused_with_the_known_ones(kind: Any) -> None:
    with pytest.raises(ProtocolError, match=f"kind {kind!r}; the kinds are turn, edge, model, reward"):
        record_from_json({"kind": kind})


def test_each_record_but_a_reward_has_a_name_of_its_own() -> None:
    assert record_id(TurnRecord("c1", "a@1.0.0", "s1")) == "c1"
    assert record_id(EdgeRecord("e1", "b@1.0.0")) == "e1"
    assert record_id(CallRecord("m1", "c1", "solver", "policy")) == "m1"
    assert record_id(RewardRecord("named", 1.0)) is None


TURN = TurnRecord("c1", "a@1.0.0", "s1").to_json()
CALL = CallRecord("k1", "c1", "solver", "policy").to_json()


@pytest.mark.parametrize(
    ("wire", "field", "value", "wanted"),
    [
        (TURN, "call_id", [1], "str"),
        (TURN, "agent", None, "str"),
        (TURN, "seat", [1], "str | None"),
        (TURN, "started", "x", "float | None"),
        (TURN, "started", True, "float | None"),
        (TURN, "rewards", 5, "dict[str, Json] | None"),
        (TURN, "usage", "x", "dict[str, Json] | None"),
        (CALL, "token_ids", "zz", "list[int] | None"),
        (CALL, "token_ids", [1, 2.5], "list[int] | None"),
        (CALL, "token_ids", [True], "list[int] | None"),
        (CALL, "logprobs", [-1.0, None], "list[float] | None"),
        (CALL, "stream", 1, "bool"),
        (CALL, "http_status", 200.5, "int | None"),
        (CALL, "temperature", float("nan"), "finite (float | None)"),
        (CALL, "logprobs", [-1, 10**400], "list[float] | None"),
        (TURN, "reward", float("inf"), "finite (float | None)"),
        (TURN, "reward", 10**400, "finite (float | None)"),
        (TURN, "started", float("-inf"), "finite (float | None)"),
        (RewardRecord("x").to_json(), "value", float("nan"), "finite (float | None)"),
        (RewardRecord("x").to_json(), "weight", float("inf"), "finite (float)"),
        (RewardRecord("x").to_json(), "target", "moon", "Target"),
        (RewardRecord("x").to_json(), "target", ["seat"], "Target"),
        (EdgeRecord("x1", "b@1.0.0").to_json(), "callee_call_id", {}, "str | None"),
    ],
)
def test_a_field_that_is_not_of_its_type_is_named(wire: dict[str, Any], field: str, value: Any, wanted: str) -> None:
    told = re.escape(f"the field {field!r} of a {wire['kind']!r} record must be {wanted}, not {value!r:.80}")
    with pytest.raises(ProtocolError, match=told):
        record_from_json({**wire, field: value})


def test_whole_numbers_are_numbers() -> None:
    turn = record_from_json({**TURN, "started": 3, "reward": 1})
    assert isinstance(turn, TurnRecord) and (turn.started, turn.reward) == (3, 1)
    call = record_from_json({**CALL, "logprobs": [-1, -0.5]})
    assert isinstance(call, CallRecord) and call.logprobs == [-1, -0.5]


@pytest.mark.parametrize("value", [[1], "text", None, 3])
def test_what_is_no_object_is_no_record(value: Any) -> None:
    with pytest.raises(ProtocolError, match="a 'turn' record is a JSON object, not"):
        TurnRecord.from_json(value)


@pytest.mark.parametrize("value", [[1], "text", None, 3, {"kind": ["turn"]}, {"kind": 10**5000}])
def test_what_is_no_record_of_any_kind_is_refused(value: Any) -> None:
    with pytest.raises(ProtocolError, match=r"a record (is a JSON object, not|has the kind)"):
        record_from_json(value)


@given(st.floats() | st.integers(), st.floats() | st.integers())
def test_a_reward_is_made_of_finite_numbers_or_not_at_all(value: float, weight: float) -> None:
    if math.isfinite(value) and math.isfinite(weight):
        assert RewardRecord.from_json(RewardRecord("x", value, weight).to_json()) == RewardRecord("x", value, weight)
        return
    with pytest.raises(InvalidArguments, match="of the reward 'x' must be a finite number, not"):
        RewardRecord("x", value, weight)
    with pytest.raises(ProtocolError, match=r"of a 'reward' record must be finite"):
        RewardRecord.from_json({"kind": "reward", "name": "x", "value": value, "weight": weight})


@given(any_record, st.data())
def test_whatever_a_field_holds_a_record_is_read_or_refused(record: Any, data: st.DataObject) -> None:
    wire = record.to_json()
    wire[data.draw(st.sampled_from(type(record).__match_args__))] = data.draw(json_values)
    try:
        read = record_from_json(wire)
    except ProtocolError:
        return
    episode = Episode("e1" if read.episode is None else read.episode)
    episode.add([read, {**TURN, "episode": episode.id, "started": 1.0}])
    assert read in list(episode.records())
    list(episode.tree().walk())
    render_tree(episode)
