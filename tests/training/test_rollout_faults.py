"""What a scenario may do to the rollout that plays it."""

from __future__ import annotations

import asyncio
import json
import logging
import os
from collections.abc import AsyncGenerator
from contextlib import aclosing
from pathlib import Path
from typing import Any, cast

import anyio
import pytest

from agent_env.episodes import Episode, EpisodeStore
from agent_env.errors import AgentEnvError, AgentFailed
from agent_env.training import Scenario, Team, collect, credit_rows, rollout
from agent_env.training.faults import MOST, place_of

pytestmark = pytest.mark.anyio


async def test_a_play_or_a_score_that_ends_its_program_is_a_failed_episode_and_the_others_go_on() -> None:
    class Ending:
        async def play(self, team: Team, task: str) -> str:
            if task == "exit":
                raise SystemExit(3)
            return task

        def score(self, episode: Episode) -> None:
            if episode.task == "score":
                raise SystemExit(4)

    with anyio.fail_after(10):
        episodes = await collect(rollout(Ending(), ["a", "exit", "score", "b"]))
    assert [episode.ok for episode in episodes] == [True, False, False, True]
    assert [episode.failures[0].code for episode in episodes[1:3]] == ["SystemExit", "SystemExit"]


async def test_a_play_that_goes_on_after_it_was_stopped_is_played_again(tmp_path: Path) -> None:
    begun = anyio.Event()

    async def stubborn(team: Team, task: str) -> str:
        if task == "fast":
            return task
        begun.set()
        try:
            await anyio.sleep(30)
        except asyncio.CancelledError:  # as programs do that clean up and forget to raise
            return "gave up"
        return "slept"

    async def quick(team: Team, task: str) -> str:
        return task

    with anyio.fail_after(20), EpisodeStore(tmp_path / "episodes.db") as store:
        stream = cast("AsyncGenerator[Episode, None]", rollout(stubborn, ["fast", "slow"], store=store, run_id="r"))
        async with aclosing(stream):
            async for episode in stream:
                assert episode.task == "fast"
                await begun.wait()
                break
        assert [episode.task for episode in store.find()] == ["fast"]
        again = await collect(rollout(quick, ["fast", "slow"], store=store, run_id="r"))
        assert [(episode.task, episode.info["result"]) for episode in again] == [("slow", "slow")]


async def test_a_number_that_json_cannot_hold_is_refused_in_its_own_episode() -> None:
    async def huge(team: Team, task: int) -> Any:
        return 10**5000 if task else 1

    episodes = await collect(rollout(huge, [0, 1]))
    assert [episode.ok for episode in episodes] == [True, False]


async def test_a_score_that_is_no_finite_number_fails_its_own_episode_and_is_named() -> None:
    async def play(team: Team, task: str) -> str:
        return task

    def score(episode: Episode) -> dict[str, dict[str, float]]:
        return {"team": {"first": 1.0, "worth": float(episode.task)}}

    with anyio.fail_after(10):
        episodes = await collect(rollout(Scenario(play, score), ["nan", "inf", "-inf", "1e308", "0.5"]))
    assert [episode.ok for episode in episodes] == [False, False, False, True, True]
    for episode in episodes[:3]:
        (failure,) = episode.failures
        assert (failure.boundary, failure.code, episode.rewards) == ("reward", "invalid_arguments", [])
        assert (
            "the reward 'worth' must be a finite number" in failure.message and f"not {episode.task}" in failure.message
        )
    rows, _, report = credit_rows(episodes)
    assert rows == [] and report.calls == 0


async def test_each_kind_of_failure_is_told_once_with_the_place_in_the_scenarios_code(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async def play(team: Team, task: int) -> int:
        if task < 2:
            raise ValueError(f"no task {task}")
        return task

    def score(episode: Episode) -> Any:
        return {"team": {"right": {"yes": 1.0}[str(episode.task)]}} if episode.task < 4 else {"team": {"right": "x"}}

    told: set[str] = set()
    with caplog.at_level(logging.WARNING, "agent_env.training"):
        for _ in range(2):
            await collect(rollout(Scenario(play, score, {}, "s"), range(6), group_size=2, told=told))
    raised, scored, refused = caplog.records
    first = play.__code__.co_firstlineno
    assert raised.getMessage().partition(" failed because ")[2] == (
        "the scenario itself raised (boundary 'program', code 'ValueError'): no task 0 "
        f"({_here(f'{first + 2}, in play')}); it teaches nothing, and others that fail so are only counted"
    )
    assert raised.exc_info is not None and str(raised.exc_info[1]) == "no task 0"
    place = _here(f"{score.__code__.co_firstlineno + 1}, in score")
    assert f"its reward could not be given (boundary 'reward', code 'KeyError'): '2' ({place});" in scored.getMessage()
    assert "code 'invalid_arguments'): the reward 'right' must be" in refused.getMessage() and not refused.exc_info


async def test_what_fails_in_ever_other_words_is_told_a_bounded_number_of_times(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async def play(team: Team, task: int) -> None:
        raise AgentFailed(f"broke at {task}") from None

    with caplog.at_level(logging.WARNING, "agent_env.training"):
        await collect(rollout(play, range(50)))
    assert len(caplog.records) == MOST + 1
    assert caplog.records[-1].getMessage().startswith(f"episodes fail in more than {MOST} ways")


def test_the_place_of_an_error_is_in_the_users_code_and_not_in_what_that_called() -> None:
    for raising, name in ((lambda: json.loads("{"), "<lambda>"), (lambda: Scenario.of(3), "<lambda>")):
        try:
            raising()
        except (ValueError, AgentEnvError) as error:
            assert (place_of(error) or "").endswith(f"in {name}") and "test_rollout_faults.py" in str(place_of(error))
    assert place_of(ValueError("never raised")) is None


def _here(rest: str) -> str:
    path = Path(__file__)
    return f"{path.relative_to(Path.cwd()) if path.is_relative_to(Path.cwd()) else path}:{rest}"


async def test_a_play_that_leaves_the_process_in_a_folder_that_is_gone_fails_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    gone = tmp_path / "gone"
    monkeypatch.chdir(tmp_path)  # and back at the end

    async def play(team: Team, task: str) -> str:
        if task == "leave":
            gone.mkdir()
            os.chdir(gone)
            gone.rmdir()
            raise ValueError("left")
        return task

    with anyio.fail_after(20):
        episodes = await collect(rollout(play, ["a", "leave", "b", "c"], concurrency=1))
    assert [episode.ok for episode in episodes] == [True, False, True, True]
    assert episodes[1].failures[0].message == "left"


@pytest.mark.parametrize("words", ["y" * 200_000, "a\x1b[31mred\x1b]0;title\x07", "two\nlines\u2028three"])
async def test_what_a_program_says_is_told_in_one_line_that_steers_no_terminal(
    words: str, caplog: pytest.LogCaptureFixture
) -> None:
    async def play(team: Team, task: str) -> None:
        raise ValueError(words)

    with anyio.fail_after(20), caplog.at_level(logging.WARNING, "agent_env.training"):
        (episode,) = await collect(rollout(play, ["a"]))
    assert episode.failures[0].message == words  # nothing of it is lost
    told = caplog.records[0].getMessage()
    assert told.isprintable() and len(told) < 700
