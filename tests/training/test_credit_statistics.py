"""Credit against its definition: an oracle in fractions that looks at instances, and knows of no rows or tables."""

from __future__ import annotations

import math
import statistics
from collections import defaultdict
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from functools import partial

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agent_env.training.credit import (
    CREDITS,
    RoleBaseline,
    broadcast,
    difference,
    group_advantages,
    per_parent_call,
    per_prompt,
    per_seat,
)
from agent_env.training.units import Unit

DIVIDED = ("broadcast", "per_seat", "per_parent_call", "per_prompt")


@dataclass(frozen=True)
class Agent:
    """An agent instance, which answered each of `prompts` in a row of its own."""

    episode: str
    origin: str
    seat: str
    key: str
    reward: float
    parent: str | None
    root: tuple[str, str, float | None]
    prompts: tuple[int, ...]
    without: float | None = None
    learns: bool = True


Told = tuple[str, int, str | None, tuple[int, ...], bool, float | None, bool]


def played(told: list[tuple[str, list[Told]]]) -> list[Agent]:
    """The agents of episodes, each told by its problem and, agent by agent, by seat, reward, who called it, prompts,
    whether it was scored, what the team got without it, and whether it learns."""
    agents: list[Agent] = []
    for number, (origin, members) in enumerate(told):
        top: tuple[str, str, float | None] | None = None
        for index, (seat, reward, parent, prompts, scored, without, learns) in enumerate(members):
            own = (seat, f"i{index}", float(reward) if scored else None)
            top = own if top is None and parent is None else top
            root = own if parent is None or top is None else top
            if scored:
                where = (f"e{number}", origin, seat, f"i{index}", float(reward), parent, root, prompts)
                agents.append(Agent(*where, without=without, learns=learns))
    return agents


rewards = st.integers(-3, 3)
tellings = st.tuples(
    st.sampled_from("ab"),
    rewards,
    st.sampled_from([None, None, "t1", "t2"]),
    st.lists(st.integers(0, 2), min_size=1, max_size=3).map(tuple),
    st.sampled_from([True, True, True, False]),
    st.none() | rewards.map(float),
    st.booleans(),
)
agents_of_episodes = st.lists(
    st.tuples(st.sampled_from(["x", "x", "y"]), st.lists(tellings, min_size=1, max_size=4)), max_size=5
).map(played)


def units(agents: Sequence[Agent]) -> list[Unit]:
    """A unit a row."""
    return [
        Unit(
            *(one.episode, one.seat, one.reward, one.origin, one.key, one.parent, *one.root, (prompt,), one.without),
            learns=one.learns,
        )
        for one in agents
        for prompt in one.prompts
    ]


# ── the oracle ─────────────────────────────────────────────────────────────────────────────────────────────────────


@dataclass(frozen=True)
class Entry:
    """What somebody got, and what counts once among those it is compared with."""

    once: Hashable
    reward: Fraction


def entered(name: str, one: Agent, prompt: int, agents: Sequence[Agent]) -> tuple[Entry, list[Entry]] | None:
    """What an agent enters a comparison with, and all that are compared, it among them; None where nobody is."""
    if name == "broadcast":
        if one.root[2] is None:
            return None
        tops = {(each.origin, each.episode, each.root) for each in agents if each.root[2] is not None}
        rivals = [
            Entry(episode, Fraction(reward or 0.0))
            for origin, episode, (seat, _, reward) in tops
            if (origin, seat) == (one.origin, one.root[0])
        ]
        return Entry(one.episode, Fraction(one.root[2])), rivals
    if name == "per_prompt":
        same = [each for each in agents if each.seat == one.seat and prompt in each.prompts]
        return entry_of(one, instances=True), [entry_of(each, instances=True) for each in same]
    if name == "difference":
        agents = [each for each in agents if each.without is None]
    if name == "per_seat" or one.parent is None:
        same = [each for each in agents if (each.origin, each.seat) == (one.origin, one.seat)]
        if name != "per_seat":
            same = [each for each in same if each.parent is None]
        return entry_of(one), [entry_of(each) for each in same]
    same = [each for each in agents if (each.episode, each.parent, each.seat) == (one.episode, one.parent, one.seat)]
    return entry_of(one, instances=True), [entry_of(each, instances=True) for each in same]


def entry_of(one: Agent, *, instances: bool = False) -> Entry:
    return Entry((one.episode, one.key) if instances else one.episode, Fraction(one.reward))


def shares(rivals: Sequence[Entry]) -> list[Fraction]:
    """The weight of each: what counts once weighs the same as another, and so do its parts."""
    once = [each.once for each in rivals]
    return [Fraction(1, len(set(once)) * once.count(each)) for each in once]


def average(rivals: Sequence[Entry]) -> Fraction:
    return sum((share * each.reward for share, each in zip(shares(rivals), rivals, strict=True)), Fraction(0))


def deviation(rivals: Sequence[Entry]) -> float:
    around = average(rivals)
    return math.sqrt(average([replace(each, reward=(each.reward - around) ** 2) for each in rivals]))


def alone(rivals: Sequence[Entry]) -> bool:
    return len({each.once for each in rivals}) == 1


def defined(name: str, one: Agent, prompt: int, agents: Sequence[Agent], *, normalise: bool) -> float:
    """The advantage of one row, as the documentation defines it."""
    if name == "difference" and one.without is not None:
        return one.reward - one.without
    found = entered(name, one, prompt, agents)
    if found is None:
        return 0.0
    own, rivals = found
    if alone(rivals):
        if name != "per_prompt":
            return 0.0
        batch = [entry_of(each, instances=True) for each in agents if each.seat == one.seat]
        return float(own.reward - average(batch))
    if name == "difference":
        return float(own.reward - average([each for each in rivals if each.once != own.once]))
    above = float(own.reward - average(rivals))
    return above / (deviation(rivals) + 1e-4) if normalise else above


# ── the strategies ─────────────────────────────────────────────────────────────────────────────────────────────────


def credited(name: str, *, normalise: bool = True) -> Callable[[Sequence[Unit]], list[float]]:
    strategy = CREDITS[name] if name == "difference" else partial(CREDITS[name], normalise=normalise)
    return lambda given_units: strategy(given_units).advantages


@pytest.mark.parametrize("name", CREDITS)
@given(agents_of_episodes, st.booleans())
def test_each_strategy_is_what_it_is_defined_to_be(name: str, agents: list[Agent], normalise: bool) -> None:
    expected = [defined(name, one, prompt, agents, normalise=normalise) for one in agents for prompt in one.prompts]
    assert credited(name, normalise=normalise)(units(agents)) == pytest.approx(expected, rel=1e-9, abs=1e-9)


@given(agents_of_episodes, st.sampled_from([0.0, 0.5, 0.95]))
def test_a_role_baseline_is_the_moving_average_of_the_episodes_before(agents: list[Agent], decay: float) -> None:
    baseline = RoleBaseline(decay=decay)
    averages: defaultdict[str, float] = defaultdict(float)
    expected: list[float] = []
    for episode in dict.fromkeys(one.episode for one in agents):
        own = [one for one in agents if one.episode == episode]
        expected += [one.reward - averages[one.seat] if one.learns else 0.0 for one in own for _ in one.prompts]
        for seat in "ab":
            got = [one.reward for one in own if one.seat == seat and one.learns]
            if got:
                averages[seat] = decay * averages[seat] + (1 - decay) * statistics.fmean(got)
    assert baseline(units(agents)).advantages == pytest.approx(expected, abs=1e-9)
    assert baseline.values == pytest.approx({seat: averages[seat] for seat in baseline.values}, abs=1e-9)


@pytest.mark.parametrize("name", DIVIDED)
@given(agents_of_episodes)
def test_advantages_of_a_group_have_the_mean_0_and_the_variance_1(name: str, agents: list[Agent]) -> None:
    found = CREDITS[name](units(agents))
    rows = [(one, prompt) for one in agents for prompt in one.prompts]
    groups: defaultdict[Hashable, dict[Hashable, tuple[Hashable, float]]] = defaultdict(dict)
    for (one, prompt), group, advantage in zip(rows, found.groups, found.advantages, strict=True):
        entry = entered(name, one, prompt, agents)
        if entry is not None and group not in found.singletons:
            key = one.root[1] if name == "broadcast" else one.key
            groups[group][one.episode, key] = (entry[0].once, advantage)
    for group, members in groups.items():
        # Of fractions, so that the weights are those of the definition and nothing is rounded but the advantages.
        advantages = [Entry(once, Fraction(advantage)) for once, advantage in members.values()]
        assert float(average(advantages)) == pytest.approx(0, abs=1e-9)
        assert (group in found.flat) == (deviation(advantages) == 0)
        if group not in found.flat:
            assert deviation(advantages) == pytest.approx(1, rel=2e-3)


@given(agents_of_episodes)
def test_a_group_is_flat_where_all_got_the_same_and_alone_where_one_did(agents: list[Agent]) -> None:
    for name in CREDITS:
        found = CREDITS[name](units(agents))
        rows = [(one, prompt) for one in agents for prompt in one.prompts]
        for (one, prompt), group in zip(rows, found.groups, strict=True):
            entry = entered(name, one, prompt, agents)
            if group is None or entry is None:
                assert entry is None or (name == "difference" and one.without is not None)
                continue
            assert (group in found.singletons) == alone(entry[1])
            if not alone(entry[1]):
                assert (group in found.flat) == (len({each.reward for each in entry[1]}) == 1)


def scaled(agents: Sequence[Agent], by: float, raised: float) -> list[Agent]:
    def of(value: float | None) -> float | None:
        return None if value is None else value * by + raised

    return [
        replace(
            one,
            reward=one.reward * by + raised,
            root=(*one.root[:2], of(one.root[2])),
            without=of(one.without),
        )
        for one in agents
    ]


@pytest.mark.parametrize("name", CREDITS)
@given(agents_of_episodes, st.integers(-1000, 1020), st.integers(-4, 4))
def test_undivided_credit_goes_with_the_scale_of_rewards_and_not_with_what_is_added(
    name: str, agents: list[Agent], power: int, raised: int
) -> None:
    by = 2.0**power
    plain, given_units = (units(each) for each in (agents, scaled(agents, by, raised * by)))
    before, after = (credited(name, normalise=False)(each) for each in (plain, given_units))
    assert [advantage / by for advantage in after] == pytest.approx(before, rel=1e-9, abs=1e-9)


@pytest.mark.parametrize("name", ["broadcast", "per_seat", "per_parent_call"])
@given(agents_of_episodes, st.integers(0, 1020), st.integers(-4, 4))
def test_divided_credit_goes_neither_with_the_scale_nor_with_what_is_added(
    name: str, agents: list[Agent], power: int, raised: int
) -> None:
    by = 2.0**power
    before = credited(name)(units(agents))
    assert credited(name)(units(scaled(agents, by, raised * by))) == pytest.approx(before, rel=2e-3)


@given(st.lists(st.floats(-10, 10), min_size=2, max_size=6))
def test_where_an_episode_has_one_agent_of_a_seat_all_are_grpo(values: list[float]) -> None:
    agents = played([("x", [("a", 0, None, (1,), True, None, True)]) for _ in values])
    batch = units([
        replace(one, reward=value, root=("a", "i0", value)) for one, value in zip(agents, values, strict=True)
    ])  # fmt: skip
    expected, _ = group_advantages(values, ["x"] * len(values))
    for strategy in (broadcast, per_seat, per_parent_call, per_prompt):
        assert strategy(batch).advantages == expected
    if len(set(values)) > 1:
        middle, spread = statistics.fmean(values), statistics.pstdev(values)
        assert expected == pytest.approx([(value - middle) / (spread + 1e-4) for value in values], rel=1e-6, abs=1e-6)


@given(agents_of_episodes)
def test_agents_that_the_program_called_are_credited_alike_by_seat_by_call_and_by_root(agents: list[Agent]) -> None:
    tops = [replace(one, parent=None, root=(one.seat, one.key, one.reward)) for one in agents]
    expected = per_seat(units(tops))
    for strategy in (broadcast, per_parent_call):
        assert strategy(units(tops)).advantages == expected.advantages
        assert strategy(units(tops)).report() == expected.report()


def workers(*episodes: Sequence[float]) -> list[Unit]:
    return [
        Unit(f"e{number}", "worker", reward, origin="x", instance=f"{number}.{index}")
        for number, got in enumerate(episodes)
        for index, reward in enumerate(got)
    ]


@pytest.mark.parametrize(
    ("episodes", "expected"),
    [
        ([(1.0, 0.0)] * 3, [1, -1] * 3),
        ([*[(1.0, 0.0)] * 7, (1.0, 1.0)], [*[0.882, -1.134] * 7, 0.882, 0.882]),
        ([(0.9, 0.1), (0.8, 0.2), (0.7, 0.31), (0.6, 0.4)], [1.46, -1.469, 1.094, -1.103, 0.728, -0.7, 0.362, -0.371]),
        ([(1.0, 0.0), (0.0, 1.0), (0.0, 1.001)], [0.999, -1, -1, 0.999, -1, 1.001]),
        # The episode of three enters with a third each: mean 1/2, and mean square around it 1/4.
        ([(1.0, 1.0, 0.0), (1.0, 0.0, 0.0)], [1, 1, -1, 1, -1, -1]),
    ],
)
def test_workers_of_one_episode_that_got_different_rewards_are_divided_by_how_these_differ(
    episodes: list[tuple[float, ...]], expected: list[float]
) -> None:
    """Divided by how the means of episodes differ, workers whose episodes are all as good got 0, or thousands."""
    found = per_seat(workers(*episodes))
    assert found.advantages == pytest.approx(expected, abs=1e-3) and not found.flat


def test_episodes_with_more_workers_of_one_reward_than_others_are_flat_however_means_are_rounded() -> None:
    found = per_seat(workers((0.1, 0.1, 0.1), (0.1,), (0.1, 0.1)))
    assert found.advantages == [0.0] * 6 and len(found.flat) == 1


def test_the_other_episodes_stand_in_for_what_a_team_would_have_got_without_an_agent_of_the_program() -> None:
    found = difference(workers((1.0, 0.0), (1.0,), (0.5,)))
    # Against the mean of 1 and 0.5, of 0.5 and 0.5, and of 0.5 and 1.
    assert found.advantages == pytest.approx([0.25, -0.75, 0.5, -0.25])
