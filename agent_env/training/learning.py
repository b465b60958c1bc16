"""What policies make of episodes: rows, credit, and one update each."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Protocol

from agent_env.episodes import Episode
from agent_env.training.credit import Credit, Credited, GroupReport, credit_of
from agent_env.training.propagation import Propagation
from agent_env.training.rows import Row, RowReport, cut
from agent_env.training.staleness import Stale, StalenessReport, find_stale

if TYPE_CHECKING:
    from agent_env.training.update import UpdateStats

log = logging.getLogger("agent_env.training")


class Learner(Protocol):
    """What `learn` needs of a policy: a name, a version that updates raise, and an update from rows."""

    @property
    def name(self) -> str: ...
    @property
    def trainable(self) -> bool: ...
    @property
    def version(self) -> int: ...
    def update(self, rows: Sequence[Row]) -> UpdateStats | None: ...


@dataclass(slots=True)
class Lesson:
    """What one policy learned from: its rows, their groups, and its update (None if it had no rows)."""

    rows: int
    groups: GroupReport
    update: UpdateStats | None


@dataclass(slots=True)
class Lessons:
    """What a batch of episodes came to: its rows, how old it was, and a lesson a policy."""

    report: RowReport
    policies: dict[str, Lesson] = field(default_factory=dict[str, Lesson])
    staleness: StalenessReport = field(default_factory=StalenessReport)


def learn(
    policies: Mapping[str, Learner],
    episodes: Iterable[Episode],
    *,
    credit: str | Credit = "per_seat",
    propagation: str | Propagation = "team",
    max_staleness: int | None = None,
    stale: Stale = "drop",
) -> Lessons:
    """Updates each policy, given by the seat it plays, from the rows of its own seats and no others.

    `propagation` says what an agent is rewarded with, `credit` what that is compared with. An episode with a call more
    than `max_staleness` updates older than its seat's policy is dropped whole, or kept and counted. Policies that are
    frozen stay as they are.

        learn({"manager": manager, "worker": worker}, episodes, credit="per_seat", propagation="team")
    """
    played = list(episodes)
    trainable = {seat: policy for seat, policy in policies.items() if policy.trainable}
    versions = {seat: policy.version for seat, policy in trainable.items()}
    refused, ages = find_stale(played, versions, bound=max_staleness, stale=stale)
    rows, credited, report = credit_rows(
        played, seats=trainable, credit=credit, propagation=propagation, refused=refused
    )
    if played and trainable and not rows:
        seen = sorted({call.seat for episode in played for trace in episode.traces for call in trace.calls})
        log.warning(
            "nobody learns from these %d episodes, which make no row of the seats %s (they have model calls of %s): %s",
            *(len(played), ", ".join(map(repr, trainable)), ", ".join(map(repr, seen)) or "none", report.reasons()),
        )
    lessons = Lessons(report, staleness=ages)
    for policy in {id(policy): policy for policy in trainable.values()}.values():
        indices = [index for index, row in enumerate(rows) if trainable[row.seat] is policy]
        groups = credited.report(indices)
        if groups.groups and not any(rows[index].advantage for index in indices):
            # Equal rewards are what success looks like; attempts that nothing is compared with are a mistake.
            log.log(
                logging.WARNING if groups.singletons == groups.groups else logging.DEBUG,
                "policy %r learns nothing from %d rows: of their %d groups %d have one attempt alone and %d got the same "
                "throughout; play each task several times (group_size), or compare by other groups (credit)",
                *(policy.name, len(indices), groups.groups, groups.singletons, groups.flat),
            )
        update = policy.update([rows[index] for index in indices])
        lessons.policies[policy.name] = Lesson(len(indices), groups, update)
    return lessons


def credit_rows(
    episodes: Iterable[Episode],
    *,
    seats: Iterable[str] | None = None,
    credit: str | Credit = "per_seat",
    propagation: str | Propagation = "team",
    refused: Mapping[str, str] | None = None,
) -> tuple[list[Row], Credited, RowReport]:
    """Cuts rows and gives each its advantage: what `learn` updates from, for trainers that make the update themselves.

    The advantages and groups that come back are first those of the rows, in their order.
    """
    strategy = credit_of(credit)
    rows, units, report = cut(episodes, seats=seats, propagation=propagation, refused=refused)
    credited = strategy(units)
    for row, advantage in zip(rows, credited.advantages, strict=False):
        row.advantage = advantage
    return rows, credited, report
