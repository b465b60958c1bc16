"""The example `duel`: its rules, its games, and a run shortened and stopped once, as a user runs and stops it."""

from __future__ import annotations

import importlib.util
import sys
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from random import Random
from types import ModuleType

import anyio
import pytest
from example_runs import SECONDS, Stopped, started
from hypothesis import given
from hypothesis import strategies as st

from agent_env.episodes import Episode
from agent_env.training import Policy, Scenario, Seat, Team, WordTokenizer, cut_rows, evaluate, make_model
from agent_env.training.place import policies_served
from agent_env.training.sampling import Prompt

pytestmark = pytest.mark.anyio

EXAMPLE = Path(__file__).parents[2] / "examples" / "multiagent" / "duel"
UPDATES, GAMES, EVALUATED = 9, 384, 60


def loaded(name: str) -> ModuleType:
    """A module of the example, under a name that nobody else has."""
    spec = importlib.util.spec_from_file_location(f"duel_{name}", EXAMPLE / f"{name}.py")
    assert spec is not None and spec.loader is not None
    module = sys.modules[spec.name] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


agents, game = loaded("agents"), loaded("game")
sys.modules["game"] = game  # as the example imports it
train = loaded("train")
del sys.modules["game"]


heaps = st.lists(st.integers(0, game.MOST), min_size=len(game.NAMES), max_size=len(game.NAMES))


@given(heaps)
def test_a_move_takes_at_least_one_stone_of_one_heap(position: list[int]) -> None:
    moves = game.moves(position)
    assert len(set(moves)) == len(moves) == sum(position)
    for move in moves:
        left = game.moved(position, move)
        taken = [before - after for before, after in zip(position, left, strict=True)]
        assert min(taken) == 0 < max(taken) and len(position) - taken.count(0) == 1 and min(left) >= 0


@given(heaps, st.text(alphabet="ab 0123456789-²٣", max_size=5) | st.text(max_size=5))
def test_whatever_else_is_said_is_no_move(position: list[int], said: str) -> None:
    left = game.moved(position, said)
    if left is not None:
        name, number = said.split(" ")
        assert f"{name} {int(number)}" in game.moves(position) and sum(left) < sum(position)


@given(heaps)
def test_positions_are_told_apart(position: list[int]) -> None:
    words = game.told(position).split()
    assert [int(word[1:]) for word in words] == position and len({word[0] for word in words}) == len(position)


def test_there_are_more_than_500_positions_to_start_from() -> None:
    rng = Random(1)
    dealt = Counter(tuple(game.deal(rng)) for _ in range(20_000))
    assert len(dealt) == game.MOST ** len(game.NAMES) >= 500
    assert min(min(start) for start in dealt) == 1 and max(dealt.values()) < 100


async def talk(team: Team, text: str) -> str:
    return (await team["first"].chat(text)).text


async def test_the_player_plays_whatever_its_model_was_made_for() -> None:
    tokenizer = WordTokenizer(["rook", "knight", "takes", "castles"])
    policy = Policy("player", make_model(tokenizer, seed=1), tokenizer, seed=1)
    chess = Scenario(talk, None, {"first": Seat(agents.player, "player")}, "chess")
    with anyio.fail_after(120):
        async with policies_served() as place:
            episodes = await evaluate(chess, ["rook takes knight", "castles"], {"player": policy}, place=place)
    for episode in episodes:
        (trace,) = episode.traces
        (call,) = trace.calls
        assert call.request["messages"] == [{"role": "user", "content": episode.task}]
        assert call.token_ids is not None and episode.info["result"] == tokenizer.decode(call.token_ids)


async def test_what_one_wins_the_other_loses_and_each_move_is_its_players_own() -> None:
    policies = train.fresh_policies(1, await train.warmed(1, 60))
    seats = {"first": Seat(agents.player, "player"), "second": Seat(agents.player, train.START, trainable=False)}
    starts = [game.deal(Random(number)) for number in range(24)]
    with anyio.fail_after(120):
        async with policies_served() as place:
            episodes = await evaluate(replace(game.duel, seats=seats), starts, policies, place=place)
    for episode in episodes:
        replayed(episode)
        first, second = episode.reward("first"), episode.reward("second")
        assert episode.reward() is None and first is not None and (first, second) in {(1.0, -1.0), (-1.0, 1.0)}
        models = {trace.seat: {call.model for call in trace.calls} for trace in episode.traces}
        assert models["first"] == {"player"} and models.get("second", {train.START}) == {train.START}
    rows, _ = cut_rows(episodes)
    assert {row.policy for row in rows if row.seat == "first"} == {"player"}
    assert {row.reward for row in rows if row.seat == "first"} <= {1.0, -1.0}


def replayed(episode: Episode) -> None:
    """Plays a game again by what was said: the rules were kept to, and the right one won."""
    result, position, seat = episode.info["result"], list(episode.task), "first"
    calls = {trace.seat: iter(trace.calls) for trace in episode.traces}
    for number, move in enumerate(result["moves"], start=1):
        request = next(calls[seat]).request
        assert request["messages"][-1]["content"] == game.told(position)
        left = game.moved(position, move)
        last = number == len(result["moves"])
        assert last == (left is None or not any(left))
        assert not last or (result["winner"] == seat) != (left is None) == result["illegal"]
        position, seat = left, game.OTHER[seat]
    assert all(next(rest, None) is None for rest in calls.values())


def test_without_baselines_a_reward_is_compared_with_nothing() -> None:
    unit = train.Unit
    credited = train.no_baseline([unit("e1", "first", 1.0), unit("e1", "second", -1.0)])
    assert credited.advantages == [1.0, -1.0]
    compared = train.ARMS["baselines"]()([unit("e1", "first", 1.0), unit("e2", "first", 1.0)])
    assert compared.advantages == [1.0, 0.95]
    # Each run begins with averages of its own.
    assert train.ARMS["baselines"]().values == {}


@pytest.mark.long
async def test_a_warm_model_knows_which_moves_can_be_made_and_prefers_none() -> None:
    policies = train.fresh_policies(0, await train.warmed(0, 250))
    tokenizer = policies["player"].tokenizer
    prompt = Prompt(tokenizer.render([{"role": "user", "content": game.told([3, 0])}]), max_tokens=4)
    counts = Counter(tokenizer.decode(said.token_ids) for said in policies["player"].sample([prompt] * 400))
    assert sum(counts[move] for move in game.moves([3, 0])) > 300
    assert min(counts[move] for move in game.moves([3, 0])) > 40


@pytest.fixture(scope="module")
def played(stopped_example: Callable[[str], Stopped]) -> Stopped:
    return stopped_example("duel")


@pytest.mark.long
@pytest.mark.timeout(3 * SECONDS)
def test_a_duel_that_was_stopped_goes_on_with_its_past_versions_and_baselines(played: Stopped) -> None:
    checkpoint = played.run.latest()
    assert checkpoint is not None and checkpoint.update == UPDATES
    assert set(checkpoint.policies) == {"player", "past-0", "past-8"}
    versions = {name: checkpoint.load(name).version for name in checkpoint.policies}
    assert versions == {"player": UPDATES, "past-0": 0, "past-8": 0}
    averages = checkpoint.state["role_baseline"]
    assert set(averages) == {"duel/first", "duel/second"} and all(-1 < value < 1 for value in averages.values())


@pytest.mark.long
@pytest.mark.timeout(3 * SECONDS)
def test_it_plays_in_each_seat_against_the_past_and_in_both_against_itself(played: Stopped) -> None:
    seen: dict[int, Counter[tuple[str, str]]] = {}
    for episode in played.episodes:
        if episode.info["phase"] == "training" and episode.info["update"] > len(played.before):
            seen.setdefault(episode.info["update"], Counter()).update(
                {(str(trace.seat), call.model) for trace in episode.traces for call in trace.calls}
            )
            for trace in episode.traces:
                assert trace.trainable == all(call.model == "player" for call in trace.calls)
    assert set(seen) == set(range(len(played.before) + 1, UPDATES + 1))
    for update, players in seen.items():
        own = train.taught(update)
        for seat, name in players:
            assert name.startswith("past-") == (own is not None and seat != own)


@pytest.mark.long
@pytest.mark.timeout(3 * SECONDS)
def test_every_fresh_position_is_played_from_both_seats_against_the_frozen_start(played: Stopped) -> None:
    for phase in ("before", "after"):
        games = [episode for episode in played.episodes if episode.info["phase"] == phase]
        starts = {
            seat: Counter(tuple(episode.task) for episode in games if episode.info["seat"] == seat)
            for seat in ("first", "second")
        }
        assert starts["first"] == starts["second"] and starts["first"].total() == EVALUATED // 2
        for episode in games:
            replayed(episode)
            for trace in episode.traces:
                expected = "player" if trace.seat == episode.info["seat"] else train.START
                assert {call.model for call in trace.calls} == {expected}
        wins = [episode.reward(episode.info["seat"]) == 1.0 for episode in games]
        about = played.run.about
        assert about[phase]["won"] == pytest.approx(sum(wins) / EVALUATED)
        assert f"{about[phase]['won']:.3f}" in played.shown


def test_an_odd_number_of_fresh_games_is_refused(tmp_path: Path) -> None:
    with started("duel", "--evaluated", "7", runs=tmp_path) as process:
        shown, _ = process.communicate(timeout=60)
    assert process.returncode == 2 and "even number" in shown
