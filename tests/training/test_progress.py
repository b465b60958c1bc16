"""The progress bar of rollouts: what it counts, what it shows, and what it costs."""

from __future__ import annotations

from itertools import count
from pathlib import Path
from typing import Any

import pytest
from rich import get_console

from agent_env import AgentEnvironment
from agent_env.episodes import Episode, EpisodeStore
from agent_env.errors import AgentFailed
from agent_env.training import Scenario, Seat, Team, collect, rollout, rollout_progress
from agent_env.training.loop import mean_rewards
from agent_env.training.progress import rate

pytestmark = pytest.mark.anyio


async def play(team: Team, task: int) -> int:
    if task < 0:
        raise AgentFailed("broke")
    return task


def score(episode: Episode) -> Any:
    value = float(episode.info["result"])
    return {"solver": {"x": value}, "judge": {"x": 0.5}, "team": {"all": 1.0}}


duel = Scenario(play, score, {"solver": Seat(), "judge": Seat()}, "duel")


def shown(capsys: pytest.CaptureFixture[str]) -> str:
    return " ".join(capsys.readouterr().out.split())


async def test_a_rollout_shows_its_rate_its_failures_and_the_mean_reward_of_each_seat(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "160")
    await collect(rollout(duel, [0, 1, -1], group_size=2, progress=True))
    text = shown(capsys)
    assert text.startswith("duel") and "6/6" in text and "/s" in text and "failed 2" in text
    assert "judge 1.50 solver 1.50" in text
    await collect(rollout(duel, [1], progress=False))
    assert shown(capsys) == ""


async def test_a_total_that_nobody_knows_is_shown_as_such(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "160")
    await collect(rollout(play, iter([1, 2]), progress=True))
    assert "2/?" in shown(capsys)


async def test_one_bar_goes_on_over_several_rollouts(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "160")
    team = Scenario(play, lambda episode: {"team": {"x": float(episode.task)}})
    with rollout_progress(5) as bar:
        bar.describe("first")
        await collect(rollout(team, [1, -1], progress=bar))
        assert bar.rewards() == {"team": 1.0}
        bar.describe("second")
        assert bar.rewards() == {}
        await collect(rollout(team, [0, 0, 1], progress=bar))
    assert (bar.played, bar.failed, bar.skipped) == (5, 1, 0)
    text = shown(capsys)
    assert "second" in text and "5/5" in text and "reward team 0.33" in text and "failed 1" in text
    with rollout_progress(1, visible=False) as bar:
        bar.add(Episode("e"))
    assert shown(capsys) == ""


@pytest.mark.parametrize("finished", ["skip", "yield"])
async def test_what_an_earlier_start_played_counts_as_done(
    finished: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "160")
    with EpisodeStore(tmp_path / "episodes.db") as store, rollout_progress(4) as bar:
        await collect(rollout(duel, [0, -1], store=store, run_id="r"))
        await collect(rollout(duel, [0, -1, 1, 1], store=store, run_id="r", finished=finished, progress=bar))
        assert (bar.played, bar.skipped, bar.failed) == (2, 2, int(finished == "yield"))
    text = shown(capsys)
    assert "4/4" in text and "2 played before" in text
    with EpisodeStore(tmp_path / "episodes.db") as store, rollout_progress(4) as bar:
        await collect(rollout(duel, [0, -1, 1, 1], store=store, run_id="r", finished=finished, progress=bar))
    text = shown(capsys)
    assert "4/4" in text and "4 played before" in text


def test_what_a_seat_earned_has_the_teams_part_and_none_is_nothing() -> None:
    episode = Episode("e")
    assert mean_rewards([episode]) == {}
    episode.score("x", None)
    assert mean_rewards([episode]) == {}
    episode.score("y", 1.0)
    assert mean_rewards([episode]) == {"team": 1.0}
    episode.score("z", 0.5, seat="a", weight=2.0)
    assert mean_rewards([episode]) == {"a": 2.0}


async def test_where_the_team_and_one_seat_are_scored_every_seat_is_shown(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "160")
    asked = AgentEnvironment(str.upper, name="asked")

    async def both(team: Team, task: int) -> int:
        for seat in ("a", "b"):
            await team[seat].chat("hi")
        return task

    def mixed(episode: Episode) -> Any:
        # One episode in two has nothing for a seat by itself: both seats have the team's there.
        own = {"a": {"x": 0.5}} if episode.info["result"] else {}
        return {"team": {"all": 1.0}, **own}

    scenario = Scenario(both, mixed, {"a": Seat(asked), "b": Seat(asked)}, "mixed")
    episodes = await collect(rollout(scenario, [0, 1], progress=True))
    assert "reward a 1.25 b 1.00 failed 0" in shown(capsys)
    assert mean_rewards(episodes) == {"a": 1.25, "b": 1.0}


def test_what_takes_longer_than_a_second_is_told_in_seconds() -> None:
    assert [rate(speed) for speed in (None, 0.0, 0.125, 0.02, 0.999, 1.0, 1234.4)] == [
        *("", "", "8.0 s each", "50.0 s each", "1.0 s each", "1/s", "1234/s")
    ]


async def test_slow_episodes_are_shown_by_the_seconds_that_each_takes(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "160")
    clock = count(0, 4)
    monkeypatch.setattr(get_console(), "get_time", lambda: float(next(clock)))
    await collect(rollout(duel, [0, 1, 1], progress=True))
    text = shown(capsys)
    assert " s each" in text and "0/s" not in text
