"""The scenario: a thing goes to the writer, a headline about it comes back; and the two agents, as processes."""

from __future__ import annotations

import asyncio
import os
import re
import sys
from collections.abc import AsyncGenerator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path

from rich.table import Table

from agent_env.episodes import Episode
from agent_env.net.serving import STDIN_VARIABLE
from agent_env.training import Scenario, Seat, Team

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


@asynccontextmanager
async def agents() -> AsyncGenerator[None, None]:
    """Runs both agents, each in a process of its own, until the block ends; they also end when this process dies."""
    program = str(Path(__file__).with_name("agents.py"))
    processes = [
        await asyncio.create_subprocess_exec(
            *(sys.executable, program, seat),
            env={**os.environ, STDIN_VARIABLE: "1"},
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
        )
        for seat in SEATS
    ]
    try:
        for process in processes:
            assert process.stdout is not None
            # A served agent says where it is as soon as it can be called.
            if not await asyncio.wait_for(process.stdout.readline(), 60):
                raise SystemExit("an agent did not start; its error is above")
        yield
    finally:
        for process in processes:
            if process.returncode is None:
                process.terminate()
        for process in processes:
            await process.wait()


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
