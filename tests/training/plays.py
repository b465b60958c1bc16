"""Scenarios to look at from outside: turns, a call in a call, moves at once, self-play."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from typing import Any, TypeAlias

from agent_env import AgentEnvironment
from agent_env.episodes import Episode
from agent_env.training import Scenario, Seat, Team

Peers: TypeAlias = Mapping[str, Callable[[str], Awaitable[str]]]


def shout(message: str) -> str:
    return message.upper()


def turns() -> Scenario:
    """Two debate in turns and a judge hears both; a draw of the episode's own says who begins."""

    async def play(team: Team, task: Any) -> Any:
        said = str(task)
        order = ["first", "second"] if team.random.random() < 0.5 else ["second", "first"]
        for _ in range(2):
            for seat in order:
                said = (await team[seat].chat(said)).text
        return (await team["judge"].chat(said)).text

    def score(episode: Episode) -> dict[str, dict[str, float]]:
        result = str(episode.info["result"])
        return {"first": {"long": float(len(result))}, "team": {"even": float(len(result) % 2 == 0)}}

    seats = {"first": Seat(shout), "second": Seat(shout), "judge": Seat(shout, trainable=False)}
    return Scenario(play, score, seats, name="turns", tasks=["one", "two", "three"])


def nested() -> Scenario:
    """A manager asks a worker in the course of its own turn, and twice."""

    async def manager(message: str, peers: Peers) -> str:
        half = await peers["worker"](f"the first half of {message}")
        return half + await peers["worker"](f"what follows {half}")

    worker = AgentEnvironment(shout, name="worker")

    async def play(team: Team, task: Any) -> Any:
        return (await team["manager"].chat(str(task))).text

    def score(episode: Episode) -> dict[str, dict[str, float]]:
        return {"worker": {"short": -float(len(str(episode.info["result"])))}}

    seats = {
        "manager": Seat(AgentEnvironment(manager, name="manager", peers={"worker": worker})),
        "worker": Seat(worker),
    }
    return Scenario(
        play, score, seats, name="nested", tasks=lambda random, count: [random.random() for _ in range(count)]
    )


def at_once() -> Scenario:
    """Two choose at the same time, for three rounds; a third one hears of it."""

    async def play(team: Team, task: Any) -> Any:
        told = "begin"
        for _ in range(3):
            left, right, _ = await asyncio.gather(
                team["left"].chat(told), team["right"].chat(told), team["crowd"].chat(told)
            )
            told = f"{left.text} against {right.text}"
        return told

    def score(episode: Episode) -> dict[str, dict[str, float]]:
        left, _, right = str(episode.info["result"]).partition(" against ")
        return {"left": {"wins": float(left > right)}, "right": {"wins": float(left < right)}}

    seats = {"left": Seat(shout), "right": Seat(shout), "crowd": Seat(shout)}
    return Scenario(play, score, seats, name="at-once")


def self_play() -> Scenario:
    """One agent in both seats of a game with illegal moves: whoever takes the last of the sticks wins."""

    async def play(team: Team, task: Any) -> Any:
        sticks, seat, other = int(task), "white", "black"
        while sticks > 0:
            move = (await team[seat].chat(f"{sticks} sticks")).text
            if move not in ("1", "2"):
                return other
            sticks, seat, other = sticks - int(move), other, seat
        return other

    def score(episode: Episode) -> dict[str, dict[str, float]]:
        winner = str(episode.info["result"])
        return {seat: {"won": 1.0 if seat == winner else -1.0} for seat in ("white", "black")}

    player = AgentEnvironment(lambda message: "1", name="player")
    return Scenario(play, score, {"white": Seat(player), "black": Seat(player)}, name="sticks", tasks=[4, 5, 6])


ALL = [turns, nested, at_once, self_play]
