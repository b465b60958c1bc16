"""What plays in a view may try to stop the event loop or the program: it ends its own episode, and no view for good."""

from __future__ import annotations

import asyncio
import sys
import time
from collections.abc import Awaitable, Callable, Iterator
from typing import Any

import pytest
from plays import shout

from agent_env.training import Backstage, Scenario, Seat, Team, to_gymnasium, to_pettingzoo


def leave() -> None:
    sys.exit(3)


def interrupt() -> None:
    raise KeyboardInterrupt


def stop_the_loop() -> None:
    asyncio.get_running_loop().stop()


STOPS: dict[Callable[[], None], str] = {
    leave: "program: SystemExit",
    interrupt: "program: KeyboardInterrupt",
    stop_the_loop: "program: configuration",
}


async def in_the_play(stop: Callable[[], None]) -> None:
    stop()


async def in_a_task(stop: Callable[[], None]) -> None:
    await asyncio.create_task(in_the_play(stop))


async def in_a_gather(stop: Callable[[], None]) -> None:
    await asyncio.gather(asyncio.sleep(30), in_the_play(stop))


async def in_a_group(stop: Callable[[], None]) -> None:
    async with asyncio.TaskGroup() as group:
        group.create_task(asyncio.sleep(30))
        group.create_task(in_the_play(stop))


async def in_a_task_of_a_task(stop: Callable[[], None]) -> None:
    await asyncio.create_task(in_a_gather(stop))


async def in_a_callback(stop: Callable[[], None]) -> None:
    done = asyncio.get_running_loop().create_future()

    def call() -> None:
        try:
            stop()
        except BaseException as error:
            done.set_exception(error)
            raise

    asyncio.get_running_loop().call_soon(call)
    await done


WAYS = [in_the_play, in_a_task, in_a_gather, in_a_group, in_a_task_of_a_task, in_a_callback]


@pytest.fixture
def stage() -> Iterator[Backstage]:
    with Backstage() as stage:
        yield stage


def stopping(way: Callable[[Callable[[], None]], Awaitable[None]], stop: Callable[[], None]) -> Scenario:
    async def play(team: Team, task: Any) -> str:
        said = (await team["a"].chat("go")).text
        if said == "stop":
            await way(stop)
        return said

    return Scenario(play, lambda episode: {"team": {"x": 1.0}}, {"a": Seat()})


@pytest.mark.parametrize("stop", STOPS)
@pytest.mark.parametrize("way", WAYS)
def test_a_scenario_that_stops_the_loop_or_the_program_ends_its_own_episode_alone(
    way: Any, stop: Callable[[], None], stage: Backstage
) -> None:
    began = time.monotonic()
    env = to_gymnasium(stopping(way, stop), "a", stage=stage, seconds=5.0)
    neighbour = to_pettingzoo(stopping(way, stop), stage=stage, seconds=5.0)
    neighbour.reset(seed=1)
    for _ in range(2):
        env.reset(seed=1)
        _, reward, terminated, truncated, info = env.step("stop")
        assert (reward, terminated, truncated, info["ended"]) == (0.0, False, True, "failed")
        assert info["error"] == STOPS[stop]
        env.reset(seed=1)
        assert env.step("on")[1:4] == (1.0, True, False)
    # An episode of another view that was under way in the same thread is played to its end.
    neighbour.step("on")
    assert neighbour.last()[1:4] == (1.0, True, False)
    env.close()
    neighbour.close()
    assert time.monotonic() - began < 10


@pytest.mark.parametrize("stop", STOPS)
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
def test_a_task_that_nobody_waits_for_ends_nothing_but_itself(stop: Callable[[], None], stage: Backstage) -> None:
    async def play(team: Team, task: Any) -> str:
        lost = asyncio.create_task(in_the_play(stop))
        said = (await team["a"].chat("go")).text
        assert lost.done() and lost.exception() is not None
        return said

    env = to_gymnasium(Scenario(play, lambda episode: {"team": {"x": 1.0}}, {"a": Seat()}), "a", stage=stage)
    for _ in range(2):
        assert env.reset(seed=1)[0]["text"] == "go"
        assert env.step("on")[1:4] == (1.0, True, False)
    env.close()


@pytest.mark.parametrize(
    "stop, threaded",
    # A thread of an agent's own has no running loop to stop.
    [(leave, False), (interrupt, False), (stop_the_loop, False), (leave, True), (interrupt, True)],
)
def test_a_frozen_agent_that_stops_the_loop_or_the_program_fails_its_turn(
    stop: Callable[[], None], threaded: bool, stage: Backstage
) -> None:
    async def in_the_loop(message: str) -> str:
        if message == "stop":
            stop()
        return message

    def in_a_thread(message: str) -> str:
        if message == "stop":
            stop()
        return message

    async def play(team: Team, task: Any) -> str:
        return (await team["b"].chat((await team["a"].chat("go")).text)).text

    seats = {"a": Seat(), "b": Seat(in_a_thread if threaded else in_the_loop)}
    env = to_gymnasium(Scenario(play, lambda episode: {"team": {"x": 1.0}}, seats), "a", stage=stage, seconds=5.0)
    for _ in range(2):
        env.reset(seed=1)
        assert env.step("stop")[2:4] == (False, True)
        env.reset(seed=1)
        assert env.step("on")[1:4] == (1.0, True, False)
    env.close()


@pytest.mark.parametrize("stop", STOPS)
def test_a_program_that_stops_everything_when_it_is_ended_keeps_no_thread(stop: Callable[[], None]) -> None:
    async def play(team: Team, task: Any) -> None:
        try:
            await team["a"].chat("go")
        finally:
            stop()

    stage = Backstage()
    env = to_gymnasium(Scenario(play, None, {"a": Seat(), "b": Seat(shout)}), "a", stage=stage)
    env.reset(seed=1)
    stage.close()
    assert stage._thread is not None and not stage._thread.is_alive()
    env.close()
