"""Credit: from rewards to advantages. Pure functions over plain numbers."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from math import sqrt

_TINY = 1e-4


@dataclass(slots=True)
class GroupReport:
    """How groups looked: alone in theirs (`singletons`), or all of one reward and so without a lesson (`flat`)."""

    groups: int = 0
    singletons: int = 0
    flat: int = 0


def group_advantages(
    rewards: Sequence[float], groups: Sequence[Hashable], *, normalise: bool = True
) -> tuple[list[float], GroupReport]:
    """The advantage of each reward over its group's mean, divided by the group's standard deviation (GRPO, arXiv
    2402.03300 §4.1.2; `normalise=False` leaves the division out, arXiv 2503.20783).

    A reward alone in its group is compared with the mean of the whole batch and not divided. A group whose rewards
    are all the same has advantages of 0.

        group_advantages([1, 1, 0], ["a", "a", "a"], normalise=False)   # 1/3, 1/3, -2/3
    """
    members: defaultdict[Hashable, list[int]] = defaultdict(list)
    for index, group in enumerate(groups):
        members[group].append(index)
    advantages = [0.0] * len(rewards)
    report = GroupReport(groups=len(members))
    overall = mean(rewards) if rewards else 0.0
    for indices in members.values():
        values = [rewards[index] for index in indices]
        if len(indices) == 1:
            report.singletons += 1
            advantages[indices[0]] = values[0] - overall
            continue
        middle = mean(values)
        spread = sqrt(mean([(value - middle) ** 2 for value in values]))
        if spread == 0.0:
            report.flat += 1
            continue
        scale = spread + _TINY if normalise else 1.0
        for index, value in zip(indices, values, strict=True):
            advantages[index] = (value - middle) / scale
    return advantages, report


def mean(values: Sequence[float]) -> float:
    """The arithmetic mean; raises `ZeroDivisionError` for no values."""
    return sum(values) / len(values)
