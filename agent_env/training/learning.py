"""What policies make of episodes: rows, credit, and one update each."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from agent_env.episodes import Episode
from agent_env.training.credit import GroupReport, group_advantages
from agent_env.training.policy import Policy
from agent_env.training.rows import Row, RowReport, cut_rows
from agent_env.training.update import UpdateStats


@dataclass(slots=True)
class Lesson:
    """What one policy learned from: its rows' groups and its update (None if it is frozen or had no rows)."""

    rows: int
    groups: GroupReport
    update: UpdateStats | None


@dataclass(slots=True)
class Lessons:
    """What a batch of episodes came to: its rows, and a lesson a policy."""

    report: RowReport
    policies: dict[str, Lesson] = field(default_factory=dict[str, Lesson])


def learn(policies: Mapping[str, Policy], episodes: Iterable[Episode]) -> Lessons:
    """Updates each policy, given by the seat it plays, from the rows of its own seats and no others.

    A row's reward is its seat's; it is compared within its group, which holds one seat's rows with the same prompt.
    """
    trainable = {seat: policy for seat, policy in policies.items() if policy.trainable}
    rows, report = cut_rows(episodes, seats=trainable)
    lessons = Lessons(report)
    for policy in {id(policy): policy for policy in trainable.values()}.values():
        own = [row for row in rows if trainable[row.seat] is policy]
        groups = assign_advantages(own)
        lessons.policies[policy.name] = Lesson(len(own), groups, policy.update(own))
    return lessons


def assign_advantages(rows: list[Row]) -> GroupReport:
    """Gives each row its advantage within its group; rows without a reward have none and were not cut."""
    rewards = [row.reward or 0.0 for row in rows]
    advantages, report = group_advantages(rewards, [row.group for row in rows])
    for row, advantage in zip(rows, advantages, strict=True):
        row.advantage = advantage
    return report
