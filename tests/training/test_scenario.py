"""Scenarios: what is one, who is seated, how scores count; and the team that plays it."""

from __future__ import annotations

import json
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

from agent_env import AgentEnvironment, Environment
from agent_env import Seat as PublicSeat
from agent_env.episodes import Episode, recording
from agent_env.errors import AgentFailed, ConfigurationError, InvalidArguments
from agent_env.training import Scenario, Seat, Team

pytestmark = pytest.mark.anyio


async def play(team: Team, task: Any) -> Any:
    return task


def test_a_module_an_object_and_a_function_are_scenarios() -> None:
    module = ModuleType("games.duel")
    module.__dict__.update(play=play, seats={"a": Seat()}, score=None)
    made = Scenario.of(module)
    assert (made.play, made.name, made.seats, made.score) == (play, "duel", {"a": Seat()}, None)
    named = Scenario.of(SimpleNamespace(play=play, name="v1.nim"))
    assert (named.name, named.seats) == ("v1.nim", {})

    class Nim:
        async def play(self, team: Team, task: Any) -> Any:
            return task

    assert Scenario.of(Nim()).name == "Nim"
    assert Scenario.of(play) == Scenario(play, name="play")
    assert Scenario.of(made) is made and PublicSeat is Seat
    for odd in (SimpleNamespace(play=3), 5, "play", None):
        with pytest.raises(ConfigurationError, match="is no scenario"):
            Scenario.of(odd)


def test_seats_are_named_and_are_seats() -> None:
    with pytest.raises(ConfigurationError, match="cannot be named 'team'"):
        Scenario(play, seats={"team": Seat()})
    with pytest.raises(ConfigurationError, match=r"must be a Seat, not 'manager@1'; wrap it: Seat\(env\)"):
        Scenario(play, seats={"manager": "manager@1"})  # type: ignore[dict-item]


def test_policies_are_given_by_name_and_come_back_by_seat() -> None:
    scenario = Scenario(
        play,
        seats={
            "first": Seat("p@1", policy="p"),
            "second": Seat("p@1", policy="p"),
            "judge": Seat("j@1", policy="j", trainable=False),
            "user": Seat("u@1"),
        },
    )
    assert scenario.seated({"p": 1, "j": 2, "other": 3}) == {"first": 1, "second": 1, "judge": 2}
    assert scenario.seated({"p": 1}, trainable=True) == {"first": 1, "second": 1}
    assert scenario.seated({"j": 2}, trainable=False) == {"judge": 2}
    with pytest.raises(ConfigurationError, match="the seat 'judge' is played by the policy 'j'; given are p"):
        scenario.seated({"p": 1})


async def scored(score: Any, *seats: str) -> Episode:
    episode = Episode("e")
    await Scenario(play, score, {seat: Seat() for seat in seats}).apply_scores(episode)
    return episode


async def test_scores_are_by_seat_and_name_with_weights_and_none_is_not_zero() -> None:
    episode = await scored(
        lambda episode: {
            "a": {"right": True, "short": (0.5, 0.1), "kind": None},
            "team": {"won": 2},
            None: {"late": (None, 3.0)},
        },
        "a",
        "b",
    )
    told = [(one.target, one.target_id, one.name, one.value, one.weight) for one in episode.rewards]
    assert told == [
        ("seat", "a", "right", 1.0, 1.0),
        ("seat", "a", "short", 0.5, 0.1),
        ("seat", "a", "kind", None, 1.0),
        ("episode", None, "won", 2.0, 1.0),
        ("episode", None, "late", None, 3.0),
    ]
    assert (episode.reward("a"), episode.reward("b"), episode.reward()) == (3.05, 2.0, 2.0)
    assert Episode.from_json(json.loads(json.dumps(episode.to_json()))) == episode
    assert not (await scored(None)).rewards and not (await scored(lambda episode: None)).rewards
    # It may also score by itself.
    assert (await scored(lambda episode: episode.score("x", 1.0))).reward() == 1.0


async def test_a_seat_that_only_callers_know_can_be_scored_and_one_that_nobody_had_cannot() -> None:
    from agent_env.episodes import Trace

    episode = Episode("e", traces=[Trace("b@1.0.0", "found", "s1")])
    await Scenario(play, lambda episode: {"found": {"x": 1.0}}, {"a": Seat()}).apply_scores(episode)
    assert episode.reward("found") == 1.0
    with pytest.raises(InvalidArguments, match="the seat 'sovler', which nobody had; the seats: 'solver'"):
        await scored(lambda episode: {"sovler": {"x": 1.0}}, "solver")
    with pytest.raises(InvalidArguments, match="none are named"):
        await scored(lambda episode: {"a": {"x": 1.0}})


@pytest.mark.parametrize(
    "given",
    [
        1.0,
        [("team", 1)],
        {"team": 1.0},
        {"team": {"x": "1"}},
        {"team": {"x": float("nan")}},
        {"team": {"x": float("inf")}},
        {"team": {"x": 10**400}},
        {"team": {"x": 10**5000}},
        {"team": {"x": (1.0, float("nan"))}},
        {"team": {"x": (1e308, 1e3)}},
        {"team": {"x": (1, "w")}},
        {"team": {"x": (1.0, None)}},
        {"team": {"x": (1.0, 2.0, 3.0)}},
    ],
)
async def test_what_is_no_score_is_refused(given: Any) -> None:
    with pytest.raises(InvalidArguments, match=r"score must return|the reward 'x'"):
        await scored(lambda episode: given)


async def test_a_score_that_is_no_finite_number_is_refused_where_the_scenario_gives_it_by_itself() -> None:
    with pytest.raises(InvalidArguments, match="the value of the reward 'x' must be a finite number, not nan"):
        await scored(lambda episode: episode.score("x", float("nan")))
    with pytest.raises(InvalidArguments, match="the weight of the reward 'x' must be a finite number, not inf"):
        await scored(lambda episode: episode.score("x", None, weight=float("inf")))


def echo(message: str) -> str:
    return message


async def test_a_team_opens_conversations_when_they_are_used_and_releases_them_all() -> None:
    environment = AgentEnvironment(echo, name="echo", hub=False)
    seats = {"a": Seat(environment), "b": Seat(environment), "found": Seat(policy="p")}
    async with Team(seats, seed=7) as team:
        assert team["a"] is team["a"] and team["a"] is not team["b"] and team.another("a") is not team["a"]
        sessions = (await environment.runtime()).sessions
        assert len(sessions) == 0
        await team["a"].chat("one")
        await team["a"].chat("two")
        await team["b"].chat("three")
        await team.another("b").chat("four")
        assert len(sessions) == 3 and team.seed == 7
        with pytest.raises(ConfigurationError, match="there is no seat 'c'; the seats of this team: 'a', 'b', 'found'"):
            team["c"]
        with pytest.raises(ConfigurationError, match="the seat 'found' has no environment"):
            team["found"]
    assert len(sessions) == 0
    assert Team({}, seed=7).random.random() == team.random.random() != Team({}, seed=8).random.random()
    await environment.aclose()


async def test_a_seat_keeps_the_lane_and_the_token_of_an_environment_and_tells_its_name() -> None:
    environment = AgentEnvironment(echo, name="echo", hub=False, auth={"t0ken": ["chat"]})
    async with environment.serving(register=False) as server:
        async with (
            recording() as episode,
            Team({"a": Seat(Environment(server.url, lane="http", auth="t0ken"))}) as team,
        ):
            assert (await team["a"].chat("hi")).text == "hi"
            assert team["a"].lane == "http"
    (edge,) = episode.edges
    assert (edge.callee_seat, edge.protocol) == ("a", "http")


async def test_one_seat_that_cannot_be_left_keeps_no_other_from_being_left(monkeypatch: pytest.MonkeyPatch) -> None:
    environment = AgentEnvironment(echo, name="echo", hub=False)
    leave = Environment.__aexit__

    async def unwilling(self: Environment, *given: Any) -> None:
        await leave(self, *given)
        if self is first:
            raise AgentFailed("the goodbye broke")

    team = Team({"a": Seat(environment), "b": Seat(environment)})
    first = team["a"]
    for seat in "ab":
        await team[seat].chat("hi")
    monkeypatch.setattr(Environment, "__aexit__", unwilling)
    with pytest.raises(AgentFailed, match="goodbye"):
        await team.release()
    assert len((await environment.runtime()).sessions) == 0
    await environment.aclose()
