"""A study: several runs in one folder, which go on as one."""

from __future__ import annotations

import argparse
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import anyio
import pytest
from rich.console import Console

from agent_env.episodes import Episode
from agent_env.errors import AgentFailed
from agent_env.net import post_json
from agent_env.training import Policy, Run, Scenario, Seat, Team, WordTokenizer, make_model
from agent_env.training.progress import rollout_progress
from agent_env.training.study import Study, add_run_options, arms_table, begin_run, mean_score, play_run, study
from agent_env_wrappers.contract import ModelRoute

pytestmark = pytest.mark.anyio


async def talker(message: str, model: ModelRoute) -> str:
    body = {"model": model.model, "messages": [{"role": "user", "content": message}], "max_tokens": 2}
    headers = {"Authorization": f"Bearer {model.api_key}"}
    answer = await post_json(f"{model.base_url}/chat/completions", body, headers=headers)
    return answer["choices"][0]["message"]["content"]


async def play(team: Team, task: str) -> str:
    return (await team["A"].chat(task)).text


def score(episode: Episode) -> dict[str, dict[str, float]]:
    return {"A": {"zip": float(episode.info["result"] == "zip")}}


talk = Scenario(play, score, {"A": Seat(talker, "A")}, "talk")


def options(*flags: str) -> argparse.Namespace:
    parser = argparse.ArgumentParser()
    parser.add_argument("--updates", type=int, default=2)
    add_run_options(parser)
    return parser.parse_args(flags)


def fresh() -> dict[str, Policy]:
    tokenizer = WordTokenizer(["boat", "car", "zip", "zap"])
    return {"A": Policy("A", make_model(tokenizer, seed=1), tokenizer, seed=1)}


async def test_what_an_earlier_start_did_is_counted_and_not_done_again(tmp_path: Path) -> None:
    asked: list[str] = []

    def figure(name: str) -> Callable[[], Awaitable[float]]:
        async def find() -> float:
            asked.append(name)
            return 0.5

        return find

    async def started(updates: int) -> tuple[int, int, list[int]]:
        with Run.open(tmp_path / "outer") as outer:
            async with study(outer) as runs:
                with runs.open("one") as run:
                    assert await runs.once(run, "before", figure("before"), episodes=3) == 0.5
                    await runs.train(
                        run,
                        talk,
                        ["boat", "car"],
                        fresh(),
                        updates=updates,
                        group_size=2,
                        tasks_per_update=2,
                        info={"arm": "one"},
                    )
                    if updates == 3:
                        await runs.once(run, "after", figure("after"))
                        run.finish()
                    played = await runs.evaluate(talk, ["boat"], fresh(), info={"phase": "after"})
                    assert mean_score(played, "zip") in (0.0, 1.0)
                assert f"all in {outer.folder}" in runs.summary()
            return runs.progress.played, runs.progress.skipped, [line["update"] for line in run.curve()]

    Run.create(tmp_path, {"scenario": "talk", "options": {}}, name="outer").close()
    with anyio.fail_after(120):
        assert await started(2) == (2 * 4 + 1, 0, [1, 2])
        assert await started(3) == (4 + 1, 3 + 2 * 4, [1, 2, 3])
        assert await started(3) == (1, 3 + 3 * 4, [1, 2, 3])
    assert asked == ["before", "after"]
    arm = Run.read(tmp_path / "outer" / "one")
    assert arm.about["scenario"] == "talk" and "options" not in arm.about


def test_a_run_goes_on_with_the_options_that_it_was_begun_with(tmp_path: Path) -> None:
    runs = ("--runs", str(tmp_path))
    given, first = begin_run(options("--updates", "7", *runs), "talk")
    first.close()
    _, other = begin_run(options(*runs), "another")
    other.close()
    assert given.updates == 7
    for flags in (("--resume",), ("--resume", first.id), ("--resume", str(first.folder))):
        # The newest of the scenario, though another program's is newer.
        given, run = begin_run(options(*flags, *runs), "talk")
        run.close()
        assert (given.updates, run.folder) == (7, first.folder)


def test_a_run_that_cannot_be_gone_on_with_ends_the_program_with_a_line(tmp_path: Path) -> None:
    runs = ("--runs", str(tmp_path))
    with pytest.raises(SystemExit, match="there are no runs in"):
        begin_run(options("--resume", *runs), "talk")
    _, first = begin_run(options(*runs), "talk")
    with first, pytest.raises(SystemExit, match="another process has the run"):
        begin_run(options("--resume", *runs), "talk")
    with pytest.raises(SystemExit, match="was not begun by this program"):
        begin_run(options("--resume", first.id, *runs), "another")


@pytest.mark.parametrize(
    ("error", "told"), [(KeyboardInterrupt(), "stopped; go on with"), (AgentFailed("none was played"), "none was")]
)
def test_a_program_that_ends_early_says_how_to_go_on_and_lets_the_run_go(
    error: BaseException, told: str, tmp_path: Path
) -> None:
    _, run = begin_run(options("--runs", str(tmp_path)), "talk")

    def fail() -> None:
        raise error

    with pytest.raises(SystemExit, match=told) as ended:
        play_run(run, fail)
    assert f"--resume {run.folder}" in str(ended.value)
    assert run.state == "stopped"


def test_a_mean_of_nothing_is_no_figure() -> None:
    played = Episode(id="e1", ok=True)
    with pytest.raises(AgentFailed, match="'zip'"):
        mean_score([played], "zip")
    failed = Episode(id="e1")
    failed.fail(ValueError("no board"))
    with pytest.raises(
        AgentFailed, match=r"the 1 episodes could be played\. The first one failed because the scenario"
    ):
        mean_score([failed], "zip")
    with pytest.raises(AgentFailed, match=r"none of the 1 episodes could be played$"):
        mean_score([Episode(id="e1", ok=False)], "zip")
    with pytest.raises(AgentFailed, match="none of the 0 episodes"):
        mean_score([], "zip")
    played.score("zip", 0.25, seat="A", weight=0.0)
    assert mean_score([played, Episode(id="e2", ok=False)], "zip") == 0.25


def test_a_table_has_a_line_an_arm_with_means_over_its_seeds() -> None:
    console = Console(width=80, record=True)
    console.print(
        arms_table("talk", {"both": {"before": [0.25, 0.5], "worst": [0.25]}, "none": {"before": [1], "worst": [1]}})
    )
    cells = [[cell.strip() for cell in line.split("│")[1:-1]] for line in console.export_text().splitlines()]
    assert [row for row in cells if row] == [["both", "2", "0.375", "0.250"], ["none", "1", "1.000", "1.000"]]


@pytest.mark.parametrize(
    ("played", "seconds", "told"),
    [
        (1200, 100.0, "in 100 s, 12 a second,"),
        (995, 100.0, "in 100 s, 9.9 a second,"),
        (125, 100.0, "in 100 s, 1.2 a second,"),
        (99, 100.0, "in 100 s, 59.4 a minute,"),
        (1, 600.0, "in 600 s, 0.1 a minute,"),
        (0, 5.0, "in 5 s, 0.0 a minute,"),
    ],
)
def test_a_slow_pace_is_told_with_a_decimal_or_by_the_minute(
    tmp_path: Path, played: int, seconds: float, told: str
) -> None:
    nowhere: Any = None
    with Run.create(tmp_path, {}, name="slow") as run, rollout_progress(None, visible=False) as progress:
        progress.played = played
        shown = Study(run, nowhere, nowhere, progress, began=time.monotonic() - seconds).summary()
    assert shown.startswith(f"{played} episodes (0 failed) {told}")
