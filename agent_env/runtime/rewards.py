"""Rewards: what the owner's functions say a turn was worth. Nothing said is None, never 0.0."""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Any

from agent_env.errors import AgentFailed
from agent_env.runtime.declared import Reward


def earn(name: str, value: Any) -> Reward:
    """Reads what a reward function returned: a number, None, a bool, or a `Reward`.

    Raises `AgentFailed` for anything else: a reward that cannot be read must not become a number.
    """
    reward = value if isinstance(value, Reward) else Reward(value)
    if reward.value is None:
        return reward
    if type(reward.value) not in (int, float, bool) or not _finite(reward.value):
        raise AgentFailed(
            f"the reward {name!r} returned {reward.value!r:.100}; a reward is a finite number, None or a Reward"
        )
    return Reward(float(reward.value), reward.done)


def total(rewards: Iterable[tuple[float, Reward]]) -> tuple[float | None, bool]:
    """Sums the weighted rewards that were given, None if none was, and tells whether one ends the episode.

    Raises `AgentFailed` for a sum that is more than a number holds.
    """
    value: float | None = None
    done = False
    for weight, reward in rewards:
        done = done or reward.done
        if reward.value is not None:
            value = (value or 0.0) + weight * reward.value
            if not _finite(value):
                raise AgentFailed(
                    f"the rewards of a turn add up to {value!r} with {weight!r} times {reward.value!r}; give smaller ones"
                )
    return value, done


def _finite(value: float) -> bool:
    try:
        return math.isfinite(value)
    except OverflowError:
        return False
