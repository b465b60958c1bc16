"""The example `smollm`, on the real model: evaluated through llama.cpp, and trained by one gradient step a seat."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
from collections.abc import Callable, Iterator
from importlib.metadata import distribution
from pathlib import Path
from typing import Any, TypeAlias

import pytest

from agent_env.episodes import CallRecord, Episode, open_episodes
from agent_env.training import cut_rows
from agent_env.training.checkpoints import Run

ROOT = Path(__file__).parents[2]
EXAMPLE = ROOT / "examples" / "multiagent" / "smollm"
MODEL = ROOT / ".venvs" / "smollm-model" / "SmolLM2-135M-Instruct"
SEATS = ["editor", "writer"]
SECONDS = 540

pytestmark = [pytest.mark.peers, pytest.mark.timeout(1800)]

Example: TypeAlias = Callable[..., tuple[Path, str]]
RunPeer: TypeAlias = Callable[..., dict[str, Any]]


@pytest.fixture
def example(peer_python: Callable[[str], Path], tmp_path: Path) -> Iterator[Example]:
    """Runs a program of the example, and gives the folder of its run and what it printed."""
    metadata = tmp_path / "metadata" / "agent_env-0.dist-info"
    metadata.mkdir(parents=True)
    for name in ("METADATA", "entry_points.txt"):
        (metadata / name).write_text(distribution("agent-env").read_text(name) or "", "utf-8")
    paths = [ROOT, ROOT / "cards", ROOT / "wrappers", metadata.parent]
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(map(str, paths)), "HF_HUB_OFFLINE": "1"}

    def run(program: str, *flags: str) -> tuple[Path, str]:
        command = [peer_python("smollm"), "-W", "error", EXAMPLE / program, *flags]
        ran = subprocess.run(command, capture_output=True, text=True, timeout=SECONDS, check=False, env=environment)
        if ran.returncode:
            pytest.fail(f"{program} failed:\n{ran.stdout}{ran.stderr}", pytrace=False)
        found = [folder for folder in (tmp_path / "runs").glob("*") if (folder / "episodes.db").exists()]
        return (found[0] if found else tmp_path), ran.stdout

    yield run
    # Checkpoints have gigabytes, which pytest would keep.
    shutil.rmtree(tmp_path / "runs", ignore_errors=True)


def test_a_team_on_a_real_model_is_evaluated_through_the_gateway_and_every_sampled_token_makes_a_row(
    example: Example, run_peer: RunPeer, tmp_path: Path
) -> None:
    folder, shown = example("evaluate.py", "--episodes", "4", "--runs", str(tmp_path / "runs"))
    episodes = episodes_of(folder)
    assert [episode.ok for episode in episodes] == [True] * 4
    assert {(e.caller_seat, e.callee_seat) for episode in episodes for e in episode.edges} >= {("writer", "editor")}
    for episode in episodes:
        # What the writer said is what the editor was told, and what that made of it is the headline.
        (writes,), (edits,) = (
            [call for call in calls([episode]) if call.seat == seat] for seat in ("writer", "editor")
        )
        (edge,) = (edge for edge in episode.edges if edge.callee_seat == "editor")
        assert edge.request == said(writes) and edge.request in edits.request["messages"][-1]["content"]
        assert episode.info["result"] == said(edits)
        thing = episode.task.removeprefix("the ").removesuffix("s")
        named = re.search(rf"\b{thing}s?\b", said(edits), re.IGNORECASE) is not None
        for call, most in ((writes, 10), (edits, 5)):
            words = len(re.findall(r"\w+", said(call)))
            assert episode.reward(call.seat) == pytest.approx(named + (min(1, most / words) if words else 0))
    for call in calls(episodes):
        # llama.cpp names the tokens that it sampled, and those of the prompt only when it is asked for them.
        assert call.usage is not None and call.prompt_token_ids is not None and call.token_ids and call.logprobs
        counted = {"prompt_tokens": len(call.prompt_token_ids), "completion_tokens": len(call.token_ids)}
        assert counted.items() <= call.usage.items() and call.missing == {"prompt_token_ids": "asked_apart"}
        assert (call.temperature, call.policy_version) == (1.0, 0)
    rows, report = cut_rows(episodes)
    assert (len(rows), report.delivered_ratio, report.dropped) == (8, 1.0, {})
    assert f"8 rows of 8 model calls: {report.captured_tokens} of {report.captured_tokens} sampled tokens" in shown

    # They are the model's own tokens and logprobs, as its weights in another engine say, which rounds in other places.
    example("model.py", "convert", str(MODEL))
    seen = run_peer("smollm", "smollm_logprobs.py", folder, "", MODEL)
    assert seen["renders"] == [True] * 8 and seen["rows"] == 8
    (apart,) = seen["distances"]
    assert sorted(apart) == SEATS and max(apart.values()) < 0.2, apart


def test_one_gradient_step_of_each_seat_is_saved_read_again_and_served_as_the_next_version(
    example: Example, run_peer: RunPeer, tmp_path: Path
) -> None:
    flags = ("--updates", "1", "--tasks", "2", "--group", "4", "--model", str(MODEL))
    folder, shown = example("train.py", *flags, "--runs", str(tmp_path / "runs"))
    run = Run.read(folder)
    (line,) = run.curve()
    episodes = episodes_of(folder)
    trained, after = ([e for e in episodes if e.info["phase"] == phase] for phase in ("training", "after"))
    assert (run.state, len(trained), len(after)) == ("finished", 8, 2) and all(episode.ok for episode in episodes)
    assert {(call.seat, call.policy_version) for call in calls(trained)} == {(seat, 0) for seat in SEATS}
    assert {(call.seat, call.policy_version) for call in calls(after)} == {(seat, 1) for seat in SEATS}
    assert "by versions {'writer': [1], 'editor': [1]}" in shown
    for seat in SEATS:
        lesson = line["policies"][seat]
        sampled = sum(len(call.token_ids or ()) for call in calls(trained) if call.seat == seat)
        assert (lesson["rows"], lesson["tokens"]) == (8, sampled) and lesson["gradient_norm"] > 0

    # What answered are the weights that were saved, each seat's its own, and no longer those before the step.
    checkpoint = run.latest()
    assert checkpoint is not None
    saved = [checkpoint.path(seat) for seat in SEATS]
    for place in saved:
        assert json.loads((place / "config.json").read_text())["model_type"] == "llama"
    seen = run_peer("smollm", "smollm_logprobs.py", folder, "after", *saved, MODEL)
    assert all(seen["renders"]) and (seen["rows"], seen["delivered"]) == (4, 1.0)
    by_editor, by_writer, by_fresh = seen["distances"]
    for own, other, seat in ((by_editor, by_writer, "editor"), (by_writer, by_editor, "writer")):
        assert own[seat] < 1e-3 and min(other[seat], by_fresh[seat]) > 5 * own[seat], seen["distances"]


def episodes_of(folder: Path) -> list[Episode]:
    with open_episodes(folder) as kept:
        return list(kept.find())


def calls(episodes: list[Episode]) -> list[CallRecord]:
    return [call for episode in episodes for trace in episode.traces for call in trace.calls]


def said(call: CallRecord) -> str:
    return call.response["choices"][0]["message"]["content"].strip()
