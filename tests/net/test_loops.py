"""Values that live as long as one event loop."""

from __future__ import annotations

import asyncio

import pytest

from agent_env.net import PerLoop
from agent_env.net.loops import _first


class Thing:
    def __init__(self, key: str) -> None:
        self.key = key
        self.closed = False

    async def aclose(self) -> None:
        await asyncio.sleep(0)
        self.closed = True


def make() -> PerLoop[str, Thing]:
    return PerLoop(Thing, Thing.aclose)


def test_there_is_one_value_per_loop_and_key() -> None:
    things = make()

    async def use() -> tuple[Thing, Thing]:
        assert things.get("a") is things.get("a")
        return things.get("a"), things.get("b")

    first, second = asyncio.run(use()), asyncio.run(use())
    assert len({*first, *second}) == 4
    assert [thing.key for thing in first] == ["a", "b"]


def test_values_are_closed_when_their_loop_shuts_down() -> None:
    things = make()

    async def use() -> Thing:
        return things.get("a")

    assert asyncio.run(use()).closed
    assert not things._open


def test_values_can_be_closed_sooner_and_are_made_again() -> None:
    things = make()

    async def use() -> None:
        first = things.get("a")
        await things.aclose()
        assert first.closed
        assert things.get("a") is not first

    asyncio.run(use())


def test_another_loops_values_are_left_alone() -> None:
    things = make()
    other = asyncio.new_event_loop()

    async def use() -> Thing:
        return things.get("a")

    kept = other.run_until_complete(use())

    async def close() -> None:
        await things.aclose()

    asyncio.run(close())
    assert not kept.closed
    other.run_until_complete(other.shutdown_asyncgens())
    other.close()
    assert kept.closed


def test_what_a_loop_left_behind_is_dropped() -> None:
    things = make()

    async def use() -> Thing:
        return things.get("a")

    dead = asyncio.new_event_loop()
    left = dead.run_until_complete(use())
    dead.close()
    assert len(things._open) == 1 and not left.closed
    alive = asyncio.new_event_loop()
    alive.run_until_complete(use())
    assert len(things._open) == 1
    alive.run_until_complete(alive.shutdown_asyncgens())
    alive.close()


def test_a_value_outside_of_a_loop_is_a_mistake() -> None:
    with pytest.raises(RuntimeError, match="no running event loop"):
        make().get("a")


def test_a_first_step_must_not_wait() -> None:
    async def use() -> None:
        with pytest.raises(RuntimeError, match="waits before it yields"):
            _first(asyncio.sleep(0))

    asyncio.run(use())
