"""What is asked of many candidates at once is what each of them would have been asked."""

from __future__ import annotations

import dataclasses
import random
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from agent_env.matchmaking import Caller, Degree, Matchmaker
from agent_env.matchmaking.candidate import with_newest
from agent_env.matchmaking.index import Index, bits_of, members
from agent_env.matchmaking.query import Query
from agent_env.matchmaking.rules import RULES
from agent_env.matchmaking.verdicts import Verdicts
from agent_env_cards import EnvironmentCard, Need, Offer

SEEDS = st.integers(0, 2**32)
CALLERS = [
    Caller(),
    Caller(EnvironmentCard(name="caller", version="1.0.0"), {"bearer": ["chat"]}),
    Caller(EnvironmentCard(name="agent-0", version="1.0.0", offers=Offer(tags=["vip"])), ["key", "bearer"]),
    Caller(EnvironmentCard(name="team/caller", version="1.0.0"), {"bearer": []}, {"mcp": frozenset({"2026-07-28"})}),
]


@settings(max_examples=60)
@given(SEEDS)
def test_every_rule_says_the_same_of_all_and_of_each(population: Any, seed: int) -> None:
    people = population(random.Random(seed))
    candidates = with_newest(people.candidates(people.rng.randint(1, 25)))
    verdicts = Verdicts()
    index = Index(candidates, verdicts)
    need = people.need()
    query = Query.of(need, people.rng.choice(CALLERS))
    for rule in RULES:
        for asked in [query, *(wish for name, wish in query.wishes if name == rule.name)]:
            swept = index.sweep(rule, asked, index.everyone)
            for at, candidate in enumerate(candidates):
                found = rule.apply(asked, candidate, Verdicts())
                told = [name for name in ("no", "unknown", "partial") if getattr(swept, name) >> at & 1]
                assert told == ([] if found.result == "yes" else [found.result]), f"{rule.name}: {found}"
                if found.result == "yes" and rule.fit:
                    assert bool(swept.inexact >> at & 1) is not found.exact, f"{rule.name}: {found}"


@settings(max_examples=60)
@given(SEEDS)
def test_the_ranking_is_the_order_of_the_explanations(population: Any, seed: int) -> None:
    people = population(random.Random(seed))
    matchmaker = Matchmaker(people.candidates(people.rng.randint(1, 30)))
    need, caller = people.need(), people.rng.choice(CALLERS)
    report = matchmaker.pair(need, caller=caller.card, auth=caller.auth, speaks=caller.speaks, limit=5)
    each = [
        matchmaker.explain(need, candidate, caller=caller.card, auth=caller.auth, speaks=caller.speaks)[0]
        for candidate in matchmaker.candidates
    ]
    fitting = sorted((one for one in each if one.degree is not Degree.FAIL), key=lambda one: (one.order, one.ref))
    assert report.fitting == len(fitting)
    assert [one.order for one in report.ranked] == [one.order for one in fitting[:5]]
    assert [one.to_json() for one in report.ranked] == [one.to_json() for one in fitting[:5]]
    failing = [one for one in each if one.degree is Degree.FAIL]
    assert [one.to_json() for one in report.rejected] == [one.to_json() for one in failing]
    first = [one.failed[0].rule for one in failing]
    assert dict(report.fell) == {rule.name: first.count(rule.name) for rule in RULES if rule.name in first}
    if not fitting:
        fewest = min(len(one.failed) for one in failing)
        assert report.nearest and all(len(one.failed) == fewest for one in report.nearest)


def test_liveness_and_load_are_taken_over_without_reading_the_cards_again(population: Any) -> None:
    people = population(random.Random(3))
    matchmaker = Matchmaker(people.candidates(20))
    before = matchmaker.candidates
    index = matchmaker._index
    after = [dataclasses.replace(candidate, liveness="up", free=None) for candidate in before]
    matchmaker.observe(after)
    assert matchmaker._index is index
    assert all(candidate.liveness == "up" for candidate in matchmaker.candidates)
    fresh = Matchmaker(after)
    for number in range(20):
        need = people.need(f"seat{number}")
        assert matchmaker.pair(need).to_json() == fresh.pair(need).to_json()
    matchmaker.observe(after[:-1])
    assert matchmaker._index is not index and len(matchmaker.candidates) == len(after) - 1


@settings(max_examples=50)
@given(st.sets(st.integers(0, 300)))
def test_sets_of_candidates_are_numbers(found: set[int]) -> None:
    assert list(members(bits_of(found))) == sorted(found)


@pytest.mark.parametrize("limit", [0, 1, 100])
def test_no_more_are_explained_than_asked_for(population: Any, limit: int) -> None:
    people = population(random.Random(5))
    matchmaker = Matchmaker(people.candidates(40))
    report = matchmaker.pair(Need("any"), limit=limit)
    assert len(report.ranked) == min(limit, report.fitting)
