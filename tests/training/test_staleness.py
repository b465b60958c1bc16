"""Staleness: the oldest call of a tree tells its age."""

from __future__ import annotations

from typing import Any

import pytest

from agent_env.episodes import CallRecord, Episode
from agent_env.errors import ConfigurationError
from agent_env.training.staleness import find_stale, staleness


def episode(name: str, *calls: tuple[str, Any], **fields: Any) -> Episode:
    made = Episode(name)
    made.add(
        CallRecord(f"k{number}", "t", seat, "p", policy_version=version, **fields)
        for number, (seat, version) in enumerate(calls)
    )
    return made


def test_a_tree_is_as_old_as_its_oldest_call() -> None:
    tree = episode("ep", ("manager", 9), ("worker", 3), ("worker", 5))
    assert staleness(tree, {"manager": 9, "worker": 5}) == 2
    assert staleness(tree, {"manager": 9}) == 0
    assert staleness(tree, {}) == 0


def test_each_seat_is_measured_by_its_own_policy() -> None:
    assert staleness(episode("ep", ("a", 100), ("b", 2)), {"a": 101, "b": 5}) == 3


def test_a_version_from_a_future_that_was_given_up_is_foreign_too() -> None:
    assert staleness(episode("ep", ("a", 12)), {"a": 10}) == 2


def test_a_call_that_spans_versions_is_as_old_as_its_beginning() -> None:
    assert staleness(episode("ep", ("a", 3), policy_version_end=5), {"a": 5}) == 2


@pytest.mark.parametrize("version", [None, "v3", True, 1.5])
def test_a_call_that_tells_no_version_leaves_the_age_unknown(version: Any) -> None:
    assert staleness(episode("ep", ("a", 3), ("a", version)), {"a": 5}) is None


def test_a_call_that_failed_sampled_nothing_and_has_no_age() -> None:
    assert staleness(episode("ep", ("a", None), status="upstream_error"), {"a": 5}) == 0


def test_whole_trees_beyond_the_bound_are_named_with_the_reason() -> None:
    batch = [
        episode("fresh", ("a", 5), ("b", 7)),
        episode("old", ("a", 5), ("b", 4)),
        episode("nameless", ("a", None)),
        episode("at the bound", ("a", 3)),
    ]
    failed = episode("failed", ("a", 0))
    failed.ok = False
    versions = {"a": 5, "b": 7}
    refused, report = find_stale([*batch, failed], versions, bound=2)
    assert refused == {"old": "stale", "nameless": "no policy version"}
    assert (report.ages, report.stale, report.unlabelled, report.oldest) == ({0: 1, 3: 1, 2: 1}, 1, 1, 3)


def test_kept_trees_are_counted_and_without_a_bound_nothing_is_stale() -> None:
    batch = [episode("old", ("a", 0)), episode("nameless", ("a", None))]
    refused, report = find_stale(batch, {"a": 5}, bound=2, stale="keep")
    assert refused == {} and (report.stale, report.unlabelled) == (1, 1)
    refused, report = find_stale(batch, {"a": 5}, bound=None)
    assert refused == {} and (report.stale, report.unlabelled, report.oldest) == (0, 1, 5)
    assert find_stale([], {}, bound=0)[1].oldest is None


def test_other_words_and_bounds_are_refused() -> None:
    with pytest.raises(ConfigurationError, match="'wait'"):
        find_stale([], {}, bound=1, stale="wait")  # type: ignore[arg-type]
    with pytest.raises(ConfigurationError, match="-1"):
        find_stale([], {}, bound=-1)
