"""Credit, with numbers worked out by hand."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agent_env.training.credit import group_advantages

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
