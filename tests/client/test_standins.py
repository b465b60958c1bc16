"""Who answers in the place of an environment: for the code inside alone, by identity or by text."""

from __future__ import annotations

import asyncio

import pytest

from agent_env import Environment
from agent_env.client.standins import stand_in, standing_in


def first(message: str) -> str:
    return f"first {message}"


def second(message: str) -> str:
    return f"second {message}"


def test_objects_are_meant_by_themselves_and_references_by_their_text() -> None:
    one, equal = [1], [1]
    with standing_in([(one, "a"), ("name@1.0.0", "b")]):
        assert [stand_in(ref) for ref in (one, equal, "name@1.0.0", "name")] == ["a", equal, "b", "name"]
        with standing_in([("name", "c"), (one, "d")]):
            assert [stand_in(ref) for ref in (one, "name@1.0.0", "name")] == ["d", "b", "c"]
        assert stand_in(one) == "a"
    assert stand_in(one) is one


@pytest.mark.anyio
async def test_code_that_runs_at_the_same_time_elsewhere_reaches_what_it_asks_for() -> None:
    inside = asyncio.Event()

    async def ask() -> str:
        async with Environment(first) as environment:
            return (await environment.chat("x")).text

    async def instead() -> str:
        with standing_in([(first, second)]):
            inside.set()
            return await asyncio.create_task(ask())

    async def outside() -> str:
        await inside.wait()
        return await ask()

    async with asyncio.timeout(10):
        assert await asyncio.gather(instead(), outside()) == ["second x", "first x"]
