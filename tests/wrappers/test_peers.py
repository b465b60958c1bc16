"""Calling a peer for a model that asked for it as a tool."""

from __future__ import annotations

import asyncio
import dataclasses
from typing import Any

import pytest
from driving import peer
from graphs import solve

from agent_env_wrappers.peers import arguments_of, ask

pytestmark = pytest.mark.anyio


@pytest.mark.parametrize("arguments", ['{"message": "2+2"}', {"message": "2+2"}])
async def test_a_peer_is_called_with_the_models_arguments(arguments: Any) -> None:
    assert await ask(peer(solve), arguments) == ("solved 2+2", False)


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        ("{broken", "the arguments of ask_solver must be a JSON object"),
        ("[1]", "the arguments of ask_solver must be a JSON object"),
        ("", "the arguments of ask_solver do not fit: 'message' is missing"),
        (None, "the arguments of ask_solver do not fit: 'message' is missing"),
        ({"message": "x", "mood": 1}, "the arguments of ask_solver do not fit: 'mood' is unknown"),
    ],
)
async def test_arguments_that_do_not_fit_are_told_to_the_model(arguments: Any, told: str) -> None:
    assert await ask(peer(solve), arguments) == (told, True)


async def test_a_peer_without_a_schema_takes_what_it_is_given() -> None:
    assert await ask(dataclasses.replace(peer(solve), parameters={}), {"message": "x"}) == ("solved x", False)


async def test_a_failing_peer_is_told_and_a_cancelled_one_is_not() -> None:
    async def fail(message: str) -> str:
        raise ValueError("out to lunch")

    async def cancelled(message: str) -> str:
        raise asyncio.CancelledError

    assert await ask(peer(fail), {"message": "x"}) == ("solver failed: out to lunch", True)
    with pytest.raises(asyncio.CancelledError):
        await ask(peer(cancelled), {"message": "x"})


@pytest.mark.parametrize(
    ("written", "arguments"),
    [('{"a": 1}', {"a": 1}), ("", {}), (None, {}), ({"a": 1}, {"a": 1}), ("{broken", "{broken")],
)
def test_arguments_are_told_as_json_or_as_they_were_written(written: Any, arguments: Any) -> None:
    assert arguments_of(written) == arguments
