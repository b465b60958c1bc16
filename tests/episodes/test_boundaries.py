"""Whom an error blames, whatever it was made of."""

from __future__ import annotations

from typing import Any

import pytest

from agent_env.episodes.boundaries import boundary_of
from agent_env.errors import AgentFailed, InvalidArguments, PeerFailed, TransportError

CALLED = {"model_call": "c1"}


def below(data: dict[str, Any], depth: int) -> PeerFailed:
    error = PeerFailed("failed", **data)
    for _ in range(depth):
        error = PeerFailed("failed", error=error.to_wire())
    return error


@pytest.mark.timeout(10)
def test_an_error_that_has_itself_in_it_blames_whom_it_says() -> None:
    around = PeerFailed("failed")
    around.data["error"] = {"code": "peer_failed", "data": around.data}
    assert boundary_of(around) == "peer"
    first, second = PeerFailed("failed"), PeerFailed("failed")
    first.data["error"] = {"code": "peer_failed", "data": second.data}
    second.data["error"] = {"code": "peer_failed", "data": first.data}
    assert boundary_of(first) == "peer"


def test_a_model_is_found_below_many_agents_and_not_below_any_number() -> None:
    assert boundary_of(below(CALLED, 50)) == "model"
    assert boundary_of(below(CALLED, 500)) == "peer"


@pytest.mark.parametrize("depth", [0, 1, 5])
def test_a_call_is_believed_where_it_failed_or_where_nobody_knows(depth: int) -> None:
    error = below(CALLED, depth)
    assert boundary_of(error) == "model"
    assert boundary_of(error, failed_calls={"c1", "c2"}) == "model"
    assert boundary_of(error, failed_calls={"c2"}) == boundary_of(error, failed_calls=set()) == "peer"


def test_an_error_with_a_call_that_is_not_believed_blames_as_if_it_had_told_none() -> None:
    for error, boundary in (
        (InvalidArguments("bad", **CALLED), "request"),
        (TransportError("gone", **CALLED), "transport"),
        (AgentFailed("raised", **CALLED), "agent"),
        (AgentFailed("raised", kind="model", **CALLED), "model"),
        (ValueError("mine"), "program"),
    ):
        assert boundary_of(error, failed_calls={"c2"}) == boundary, error


@pytest.mark.parametrize("call", [None, 1, ["c1"], {"c1": 1}])
def test_a_call_that_is_no_text_is_none(call: Any) -> None:
    assert boundary_of(PeerFailed("failed", model_call=call)) == "peer"
    assert boundary_of(PeerFailed("failed", model_call=call), failed_calls={"c1"}) == "peer"
