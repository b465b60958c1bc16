"""Frames: several messages in one, none longer than the other side takes."""

from __future__ import annotations

import json
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agent_env.errors import ProtocolError
from agent_env.net.frames import decode_frame, encode_frame, encode_message, pack

messages = st.lists(st.dictionaries(st.text(max_size=5), st.text(max_size=40) | st.integers(), max_size=3), max_size=12)


@given(messages)
def test_a_frame_survives_its_round_trip(items: list[dict[str, Any]]) -> None:
    assert decode_frame(encode_frame(items)) == items


@given(messages, st.integers(10, 200))
def test_packed_messages_come_in_order_in_frames_that_are_short_enough(items: list[dict[str, Any]], most: int) -> None:
    texts = [encode_message(item) for item in items]
    frames = list(pack(texts, most))
    assert [message for frame in frames for message in decode_frame(frame)] == items
    for frame in frames:
        assert len(frame) <= most or len(decode_frame(frame)) == 1
    # As few as hold them: no two neighbours would fit into one.
    for one, other in pairwise(frames):
        first = encode_message(decode_frame(other)[0])
        assert len(one) + 1 + len(first) > most


def test_half_a_character_is_escaped() -> None:
    text = encode_message({"a": "é\ud800"})
    assert text.encode()
    assert json.loads(text) == {"a": "é\ud800"}


@pytest.mark.parametrize("value", [object(), {1, 2}, float])
def test_what_is_no_json_is_refused_before_it_is_sent(value: Any) -> None:
    with pytest.raises(TypeError):
        encode_message({"a": value})


@pytest.mark.parametrize("frame", ["{", "3", "[1]", '"x"', b"\xff", "[" * 100_000, '{"a": NaN}', '{"a": -Infinity}'])
def test_what_is_no_frame_breaks_the_protocol(frame: str | bytes) -> None:
    with pytest.raises(ProtocolError):
        decode_frame(frame)


def test_a_number_that_json_has_not_is_refused_before_it_is_sent() -> None:
    with pytest.raises(ValueError, match="not JSON compliant"):
        encode_message({"a": float("nan")})


def test_a_single_message_need_not_be_in_an_array() -> None:
    assert decode_frame('{"ack": 1}') == [{"ack": 1}]
