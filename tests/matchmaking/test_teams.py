"""Seats are filled so that the team as a whole is best."""

from __future__ import annotations

import itertools
import random
from collections.abc import Mapping, Sequence
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from agent_env.errors import MatchError
from agent_env.matchmaking import Candidate, Matchmaker, PairingReport
from agent_env.matchmaking.assignment import Shortage, assign
from agent_env.matchmaking.teams import weights_of
from agent_env_cards import Need

SEEDS = st.integers(0, 2**32)


def cheapest(costs: Sequence[Mapping[int, int]], columns: int) -> int | None:
    """The least sum over all ways to give each row a column of its own."""
    best: int | None = None
    for choice in itertools.permutations(range(columns), len(costs)):
        if all(column in row for row, column in zip(costs, choice, strict=True)):
            total = sum(row[column] for row, column in zip(costs, choice, strict=True))
            best = total if best is None else min(best, total)
    return best


@settings(max_examples=300)
@given(
    st.integers(1, 6).flatmap(
        lambda columns: st.tuples(
            st.just(columns),
            st.lists(
                st.dictionaries(st.integers(0, columns - 1), st.integers(0, 9) | st.just(10**40)),
                min_size=1,
                max_size=columns,
            ),
        )
    )
)
def test_the_assignment_costs_as_little_as_any(case: tuple[int, list[dict[int, int]]]) -> None:
    columns, costs = case
    found, best = assign(costs, columns), cheapest(costs, columns)
    if isinstance(found, Shortage):
        assert best is None
        allowed = {column for row in found.rows for column in costs[row]}
        assert allowed == set(found.columns) and len(found.columns) < len(found.rows)
    else:
        assert len(set(found)) == len(costs)
        assert sum(row[column] for row, column in zip(costs, found, strict=True)) == best


def worth(reports: Mapping[str, PairingReport], refs: Mapping[str, str]) -> tuple[int, ...]:
    """What ranks candidates, summed over a team: the lower the better."""
    orders = [one.order for seat, ref in refs.items() for one in reports[seat].ranked if one.ref == ref]
    return tuple(sum(part) for part in zip(*orders, strict=True))


@settings(max_examples=120)
@given(SEEDS)
def test_a_team_is_as_good_as_the_best_of_all_teams(population: Any, seed: int) -> None:
    rng = random.Random(seed)
    people = population(rng)
    matchmaker = Matchmaker(people.easy(rng.randint(3, 9)))
    count = rng.randint(1, 6)
    seats = {f"seat{number}": people.need(f"seat{number}", 0.1) for number in range(count)}
    optional = {seat for seat in seats if rng.random() < 0.3}
    reports = {seat: matchmaker.pair(need, limit=100) for seat, need in seats.items()}
    # Everybody may be a choice here, so that the brute force does not rest on what the product leaves out.
    choices = [[one.ref for one in reports[seat].ranked] + ([None] if seat in optional else []) for seat in seats]
    best: tuple[Any, ...] | None = None
    for picked in itertools.product(*choices):
        chosen = {seat: ref for seat, ref in zip(seats, picked, strict=True) if ref is not None}
        if len(set(chosen.values())) == len(chosen):
            found = (len(seats) - len(chosen), worth(reports, chosen))
            best = found if best is None else min(best, found)
    try:
        team = matchmaker.team(seats, optional=optional, limit=100)
    except MatchError as error:
        assert best is None, error
        return
    seated = {seat: pairing.candidate.ref for seat, pairing in team.seats.items() if pairing is not None}
    assert len(set(seated.values())) == len(seated)
    assert (len(seats) - len(seated), worth(reports, seated)) == best


@settings(max_examples=60)
@given(SEEDS)
def test_sums_of_costs_compare_as_the_summed_ranks_do(population: Any, seed: int) -> None:
    rng = random.Random(seed)
    people = population(rng)
    matchmaker = Matchmaker(people.easy(8))
    found = {f"seat{number}": matchmaker.pair(people.need(f"seat{number}", 0.1)) for number in range(6)}
    reports = {seat: report for seat, report in found.items() if report.ranked}
    costs = {
        seat: dict(zip((one.ref for one in reports[seat].ranked), weights, strict=True))
        for seat, weights in weights_of(reports).items()
    }
    teams = [{seat: rng.choice(report.ranked).ref for seat, report in reports.items()} for _ in range(40)]
    for one, other in itertools.pairwise(teams):
        if worth(reports, one) != worth(reports, other):
            sums = [sum(costs[seat][ref] for seat, ref in team.items()) for team in (one, other)]
            assert (sums[0] < sums[1]) is (worth(reports, one) < worth(reports, other))


@settings(max_examples=60)
@given(SEEDS)
def test_what_a_seat_ranks_below_the_number_of_seats_never_matters(population: Any, seed: int) -> None:
    rng = random.Random(seed)
    people = population(rng)
    matchmaker = Matchmaker(people.easy(rng.randint(2, 20)))
    seats = {f"seat{number}": people.need(f"seat{number}", 0.1) for number in range(rng.randint(1, 4))}
    reports = {seat: matchmaker.pair(need, limit=100) for seat, need in seats.items()}
    if any(not report.ranked for report in reports.values()):
        return
    try:
        short, long = matchmaker.team(seats, limit=1), matchmaker.team(seats, limit=100)
    except MatchError:
        with pytest.raises(MatchError):
            matchmaker.team(seats, limit=100)
        return
    teams = [{seat: team[seat].candidate.ref for seat in seats} for team in (short, long)]
    assert worth(reports, teams[0]) == worth(reports, teams[1])


def test_nobody_sits_twice_unless_it_is_allowed(card: Any) -> None:
    matchmaker = Matchmaker([Candidate(card("both", skills=["math", "law"]), free=2), card("lawyer", skills=["law"])])
    seats = {"solver": Need("solver", skills=["math"]), "judge": Need("judge", skills=["law"])}
    team = matchmaker.team(seats)
    assert (team["solver"].candidate.ref, team["judge"].candidate.ref) == ("both@1.0.0", "lawyer@1.0.0")
    seats["clerk"] = Need("clerk", skills=["math"])
    with pytest.raises(MatchError) as caught:
        matchmaker.team(seats)
    assert caught.value.data["seats"] == ["solver", "clerk"]
    assert caught.value.data["candidates"] == ["both@1.0.0"]
    assert "'solver' and 'clerk' compete: 2 seats have only both@1.0.0 between them" in str(caught.value)
    reused = matchmaker.team(seats, allow_reuse=True)
    assert [reused[seat].candidate.card.name for seat in ("solver", "clerk")] == ["both", "both"]


def test_an_agent_sits_no_oftener_than_it_has_free_sessions(card: Any) -> None:
    needs = [Need(f"seat{number}", skills=["math"]) for number in range(3)]
    two = Matchmaker([Candidate(card("two", skills=["math"]), free=2)])
    with pytest.raises(MatchError, match=r"3 seats have only two@1\.0\.0"):
        two.team(needs, allow_reuse=True)
    assert len(two.team(needs[:2], allow_reuse=True).seats) == 2


def test_an_optional_seat_stays_empty_rather_than_taking_somebody_who_is_needed(card: Any) -> None:
    matchmaker = Matchmaker([card("one", skills=["math", "law"])])
    seats = [Need("judge", skills=["law"]), Need("solver", skills=["math"])]
    team = matchmaker.team(seats, optional=["judge"])
    assert team.seats["judge"] is None and team["solver"].candidate.ref == "one@1.0.0"
    assert team.summary == "judge: nobody, solver: one@1.0.0"
    assert team.rows()[0][:2] == ("judge", "nobody")
    assert team.to_json()["judge"] is None
    with pytest.raises(KeyError, match="the optional seat 'judge' is empty"):
        team["judge"]
    nobody = matchmaker.team([Need("singer", skills=["music"])], optional=["singer"])
    assert nobody.seats == {"singer": None}


def test_a_team_takes_the_second_best_where_that_is_better_for_all(card: Any) -> None:
    # The generalist is the best for both seats; one of them has somebody else, the other one has not.
    generalist = card("generalist", skills=["math", "law"], tags=["fast"])
    matchmaker = Matchmaker([generalist, card("lawyer", skills=["law"])])
    wanted = {"tags": ["fast"]}
    seats = [Need("judge", skills=["law"], prefers=wanted), Need("solver", skills=["math"], prefers=wanted)]
    assert matchmaker.pair(seats[0]).require().ref == "generalist@1.0.0"
    assert matchmaker.team(seats).summary == "judge: lawyer@1.0.0, solver: generalist@1.0.0"


def test_a_seat_that_nobody_fits_says_who_came_nearest(card: Any) -> None:
    matchmaker = Matchmaker([card("solver", skills=["math"])])
    with pytest.raises(MatchError, match=r"nearest is solver@1\.0\.0") as caught:
        matchmaker.team({"bench": Need("judge", skills=["law"]), "desk": Need("desk")})
    assert caught.value.data["seat"] == "bench" and caught.value.data["fell"] == {"skills": 1}


def test_seats_have_names_of_their_own(card: Any) -> None:
    with pytest.raises(MatchError, match="two needs have the seat 'a'"):
        Matchmaker([card()]).team([Need("a"), Need("a")])


def test_the_same_team_is_worked_out_once_while_the_candidates_stay(card: Any) -> None:
    candidates = [card("one", skills=["math"]), card("two", skills=["math"])]
    matchmaker, needs = Matchmaker(candidates), [Need("solver", skills=["math"])]
    team = matchmaker.team(needs)
    assert matchmaker.team(needs) is team
    assert matchmaker.team(needs, auth=["bearer"]) is not team
    assert matchmaker.team([Need("solver", skills=["math"])]) is not team
    matchmaker.observe([Candidate(candidates[0], free=0), candidates[1]])
    assert matchmaker.team(needs)["solver"].candidate.ref == "two@1.0.0"
