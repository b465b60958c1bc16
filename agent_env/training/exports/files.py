"""Files of rows for a trainer: a line a row, with the trainer's form of it under one name, and its label under `row`
unless that form holds it."""

from __future__ import annotations

import json
import logging
from collections.abc import Callable, Iterable, Iterator, Sequence
from importlib import import_module
from pathlib import Path
from typing import Any

from agent_env.episodes import Episode
from agent_env.episodes.lines import LineReader, replacing
from agent_env.errors import ConfigurationError, ProtocolError
from agent_env.training.credit import Credit, GroupReport
from agent_env.training.exports.labels import Label, label_of
from agent_env.training.learning import credit_rows
from agent_env.training.rows import Row

log = logging.getLogger("agent_env.training")


def write_rows(
    episodes: Iterable[Episode],
    path: Path,
    name: str,
    convert: Callable[[Sequence[Row]], Sequence[Any]],
    *,
    labels: bool = True,
    credit: str | Credit = "per_seat",
) -> int:
    """Cuts and credits the rows of all episodes, converts them, and writes a line for each; says of how many episodes.

    All rows are in memory at once, since a reward is compared with those of other episodes. What makes no row is
    logged, with reasons, and so are groups that teach nothing: of one attempt, or all of one reward. Raises
    `ConfigurationError`, and leaves what was there, when there is no row at all.
    """
    played = list(episodes)
    rows, credited, report = credit_rows(played, credit=credit)
    if not played:
        raise ConfigurationError("there is no episode to export; see which there are: agent-env episodes list")
    if not rows:
        raise ConfigurationError(f"none of the {len(played)} episodes makes a row to train on: {report.reasons()}")
    if report.dropped:
        log.warning("%d of %d model calls make no row: %s", report.dropped.total(), report.calls, report.reasons())
    _tell_groups(rows, credited.report(range(len(rows))))
    with replacing(path) as file:
        for row, converted in zip(rows, convert(rows), strict=True):
            line = {name: converted, "row": label_of(row)} if labels else {name: converted}
            file.write(json.dumps(line, separators=(",", ":")).encode() + b"\n")
    return len({row.episode for row in rows})


def _tell_groups(rows: Sequence[Row], groups: GroupReport) -> None:
    why = (
        f"of their {groups.groups} groups {groups.singletons} have one attempt alone and {groups.flat} got the same "
        "throughout"
    )
    if not any(row.advantage for row in rows):
        log.warning(
            "all advantages are 0, so a trainer that takes them learns nothing from these %d rows: %s; play each task "
            "several times (group_size), or compare by other groups (credit)",
            *(len(rows), why),
        )
    elif groups.singletons:
        log.warning("some of %d rows have nothing to be compared with, and the advantage 0: %s", len(rows), why)
    elif groups.flat:
        log.info("some of %d rows teach nothing: %s", len(rows), why)


def read_rows(path: Path, name: str) -> Iterator[tuple[Any, Label]]:
    """Reads what `write_rows` wrote: the trainer's form of each row, and the label beside it (empty if there is none);
    raises `ProtocolError` for another trainer's file, and for one that ends within a line."""
    reader = LineReader(path)
    for _, line in reader:
        if name not in line:
            raise reader.refusal(f"has no {name!r}, so it was not written for this trainer")
        yield line[name], line.get("row", {})
    if reader.torn:
        raise ProtocolError(f"{str(path)!r} ends within a line; export it again")


def package(module: str, install: str) -> Any:
    """Imports a module of a trainer; raises `ConfigurationError` with what to install when it is not there."""
    try:
        return import_module(module)
    except ModuleNotFoundError as error:
        raise ConfigurationError(f"{module} needs {error.name}, which is not installed; run: {install}") from error
