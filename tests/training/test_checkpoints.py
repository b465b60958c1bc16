"""Runs on disk: what a checkpoint brings back, and what is left when a process dies at any moment."""

from __future__ import annotations

import gc
import json
import os
import signal
import subprocess
import sys
import time
import weakref
from pathlib import Path

import pytest
import torch
from games import WORDS, rows_of

from agent_env.errors import ConfigurationError
from agent_env.training import Policy, Run, WordTokenizer, make_model
from agent_env.training.checkpoints import find_run, list_runs
from agent_env.training.update import Settings

KILLED = """
import sys
from agent_env.training import Policy, Run, WordTokenizer, make_model
tokenizer = WordTokenizer(["boat", "car"])
policy = Policy("p", make_model(tokenizer, seed=0, width=128), tokenizer)
with Run.create(sys.argv[1], name="killed") as run:
    for update in range(1, 100_000):
        with __import__("torch").no_grad():
            for weight in policy.model.parameters():
                weight.fill_(float(update))
        policy.version = update
        run.record({"update": update, "reward": {"p": 0.5}})
        run.save(update, {"p": policy}, state={"count": update})
        print(update, flush=True)
"""


def fresh(name: str = "p", *, seed: int = 0, trainable: bool = True) -> Policy:
    tokenizer = WordTokenizer(WORDS)
    return Policy(
        *(name, make_model(tokenizer, seed=seed), tokenizer),
        settings=Settings(learning_rate=0.01, clip=0.3),
        trainable=trainable,
        seed=seed,
    )


def weights(policy: Policy) -> list[torch.Tensor]:
    return [weight.detach().clone() for weight in policy.model.parameters()]


def same(left: list[torch.Tensor], right: list[torch.Tensor]) -> bool:
    return all(torch.equal(one, other) for one, other in zip(left, right, strict=True))


def test_a_policy_that_was_loaded_goes_on_exactly_as_the_one_that_was_saved(tmp_path: Path) -> None:
    policy = fresh()
    for seed in range(3):
        policy.update(rows_of(policy, seed)[0])
    policy.save(tmp_path)
    loaded = Policy.load(tmp_path)
    assert (loaded.name, loaded.version, loaded.settings, loaded.trainable) == ("p", 3, policy.settings, True)
    assert same(weights(loaded), weights(policy))
    for seed in range(3, 6):
        ours, theirs = rows_of(policy, seed)[0], rows_of(loaded, seed)[0]
        assert [row.token_ids for row in ours] == [row.token_ids for row in theirs]  # the same random numbers
        assert policy.update(ours) == loaded.update(theirs)  # the same momenta
    assert same(weights(loaded), weights(policy))


def test_a_folder_without_a_policy_is_refused(tmp_path: Path) -> None:
    with pytest.raises(
        ConfigurationError, match="holds no policy; for a model of Hugging Face there is load_pretrained"
    ):
        Policy.load(tmp_path)


@pytest.mark.timeout(120)
@pytest.mark.long
def test_a_process_that_is_killed_leaves_its_newest_whole_checkpoint(tmp_path: Path) -> None:
    for attempt in range(3):
        runs = tmp_path / str(attempt)
        process = subprocess.Popen([sys.executable, "-c", KILLED, runs], stdout=subprocess.PIPE, text=True)
        assert process.stdout is not None
        with process.stdout:
            for _ in range(3 + attempt):
                assert process.stdout.readline()
            # Each time a little later, so that it dies in another step of saving.
            time.sleep(0.0021 * attempt)
            os.kill(process.pid, signal.SIGKILL)
            said = [int(line) for line in process.stdout.read().split()]
            process.wait(20)
        reached = said[-1] if said else 3 + attempt
        run = Run.read(runs / "killed")
        assert run.state == "stopped"
        with Run.open(runs / "killed") as run:
            checkpoint = run.resume()
            assert checkpoint is not None
            # What was acknowledged is there; one more may be whole as well.
            assert reached <= checkpoint.update <= reached + 1
            assert checkpoint.state == {"count": checkpoint.update}
            policy = checkpoint.load("p")
            assert policy.version == checkpoint.update
            assert all(bool((weight == float(checkpoint.update)).all()) for weight in weights(policy))
            assert [line["update"] for line in run.curve()] == list(range(1, checkpoint.update + 1))
            assert not list((run.folder / "checkpoints").glob(".*"))


def test_a_checkpoint_that_was_being_written_is_none(tmp_path: Path) -> None:
    policy = fresh()
    with Run.create(tmp_path, name="a") as run:
        assert run.latest() is None
        run.save(1, {"p": policy})
        policy.save = lambda directory: (_ for _ in ()).throw(OSError("the disk is full"))  # type: ignore[method-assign]
        with pytest.raises(OSError, match="the disk is full"):
            run.save(2, {"p": policy})
        latest = run.latest()
        assert latest is not None and latest.update == 1 and latest.load("p").version == 0
        resumed = run.resume()
        assert resumed == latest


def test_the_curve_is_cut_to_the_checkpoint_that_is_gone_on_from(tmp_path: Path) -> None:
    with Run.create(tmp_path, name="a") as run:
        for update in range(1, 6):
            run.record({"update": update, "reward": {"team": update / 10}})
            if update == 3:
                run.save(update, {"p": fresh()})
    with (tmp_path / "a" / "curve.jsonl").open("ab") as file:
        file.write(b'{"update": 6, "rew')
    with Run.open(tmp_path / "a") as run:
        assert len(run.curve()) == 5
        checkpoint = run.resume()
        assert checkpoint is not None and checkpoint.update == 3
        run.record({"update": 4, "reward": {"": 0.9}})  # as earlier releases wrote the team
        assert [(line["update"], line["reward"]["team"]) for line in run.curve()] == [
            (1, 0.1),
            (2, 0.2),
            (3, 0.3),
            (4, 0.9),
        ]


def test_a_run_that_has_no_checkpoint_begins_anew(tmp_path: Path) -> None:
    with Run.create(tmp_path, name="a") as run:
        run.record({"update": 1, "reward": {}})
    with Run.open(tmp_path / "a") as run:
        assert run.resume() is None and run.curve() == []


def test_the_newest_checkpoints_are_kept_and_older_ones_removed(tmp_path: Path) -> None:
    policies = {"org/model": fresh("org/model"), "..": fresh("..", seed=1)}
    with Run.create(tmp_path, name="a") as run:
        for update in (1, 2, 10, 10):
            run.save(update, policies)
        assert sorted(path.name for path in (run.folder / "checkpoints").iterdir()) == ["000002", "000010"]
        checkpoint = run.latest()
        assert checkpoint is not None and checkpoint.policies == ("org/model", "..")
        assert same(weights(checkpoint.load("..")), weights(policies[".."]))
        assert checkpoint.path("..").parent == checkpoint.folder
        with pytest.raises(ConfigurationError, match=r"has no policy 'x'; it has org/model, \.\."):
            checkpoint.load("x")


def test_a_frozen_policy_is_written_once_and_linked_from_then_on(tmp_path: Path) -> None:
    frozen, learner = fresh("judge", trainable=False), fresh()
    written: list[str] = []
    for policy in (frozen, learner):
        save = policy.save

        def counted(directory: Path, save: object = save, name: str = policy.name) -> None:
            written.append(name)
            save(directory)  # type: ignore[operator]

        policy.save = counted  # type: ignore[method-assign,assignment]
    with Run.create(tmp_path, name="a") as run:
        for update in (1, 2, 3, 4):
            checkpoint = run.save(update, {"judge": frozen, "p": learner})
        assert written.count("judge") == 1 and written.count("p") == 4
        assert not checkpoint.load("judge").trainable
        assert same(weights(checkpoint.load("judge")), weights(frozen))
        # Another past version in the same seat is another policy.
        other = fresh("judge", seed=5, trainable=False)
        assert same(weights(run.save(5, {"judge": other, "p": learner}).load("judge")), weights(other))


def test_a_run_holds_on_to_no_policy_that_learns(tmp_path: Path) -> None:
    learner = fresh()
    gone = weakref.ref(learner)
    with Run.create(tmp_path, name="a") as run:
        run.save(1, {"p": learner})
        del learner
        gc.collect()
        assert gone() is None


def test_one_process_at_a_time_has_a_run_open(tmp_path: Path) -> None:
    run = Run.create(tmp_path, {"scenario": "duel"}, name="a")
    assert run.state == Run.read(run.folder).state == "running"
    with pytest.raises(ConfigurationError, match="another process has the run 'a' open"):
        Run.open(run.folder)
    run.close()
    run.close()
    assert run.state == "stopped"
    with pytest.raises(ConfigurationError, match="the run 'a' is not open"):
        run.record({"update": 1})
    with Run.open(run.folder) as again:
        again.finish()
    assert Run.read(run.folder).state == "finished"
    assert Run.read(run.folder).about["scenario"] == "duel"
    with Run.open(run.folder) as again:
        again.resume()
    assert Run.read(run.folder).state == "stopped"


def test_runs_are_found_by_name_by_path_and_by_age(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match="there are no runs in"):
        find_run(tmp_path)
    names = [Run.create(tmp_path) for _ in range(3)]
    assert len({run.id for run in names}) == 3
    for run in names:
        run.close()
    assert [run.id for run in list_runs(tmp_path)] == [run.id for run in names]
    assert find_run(tmp_path).id == names[-1].id
    assert find_run(tmp_path, names[0].id).folder == names[0].folder
    assert find_run("elsewhere", str(names[1].folder)).folder == names[1].folder
    with pytest.raises(ConfigurationError, match="is no run; `agent-env runs list` shows"):
        find_run(tmp_path, "nothing")
    with pytest.raises(ConfigurationError, match=r"there is a run .* already"):
        Run.create(tmp_path, name=names[0].id)


def test_looking_at_runs_needs_no_pytorch(tmp_path: Path) -> None:
    with Run.create(tmp_path, name="a") as run:
        run.record({"update": 1, "reward": {"p": 0.5}})
    code = (
        "import sys; from agent_env.training.checkpoints import list_runs; from agent_env.cli.application import app;"
        "print([run.curve() for run in list_runs(sys.argv[1])], 'torch' in sys.modules)"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, tmp_path], check=True, capture_output=True, text=True, timeout=60
    )
    assert done.stdout.strip() == f"{[[json.loads(json.dumps({'update': 1, 'reward': {'p': 0.5}}))]]} False"
