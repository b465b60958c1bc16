"""Why episodes failed, told to whoever trains: once a kind, with the place in their own code."""

from __future__ import annotations

import logging
import sysconfig
import traceback
from collections.abc import Mapping, Sequence
from pathlib import Path

import agent_env_cards
import agent_env_wrappers
from agent_env.episodes import Boundary, Episode
from agent_env.episodes.episode import Failure
from agent_env.errors import AgentEnvError

log = logging.getLogger("agent_env.training")

MOST = 8
"""How many kinds of failures are told: where each episode has words of its own, more say no more."""

MOST_CHARACTERS = 300
"""How much of what an error says is told in a line."""

_KIND = "failed: "

_FAULTS: Mapping[Boundary, str] = {
    "request": "what was asked was at fault",
    "refused": "it was refused",
    "agent": "an agent failed",
    "peer": "an agent that another one called failed",
    "model": "a model failed",
    "deadline": "it took too long",
    "transport": "somebody could not be reached",
    "protocol": "an answer broke its protocol",
    "reward": "its reward could not be given",
    "program": "the scenario itself raised",
}

_OURS = [Path(__file__).parents[1], *(Path(*one.__path__) for one in (agent_env_cards, agent_env_wrappers))]
_INSTALLED = [Path(sysconfig.get_path(name)) for name in ("stdlib", "platstdlib", "purelib", "platlib")]


class Faults:
    """Warns of failed episodes, of each kind once: by the place that raised, or by the words of an error of agent-env.

    `told` has the kinds that were told before, and is added to; at most `MOST` are.
    """

    def __init__(self, told: set[str]) -> None:
        self._told = told

    def tell(self, episode: Episode, error: BaseException) -> None:
        """Warns of an error for which the episode has just failed; with its traceback, where it is not agent-env's."""
        failure = episode.failures[-1]
        place = place_of(error)
        ours = isinstance(error, AgentEnvError)
        kind = f"{_KIND}{failure.boundary}, {failure.code}, {failure.message if ours or place is None else place}"
        kinds = sum(told.startswith(_KIND) for told in self._told)
        if kind in self._told or kinds > MOST:
            return
        self._told.add(kind)
        if kinds == MOST:
            log.warning("episodes fail in more than %d ways; of further ones, see their `failures`", MOST)
            return
        log.warning(
            "the episode %r failed because %s%s; it teaches nothing, and others that fail so are only counted",
            *(episode.id, reason(failure), "" if place is None else f" ({place})"),
            exc_info=None if ours else error,
        )


def reason(failure: Failure) -> str:
    """Why an episode failed, as the rest of a sentence."""
    told = f"{_FAULTS[failure.boundary]} (boundary {failure.boundary!r}, code {failure.code!r})"
    return f"{told}: {shortened(failure.message) or 'without a word'}"


def shortened(words: str) -> str:
    """What a program says, as a line can show it: of any length it may be, and steer a terminal."""
    line = " ".join(words[: 4 * MOST_CHARACTERS].split())
    shown = "".join(letter if letter.isprintable() else "\N{REPLACEMENT CHARACTER}" for letter in line)
    return shown if len(shown) <= MOST_CHARACTERS else f"{shown[:MOST_CHARACTERS]}…"


def place_of(error: BaseException) -> str | None:
    """Where an error was raised, "games/duel.py:12, in play": in the innermost frame that is neither of agent-env nor
    of anything installed; or else in the innermost that is not of agent-env, None where there is none."""
    frames = [frame for frame in traceback.extract_tb(error.__traceback__) if not _within(frame.filename, _OURS)]
    own = [frame for frame in frames if not _within(frame.filename, _INSTALLED)]
    if not frames:
        return None
    frame = (own or frames)[-1]
    path = Path(frame.filename)
    try:
        here = Path.cwd()
    except OSError:  # the program's own folder may be gone
        here = path
    shown = path.relative_to(here) if path != here and path.is_relative_to(here) else path
    return f"{shown}:{frame.lineno}, in {frame.name}"


def _within(name: str, folders: Sequence[Path]) -> bool:
    return any(Path(name).is_relative_to(folder) for folder in folders)
