"""`agent-env train` and `agent-env runs`, as they are used: begun, stopped, killed, gone on with, drawn."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeAlias

import pytest
from typer.testing import CliRunner

from agent_env.cli.application import app
from agent_env.cli.drawing import draw
from agent_env.episodes import open_episodes
from agent_env.training.checkpoints import Run

pytestmark = pytest.mark.timeout(180)

GAME = """
from agent_env.net import post_json
from agent_env.training import Scenario, Seat

ANSWERS = {"day": "sun", "night": "moon"}


async def guesser(message: str, model) -> str:
    body = {"messages": [{"role": "user", "content": message}], "max_tokens": 1}
    url, key = f"{model.base_url}/chat/completions", {"Authorization": f"Bearer {model.api_key}"}
    return (await post_json(url, body, headers=key))["choices"][0]["message"]["content"].strip()


async def play(team, task):
    return (await team["guesser"].chat(task)).text


def score(episode):
    return {"guesser": {"right": float(episode.info["result"] == ANSWERS[episode.task])}}


game = Scenario(play, score, {"guesser": Seat(guesser, policy="p")}, "game", ["day", "night"], ["day night sun moon"])
bare = Scenario(play, score, {"guesser": Seat(guesser)}, "bare")


async def asked_twice(team, task):
    await team["other"].chat(task)
    return await play(team, task)


two = Scenario(
    asked_twice,
    score,
    {"guesser": Seat(guesser, policy="p"), "other": Seat(guesser, policy="q")},
    "two",
    ["day", "night"],
    ["day night sun moon"],
)


async def broken(team, task):
    if task == "day":
        raise ValueError("my bug")
    return await play(team, task)


partly = Scenario(broken, score, {"guesser": Seat(guesser, policy="p")}, "partly", ["day", "night"], ["day night sun moon"])
"""


@pytest.fixture
def folder(cli: Any) -> Path:
    (cli.folder / "guessing.py").write_text(GAME, "utf-8")
    return cli.folder  # type: ignore[no-any-return]


Here: TypeAlias = Callable[..., str]


@pytest.fixture
def here(folder: Path, monkeypatch: pytest.MonkeyPatch) -> Here:
    """Runs a command in this process, in the folder; returns what it printed."""
    monkeypatch.chdir(folder)
    monkeypatch.setattr(sys, "path", list(sys.path))
    monkeypatch.delitem(sys.modules, "guessing", raising=False)

    def run(*arguments: str, code: int = 0) -> str:
        done = CliRunner().invoke(app, arguments, catch_exceptions=False)
        assert done.exit_code == code, done.output
        return done.output

    return run


def updates(folder: Path, run: str) -> list[int]:
    path = folder / "runs" / run / "curve.jsonl"
    lines = path.read_text("utf-8").splitlines(keepends=True) if path.exists() else []
    return [json.loads(line)["update"] for line in lines if line.endswith("\n")]


def stopped(cli: Any, kind: signal.Signals, *arguments: str, after: int) -> tuple[int, str]:
    """Runs `train … --run a` in a process group of its own, as a terminal does, and signals the whole group."""
    process = subprocess.Popen(
        [sys.executable, "-m", "agent_env.cli", "train", *arguments],
        cwd=cli.folder,
        env=cli.environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
    )
    until = time.monotonic() + 90
    while len(updates(cli.folder, "a")) < after and process.poll() is None and time.monotonic() < until:
        time.sleep(0.02)
    os.killpg(process.pid, kind)
    said, _ = process.communicate(timeout=40)
    return process.returncode, said


@pytest.mark.long
@pytest.mark.usefixtures("folder")
def test_a_scenario_is_trained_stopped_gone_on_with_listed_and_drawn(cli: Any, folder: Path, here: Here) -> None:
    small = ("--group-size", "4", "--tasks-per-update", "4")
    code, said = stopped(
        cli, signal.SIGINT, "guessing:game", "--tiny", "--run", "a", "--updates", "500", *small, after=2
    )
    assert code == 130 and "Traceback" not in said, said
    reached = updates(folder, "a")
    assert reached == list(range(1, len(reached) + 1)) and 2 <= len(reached) < 500
    assert f"stopped after {len(reached)} updates; to go on:" in said
    assert "agent-env train --resume a" in said
    (listed,) = json.loads(here("runs", "list", "--json"))
    assert (listed["run"], listed["state"], listed["wanted"]) == ("a", "stopped", 500)
    assert listed["checkpoint"] == listed["updates"] == len(reached)

    # A killed one has what its last checkpoint has, and the lines after it are made again.
    every = ("--checkpoint-every", "2")
    code, said = stopped(cli, signal.SIGKILL, "--resume", *every, after=len(reached) + 3)
    assert code == -signal.SIGKILL, said
    (killed,) = json.loads(here("runs", "list", "--json"))
    assert killed["state"] == "stopped" and len(reached) < killed["checkpoint"] <= killed["updates"]
    wanted = killed["checkpoint"] + 3
    done = cli.json("train", "--resume", "a", "--updates", str(wanted))
    assert (done["state"], done["updates"], done["last"]["update"]) == ("finished", wanted, wanted)
    assert updates(folder, "a") == list(range(1, wanted + 1))
    assert json.loads((Path(folder, done["policies"]["p"]) / "policy.json").read_text())["version"] == wanted

    shown = here("runs", "list")
    assert "finished" in shown and f"{wanted}/{wanted}" in shown and "guesser" in shown
    plotted = here("runs", "plot")
    assert "guessing:game, a: mean reward (over 5 updates)" in plotted and "● guesser" in plotted
    assert any("\u2800" < letter <= "\u28ff" for letter in plotted)
    here("runs", "plot", "a", "--png", "curve.png")
    assert (folder / "curve.png").read_bytes().startswith(b"\x89PNG")
    told = json.loads(here("runs", "plot", "a", "--json"))
    assert [line["update"] for line in told["curve"]] == list(range(1, wanted + 1))
    assert set(told["curve"][0]["policies"]["p"]) >= {"rows", "groups", "entropy", "clipped"}
    with open_episodes(folder / "runs" / "a") as episodes:
        assert len(episodes) >= 16 * wanted and all(summary.ok for summary in episodes.summaries())


@pytest.mark.long
@pytest.mark.usefixtures("folder")
def test_a_training_whose_progress_nobody_reads_is_finished(cli: Any, folder: Path, here: Here) -> None:
    read, write = os.pipe()
    os.close(read)
    small = ("--updates", "2", "--group-size", "2", "--tasks-per-update", "2")
    done = subprocess.run(
        [sys.executable, "-m", "agent_env.cli", "train", "guessing:game", "--tiny", "--run", "a", *small],
        check=False,
        cwd=folder,
        env=cli.environment,
        stdout=subprocess.PIPE,
        stderr=write,
        text=True,
        timeout=90,
    )
    os.close(write)
    assert done.returncode == 0 and "mean reward" in done.stdout
    (listed,) = json.loads(here("runs", "list", "--json"))
    assert (listed["state"], listed["updates"]) == ("finished", 2)


@pytest.mark.long
@pytest.mark.usefixtures("folder")
def test_a_model_of_hugging_face_is_trained_by_an_adapter(cli: Any, folder: Path, hugging_face: Path) -> None:
    (folder / "tasks.jsonl").write_text('"day"\n\n"night"\n')
    options = ("--group-size", "4", "--tasks-per-update", "2", "--device", "cpu", "--lr", "0.005")
    said = cli(
        *("train", "guessing:bare", "--policy", f"guesser={hugging_face}", "--lora", "--tasks", "tasks.jsonl"),
        *("--updates", "2", "--run", "hf", *options),
    )
    assert "mean reward, hf" in said and "guesser is in" in said
    saved = folder / "runs/hf/checkpoints/000002/0-guesser"
    assert (saved / "adapter_model.safetensors").exists() and not (saved / "model.safetensors").exists()
    assert json.loads((saved / "policy.json").read_text())["version"] == 2
    assert updates(folder, "hf") == [1, 2]


@pytest.mark.long
def test_a_model_of_hugging_face_is_trained_whole_with_every_token_the_same_weight(
    folder: Path, here: Here, hugging_face: Path
) -> None:
    from safetensors.torch import load_file

    (folder / "tasks.jsonl").write_text('"day"\n"night"\n')
    made = ("guessing:bare", "--policy", f"guesser={hugging_face}", "--tasks", "tasks.jsonl", "--average", "tokens")
    small = ("--group-size", "4", "--tasks-per-update", "2", "--device", "cpu", "--lr", "0.005", "--seed", "1")
    before = (hugging_face / "model.safetensors").read_bytes()
    told = json.loads(here("train", *made, *small, "--updates", "2", "--run", "hf", "--json"))
    saved = folder / told["policies"]["guesser"]
    assert told["state"] == "finished" and (hugging_face / "model.safetensors").read_bytes() == before
    assert not (saved / "adapter_model.safetensors").exists()
    was, learned = load_file(hugging_face / "model.safetensors"), load_file(saved / "model.safetensors")
    assert was.keys() == learned.keys() and any(not was[name].equal(learned[name]) for name in was)
    # Gone on with, it is as it was begun, and what was saved is a model for the next run.
    assert json.loads(here("train", "--resume", "--updates", "3", "--json"))["updates"] == 3
    settings = json.loads((folder / "runs/hf/checkpoints/000003/0-guesser/policy.json").read_text())["settings"]
    assert (settings["average"], settings["learning_rate"]) == ("tokens", 0.005)
    assert "a run goes on with its own --average" in here("train", "--resume", "--average", "units", code=2)
    again = ("guessing:bare", "--policy", f"guesser={saved}", "--tasks", "tasks.jsonl")
    assert json.loads(here("train", *again, *small, "--updates", "1", "--json"))["updates"] == 1


@pytest.mark.usefixtures("folder")
def test_what_cannot_be_trained_is_told_and_leaves_no_run(folder: Path, here: Here) -> None:
    (folder / "broken.jsonl").write_text('{"a": 1}\n{')
    (folder / "none.jsonl").write_text("\n")
    for arguments, message in {
        ("guessing:game",): "nothing plays the seat 'guesser'",
        (): "name a scenario, such as team:scenario",
        ("guessing:play", "--tiny"): "no seat of 'guessing:play' has a policy that learns",
        (
            "guessing:bare",
            "--policy",
            "guesser=x",
        ): "'guessing:bare' has no tasks; set its `tasks`, or pass --tasks FILE",
        ("guessing:game", "--tiny", "--tasks", "none.jsonl"): "none.jsonl' has no tasks; write one to a line, as JSON",
        ("guessing", "--tiny"): "'guessing' names no scenario; write module:attribute, such as team:scenario",
        ("guessing:bare", "--policy", "guesser"): "--policy must be SEAT=DIR, once a seat, not 'guesser'",
        ("guessing:game", "--policy", "judge=x"): "there is no seat 'judge'",
        ("guessing:game", "--tiny", "--tasks", "broken.jsonl"): "line 2 of",
        ("guessing:nothing", "--tiny"): "'guessing' has no 'nothing'",
        (
            *("guessing:game", "--tiny", "--credit", "baseline"),
        ): "--credit takes broadcast, per_seat, per_parent_call, per_prompt, difference or role_baseline, not 'baseline'",
        (
            "guessing:game",
            "--tiny",
            "--propagation",
            "me",
        ): "--propagation takes team, discounted, own, judge, not 'me'",
        ("--resume",): "there are no runs in 'runs'",
        ("--resume", "x"): "'x' is no run",
        ("--resume", "--run", "x"): "a run goes on with its own --run",
    }.items():
        assert message in " ".join(here("train", *arguments, code=2).split()), arguments
    assert not (folder / "runs").exists()
    assert "there are no runs in runs" in here("runs", "list")
    assert "there are no runs" in here("runs", "plot", code=2)
    assert json.loads(here("runs", "list", "--json")) == []


def test_a_policy_that_learns_nothing_is_told_while_it_trains_and_at_the_end(folder: Path, here: Here) -> None:
    small = ("--group-size", "4", "--tasks-per-update", "4", "--updates", "2", "--propagation", "own")
    said = " ".join(here("train", "guessing:two", "--tiny", "--run", "a", *small).split())
    assert said.count("policy 'q' learns nothing: of the 16 episodes none makes a row of the seats 'other'") == 1
    why = (
        "of the 16 episodes none makes a row of the seats 'other': not scored (16 calls); let `score` give the seat a "
        'reward, or share the team\'s (propagation="team")'
    )
    assert (
        f"q: nothing in the last 2 updates taught it anything: in the last of them, {why}" in said
        and "policy 'p' learns nothing" not in said
    )
    curve = [json.loads(line) for line in (folder / "runs/a/curve.jsonl").read_text("utf-8").splitlines()]
    assert all(line["policies"]["q"]["idle"].startswith(why) and "idle" not in line["policies"]["p"] for line in curve)


@pytest.mark.parametrize("debug", [False, True])
@pytest.mark.usefixtures("folder")
def test_why_a_part_of_the_episodes_failed_is_told_with_the_place_and_counted(debug: bool, here: Here) -> None:
    small = ("--group-size", "2", "--tasks-per-update", "2", "--updates", "2", "--run", "a")
    said = " ".join(here("train", "guessing:partly", "--tiny", *small, *(["--debug"] if debug else [])).split())
    line = GAME.partition('raise ValueError("my bug")')[0].count("\n") + 1
    told = f"(boundary 'program', code 'ValueError'): my bug (guessing.py:{line}, in broken)"
    assert said.count(told) == 1 and said.count("Traceback (most recent call last)") == debug
    assert ("--debug shows the traceback" in said) is not debug
    why = "4 of 8 episodes failed: program ValueError (4); to see them: agent-env episodes list "
    assert why in said
    listed = here("episodes", "list", said.partition(why)[2].partition(" --failed")[0], "--failed", "--json")
    assert len(json.loads(listed)) == 4


@pytest.mark.usefixtures("folder")
def test_a_run_keeps_what_it_is_made_of(folder: Path, here: Here) -> None:
    from agent_env.training.checkpoints import Run

    Run.create(folder / "runs", {"scenario": "mine"}, name="own").close()
    assert "was not begun by `agent-env train`" in here("train", "--resume", "own", code=2)
    assert "a run goes on with its own --lr" in here("train", "--resume", "--lr", "3", code=2)
    assert "'guessing:game' is no run" in here("train", "guessing:game", "--resume", code=2)
    assert "has made no update with a reward yet" in here("runs", "plot", "own", code=2)
    with Run.open(folder / "runs" / "own"):
        assert json.loads(here("runs", "list", "--json"))[0]["state"] == "running"


def test_a_run_cannot_be_ended_at_fewer_updates_than_it_has_made(folder: Path, here: Here) -> None:
    small = ("--group-size", "2", "--tasks-per-update", "2")
    here("train", "guessing:game", "--tiny", "--run", "a", "--updates", "2", *small)
    run = Run.open(folder / "runs" / "a")
    run.tell(finished=False, updates=5)  # as Ctrl-C leaves a run of five
    run.close()
    said = " ".join(here("train", "--resume", "a", "--updates", "1", code=2).split())
    assert "'a' has made 2 updates of 5 already, so it cannot end at 1" in said
    assert json.loads(here("runs", "list", "--json"))[0]["updates"] == 2
    assert Run.read(folder / "runs" / "a").about["updates"] == 5


def test_a_run_goes_on_with_the_settings_that_it_was_begun_with(
    folder: Path, here: Here, monkeypatch: pytest.MonkeyPatch
) -> None:
    from agent_env.training import loop

    names = ("concurrency", "seconds", "checkpoint_every")
    used: list[tuple[Any, ...]] = []
    real = loop.training_loop

    def watched(*arguments: Any, **options: Any) -> Any:
        used.append(tuple(options[name] for name in names))
        return real(*arguments, **options)

    monkeypatch.setattr(loop, "training_loop", watched)
    small = ("--group-size", "2", "--tasks-per-update", "2", "--run", "a", "--updates", "1")
    here("train", "guessing:game", "--tiny", *small, "--concurrency", "3", "--seconds", "77", "--checkpoint-every", "2")
    here("train", "--resume", "--updates", "2")
    here("train", "--resume", "--updates", "3", "--seconds", "50", "--checkpoint-every", "1")  # what is given now wins,
    here("train", "--resume", "--updates", "4")  # and stays
    assert used == [(3, 77.0, 2), (3, 77.0, 2), (3, 50.0, 1), (3, 50.0, 1)]

    with Run.open(folder / "runs" / "a") as run:  # as an earlier version began it
        run.tell(options={name: value for name, value in run.about["options"].items() if name not in names})
    here("train", "--resume", "--updates", "5")
    assert used[4:] == [(64, 300.0, 10)]
    with Run.open(folder / "runs" / "a") as run:
        run.tell(options={**run.about["options"], "checkpoint_every": 0})
    said = here("train", "--resume", "--updates", "6", code=2)
    assert "--checkpoint-every must be a number above 0, not 0" in " ".join(said.split())


def test_a_policy_that_has_another_name_now_is_refused_and_not_made_anew(folder: Path, here: Here) -> None:
    small = ("--group-size", "2", "--tasks-per-update", "2")
    here("train", "guessing:game", "--tiny", "--run", "a", "--updates", "1", *small)
    program = folder / "guessing.py"
    program.write_text(program.read_text("utf-8").replace('policy="p"', 'policy="q7"'), "utf-8")
    del sys.modules["guessing"]
    said = " ".join(here("train", "--resume", "--updates", "2", code=2).split())
    assert "the seat 'guesser' is played by the policy 'q7', which the checkpoint" in said and "it has 'p'" in said
    assert updates(folder, "a") == [1]
    program.write_text(program.read_text("utf-8").replace('policy="q7"', 'policy="p"'), "utf-8")
    del sys.modules["guessing"]
    assert json.loads(here("train", "--resume", "--updates", "2", "--json"))["updates"] == 2


def test_a_run_that_came_to_no_update_is_begun_again_under_its_name(folder: Path, here: Here) -> None:
    program = folder / "guessing.py"
    program.write_text(GAME.replace("return {", "return {}[0], {"), "utf-8")
    begun = ("train", "guessing:game", "--tiny", "--run", "a", "--updates", "1", "--tasks-per-update", "2")
    assert "none of the 8 episodes" in " ".join(here(*begun, "--group-size", "4", code=1).split())
    program.write_text(GAME, "utf-8")
    del sys.modules["guessing"]
    with Run.open(folder / "runs" / "a"):
        assert "another process has the run 'a' open" in " ".join(here(*begun, code=2).split())
    assert json.loads(here(*begun, "--group-size", "2", "--json"))["updates"] == 1
    run = Run.read(folder / "runs" / "a")
    assert run.about["options"]["group_size"] == 2 and run.state == "finished"
    with open_episodes(run.folder) as episodes:  # the failed ones are still there
        assert [episodes.count(ok=ok) for ok in (False, True)] == [8, 4]
    # One that has come to something keeps its name.
    assert "there is a run 'runs/a' already" in " ".join(here(*begun, code=2).split())
    with Run.open(run.folder) as opened:
        opened.tell(finished=False)
    assert "there is a run 'runs/a' already" in " ".join(here(*begun, code=2).split())
    (run.folder / "curve.jsonl").unlink()
    assert "there is a run 'runs/a' already" in " ".join(here(*begun, code=2).split())
    # And what another program began is not for this one to begin again.
    Run.create(folder / "runs", {"scenario": "mine"}, name="own").close()
    assert "there is a run 'runs/own' already" in " ".join(here(*begun, "--run", "own", code=2).split())


def test_a_finished_run_says_what_it_reached_and_how_to_train_further(folder: Path, here: Here) -> None:
    small = ("--group-size", "2", "--tasks-per-update", "2")
    here("train", "guessing:game", "--tiny", "--run", "a", "--updates", "2", *small)
    for arguments in (("--resume",), ("--resume", "a", "--updates", "1")):
        said = here("train", *arguments)
        assert "the run 'a' is finished: it has made all of its 2 updates; to train further:" in said.replace("\n", " ")
        assert "agent-env train --resume a --updates 4" in said and "guesser" in said
        curve = (folder / "runs" / "a" / "curve.jsonl").read_text("utf-8").splitlines()
        lines = [json.loads(line)["policies"]["p"] for line in curve]
        groups, flat = (sum(line[name] for line in lines) for name in ("groups", "flat"))
        told = f"p: {flat} of {groups} groups of the last 2 updates taught it nothing ({flat} got the same throughout,"
        assert groups == 4 and told in " ".join(said.split())
        assert json.loads(here("runs", "list", "--json"))[0]["state"] == "finished"
    assert json.loads(here("train", "--resume", "--json"))["state"] == "finished"
    assert json.loads(here("train", "--resume", "--updates", "3", "--json"))["updates"] == 3


@pytest.mark.parametrize(("about", "title"), [({"scenario": "[talk]"}, "[talk], both-0"), ({}, "both-0")])
def test_a_picture_of_a_studys_run_has_its_name_once_and_a_study_names_its_runs(
    about: dict[str, str], title: str, folder: Path, here: Here
) -> None:
    from agent_env.training.checkpoints import Run

    with Run.create(folder / "runs", about, name="study") as outer:
        for name in ("both-0", "none-0"):
            with Run.create(outer.folder, about, name=name) as run:
                run.record({"update": 1, "reward": {"guesser": 0.5}})
    drawn = here("runs", "plot", "runs/study/both-0", "--window", "1")
    assert drawn.splitlines()[0] == f"{title}: mean reward" and drawn.count("both-0") == 1
    refused = " ".join(here("runs", "plot", code=2).split())
    assert "it is a study of the runs both-0, none-0; `agent-env runs plot runs/study/both-0` draws one" in refused


@pytest.mark.parametrize("credit", ["role_baseline", "difference"])
def test_each_credit_of_the_help_can_be_asked_for(credit: str, folder: Path, here: Here) -> None:
    from agent_env.training.credit import CREDITS
    from agent_env.training.propagation import PROPAGATIONS

    told = " ".join(here("train", "--help").replace("│", " ").split())
    for name in (*CREDITS, "role_baseline", *PROPAGATIONS):
        assert name in told
    small = ("--group-size", "2", "--tasks-per-update", "1", "--updates", "1", "--propagation", "own")
    assert json.loads(here("train", "guessing:game", "--tiny", *small, "--credit", credit, "--json"))["updates"] == 1


def test_help_of_training_loads_no_pytorch() -> None:
    code = (
        "import sys; from agent_env.cli.application import app\n"
        "for command in ('train', 'runs'):\n"
        "    try: app([command, '--help'])\n"
        "    except SystemExit: pass\n"
        "print([name for name in ('torch', 'transformers', 'matplotlib', 'mcp') if name in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True, timeout=60)
    assert done.stdout.splitlines()[-1] == "[]" and "--resume" in done.stdout


def test_a_curve_is_drawn_in_the_room_that_there_is() -> None:
    drawn = draw({"a": [(1, 0.0), (10, 1.0)], "b": [(1, 1.0), (10, 0.0)]}, width=40, height=8)
    lines = drawn.plain.splitlines()
    assert len(lines) == 8 + 3 and max(map(len, lines)) <= 40
    assert lines[0].startswith("1.00 ┤") and lines[7].startswith("0.00 ┤")
    assert lines[-1] == "  ● a 1.000  ● b 0.000" and lines[-2].split() == ["1", "10"]
    # A rising line is low at the left and high at the right; the falling one is its mirror image.
    alone = draw({"a": [(1, 0.0), (10, 1.0)]}, width=40, height=8).plain.splitlines()
    assert alone[7][6] != " " and alone[0][-1] != " " and alone[0][6] == " "
    styles = {str(span.style) for span in drawn.spans}
    assert {"cyan", "magenta"} <= styles


def test_curves_without_colours_are_told_apart_by_letters() -> None:
    series = {"up": [(1, 0.0), (10, 1.0)], "down": [(1, 1.0), (10, 0.0)], "same": [(1, 1.0), (10, 0.0)]}
    lines = draw(series, width=40, height=8, coloured=False).plain.splitlines()
    assert lines[-1] == "  a up 1.000  b down 0.000  c same 0.000"
    assert lines[7][6] == "a" and lines[0][-1] == "a"
    # Two lines in the same place take turns.
    assert set(lines[0][6:].replace(" ", "").rstrip("a")) == {"b", "c"}
    alone = {"up": series["up"]}
    assert draw(alone, width=40, height=8, coloured=False) == draw(alone, width=40, height=8)


def test_a_curve_of_one_point_or_one_value_is_drawn() -> None:
    for points in ([(3, 0.5)], [(1, 0.5), (2, 0.5), (3, 0.5)]):
        drawn = draw({"a": points}, width=30, height=5).plain
        assert sum("\u2800" < letter <= "\u28ff" for letter in drawn) >= 1 and "0.50 ┤" in drawn
