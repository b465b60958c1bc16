"""Propagation: what an agent instance is rewarded with, given what was scored in its episode.

| name | an instance gets |
|---|---|
| `team` | what the whole team got, and what its seat or itself was given by name |
| `discounted` | the same, the team's part times gamma for each agent above it on the path of calls |
| `own` | what its own environment gave its turns, and what its seat or itself was given by name |
| `judge` | what judges gave its seat or itself, or the whole team |

Each is a function from an instance to a number, or None when nothing of the kind was scored: then there is nothing to
learn from, which is not the same as a reward of 0. Any function of that form can take their place.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import TypeAlias

from agent_env.episodes import RewardRecord
from agent_env.errors import ConfigurationError
from agent_env.training.averages import mean
from agent_env.training.units import Instance

Propagation: TypeAlias = Callable[[Instance], float | None]

JUDGE = "judge"
DIFFERENCE = "difference"
"""The source of a score that says what the team would have got without a seat's, an instance's or a call's reply. Give
it the weight 0, so that it counts for no sum of rewards."""


def team(instance: Instance) -> float | None:
    """The team's reward, shared by all, and what was given to this seat or instance by name."""
    return _added([*_weighed(_of_team(instance)), *_weighed(_of_its_own(instance))])


def discounted(instance: Instance, *, gamma: float = 0.9) -> float | None:
    """The team's reward times `gamma ** depth`, and in full what was given to this seat or instance by name.

    The depth is counted along the path of calls, so of two workers that run side by side neither is discounted more.
    """
    faded = [value * gamma**instance.depth for value in _weighed(_of_team(instance))]
    return _added([*faded, *_weighed(_of_its_own(instance))])


def own(instance: Instance) -> float | None:
    """What the instance's own environment gave its turns, and what was given to this seat or instance by name."""
    turns = [turn.reward for turn in instance.turns if turn.reward is not None]
    return _added([*turns, *_weighed(_of_its_own(instance))])


def judge(instance: Instance) -> float | None:
    """What judges (scores of the source "judge") gave to this seat or instance, or to the whole team."""
    said = [*_of_team(instance), *_of_its_own(instance)]
    return _added(_weighed(reward for reward in said if reward.source == JUDGE))


def without(instance: Instance) -> float | None:
    """What the team would have got without the instance, the mean of all scores that say so; None if none does."""
    values = [reward.value for reward in instance.rewards if reward.source == DIFFERENCE and reward.value is not None]
    return mean(values) if values else None


PROPAGATIONS: Mapping[str, Propagation] = {"team": team, "discounted": discounted, "own": own, "judge": judge}


def propagation_of(given: str | Propagation) -> Propagation:
    """The propagation of a name, or the function itself; raises `ConfigurationError` for a name that there is not."""
    if not isinstance(given, str):
        return given
    if given not in PROPAGATIONS:
        raise ConfigurationError(
            f"there is no propagation {given!r}; there are {', '.join(PROPAGATIONS)}, or pass a function of an Instance"
        )
    return PROPAGATIONS[given]


def _of_team(instance: Instance) -> list[RewardRecord]:
    return [reward for reward in instance.shared if reward.source != DIFFERENCE]


def _of_its_own(instance: Instance) -> list[RewardRecord]:
    return [reward for reward in instance.rewards if reward.source != DIFFERENCE]


def _weighed(rewards: Iterable[RewardRecord]) -> list[float]:
    return [reward.value * reward.weight for reward in rewards if reward.value is not None]


def _added(values: list[float]) -> float | None:
    return sum(values) if values else None
