"""The scenario: a thing goes to the writer, a headline about it comes back."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path

from rich.table import Table

from agent_env.episodes import Episode
from agent_env.training import Scenario, Seat, Team

AGENTS = Path(__file__).with_name("agents.py")
SEATS = ("writer", "editor")
THINGS = ["cats", "rain", "bread", "the moon", "shoes", "fire", "milk", "horses", "books", "snow", "apples", "clocks"]
BRIEF = {"writer": 10, "editor": 5}
"""What a seat says in so many words, or fewer, is brief."""


async def play(team: Team, thing: str) -> str:
    """One episode: the thing goes to the writer; who edits is its own matter."""
    return (await team["writer"].chat(thing)).text


def score(episode: Episode) -> dict[str, dict[str, float]]:
    """Both are rewarded when the headline names the thing, and each the more, the closer it comes to being brief."""
    said = {edge.caller_seat: edge.request for edge in episode.edges}
    words = {"writer": words_of(said["writer"]), "editor": words_of(episode.info["result"])}
    thing = episode.task.removeprefix("the ").removesuffix("s")
    named = float(thing in {word.removesuffix("s") for word in words["editor"]})
    brief = {seat: min(1.0, BRIEF[seat] / len(told)) if told else 0.0 for seat, told in words.items()}
    return {seat: {"named": named, "brief": brief[seat]} for seat in SEATS}


def words_of(text: str) -> list[str]:
    """The words of a text, in lower case."""
    return re.findall(r"\w+", text.lower())


headlines = Scenario(
    play, score, {"writer": Seat("smollm-writer@1.0.0", "writer"), "editor": Seat(policy="editor")}, "headlines"
)


def table(title: str, episodes: Sequence[Episode]) -> Table:
    """What was played: each headline with its rewards; raises `SystemExit` when no episode could be played."""
    if not any(episode.ok for episode in episodes):
        raise SystemExit(f"no episode could be played; the first says: {episodes[0].failures}")
    shown = Table(title=title, title_justify="left")
    for name in ("about", "headline", "named", "brief\nwriter", "brief\neditor"):
        shown.add_column(name, overflow="fold")
    for episode in episodes:
        if not episode.ok:
            shown.add_row(str(episode.task), f"failed: {episode.failures[0].message}", "", "", "")
            continue
        values = {(reward.target_id, reward.name): reward.value or 0.0 for reward in episode.rewards}
        brief = [f"{values[seat, 'brief']:.2f}" for seat in SEATS]
        shown.add_row(episode.task, repr(episode.info["result"]), f"{values['editor', 'named']:.0f}", *brief)
    return shown
