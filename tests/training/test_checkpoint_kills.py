"""Runs whose process is killed before any one of the steps that change the disk."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from agent_env.errors import ConfigurationError
from agent_env.training.checkpoints import Run, list_runs

pytestmark = pytest.mark.timeout(120)

KILLED = """
import os, signal, sys
from pathlib import Path
from agent_env.training.checkpoints import Run

CHANGES = {"os.rename", "os.mkdir", "os.remove", "os.rmdir", "os.link", "os.truncate", "os.chmod"}

class Numbers:
    def __init__(self, value, trainable=True):
        self.version, self.trainable = value, trainable
    def save(self, folder):
        for name in ("model", "policy"):
            (Path(folder) / name).write_text(str(self.version))

frozen = Numbers(7, trainable=False)

def saved(run, update, value):
    run.record({"update": update, "reward": {"team": value / 100}})
    run.save(update, {"p": Numbers(value), "judge": frozen}, state={"value": value})

def create(runs):
    Run.create(runs, {"scenario": "x"}, name="a").close()

def again(runs):
    with Run.open(runs / "a") as run:
        saved(run, 3, 30)

def next_one(runs):
    with Run.open(runs / "a") as run:
        saved(run, 4, 40)

def resume(runs):
    with Run.open(runs / "a") as run:
        run.resume()
        run.tell(updates=9)
        run.finish()

work = {"create": create, "again": again, "next": next_one, "resume": resume}[sys.argv[1]]
folder = Path(sys.argv[2])
for step in range(1, 200):
    runs = folder / str(step)
    runs.mkdir()
    if work is not create:
        with Run.create(runs, {"scenario": "x"}, name="a") as run:
            for update in (2, 3):
                saved(run, update, update)
    child = os.fork()
    if not child:
        left = step
        def hook(event, arguments):
            global left
            writes = event == "open" and isinstance(arguments[2], int) and arguments[2] & (os.O_WRONLY | os.O_RDWR)
            if event in CHANGES or writes:
                left -= 1
                if not left:
                    os.kill(os.getpid(), signal.SIGKILL)
        sys.addaudithook(hook)
        work(runs)
        os._exit(0)
    status = os.waitpid(child, 0)[1]
    print(step, os.WIFSIGNALED(status), flush=True)
    if not os.WIFSIGNALED(status):
        break
"""


def killed(work: str, folder: Path) -> list[Path]:
    """Does the work once for each of its steps, killed before it, and once to its end; gives the folders of runs."""
    done = subprocess.run(
        [sys.executable, "-c", KILLED, work, folder], check=True, capture_output=True, text=True, timeout=100
    )
    lines = done.stdout.split("\n")[:-1]
    assert lines[-1].endswith("False") and len(lines) > 5, done.stdout
    return [folder / line.split()[0] for line in lines]


def kept(run: Run) -> dict[str, Any]:
    """What the newest checkpoint has, whole."""
    checkpoint = run.latest()
    assert checkpoint is not None, sorted(run.folder.rglob("*"))
    values = {(checkpoint.path("p") / name).read_text() for name in ("model", "policy")}
    assert values == {str(checkpoint.state["value"])}
    assert {(checkpoint.path("judge") / name).read_text() for name in ("model", "policy")} == {"7"}
    return {"update": checkpoint.update, "value": checkpoint.state["value"]}


def test_a_run_that_is_being_made_takes_its_name_when_it_is_one(tmp_path: Path) -> None:
    made = 0
    for runs in killed("create", tmp_path):
        found = list_runs(runs)
        made += len(found)
        if found:
            assert (found[0].id, found[0].about["scenario"], found[0].state) == ("a", "x", "stopped")
            with pytest.raises(ConfigurationError, match="there is a run"):
                Run.create(runs, name="a")
        else:
            with Run.create(runs, name="a") as run:
                assert [one.id for one in list_runs(runs)] == [run.id] == ["a"]
    assert made >= 1


@pytest.mark.parametrize(
    ("work", "before", "after"),
    [
        ("again", {"update": 3, "value": 3}, {"update": 3, "value": 30}),
        ("next", {"update": 3, "value": 3}, {"update": 4, "value": 40}),
        ("resume", {"update": 3, "value": 3}, {"update": 3, "value": 3}),
    ],
)
def test_at_every_moment_there_is_a_whole_checkpoint_and_the_run_goes_on(
    tmp_path: Path, work: str, before: dict[str, Any], after: dict[str, Any]
) -> None:
    seen = []
    for runs in killed(work, tmp_path):
        (run,) = list_runs(runs)
        seen.append(kept(run))
        with Run.open(run.folder) as opened:
            checkpoint = opened.resume()
            assert checkpoint is not None and kept(opened) == seen[-1]
            assert {line["update"] for line in opened.curve()} <= set(range(1, checkpoint.update + 1))
            assert not [path for path in (run.folder / "checkpoints").iterdir() if path.name.startswith(".")]
            # Writing the same one once more works from every state that a kill leaves.
            policy = checkpoint.path("p")
            saved = opened.save(checkpoint.update, {}, state={"again": True})
            assert saved.folder.name == f"{checkpoint.update:06d}" and opened.latest() == saved
            assert not policy.exists()
    turned = seen.index(after)
    assert seen == [before] * turned + [after] * (len(seen) - turned)
    assert json.loads((runs / "a" / "run.json").read_text())["scenario"] == "x"


def test_checkpoints_are_sorted_as_numbers(tmp_path: Path) -> None:
    with Run.create(tmp_path, name="a") as run:
        for update in (999_998, 999_999, 1_000_000, 1_000_001):
            run.save(update, {}, state={"count": update})
            latest = run.latest()
            assert latest is not None and latest.update == update
        names = sorted(path.name for path in (run.folder / "checkpoints").iterdir())
        assert names == ["1000000", "1000001"]
