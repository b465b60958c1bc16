"""Every example with a training loop of its own is stopped by Ctrl-C, started again with `--resume`, and goes on."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from example_runs import SECONDS, SHORTENED, Stopped, started

from agent_env.training.checkpoints import Run


@pytest.mark.long
@pytest.mark.timeout(3 * SECONDS)
@pytest.mark.parametrize("name", SHORTENED)
def test_the_curve_goes_on_with_no_update_twice_and_none_missing_and_the_table_is_shown(
    name: str, stopped_example: Callable[[str], Stopped]
) -> None:
    played = stopped_example(name)
    assert f"stopped; go on with --resume {played.folder}" in played.stopped
    assert not any(word in played.stopped for word in ("Traceback", "could not be kept", "was not released"))
    updates, learner = played.settings.updates, played.settings.learner
    curve = played.run.curve()
    assert 2 <= len(played.before) < updates and curve[: len(played.before)] == played.before
    assert [line["update"] for line in curve] == list(range(1, updates + 1))
    # An update that was stopped before it was whole is played again, by the weights that it began with.
    later = [
        episode
        for episode in played.episodes
        if episode.info["phase"] == "training" and episode.info["update"] > len(played.before)
    ]
    versions = {
        (episode.info["update"], call.policy_version)
        for episode in later
        for trace in episode.traces
        for call in trace.calls
        if call.policy == learner
    }
    assert versions == {(update, update - 1) for update in range(len(played.before) + 1, updates + 1)}
    checkpoint = played.run.latest()
    assert checkpoint is not None and (checkpoint.update, checkpoint.load(learner).version) == (updates, updates)
    states = {run.id: run.state for run in (played.run, Run.read(played.folder))}
    assert set(states.values()) == {"finished"}, states
    assert (played.folder / "curve.png").read_bytes().startswith(b"\x89PNG")
    # The finished table fits into a terminal of 80 columns: no heading and no figure is cut.
    table = [line for line in played.shown.splitlines() if line.startswith(("┃", "│"))]
    assert any("worst" in line for line in table) and "…" not in "".join(table)
    assert "(0 failed)" in played.shown and f"all in {played.folder}" in played.shown.replace("\n", "")


ALL_ARMS = {
    "delegation": (
        ("--evaluated", "48"),
        {arm: arm for arm in ("all", "manager", "specialists", "none")},
    ),
    "duel": (("--seeds", "1", "--warm", "60", "--evaluated", "40"), {"baselines": "by role", "none": "none"}),
}
"""Flags, and each arm with its title in the table."""


@pytest.mark.long
@pytest.mark.timeout(2 * SECONDS)
@pytest.mark.parametrize("name", ALL_ARMS)
def test_every_arm_of_an_example_is_trained_and_has_a_line_in_the_table(name: str, tmp_path: Path) -> None:
    flags, arms = ALL_ARMS[name]
    with started(name, *flags, "--updates", "2", runs=tmp_path) as process:
        shown, _ = process.communicate(timeout=SECONDS)
    assert process.returncode == 0, shown
    (folder,) = tmp_path.iterdir()
    assert Run.read(folder).state == "finished" and "(0 failed)" in shown
    for arm, title in arms.items():
        assert any(line.startswith(f"│ {title} ") for line in shown.splitlines()), shown
        run = Run.read(folder / f"{arm}-0")
        assert (run.state, len(run.curve())) == ("finished", 2)


@pytest.mark.parametrize("name", SHORTENED)
@pytest.mark.long
def test_going_on_with_a_run_that_there_is_not_says_so_in_a_line(name: str, tmp_path: Path) -> None:
    Run.create(tmp_path, {"scenario": "another", "options": {}}, name="other").close()
    with started(name, "--resume", "nothing", runs=tmp_path) as process:
        shown, _ = process.communicate(timeout=60)
    assert process.returncode == 1 and "is no run" in shown and "Traceback" not in shown
    with started(name, "--resume", runs=tmp_path) as process:
        shown, _ = process.communicate(timeout=60)
    assert process.returncode == 1 and "was not begun by this program" in shown and "Traceback" not in shown
