"""Reading the curve of a run: a line of JSON an update."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

from agent_env.episodes.lines import LineReader
from agent_env.errors import ConfigurationError, ProtocolError
from agent_env.training.scenario import TEAM


def read_curve(path: Path) -> list[dict[str, Any]]:
    """The lines of a curve, but not one that was being written when its writer died.

    Raises `ConfigurationError` for a damaged one.
    """
    reader = LineReader(path)
    try:
        return [_checked(line, reader) for _, line in reader]
    except ProtocolError as error:
        raise ConfigurationError(f"{error.message}; put it right, or remove that line") from None


def _checked(line: dict[str, Any], reader: LineReader) -> dict[str, Any]:
    """A line of a curve; the team went by "" in earlier ones."""
    update, reward = line.get("update"), line.get("reward")
    if isinstance(update, bool) or not isinstance(update, int):
        raise reader.refusal(f"has no number of an update, but {update!r:.100}")
    if not isinstance(reward, dict):
        raise reader.refusal(f"has no `reward` by seat, but {reward!r:.100}")
    for seat, value in reward.items():
        if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
            raise reader.refusal(f"has a reward of {value!r:.100} for {seat!r}")
    return {**line, "reward": {seat or TEAM: value for seat, value in reward.items()}}
