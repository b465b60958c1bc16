"""Files of rows for a trainer: a line a row, with the trainer's form of it under one name, and its label under `row`
unless that form holds it."""

from __future__ import annotations

import json
import logging
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from importlib import import_module
from pathlib import Path
from typing import Any, TypedDict, Unpack

from agent_env.episodes import Episode
from agent_env.episodes.lines import LineReader, replacing
from agent_env.errors import ConfigurationError, ProtocolError
from agent_env.training.credit import Credit, GroupReport
from agent_env.training.exports.labels import Label, label_of
from agent_env.training.learning import cut_and_credit
from agent_env.training.rows import Row, RowReport

log = logging.getLogger("agent_env.training")


class Chosen(TypedDict, total=False):
    """Which rows a file holds: those of some policies, and of one seat. Credit is given before they are chosen, so an
    advantage is the same whichever rows are beside it.

    With no `policies` the file is of the only one that there is.
    """

    policies: Collection[str]
    seat: str | None


@dataclass(slots=True)
class PolicyRows:
    """What a file holds of one policy: its rows, the tokens that it sampled in them, and the rows of each seat that it
    played; `dropped` counts the model calls of which no row was made, by reason."""

    rows: int = 0
    tokens: int = 0
    seats: Counter[str] = field(default_factory=Counter[str])
    dropped: Counter[str] = field(default_factory=Counter[str])


@dataclass(slots=True)
class Written:
    """What a file of rows holds: the rows of so many episodes, by policy. A policy of which no call made a row is told
    of too, with what was dropped."""

    episodes: int
    policies: dict[str, PolicyRows]

    @property
    def rows(self) -> int:
        """How many rows there are."""
        return sum(policy.rows for policy in self.policies.values())

    def to_json(self) -> dict[str, Any]:
        """What is in the file, as JSON."""
        policies = {
            name: {
                "rows": policy.rows,
                "tokens": policy.tokens,
                "seats": dict(policy.seats),
                "dropped": dict(policy.dropped),
            }
            for name, policy in self.policies.items()
        }
        return {"episodes": self.episodes, "rows": self.rows, "policies": policies}


def write_rows(
    episodes: Iterable[Episode],
    path: Path,
    name: str,
    convert: Callable[[Sequence[Row]], Sequence[Any]],
    *,
    labels: bool = True,
    credit: str | Credit = "per_seat",
    **chosen: Unpack[Chosen],
) -> Written:
    """Cuts and credits the rows of all episodes, converts those that are chosen, and writes a line for each.

    All rows are in memory at once, since a reward is compared with those of other episodes. What makes no row is
    logged, with reasons, and so are groups that teach nothing: of one attempt, or all of one reward.

    Raises `ConfigurationError`, and leaves what was there, when there is no row at all, and when the rows are of several
    policies and nobody said which: a trainer has one, and would train it on what the others sampled.
    """
    played = list(episodes)
    seat = chosen.get("seat")
    rows, credited, report = cut_and_credit(played, seats=None if seat is None else [seat], credit=credit)
    if not played:
        raise ConfigurationError("there is no episode to export; see which there are: agent-env episodes list")
    if not rows:
        raise ConfigurationError(f"none of the {len(played)} episodes makes a row to train on: {report.reasons()}")
    policies = _by_policy(rows, report)
    wanted = _wanted(policies, chosen.get("policies", ()))
    indices = [index for index, row in enumerate(rows) if row.policy in wanted]
    rows = [rows[index] for index in indices]
    written = Written(len({row.episode for row in rows}), wanted)
    _tell_dropped(written, sum(len(row.calls) for row in rows))
    _tell_groups(rows, credited.report(indices))
    with replacing(path) as file:
        for row, converted in zip(rows, convert(rows), strict=True):
            line = {name: converted, "row": label_of(row)} if labels else {name: converted}
            file.write(json.dumps(line, separators=(",", ":")).encode() + b"\n")
    return written


def _by_policy(rows: Iterable[Row], report: RowReport) -> dict[str, PolicyRows]:
    policies: dict[str, PolicyRows] = {}
    for row in rows:
        policy = policies.setdefault(row.policy, PolicyRows())
        policy.rows += 1
        policy.tokens += row.sampled
        policy.seats[row.seat] += 1
    for name, dropped in report.dropped_of.items():
        policies.setdefault(name, PolicyRows()).dropped = dropped
    return policies


def _wanted(policies: dict[str, PolicyRows], names: Collection[str]) -> dict[str, PolicyRows]:
    """The policies that were named, or else all, of which one has rows."""
    with_rows = [name for name, policy in policies.items() if policy.rows]
    told = "; ".join(f"{name!r}, {policies[name].rows} as {' and '.join(policies[name].seats)}" for name in with_rows)
    for name in names:
        if name not in policies:
            raise ConfigurationError(f"there is no row of a policy {name!r}; there are rows of {told}")
        if name not in with_rows:
            raise ConfigurationError(
                f"no model call of the policy {name!r} makes a row: {counted(policies[name].dropped)}"
            )
    if not names and len(with_rows) > 1:
        raise ConfigurationError(
            f"there are rows of {len(with_rows)} policies, and a trainer has one: {told}; choose one (--policy "
            f"{with_rows[0]}, or policies=[{with_rows[0]!r}]), or name each that the file is to hold"
        )
    return {name: policy for name, policy in policies.items() if not names or name in names}


def counted(numbers: Counter[str]) -> str:
    """What there is how often, the most frequent first."""
    return ", ".join(f"{what} ({number})" for what, number in numbers.most_common())


def _tell_dropped(written: Written, used: int) -> None:
    dropped = sum((policy.dropped for policy in written.policies.values()), Counter[str]())
    if dropped:
        calls = used + dropped.total()
        log.warning("%d of %d model calls make no row: %s", dropped.total(), calls, counted(dropped))


def _tell_groups(rows: Sequence[Row], groups: GroupReport) -> None:
    why = (
        f"of their {groups.groups} groups {groups.singletons} have one attempt alone and {groups.flat} got the same "
        "throughout"
    )
    if not any(row.advantage for row in rows):
        log.warning(
            "all advantages are 0, so a trainer that takes them learns nothing from these %d rows: %s; %s",
            *(len(rows), why),
            "play each task several times (group_size), or compare by other groups (credit)"
            if groups.singletons
            else "what all attempts get alike teaches nothing: look at `score`, or play other tasks",
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
