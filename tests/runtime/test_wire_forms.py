"""Messages, events, results and errors as JSON: what is written can be read again, and nothing else can."""

from __future__ import annotations

import json
import pickle
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agent_env import errors
from agent_env.errors import AgentEnvError, InvalidArguments, ProtocolError, from_wire
from agent_env.runtime.parts import (
    decode_event,
    decode_part,
    decode_parts,
    decode_usage,
    encode_event,
    encode_message,
    encode_part,
    encode_usage,
    reply_parts,
)
from agent_env.runtime.results import ResetResult, StepResult, ToolResult
from agent_env_wrappers.contract import (
    DataPart,
    Done,
    FilePart,
    Interrupt,
    Message,
    ModelCall,
    Status,
    TextDelta,
    TextPart,
    ToolCall,
    ToolReturn,
    Usage,
)

texts = st.text(max_size=30)
values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | texts,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(texts, inner, max_size=3),
    max_leaves=8,
)
files = st.builds(FilePart, texts, data=st.binary(max_size=20), name=st.none() | texts) | st.builds(
    FilePart, texts, uri=texts
)
parts = st.builds(TextPart, texts) | st.builds(DataPart, values) | files
usages = st.builds(Usage, st.integers(0), st.integers(0), st.integers(0))
events = st.one_of(
    st.builds(TextDelta, texts, st.sampled_from(["answer", "thought"])),
    st.builds(ToolCall, texts, texts, values),
    st.builds(ToolReturn, texts, values, st.booleans()),
    st.builds(ModelCall, texts, usages, st.none() | texts),
    st.builds(Status, texts),
)


def through_json(value: Any) -> Any:
    return json.loads(json.dumps(value))


@given(parts)
def test_a_part_survives_its_round_trip(part: Any) -> None:
    assert decode_part(through_json(encode_part(part))) == part


@given(st.lists(parts, min_size=1, max_size=4))
def test_a_message_survives_its_round_trip(items: list[Any]) -> None:
    message = Message(tuple(items))
    assert Message(decode_parts(through_json(encode_message(message)))) == message


@given(events)
def test_an_event_survives_its_round_trip(event: Any) -> None:
    assert decode_event(through_json(encode_event(event))) == event


@given(st.none() | usages)
def test_usage_survives_its_round_trip(usage: Usage | None) -> None:
    assert decode_usage(through_json(encode_usage(usage))) == usage


def test_terminal_events_are_no_events_on_the_wire() -> None:
    assert encode_event(Done("x")) is None
    assert encode_event(Interrupt("i", "question", "?")) is None


@pytest.mark.parametrize(
    "wire",
    [
        None,
        "text",
        {},
        {"type": "text"},
        {"type": "text", "text": 3},
        {"type": "data"},
        {"type": "file", "mediaType": "a/b"},
        {"type": "file", "mediaType": "a/b", "data": "aGk=", "uri": "http://x"},
        {"type": "file", "data": "aGk="},
        {"type": "video"},
    ],
)
def test_what_is_no_part_is_refused_with_what_is_one(wire: Any) -> None:
    with pytest.raises(InvalidArguments, match="is not a message part; send"):
        decode_part(wire)


@pytest.mark.parametrize("data", ["%%", "a", 3])
def test_file_contents_are_base64(data: Any) -> None:
    with pytest.raises(InvalidArguments, match="must be base64"):
        decode_part({"type": "file", "mediaType": "a/b", "data": data})


@pytest.mark.parametrize("wire", [None, [], "text", {"type": "text"}, b"x"])
def test_parts_are_a_list_with_something_in_it(wire: Any) -> None:
    with pytest.raises(InvalidArguments, match="must be a list"):
        decode_parts(wire)


@pytest.mark.parametrize("wire", [{}, {"type": "dance"}, {"type": "text_delta"}, {"type": "tool_call", "id": "1"}])
def test_what_is_no_event_breaks_the_protocol(wire: Any) -> None:
    with pytest.raises(ProtocolError, match="no event of this protocol"):
        decode_event(wire)


@pytest.mark.parametrize(
    ("text", "data", "kinds"),
    [("a", None, ["text"]), ("", None, ["text"]), ("", 0, ["data"]), ("a", [], ["text", "data"])],
)
def test_a_reply_has_its_text_and_its_data(text: str, data: Any, kinds: list[str]) -> None:
    assert [part["type"] for part in reply_parts(text, data)] == kinds


def test_results_survive_their_round_trips_and_newer_fields_are_passed_over() -> None:
    tool = ToolResult(
        [{"type": "text", "text": "x"}], "x", {"a": 1}, True, "s-1", Usage(1, 2, 3), 0.0, "refusal", {"id": "i"}, "c", 4
    )
    reset = ResetResult("s-1", {"board": []}, {"environment": "a@1.0.0"})
    step = StepResult("seen", None, True, False, {"turn": 1}, "s-1")
    for result in (tool, reset, step):
        wire = through_json(result.to_json()) | {"from_a_newer_release": 1}
        assert type(result).from_json(wire) == result
    assert ToolResult.from_json({"content": []}) == ToolResult([])
    assert ToolResult([]).to_json()["reward"] is None  # never 0.0 in its place


def _tree(root: type[AgentEnvError]) -> list[type[AgentEnvError]]:
    return [root, *(kind for child in root.__subclasses__() for kind in _tree(child))]


ALL = _tree(AgentEnvError)


@pytest.mark.parametrize("kind", ALL, ids=lambda kind: kind.__name__)
def test_every_error_crosses_the_wire_as_the_same_class(kind: type[AgentEnvError]) -> None:
    error = kind("it happened; do this", retry_after=1.5, gone=None, rules=["a"])
    wire = through_json(error.to_wire())
    assert set(wire) == {"code", "message", "retryable", "data"}
    again = from_wire(wire)
    assert type(again) is kind
    assert (again.message, again.data, again.retry_after) == (error.message, error.data, 1.5)
    assert str(again) == "it happened; do this"
    assert "gone" not in again.data
    assert again.to_wire() == error.to_wire()


@pytest.mark.parametrize("kind", ALL, ids=lambda kind: kind.__name__)
def test_every_error_can_be_pickled(kind: type[AgentEnvError]) -> None:
    again = pickle.loads(pickle.dumps(kind("no", limit=3)))
    assert type(again) is kind
    assert again.to_wire() == kind("no", limit=3).to_wire()


def test_every_error_has_a_code_of_its_own_and_stands_in_the_tree_of_the_module() -> None:
    codes = [kind.code for kind in ALL]
    assert len(set(codes)) == len(codes)
    documented = errors.__doc__ or ""
    branches = {"RequestError", "Refusal", "HubError", "AgentEnvError"}
    for kind in ALL:
        assert kind.__name__ in documented
        assert kind.__name__ in branches or kind.code in documented
        assert 400 <= kind.http_status < 600


def test_a_code_of_a_newer_release_is_an_error_all_the_same() -> None:
    error = from_wire({"code": "quantum_noise", "message": "wait", "data": {"a": 1}})
    assert type(error) is AgentEnvError
    assert (error.message, error.data) == ("wait", {"a": 1})
    assert from_wire({}).message == "the other side gave no message"
    assert from_wire({"code": "at_capacity", "message": "x", "data": "odd"}).data == {}
