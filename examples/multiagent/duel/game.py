"""The game, Nim, as a scenario of two seats: its rules, how it is told to a player, and what a game is worth.

In front of the players lie heaps of stones. Whose turn it is takes any number of stones from one heap, at least one;
whoever takes the last stone of all wins. A move that cannot be made loses.
"""

from __future__ import annotations

from collections.abc import Sequence
from random import Random

from agent_env.episodes import Episode
from agent_env.training import Scenario, Seat, Team

NAMES = ("a", "b")
MOST = 23  # stones of a heap; 529 positions to start from
PLAYER = "duel-player@1.0.0"
OTHER = {"first": "second", "second": "first"}


def told(heaps: Sequence[int]) -> str:
    """The position as players are told it: `a12 b7`."""
    return " ".join(f"{name}{stones}" for name, stones in zip(NAMES, heaps, strict=True))


def moved(heaps: Sequence[int], move: str) -> list[int] | None:
    """The position after a move, which says what it leaves of a heap (`a 7`); None for one that cannot be made."""
    name, _, left = move.partition(" ")
    if name not in NAMES or not (left.isascii() and left.isdecimal()):
        return None
    place = NAMES.index(name)
    if int(left) >= heaps[place]:
        return None
    return [*heaps[:place], int(left), *heaps[place + 1 :]]


def moves(heaps: Sequence[int]) -> list[str]:
    """Every move that can be made."""
    return [f"{name} {left}" for name, stones in zip(NAMES, heaps, strict=True) for left in range(stones)]


def deal(rng: Random) -> list[int]:
    """A position to start from, each as likely as any other."""
    return [rng.randint(1, MOST) for _ in NAMES]


async def play(team: Team, start: Sequence[int]) -> dict[str, object]:
    """One game: who won, what was said, and whether the last move could not be made."""
    heaps, said, seat = list(start), list[str](), "first"
    while True:
        said.append((await team[seat].chat(told(heaps))).text)
        left = moved(heaps, said[-1])
        if left is None:
            return {"winner": OTHER[seat], "moves": said, "illegal": True}
        if not any(left):
            return {"winner": seat, "moves": said, "illegal": False}
        heaps, seat = left, OTHER[seat]


def score(episode: Episode) -> dict[str, dict[str, float]]:
    """What one wins the other loses."""
    winner = episode.info["result"]["winner"]
    return {winner: {"won": 1.0}, OTHER[winner]: {"won": -1.0}}


duel = Scenario(play, score, {"first": Seat(PLAYER, "player"), "second": Seat(PLAYER, "player")}, "duel")
