"""Credit, with numbers worked out by hand."""

from __future__ import annotations

import json
import math
import random
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agent_env.errors import ConfigurationError
from agent_env.training.credit import (
    CREDITS,
    Credit,
    GroupReport,
    RoleBaseline,
    broadcast,
    credit_of,
    difference,
    group_advantages,
    per_parent_call,
    per_prompt,
    per_seat,
)
from agent_env.training.units import Unit

rewards = st.lists(st.tuples(st.floats(-10, 10), st.sampled_from("abcd")), max_size=20)


def test_an_advantage_is_the_distance_from_the_groups_mean() -> None:
    advantages, report = group_advantages([1, 1, 0], ["a", "a", "a"], normalise=False)
    assert advantages == pytest.approx([1 / 3, 1 / 3, -2 / 3])
    assert (report.groups, report.singletons, report.flat) == (1, 0, 0)


def test_normalised_it_is_in_standard_deviations() -> None:
    advantages, _ = group_advantages([1, 0, 4, 8], ["a", "a", "b", "b"])
    assert advantages == pytest.approx([1, -1, -1, 1], rel=1e-3)
    advantages, _ = group_advantages([1, 1, 0], ["a", "a", "a"])
    assert advantages == pytest.approx([2**-0.5, 2**-0.5, -(2**0.5)], rel=1e-3)


def test_groups_do_not_see_each_other() -> None:
    alone, _ = group_advantages([0, 1], ["a", "a"])
    beside, _ = group_advantages([0, 1, 50, 70], ["a", "a", "b", "b"])
    assert beside[:2] == alone


def test_one_alone_in_its_group_is_compared_with_the_batch() -> None:
    advantages, report = group_advantages([1, 0, 0, 1], ["a", "b", "b", "b"])
    assert advantages[0] == pytest.approx(1 - 0.5)
    assert report.singletons == 1 and report.groups == 2


def test_a_group_of_equal_rewards_teaches_nothing() -> None:
    advantages, report = group_advantages([3, 3, 0, 1], ["a", "a", "b", "b"])
    assert advantages[:2] == [0, 0] and report.flat == 1


def test_nothing_comes_of_nothing() -> None:
    assert group_advantages([], [])[0] == []


@given(rewards)
def test_advantages_of_a_group_add_up_to_nothing(values: list[tuple[float, str]]) -> None:
    given_rewards, groups = [value for value, _ in values], [group for _, group in values]
    advantages, _ = group_advantages(given_rewards, groups)
    for group in set(groups):
        own = [advantage for advantage, name in zip(advantages, groups, strict=True) if name == group]
        if len(own) > 1:
            assert sum(own) == pytest.approx(0, abs=1e-6)


# ── over units ─────────────────────────────────────────────────────────────────────────────────────────────────────


def unit(episode: str, reward: float, seat: str = "a", **fields: Any) -> Unit:
    return Unit(episode, seat, reward, **{"origin": "task", "instance": f"{episode}{seat}", **fields})


THREE = [unit("e1", 1.0), unit("e2", 1.0), unit("e3", 0.0)]


def test_per_seat_compares_attempts_of_a_seat_at_one_problem() -> None:
    centred = per_seat(THREE, normalise=False)
    assert centred.advantages == pytest.approx([1 / 3, 1 / 3, -2 / 3])
    assert per_seat(THREE).advantages == pytest.approx([2**-0.5, 2**-0.5, -(2**0.5)], rel=1e-3)
    assert centred.report() == GroupReport(1, 0, 0)


@pytest.mark.parametrize("elsewhere", [{"seat": "b"}, {"env": "chess", "origin": "/chess/task"}])
def test_seats_with_other_scales_of_reward_do_not_touch_each_other(elsewhere: dict[str, Any]) -> None:
    """One group for all roles lets the one with the larger rewards push all others one way (Dr. MAS; AReaL issue 1114).
    A seat of another game is another role, whatever its name."""
    judged = [replace(unit(f"f{n}", reward), **elsewhere) for n, reward in enumerate([100.0, 90.0, 80.0])]
    alone = unit("e9", 0.0)
    for strategy in (per_seat, per_parent_call, per_prompt, broadcast, difference, RoleBaseline()):
        own = [replace(one, prompt=(1,), root_seat=one.seat, root_reward=one.reward) for one in THREE]
        own.append(replace(alone, prompt=(2,), root_seat=alone.seat, root_reward=alone.reward))
        other = [replace(one, prompt=(1,), root_seat=one.seat, root_reward=one.reward) for one in judged]
        beside = strategy([*own, *other]).advantages
        fresh = RoleBaseline() if isinstance(strategy, RoleBaseline) else strategy
        assert beside[:4] == fresh(own).advantages


def test_problems_do_not_touch_each_other() -> None:
    other = [unit("e4", 5.0, origin="other"), unit("e5", 9.0, origin="other")]
    assert per_seat([*THREE, *other], normalise=False).advantages == pytest.approx([1 / 3, 1 / 3, -2 / 3, -2.0, 2.0])


def test_a_rollout_that_was_cut_into_many_rows_enters_the_mean_once() -> None:
    """Where each row counted, one long rollout outvoted the others (slime issue 904, miles issue 2378)."""
    forked = [unit("e1", 1.0), *[unit("e2", 0.0, prompt=(n,)) for n in range(9)]]
    for strategy in (per_seat, per_parent_call):
        credited = strategy(forked, normalise=False)
        assert credited.advantages == pytest.approx([0.5] + [-0.5] * 9)
        assert credited.report() == GroupReport(1, 0, 0)


def test_workers_that_one_episode_calls_often_count_once_too() -> None:
    workers = [unit("e1", reward, instance=f"w{reward}") for reward in (1.0, 0.0, 0.5)]
    # The episode enters with 0.5, so the mean is 0.25.
    credited = per_seat([*workers, unit("e2", 0.0)], normalise=False)
    assert credited.advantages == pytest.approx([0.75, -0.25, 0.25, -0.25])


def test_an_instance_that_was_cut_into_many_rows_counts_as_one_of_its_seat() -> None:
    """Of two workers in one episode the one with the longer chat would count three times."""
    workers = [unit("e1", 0.0, instance="one"), *[unit("e1", 1.0, instance="two", prompt=(n,)) for n in range(3)]]
    assert per_seat([*workers, unit("e2", 0.0)], normalise=False).advantages == pytest.approx(
        [-0.25, 0.75, 0.75, 0.75, -0.25]
    )
    baseline = RoleBaseline(decay=0.5)
    baseline(workers)
    assert baseline.values == {"a": 0.25}


def test_one_attempt_alone_has_no_advantage_and_is_counted() -> None:
    """Alone in its group an attempt was taught its raw reward (verl), or groups held one each (rllm issue 605)."""
    for strategy in (per_seat, per_parent_call, difference):
        credited = strategy([unit("e1", 7.0), unit("e2", 3.0, origin="other")])
        assert credited.advantages == [0.0, 0.0] and credited.report() == GroupReport(2, 2, 0)
    three_rows = per_seat([unit("e1", 1.0, prompt=(n,)) for n in range(3)])
    assert three_rows.advantages == [0.0] * 3 and three_rows.report() == GroupReport(1, 1, 0)


def test_a_group_that_all_got_the_same_is_counted_as_flat_however_it_is_rounded() -> None:
    credited = per_seat([unit(f"e{n}", 0.1) for n in range(3)])
    assert credited.advantages == [0.0] * 3 and credited.report() == GroupReport(1, 0, 1)
    assert group_advantages([0.1] * 3, "aaa")[1].flat == 1


def test_a_report_of_some_units_counts_their_groups_alone() -> None:
    credited = per_seat([*THREE, unit("e1", 1.0, "b"), unit("e1", 2.0, "c"), unit("e2", 2.0, "c")])
    assert credited.report() == GroupReport(3, 1, 1)
    assert credited.report([0, 1]) == GroupReport(1, 0, 0) and credited.report([3]) == GroupReport(1, 1, 0)


def test_broadcast_pushes_each_tree_the_way_of_its_root() -> None:
    batch = [
        replace(one, seat=seat, instance=f"{one.episode}{seat}{number}", **top(one))
        for one in THREE
        for number, seat in enumerate(["a", "b", "b"] if one.episode == "e1" else ["a"])
    ]
    credited = broadcast(batch, normalise=False)
    assert credited.advantages == pytest.approx([1 / 3, 1 / 3, 1 / 3, 1 / 3, -2 / 3])
    assert credited.report() == GroupReport(1, 0, 0)


def test_broadcast_compares_roots_of_one_seat_and_one_problem() -> None:
    game = [unit(f"e{n}", r, seat, root_seat=seat, root_reward=r) for seat in "ab" for n, r in enumerate([1.0, 0.0])]
    other = [replace(one, origin="other", root_reward=one.reward * 10 + 7) for one in game]
    assert broadcast(game + other, normalise=False).advantages == [0.5, -0.5, 0.5, -0.5, 5.0, -5.0, 5.0, -5.0]
    assert broadcast(game + other).report() == GroupReport(4, 0, 0)


def top(one: Unit) -> dict[str, Any]:
    return {"root_seat": "a", "root_instance": "root", "root_reward": one.reward}


def test_broadcast_passes_over_trees_whose_root_nobody_scored() -> None:
    credited = broadcast([replace(one, **top(one)) for one in THREE] + [unit("e4", 1.0, root_seat="a")])
    assert credited.advantages[3] == 0.0 and credited.groups[3] is None


def test_per_parent_call_compares_those_that_one_turn_called() -> None:
    siblings = [unit("e1", reward, "w", instance=f"i{n}", parent_call="t1") for n, reward in enumerate([1.0, 0.0])]
    cousins = [unit("e2", reward, "w", instance=f"i{n}", parent_call="t9") for n, reward in enumerate([5.0, 3.0, 1.0])]
    alone = [unit("e3", 8.0, "w", parent_call="t5")]
    credited = per_parent_call([*siblings, *cousins, *alone, *THREE], normalise=False)
    assert credited.advantages == pytest.approx([0.5, -0.5, 2.0, 0.0, -2.0, 0.0, 1 / 3, 1 / 3, -2 / 3])
    assert credited.report() == GroupReport(4, 1, 0)


def test_seats_that_one_turn_called_are_not_each_others_siblings() -> None:
    asked = [unit("e1", reward, seat, parent_call="t1") for seat, reward in (("w", 1.0), ("v", 0.0))]
    for strategy in (per_parent_call, difference):
        credited = strategy(asked)
        assert credited.advantages == [0.0, 0.0] and credited.report() == GroupReport(2, 2, 0)


def test_calls_of_one_name_in_two_episodes_are_two_calls() -> None:
    twice = [unit(episode, 1.0, "w", parent_call="t1") for episode in ("e1", "e2")]
    assert per_parent_call(twice).report() == GroupReport(2, 2, 0)


def test_per_prompt_compares_a_seat_with_itself_on_the_same_prompt() -> None:
    same = [unit(f"e{n}", reward, prompt=(1, 2)) for n, reward in enumerate([1.0, 0.0])]
    other = [unit(f"e{n}", reward, prompt=(3,)) for n, reward in enumerate([5.0, 3.0], start=2)]
    lonely = unit("e9", 4.0, prompt=(4,))
    credited = per_prompt([*same, *other, lonely], normalise=False)
    assert credited.advantages == pytest.approx([0.5, -0.5, 1.0, -1.0, 4.0 - 13 / 5])
    assert credited.report() == GroupReport(3, 1, 0)
    assert per_prompt([unit("e1", 1.0)]).groups == [None]


@given(rewards)
def test_per_prompt_is_group_advantages_of_rows_by_seat_and_prompt(values: list[tuple[float, str]]) -> None:
    units = [unit(f"e{n}", reward, prompt=(ord(name),)) for n, (reward, name) in enumerate(values)]
    expected, report = group_advantages([reward for reward, _ in values], [name for _, name in values])
    credited = per_prompt(units)
    assert credited.advantages == expected and credited.report() == report


def test_a_role_baseline_scores_before_it_learns() -> None:
    baseline = RoleBaseline(decay=0.95)
    credited = baseline([unit("e1", 1.0), unit("e2", 1.0), unit("e3", 0.0)])
    assert credited.advantages == pytest.approx([1.0, 0.95, -0.0975])
    assert baseline.values == pytest.approx({"a": 0.092625}) and credited.report().groups == 0
    again = baseline([unit("e4", 0.092625), unit("e4", -1.0, "b")])
    assert again.advantages == pytest.approx([0.0, -1.0])
    assert baseline.values == pytest.approx({"a": 0.092625, "b": -0.05})


def test_a_role_baseline_tells_the_sides_of_a_game_apart() -> None:
    """Against the mean of a zero-sum group, whoever moves first is praised for that alone (SPIRAL)."""
    baseline = RoleBaseline(decay=0.5, start=0.0)
    for game in range(20):
        baseline([unit(f"e{game}", 1.0, "first"), unit(f"e{game}", -1.0, "second")])
    usual = baseline([unit("e", 1.0, "first"), unit("e", -1.0, "second")]).advantages
    assert usual == pytest.approx([0.0, 0.0], abs=1e-5)


def test_a_role_baseline_is_moved_by_those_alone_who_learn() -> None:
    """What a frozen opponent got in a seat would be taken for the learner's own record there."""
    baseline = RoleBaseline(decay=0.5)
    credited = baseline([unit("e1", 1.0, "first"), unit("e1", -1.0, "second", learns=False)])
    assert baseline.values == {"first": 0.5} and credited.advantages == [1.0, 0.0]


def test_one_seat_of_two_games_is_two_roles() -> None:
    baseline = RoleBaseline(decay=0.5)
    baseline([unit("e1", 1.0, env="nim"), unit("e2", -4.0, env="chess")])
    assert baseline.values == {"nim/a": 0.5, "chess/a": -2.0}


def test_a_role_baseline_counts_an_episode_once_and_can_be_restored() -> None:
    baseline = RoleBaseline(decay=0.5)
    baseline([unit("e1", 1.0, prompt=(n,)) for n in range(5)])
    assert baseline.values == {"a": 0.5}
    restored = RoleBaseline(decay=0.5, values=json.loads(json.dumps(baseline.values)))
    assert restored([unit("e2", 1.0)]).advantages == [0.5]
    with pytest.raises(ConfigurationError, match=r"below 1, not 1.0"):
        RoleBaseline(decay=1.0)


def test_a_difference_is_what_the_team_would_have_missed() -> None:
    credited = difference([unit("e1", 1.0, without=0.25), unit("e2", 0.0, without=0.5)])
    assert credited.advantages == [0.75, -0.5] and credited.groups == [None, None]


def test_where_nobody_knows_the_difference_the_others_stand_in() -> None:
    assert difference(THREE).advantages == pytest.approx([0.5, 0.5, -1.0])
    siblings = [unit("e1", reward, "w", instance=f"i{n}", parent_call="t1") for n, reward in enumerate([1.0, 0.0, 0.5])]
    assert difference(siblings).advantages == pytest.approx([0.75, -0.75, 0.0])
    rows = [replace(siblings[0], prompt=(n,)) for n in range(4)]
    assert difference([*rows, *siblings[1:]]).advantages == pytest.approx([0.75] * 4 + [-0.75, 0.0])


def test_a_strategy_is_named_or_given() -> None:
    assert credit_of("per_seat") is per_seat and credit_of(difference) is difference
    with pytest.raises(ConfigurationError, match=r"'per_agent'; there are broadcast, per_seat"):
        credit_of("per_agent")
    with pytest.raises(ConfigurationError, match=r"make one RoleBaseline\(\)"):
        credit_of("role_baseline")


units = st.builds(
    unit,
    st.sampled_from(["e1", "e2", "e3", "e4"]),
    st.floats(-10, 10),
    st.sampled_from("ab"),
    origin=st.sampled_from(["x", "y"]),
    parent_call=st.sampled_from([None, "t1"]),
    prompt=st.sampled_from([(1,), (2,)]),
)


@given(st.lists(units, max_size=12), st.sampled_from([per_seat, per_parent_call, difference]), st.randoms())
def test_credit_depends_on_nobodys_place_in_the_batch(batch: list[Unit], strategy: Credit, rng: random.Random) -> None:
    order = rng.sample(range(len(batch)), len(batch))
    shuffled = strategy([batch[index] for index in order]).advantages
    straight = strategy(batch).advantages
    assert shuffled == pytest.approx([straight[index] for index in order], abs=1e-5)


@given(st.lists(units, max_size=12), st.lists(st.integers(1, 3), min_size=12, max_size=12))
def test_into_how_many_rows_an_instance_was_cut_changes_no_advantage(batch: list[Unit], times: list[int]) -> None:
    whole = [replace(one, instance=str(index)) for index, one in enumerate(batch)]
    cut = [one for one, count in zip(whole, times, strict=False) for _ in range(count)]
    at = [index for index, count in zip(range(len(whole)), times, strict=False) for _ in range(count)]
    for of_whole, of_cut in (
        *[(strategy, strategy) for strategy in CREDITS.values()],
        (RoleBaseline(), RoleBaseline()),
    ):
        advantages = of_whole(whole).advantages
        assert of_cut(cut).advantages == pytest.approx([advantages[index] for index in at], abs=1e-9)


@given(st.lists(units, max_size=12, unique_by=lambda one: (one.episode, one.seat)))
def test_nothing_that_is_added_to_all_rewards_of_a_group_changes_credit(batch: list[Unit]) -> None:
    raised = [replace(one, reward=one.reward + 3.0) for one in batch]
    before, after = (per_seat(given_units, normalise=False).advantages for given_units in (batch, raised))
    assert after == pytest.approx(before, abs=1e-9)


extremes = st.floats(allow_nan=False, allow_infinity=False) | st.sampled_from(
    [1.7976931348623157e308, -1.7976931348623157e308, 1e308, 5e-324, 0.0]
)
anything = st.builds(
    unit,
    st.sampled_from(["e1", "e2", "e3", "e4"]),
    extremes,
    st.sampled_from("ab"),
    origin=st.sampled_from(["x", "y"]),
    parent_call=st.sampled_from([None, "t1"]),
    prompt=st.sampled_from([(1,), (2,)]),
    root_seat=st.just("a"),
    root_instance=st.sampled_from(["r1", "r2"]),
    root_reward=st.none() | extremes,
    without=st.none() | extremes,
)
STRATEGIES: list[Callable[[], Credit]] = [
    *(lambda one=one: one for one in (broadcast, per_seat, per_parent_call, per_prompt, difference)),
    *(lambda one=one: partial(one, normalise=False) for one in (broadcast, per_seat, per_parent_call, per_prompt)),
    lambda: RoleBaseline(decay=0.95, start=1.7976931348623157e308),
]


@given(st.lists(anything, max_size=9), st.sampled_from(STRATEGIES))
def test_of_finite_rewards_however_large_come_finite_advantages(batch: list[Unit], make: Callable[[], Credit]) -> None:
    strategy = make()
    for _ in range(2):
        assert all(map(math.isfinite, strategy(batch).advantages))
    if isinstance(strategy, RoleBaseline):
        assert all(map(math.isfinite, strategy.values.values()))


@given(st.lists(st.tuples(extremes, st.sampled_from("ab")), max_size=9), st.booleans())
def test_groups_of_numbers_however_large_have_finite_advantages(
    values: list[tuple[float, str]], normalise: bool
) -> None:
    given_rewards, groups = [value for value, _ in values], [group for _, group in values]
    advantages, _ = group_advantages(given_rewards, groups, normalise=normalise)
    assert all(map(math.isfinite, advantages))
    for group in set(groups):
        # Normalised or not, the best of a group gets no less than the worst.
        mine = sorted(
            (value, advantage)
            for value, advantage, one in zip(given_rewards, advantages, groups, strict=True)
            if one == group
        )
        assert mine[0][1] <= mine[-1][1]


def test_rewards_at_the_end_of_what_a_float_holds_are_compared_as_small_ones_are() -> None:
    small, _ = group_advantages([4.0, 1.0, 1.0], ["a"] * 3)
    large, _ = group_advantages([1.6e308, 0.4e308, 0.4e308], ["a"] * 3)
    assert large == pytest.approx(small, rel=1e-3)
    assert group_advantages([1.6e308, -1.6e308], ["a", "a"], normalise=False)[0] == pytest.approx([1.6e308, -1.6e308])


@pytest.mark.parametrize("fields", [{"start": math.inf}, {"start": math.nan}, {"values": {"a": math.nan}}])
def test_a_baseline_starts_from_numbers(fields: dict[str, Any]) -> None:
    with pytest.raises(ConfigurationError, match="starts from finite numbers"):
        RoleBaseline(**fields)
