"""The scenario: a word goes to the manager, and the word that belongs to it should come back."""

from __future__ import annotations

from agents import FACTS, SPECIALISTS

from agent_env.episodes import Episode
from agent_env.training import Scenario, Seat, Team

ANSWERS = {word: answer for facts in FACTS.values() for word, answer in facts.items()}
WORDS = list(ANSWERS)
EXPERTS = {word: name for name, facts in FACTS.items() for word in facts}

SEATS = ("manager", *SPECIALISTS)


async def play(team: Team, word: str) -> str:
    """One episode: the word goes to the manager; whom that asks, and what it makes of the reply, is its own matter."""
    return (await team["manager"].chat(word)).text


def score(episode: Episode) -> dict[str, dict[str, float | tuple[float, float]]]:
    """All are rewarded when the answer is right. Whether the right one was asked is noted and rewards nobody."""
    asked = [edge.callee_seat for edge in episode.edges if edge.caller_seat == "manager"]
    right = is_right(episode.info["result"], episode.task)
    return {"team": {"right": right, "routed": (float(asked == [EXPERTS[episode.task]]), 0.0)}}


def is_right(answer: object, word: str) -> float:
    """1.0 for what belongs to the word, whichever way a model writes it."""
    return float(str(answer).strip(" .!\n").lower() == ANSWERS[word])


def make_scenario(*, informed: bool = False) -> Scenario:
    """A manager and three specialists. What these say is up to their policies; those that are `informed` know all facts
    of their topics by themselves, and have none."""
    specialists = {name: Seat(policy=None if informed else name) for name in SPECIALISTS}
    return Scenario(play, score, {"manager": Seat("delegation-manager@1.0.0", "manager"), **specialists}, "delegation")


delegation = make_scenario()
