"""What policies make of episodes: rows, credit, and one update each."""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Protocol

from agent_env.episodes import Episode
from agent_env.training.credit import Credit, Credited, GroupReport, broadcast, credit_of, per_prompt
from agent_env.training.propagation import Propagation, judge, own, propagation_of
from agent_env.training.rows import Row, RowReport, cut
from agent_env.training.seat_choice import chosen_seats, tell_idle
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
    """What one policy learned from: its rows, their groups, and its update (None if it had no rows). `idle` says why
    there was nothing to learn, None where there was, or where all did equally well."""

    rows: int
    groups: GroupReport
    update: UpdateStats | None
    idle: str | None = None


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
    told: set[str] | None = None,
) -> Lessons:
    """Updates each policy, given by the seat it plays, from the rows of its own seats and no others.

    `propagation` says what an agent is rewarded with, `credit` what that is compared with. An episode with a call more
    than `max_staleness` updates older than its seat's policy is dropped whole, or kept and counted. Policies that are
    frozen stay as they are.

    A warning says which policy learns nothing, why, and what to do; `told` are those of before, which are not given again
    and which it adds to: pass the same set each time.

        learn({"manager": manager, "worker": worker}, episodes, credit="per_seat", propagation="team")
    """
    played = list(episodes)
    trainable = {seat: policy for seat, policy in policies.items() if policy.trainable}
    versions = {seat: policy.version for seat, policy in trainable.items()}
    refused, ages = find_stale(played, versions, bound=max_staleness, stale=stale)
    rows, credited, report = cut_and_credit(
        played, seats=trainable, credit=credit, propagation=propagation, refused=refused
    )
    warned = set[str]() if told is None else told
    if played and trainable and not rows:
        seen = sorted({call.seat for episode in played for trace in episode.traces for call in trace.calls})
        _warn(
            *(warned, "nobody learns"),
            f"nobody learns from these {_counted(played)}, which make no row of the seats {_listed(trainable)} "
            f"(they have model calls of {_listed(seen)}): {_missed(report, played, propagation)}",
        )
    lessons = Lessons(report, staleness=ages)
    for policy in {id(policy): policy for policy in trainable.values()}.values():
        indices = [index for index, row in enumerate(rows) if trainable[row.seat] is policy]
        groups = credited.report(indices)
        idle = None
        if played and not indices:
            seats = [seat for seat, one in trainable.items() if one is policy]
            missed = cut(played, seats=seats, propagation=propagation, refused=refused)[2]
            idle = (
                f"of the {_counted(played)} none makes a row of the seats {_listed(seats)}: "
                f"{_missed(missed, played, propagation)}"
            )
        elif not any(rows[index].advantage for index in indices):
            idle = _unmoved(len(indices), groups, credit_of(credit), played)
        if idle is not None and rows:  # where there is no row at all, that was told for all
            kind = "no row" if not indices else "alone" if groups.groups else "not compared"
            _warn(warned, f"{policy.name} learns nothing: {kind}", f"policy {policy.name!r} learns nothing: {idle}")
        update = policy.update([rows[index] for index in indices])
        lessons.policies[policy.name] = Lesson(len(indices), groups, update, idle)
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

    The advantages and groups that come back are first those of the rows, in their order. A warning tells of seats that
    were given and have no call to learn from.
    """
    asked = chosen_seats(seats)
    found = cut_and_credit(episodes, seats=asked, credit=credit, propagation=propagation, refused=refused)
    tell_idle(asked, found[2].called, found[2].frozen)
    return found


def cut_and_credit(
    episodes: Iterable[Episode],
    *,
    seats: Iterable[str] | None = None,
    credit: str | Credit = "per_seat",
    propagation: str | Propagation = "team",
    refused: Mapping[str, str] | None = None,
) -> tuple[list[Row], Credited, RowReport]:
    """Does what `credit_rows` does, without its warning: for those who tell themselves what makes no row, and for small
    parts of a run, in which not every seat is called."""
    strategy = credit_of(credit)
    rows, units, report = cut(episodes, seats=seats, propagation=propagation, refused=refused)
    credited = strategy(units)
    for row, advantage in zip(rows, credited.advantages, strict=False):
        row.advantage = advantage
    return rows, credited, report


_ADVICE: Mapping[str, str] = {
    "not scored": 'let `score` give a reward to the seat, or to "team"',
    "reward not finite": "let `score` return finite numbers",
    "episode not ok": "see the `failures` of the episodes",
    "call failed": "see the `error` of the calls",
    "stale": "play with newer policies, or allow more (max_staleness)",
}
"""What to do about the most frequent reason for which calls make no row, where it is not said with it."""

_SHARED = 'let `score` give the seat a reward, or share the team\'s (propagation="team")'
"""What to do about what is not scored where a propagation leaves the team's reward out."""


def _unmoved(rows: int, groups: GroupReport, credit: Credit, played: Sequence[Episode]) -> str | None:
    """Why rows whose advantages are all 0 teach nothing; None where equal rewards say so, which are what success looks
    like: attempts that nothing is compared with are a mistake."""
    if groups.groups:
        if groups.singletons < groups.groups or (credit is per_prompt and rows > 1):
            return None  # a prompt that stands alone is compared with the others
        alone = f"of the {groups.groups} groups of its {rows} rows all have one attempt alone"
        failed, attempts = _failed(played), Counter(episode.group for episode in played)
        if failed and any(count > 1 for group, count in attempts.items() if group is not None):
            return (
                f"{alone}: {failed} of {len(played)} episodes failed, and leave others alone in their group; see their "
                "`failures`, or play each task more often (group_size)"
            )
        return f"{alone}; play each task several times (group_size), or compare by other groups (credit)"
    if not rows or credit is not broadcast:
        return None  # others that know no groups compare with a number
    return (
        f"its {rows} rows were compared with nothing, so that all have the advantage 0; broadcast does so where nobody "
        "scored the agent at the top of the calls: let `score` do that, or compare by other groups (credit)"
    )


def _missed(report: RowReport, played: Sequence[Episode], propagation: str | Propagation) -> str:
    """Why there is no row, and what to do."""
    advice = "see that it is called, and that its agent asks the model that it is given"
    if report.dropped:
        why = report.dropped.most_common(1)[0][0]
        partly = propagation_of(propagation) in (own, judge)
        advice = _SHARED if partly and why == "not scored" else _ADVICE.get(why, "")
    elif _failed(played) == len(played):
        advice = _ADVICE["episode not ok"]
    reasons = report.reasons("these seats")
    return f"{reasons}; {advice}" if advice else reasons


def _failed(played: Sequence[Episode]) -> int:
    return sum(not episode.ok for episode in played)


def _counted(played: Sequence[Episode]) -> str:
    failed = _failed(played)
    return f"{len(played)} episodes" + (f" ({failed} failed)" if failed else "")


def _listed(seats: Iterable[str]) -> str:
    return ", ".join(map(repr, seats)) or "none"


def _warn(warned: set[str], kind: str, text: str) -> None:
    """Warns once of each kind."""
    if kind not in warned:
        warned.add(kind)
        log.warning("%s", text)
