"""Values inside A2A messages: numbers survive as far as protobuf lets them, and exactly where it does not."""

from __future__ import annotations

import json
from typing import Any

import pytest
from a2a.types import Message, Part
from hypothesis import given
from hypothesis import strategies as st

from agent_env.errors import InvalidArguments
from agent_env.net.a2a_wire import (
    EXTENSION,
    as_object,
    carrier,
    clean,
    decode_part,
    decode_value,
    encode_part,
    encode_value,
    pack,
    plain,
    unpack,
)
from agent_env.runtime.parts import decode_part as decode_ours
from agent_env.runtime.parts import encode_part as encode_ours

SCALARS = st.none() | st.booleans() | st.integers(-(2**53), 2**53) | st.floats(allow_nan=False, allow_infinity=False)
TEXT = st.text(st.characters(exclude_categories=["Cs"]))
VALUES = st.recursive(
    SCALARS | TEXT, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(TEXT, inner, max_size=3), max_leaves=8
)
ANY_TEXT = st.text(st.characters())
ANY_VALUES = st.recursive(
    SCALARS | st.integers() | ANY_TEXT,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(ANY_TEXT, inner, max_size=3),
    max_leaves=8,
)


@given(VALUES)
def test_a_data_part_keeps_every_value_that_a_double_can_hold(value: Any) -> None:
    part = encode_value(value)
    assert part.WhichOneof("content") == "data"
    assert decode_value(Part.FromString(part.SerializeToString())) == (value, False)


@given(ANY_VALUES)
def test_an_exact_part_keeps_every_json_value_and_its_order(value: Any) -> None:
    back, exact = decode_value(Part.FromString(encode_value(value, exact=True).SerializeToString()))
    assert exact
    assert json.dumps(back) == json.dumps(value)


@given(st.dictionaries(TEXT, VALUES, max_size=4), st.booleans())
def test_metadata_gives_back_what_was_put_in(value: dict[str, Any], exact: bool) -> None:
    message = Message()
    message.metadata.update(pack(value, exact=exact))
    assert unpack(message.metadata) == value


@given(ANY_TEXT)
def test_any_text_fits_into_a_part(text: str) -> None:
    part = encode_part({"type": "text", "text": text})
    assert Part.FromString(part.SerializeToString()).text == clean(text)
    assert clean(text) == text or any("\ud800" <= character <= "\udfff" for character in text)


@pytest.mark.parametrize(
    "wire",
    [
        {"type": "text", "text": "a"},
        {"type": "data", "data": {"b": [1, 2.5, None], "a": "x"}},
        {"type": "file", "mediaType": "image/png", "data": "cG5n", "name": "a.png"},
        {"type": "file", "mediaType": "image/png", "uri": "https://x/a.png"},
    ],
)
def test_every_kind_of_part_has_its_form_in_a2a(wire: dict[str, Any]) -> None:
    assert decode_part(encode_part(wire)) == wire
    assert encode_ours(decode_ours(decode_part(encode_part(wire)))) == wire


def test_a_part_of_no_kind_is_an_empty_text() -> None:
    assert decode_part(Part()) == {"type": "text", "text": ""}
    assert decode_part(Part(raw=b"x"))["mediaType"] == "application/octet-stream"


@pytest.mark.parametrize("value", [10**400, "\ud800", {"a": "\udfff"}])
def test_what_protobuf_cannot_hold_goes_as_text(value: Any) -> None:
    assert decode_value(encode_value(value)) == (value, True)
    message = Message()
    message.metadata.update(pack({"a": value}))
    assert unpack(message.metadata) == {"a": value}


def test_values_that_are_too_deep_for_protobuf_go_as_text() -> None:
    deep: Any = 1
    for _ in range(200):
        deep = [deep]
    assert decode_value(encode_value(deep)) == (deep, True)


def test_keys_are_in_the_same_order_each_time() -> None:
    names = [f"k{number}" for number in range(20)]
    assert list(plain(encode_value(dict.fromkeys(reversed(names), 1)).data)) == sorted(names)


def test_what_is_not_ours_is_passed_by() -> None:
    message = Message()
    assert unpack(message.metadata) == {}
    for other in ("no json", "[1]", 5.0):
        message.metadata.update({EXTENSION: other})
        assert unpack(message.metadata) == {}
    assert as_object(None) == {}
    assert decode_value(Part(text="{}")) == (None, False)
    assert decode_value(Part(url="http://x")) == (None, False)


@pytest.mark.parametrize("text", ["{", "", "[" * 100_000])
def test_text_that_says_it_is_json_and_is_not_is_refused(text: str) -> None:
    with pytest.raises(InvalidArguments, match="is not JSON"):
        decode_value(Part(text=text, media_type="application/json"))
    assert as_object(text) == {}


def test_the_first_metadata_that_has_a_key_wins_and_only_strings_count() -> None:
    first, second = Message(), Message()
    first.metadata.update({"traceparent": "a", "n": 1})
    second.metadata.update({"traceparent": "b", "baggage": "c"})
    assert carrier(first.metadata, second.metadata) == {"traceparent": "a", "baggage": "c"}
