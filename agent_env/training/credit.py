"""Credit: from rewards to advantages. Pure functions over units and plain numbers.

| name | a unit's reward is compared with |
|---|---|
| `broadcast` | nothing of its own: it gets the advantage of the agent at the top of its path |
| `per_seat` | what its seat got in other attempts at the same problem |
| `per_parent_call` | what agents of its seat got that the same turn called; at the top, as `per_seat` |
| `per_prompt` | what its seat got for the very same prompt; alone with its prompt, what its seat got in the batch |
| `RoleBaseline` | the moving average of what its seat got before |
| `difference` | what the team would have got without it; where nobody knows, what its siblings got |

No comparison mixes seats, and the same seat of another scenario is another one. Among attempts at a problem an episode
counts once, in which the instances of the seat count the same; among those that one turn called, or that answered one
prompt, an instance counts once. Into how many rows an instance was cut is nothing to any of them. Its rows all get its
advantage, but with `per_prompt`: rows that begin differently answered different prompts, and each is compared with its
own. Weighed as they count, the advantages of a group have the mean 0 and, divided, the mean square 1. A unit that is
alone has nothing to be compared with: its advantage is 0, and the report counts it, as it counts groups that all got
the same. Of finite rewards come finite advantages, however large they are: one beyond what a float holds is the largest
that it does.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from math import isfinite
from typing import TypeAlias

from agent_env.errors import ConfigurationError
from agent_env.training.averages import Spread, bounded, mean
from agent_env.training.units import Unit

_TINY = 1e-4


@dataclass(slots=True)
class GroupReport:
    """How groups looked: alone in theirs (`singletons`), or all of one reward and so without a lesson (`flat`)."""

    groups: int = 0
    singletons: int = 0
    flat: int = 0


@dataclass(slots=True)
class Credited:
    """The advantage of each unit and the group it was compared in, None where it was compared with no group."""

    advantages: list[float]
    groups: list[Hashable | None]
    singletons: set[Hashable] = field(default_factory=set[Hashable])
    flat: set[Hashable] = field(default_factory=set[Hashable])

    def report(self, indices: Iterable[int] | None = None) -> GroupReport:
        """Counts the groups of all units, or of those given."""
        seen = self.groups if indices is None else [self.groups[index] for index in indices]
        groups = {group for group in seen if group is not None}
        return GroupReport(len(groups), len(groups & self.singletons), len(groups & self.flat))


Credit: TypeAlias = Callable[[Sequence[Unit]], Credited]


def broadcast(units: Sequence[Unit], *, normalise: bool = True) -> Credited:
    """Gives each unit the advantage of the agent at the top of its path of calls, so that a whole tree is pushed one
    way (MATPO, arXiv 2510.04678). An episode counts once, however many agents it has.

    Units whose top nobody scored get 0 and no group.
    """
    tops = [
        _Compared(
            None if unit.root_reward is None else (unit.origin, unit.root_seat),
            (unit.episode, unit.root_seat),
            unit.root_reward or 0.0,
            unit.root_instance,
        )
        for unit in units
    ]
    return _compare(tops, normalise=normalise)


def per_seat(units: Sequence[Unit], *, normalise: bool = True) -> Credited:
    """Compares each unit with what the same seat got in other attempts at the same problem (GRPO for each agent: Dr.
    MAS, arXiv 2602.08847). An episode counts once, however often it called the seat."""
    return _compare([_attempt(unit) for unit in units], normalise=normalise)


def per_parent_call(units: Sequence[Unit], *, normalise: bool = True) -> Credited:
    """Compares each unit with those of its seat that the same turn called, which face the problem that it set them.

    Units that the program called are compared with what their seat got in other attempts at the same problem.
    """
    return _compare([_sibling(unit) for unit in units], normalise=normalise)


def per_prompt(units: Sequence[Unit], *, normalise: bool = True) -> Credited:
    """Compares each unit with those of its seat that answered the same prompt, token by token. An instance counts once
    for each prompt that its rows begin with.

    One that is alone with its prompt is compared with the mean of its seat in the batch, and not divided. For agents
    whose prompts repeat: short ones, or ones that are asked the same by design.
    """
    compared = [
        _Compared(
            None if unit.prompt is None else (unit.role, unit.prompt),
            (unit.episode, unit.instance),
            unit.reward,
        )
        for unit in units
    ]
    credited = _compare(compared, normalise=normalise)
    means: defaultdict[str, dict[Hashable, float]] = defaultdict(dict)
    for unit, one in zip(units, compared, strict=True):
        if one.group is not None:
            means[unit.role][one.once, unit.reward] = unit.reward
    overall = {role: mean(list(values.values())) for role, values in means.items()}
    for index, unit in enumerate(units):
        if credited.groups[index] in credited.singletons:
            credited.advantages[index] = bounded(unit.reward - overall[unit.role])
    return credited


def difference(units: Sequence[Unit]) -> Credited:
    """What each unit added: its reward minus what the team would have got without it (`unit.without`).

    Where nobody found that out, its reward minus the mean of its siblings', which are those that `per_parent_call`
    compares (leave one out: C3, arXiv 2603.06859); of attempts at a problem, that of the other episodes. Differences are
    not divided by anything.
    """
    compared = [_sibling(unit) if unit.without is None else _Compared(None, None, 0.0) for unit in units]
    credited = _compare(compared, normalise=False)
    means = {
        group: {once: mean(list(parts.values())) for once, parts in counted.items()}
        for group, counted in _members(compared).items()
    }
    entered = [
        one if one.group is None else _Compared(one.group, one.once, means[one.group][one.once]) for one in compared
    ]
    own = _compare(entered, normalise=False).advantages
    for index, unit in enumerate(units):
        if unit.without is not None:
            credited.advantages[index] = bounded(unit.reward - unit.without)
        else:
            # What enters the mean M of n with m leaves the others (nM - m) / (n - 1), which is M - (m - M) / (n - 1).
            others = max(1, len(means[compared[index].group]) - 1)
            credited.advantages[index] = bounded(credited.advantages[index] + own[index] / others)
    return credited


@dataclass(slots=True)
class RoleBaseline:
    """Compares each unit with the moving average of what its seat got before (SPIRAL, arXiv 2506.24119 §3).

    For games of two sides, where the mean of a group is nought whatever they do, and for groups of one. Each episode
    counts once a seat: it is scored by the average of the episodes before it, which it then moves by `1 - decay`. Who
    does not learn moves nothing: what a frozen opponent got in a seat says nothing of the policy that learns in it.
    `values` are the averages by role (a seat of a scenario), `start` where they begin; keep the object from update to
    update, and `values` from run to run.

        baseline = RoleBaseline(decay=0.95)
        learn(policies, episodes, credit=baseline)
    """

    decay: float = 0.95
    start: float = 0.0
    values: dict[str, float] = field(default_factory=dict[str, float])

    def __post_init__(self) -> None:
        if not 0.0 <= self.decay < 1.0:
            raise ConfigurationError(f"the decay of a baseline is at least 0 and below 1, not {self.decay!r}")
        if not all(map(isfinite, (self.start, *self.values.values()))):
            raise ConfigurationError(f"a baseline starts from finite numbers, not {self.start!r} and {self.values!r}")

    def __call__(self, units: Sequence[Unit]) -> Credited:
        """Scores the units, in their order, and moves the averages."""
        rewards: defaultdict[tuple[str, str], dict[Hashable, float]] = defaultdict(dict)
        for unit in units:
            if unit.learns:
                rewards[unit.episode, unit.role][unit.instance, unit.reward] = unit.reward
        before: dict[tuple[str, str], float] = {}
        for (episode, role), values in rewards.items():
            average = self.values.get(role, self.start)
            before[episode, role] = average
            self.values[role] = bounded(self.decay * average + (1.0 - self.decay) * mean(list(values.values())))
        advantages = [bounded(unit.reward - before[unit.episode, unit.role]) if unit.learns else 0.0 for unit in units]
        return Credited(advantages, [None] * len(units))


CREDITS: Mapping[str, Credit] = {
    "broadcast": broadcast,
    "per_seat": per_seat,
    "per_parent_call": per_parent_call,
    "per_prompt": per_prompt,
    "difference": difference,
}


def credit_of(given: str | Credit) -> Credit:
    """The strategy of a name, or the function itself; raises `ConfigurationError` for a name that there is not."""
    if isinstance(given, type):
        raise ConfigurationError(f"credit is a function of units, not the class {given.__name__}; make one of it: ()")
    if not isinstance(given, str):
        return given
    if given == "role_baseline":
        raise ConfigurationError(
            "a role baseline remembers from update to update: make one RoleBaseline() and pass it as credit each time"
        )
    if given not in CREDITS:
        known = ", ".join(CREDITS)
        raise ConfigurationError(
            f"there is no credit {given!r}; there are {known}, a RoleBaseline(), or any function of units"
        )
    return CREDITS[given]


def group_advantages(
    rewards: Sequence[float], groups: Sequence[Hashable], *, normalise: bool = True
) -> tuple[list[float], GroupReport]:
    """The advantage of each reward over its group's mean, divided by the group's standard deviation (GRPO, arXiv
    2402.03300 §4.1.2; `normalise=False` leaves the division out, arXiv 2503.20783).

    A reward alone in its group is compared with the mean of the whole batch and not divided. A group whose rewards
    are all the same has advantages of 0.

        group_advantages([1, 1, 0], ["a", "a", "a"], normalise=False)   # 1/3, 1/3, -2/3
    """
    compared = [
        _Compared((group,), index, reward) for index, (reward, group) in enumerate(zip(rewards, groups, strict=True))
    ]
    credited = _compare(compared, normalise=normalise)
    overall = mean(rewards) if rewards else 0.0
    for index, reward in enumerate(rewards):
        if credited.groups[index] in credited.singletons:
            credited.advantages[index] = bounded(reward - overall)
    return credited.advantages, credited.report()


@dataclass(frozen=True, slots=True)
class _Compared:
    """A reward, the group it is compared in (None: in none), what counts once in that group, and which part of that it
    is the reward of."""

    group: Hashable | None
    once: Hashable
    reward: float
    part: Hashable = None


def _attempt(unit: Unit) -> _Compared:
    return _Compared((unit.origin, None, unit.seat), (unit.episode, unit.seat), unit.reward, unit.instance)


def _sibling(unit: Unit) -> _Compared:
    if unit.parent_call is None:
        return _attempt(unit)
    return _Compared((unit.episode, unit.parent_call, unit.seat), (unit.episode, unit.instance), unit.reward)


def _members(compared: Sequence[_Compared]) -> Mapping[Hashable, Mapping[Hashable, Mapping[Hashable, float]]]:
    """The rewards of each group, by what counts once in it and by the parts of that."""
    members: defaultdict[Hashable, defaultdict[Hashable, dict[Hashable, float]]] = defaultdict(
        lambda: defaultdict(dict)
    )
    for one in compared:
        if one.group is not None:
            members[one.group][one.once][one.part, one.reward] = one.reward
    return members


def _compare(compared: Sequence[_Compared], *, normalise: bool) -> Credited:
    """Compares rewards with the mean of their groups, in which what counts once enters with the mean of its parts."""
    credited = Credited([0.0] * len(compared), [one.group for one in compared])
    spreads: dict[Hashable, Spread] = {}
    for group, counted in _members(compared).items():
        rewards = [list(parts.values()) for parts in counted.values()]
        if len(rewards) == 1:
            credited.singletons.add(group)
        elif len({reward for parts in rewards for reward in parts}) == 1:
            credited.flat.add(group)
        else:
            spreads[group] = Spread(rewards, normalise=normalise, least=_TINY)
    for index, one in enumerate(compared):
        if one.group in spreads:
            credited.advantages[index] = spreads[one.group].distance(one.reward)
    return credited
