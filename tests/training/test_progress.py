"""The progress of rollouts: what is counted, and what is shown on a terminal and in a log."""

from __future__ import annotations

import io
import os
import pty
import re
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from agent_env import AgentEnvironment
from agent_env.episodes import Episode, EpisodeStore
from agent_env.errors import AgentFailed
from agent_env.training import Scenario, Seat, Team, collect, rollout, rollout_progress
from agent_env.training.loop import mean_rewards
from agent_env.training.progress import RolloutProgress, rate

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
    """What a log has: lines on standard error, and nothing in what the program itself printed."""
    captured = capsys.readouterr()
    assert captured.out == ""
    return captured.err


async def test_a_rollout_shows_its_rate_its_failures_and_the_mean_reward_of_each_seat(
    capsys: pytest.CaptureFixture[str],
) -> None:
    await collect(rollout(duel, [0, 1, -1], group_size=2, progress=True))
    text = shown(capsys)
    assert re.fullmatch(r"duel: 6/6 episodes, \d.+, reward judge 1\.50 solver 1\.50, failed 2\n", text)
    await collect(rollout(duel, [1], progress=False))
    assert shown(capsys) == ""


async def test_a_total_that_nobody_knows_is_shown_as_such(
    capsys: pytest.CaptureFixture[str],
) -> None:
    await collect(rollout(play, iter([1, 2]), progress=True))
    text = shown(capsys)
    assert "2/? episodes" in text and "left" not in text


async def test_one_bar_goes_on_over_several_rollouts(
    capsys: pytest.CaptureFixture[str],
) -> None:
    team = Scenario(play, lambda episode: {"team": {"x": float(episode.task)}})
    with rollout_progress(5) as bar:
        bar.describe("first")
        await collect(rollout(team, [1, -1], progress=bar))
        assert bar.rewards() == {"team": 1.0}
        bar.describe("second")
        assert bar.rewards() == {}
        await collect(rollout(team, [0, 0, 1], progress=bar))
        # Where all episodes of a part end together, what the part before earned is shown until then.
        bar.describe("third", keep=True)
        assert bar.rewards() == {"team": pytest.approx(1 / 3)}
        bar.add(Episode("e"))
        bar.describe("second", keep=True)
        assert bar.rewards() == {}, "what nobody scored has no mean"
        await collect(rollout(team, [0, 0, 1], progress=bar))
    assert (bar.played, bar.failed, bar.skipped) == (9, 1, 0)
    text = shown(capsys)
    assert text.startswith("second: 9/5 episodes") and text.endswith("reward team 0.33, failed 1\n")
    with rollout_progress(1, visible=False) as bar:
        bar.add(Episode("e"))
    assert shown(capsys) == ""


@pytest.mark.parametrize("finished", ["skip", "yield"])
async def test_what_an_earlier_start_played_counts_as_done(
    finished: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
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
    capsys: pytest.CaptureFixture[str],
) -> None:
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
    assert "reward a 1.25 b 1.00, failed 0" in shown(capsys)
    assert mean_rewards(episodes) == {"a": 1.25, "b": 1.0}


def test_what_takes_longer_than_a_second_is_told_in_seconds() -> None:
    assert [rate(speed) for speed in (None, 0.0, 0.125, 0.02, 0.999, 1.0, 1234.4)] == [
        *("", "", "8.0 s each", "50.0 s each", "1.0 s each", "1/s", "1234/s")
    ]


def test_the_rate_is_that_of_this_start_and_not_of_the_last_second() -> None:
    progress = RolloutProgress(100)
    assert progress.speed() is None and progress.left() == ""
    progress.skip(60)
    assert progress.speed() is None and progress.left() == ""
    progress._began = time.monotonic() - 40
    for number in range(10):
        progress.add(Episode(f"e{number}"))
    # Ten of late in no time, and 60 of an earlier start: 4 s each since this one began, and 30 are left.
    assert progress.speed() == pytest.approx(0.25, rel=0.01)
    assert rate(progress.speed()) == "4.0 s each" and progress.left() == "0:02:00"
    assert progress.line() == "70/100 episodes, 4.0 s each, reward —, failed 0, 60 played before, 0:02:00 left"


SLOW = """
import time
from agent_env.episodes import Episode
from agent_env.training import progress
progress._FIRST, progress._LONGEST = 0.05, 0.2
with progress.rollout_progress(4) as bar:
    bar.describe("update 1/1")
    bar.add(Episode("e"))
    print("the program's own")
    time.sleep(1.0)
    for number in range(3):
        bar.add(Episode(f"e{number}"))
"""


def test_a_log_has_lines_now_and_then_on_standard_error_though_no_episode_ends() -> None:
    run = subprocess.run(
        [sys.executable, "-c", SLOW],
        check=True,
        capture_output=True,
        text=True,
        timeout=60,
        # Colours in a log make no terminal of it.
        env=os.environ | {"FORCE_COLOR": "1"},
    )
    assert run.stdout == "the program's own\n"
    *lines, last = run.stderr.splitlines()
    assert 2 <= len(lines) <= 12, "the waits grow, or there were 20 lines"
    assert all(re.fullmatch(r"update 1/1: 1/4 episodes, .+, reward —, failed 0, 0:00:0\d left", line) for line in lines)
    assert re.fullmatch(r"update 1/1: 4/4 episodes, .+, reward —, failed 0", last)


def nobody_reads() -> int:
    """The end of a pipe whose reader has left, as `head -n 1` does."""
    read, write = os.pipe()
    os.close(read)
    return write


@pytest.mark.parametrize("place", ["closed", "unread", "full"])
def test_a_log_that_cannot_be_written_fails_no_work(place: str) -> None:
    error = nobody_reads() if place == "unread" else os.open("/dev/full", os.O_WRONLY)
    command = [sys.executable, "-c", SLOW]
    if place == "closed":
        command = ["/bin/sh", "-c", 'exec "$0" "$@" 2>&-', *command]
    run = subprocess.run(command, check=False, stdout=subprocess.PIPE, stderr=error, text=True, timeout=60)
    os.close(error)
    assert (run.returncode, run.stdout) == (0, "the program's own\n")


def test_a_log_that_a_program_closed_fails_no_work(monkeypatch: pytest.MonkeyPatch) -> None:
    closed = io.StringIO()
    closed.close()
    for stream in (closed, None):
        monkeypatch.setattr(sys, "stderr", stream)
        with rollout_progress(1) as bar:
            bar.add(Episode("e"))


@pytest.mark.parametrize("total", [10**19, 10**400])
def test_what_takes_longer_than_can_be_told_is_told_without(total: int, capsys: pytest.CaptureFixture[str]) -> None:
    with rollout_progress(total) as bar:
        bar.add(Episode("e"))
        assert bar.left() == ""
    assert f"1/{total} episodes" in shown(capsys)


GONE = """
import os, sys, time
from agent_env.training.progress import rollout_progress
with rollout_progress(4):
    os.read(0, 1)  # by then the terminal is gone
    time.sleep(0.5)  # the bar is drawn again
os.write(int(sys.argv[1]), b"done")
os._exit(0)  # what is left for the terminal is Python's to fail of
"""


def test_a_terminal_that_is_gone_fails_no_work() -> None:
    ours, theirs = pty.openpty()
    read, write = os.pipe()
    run = subprocess.Popen(
        [sys.executable, "-c", GONE, str(write)],
        stdin=subprocess.PIPE,
        stdout=theirs,
        stderr=subprocess.DEVNULL,
        pass_fds=[write],
        env=os.environ | {"TERM": "xterm", "COLUMNS": "100"},
    )
    os.close(theirs)
    os.close(write)
    assert os.read(ours, 1), "a bar began"
    os.close(ours)
    run.communicate(b"x", timeout=60)
    with os.fdopen(read, "rb") as told:
        assert (run.returncode, told.read()) == (0, b"done")


def test_a_terminal_has_a_bar_and_no_lines() -> None:
    ours, theirs = pty.openpty()
    with os.fdopen(ours, "rb", buffering=0) as terminal:
        run = subprocess.Popen(
            [sys.executable, "-c", SLOW],
            stdout=theirs,
            stderr=subprocess.PIPE,
            env=os.environ | {"TERM": "xterm", "COLUMNS": "100"},
        )
        os.close(theirs)
        shown = bytearray()
        try:
            while chunk := terminal.read(65536):
                shown += chunk
        except OSError:
            pass  # how a terminal says that nobody writes to it any more
        _, said = run.communicate(timeout=60)
    assert (run.returncode, said) == (0, b"")
    text = re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", shown.decode())
    assert "the program's own" in text
    last = text.strip().rpartition("update 1/1")[2].rstrip()
    assert re.fullmatch(r" ━+ 4/4 \d.* reward — failed 0", last)
