"""Copies of episodes in another file."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from agent_env.episodes.database import EpisodeStore
from agent_env.episodes.episode import Episode
from agent_env.episodes.lines import replacing
from agent_env.episodes.store import line_of


def write_lines(episodes: Iterable[Episode], path: Path) -> int:
    """Writes episodes to a file, one a line, in place of what it held; says how many."""
    written = 0
    with replacing(path) as file:
        for episode in episodes:
            file.write(line_of(episode))
            written += 1
    return written


def write_database(episodes: Iterable[Episode], path: Path) -> int:
    """Adds episodes to a database, which is made where there is none; says how many."""
    with EpisodeStore(path) as store:
        return store.append_all(episodes)
