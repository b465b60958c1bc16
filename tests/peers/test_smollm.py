"""The example `smollm`, on the real model: evaluated through llama.cpp, and trained by two gradient steps a seat,
stopped between them."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any, TypeAlias

import pytest
from programs import ROOT, finished, started, stopped, with_metadata

from agent_env.episodes import CallRecord, Episode, open_episodes
from agent_env.training import cut_rows
from agent_env.training.checkpoints import Run

EXAMPLE = ROOT / "examples" / "multiagent" / "smollm"
MODEL = ROOT / ".venvs" / "smollm-model" / "SmolLM2-135M-Instruct"
SEATS = ["editor", "writer"]
TWO_STEPS = ("--updates", "2", "--tasks", "1", "--group", "4")

pytestmark = [pytest.mark.peers, pytest.mark.timeout(1800)]

Start: TypeAlias = Callable[..., AbstractContextManager[subprocess.Popen[str]]]
RunPeer: TypeAlias = Callable[..., dict[str, Any]]


@pytest.fixture
def start(peer_python: Callable[[str], Path], tmp_path: Path) -> Iterator[Start]:
    """Starts a program of the example: `with start("train.py", …) as process`."""
    metadata = with_metadata(tmp_path)

    def run(program: str, *flags: str | Path) -> AbstractContextManager[subprocess.Popen[str]]:
        return started(peer_python("smollm"), "-W", "error", EXAMPLE / program, *flags, metadata=metadata)

    yield run
    # Checkpoints have gigabytes, which pytest would keep.
    shutil.rmtree(tmp_path / "runs", ignore_errors=True)


def test_a_team_on_a_real_model_is_evaluated_through_the_gateway_and_every_answer_that_tells_its_tokens_makes_a_row(
    start: Start, run_peer: RunPeer, tmp_path: Path
) -> None:
    with start("evaluate.py", "--episodes", "4", "--runs", tmp_path / "runs") as process:
        shown = finished(process)
    (folder,) = (tmp_path / "runs").iterdir()
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
    made = calls(episodes)
    told = [call for call in made if call.token_ids]
    # Of a character of several tokens, as an emoji is, llama.cpp names the last one alone: then the record says so.
    for call in made:
        if not call.token_ids:
            assert not said(call).isascii() and call.missing is not None and call.missing["token_ids"] == "incomplete"
    assert len(told) >= 6
    for call in told:
        # llama.cpp names the tokens that it sampled, and those of the prompt only when it is asked for them.
        assert call.usage is not None and call.prompt_token_ids is not None and call.token_ids and call.logprobs
        counted = {"prompt_tokens": len(call.prompt_token_ids), "completion_tokens": len(call.token_ids)}
        assert counted.items() <= call.usage.items() and call.missing == {"prompt_token_ids": "asked_apart"}
        assert (call.temperature, call.policy_version) == (1.0, 0)
    rows, report = cut_rows(episodes)
    untold = len(made) - len(told)
    assert (len(made), len(rows), report.delivered_ratio) == (8, len(told), 1.0)
    assert report.dropped == ({"no token ids": untold} if untold else {})
    sampled = report.captured_tokens
    assert f"{len(told)} rows of 8 model calls: {sampled} of {sampled} sampled tokens" in shown

    # They are the model's own tokens and logprobs, as its weights in another engine say, which rounds in other places.
    with start("model.py", "convert", MODEL) as process:
        finished(process)
    seen = run_peer("smollm", "smollm_logprobs.py", folder, "", MODEL)
    assert seen["renders"] == [bool(call.token_ids) for call in made] and seen["rows"] == len(told)
    (apart,) = seen["distances"]
    assert sorted(apart) == SEATS and max(apart.values()) < 0.2, apart


def test_a_training_that_was_stopped_goes_on_and_what_it_saves_is_read_again_and_served_as_the_next_version(
    start: Start, run_peer: RunPeer, tmp_path: Path
) -> None:
    runs = tmp_path / "runs"
    with start("train.py", *TWO_STEPS, "--model", MODEL, "--runs", runs) as process:
        told = stopped(process, runs, "*/curve.jsonl")
    (folder,) = runs.iterdir()
    run = Run.read(folder)
    before, checkpoint = run.curve(), run.latest()
    assert f"stopped; go on with --resume {folder}" in told
    assert checkpoint is not None and (run.state, checkpoint.update, len(before)) == ("stopped", 1, 1)

    with start("train.py", "--resume", "--runs", runs) as process:
        shown = finished(process)
    curve, checkpoint = run.curve(), run.latest()
    assert [line["update"] for line in curve] == [1, 2] and curve[:1] == before
    assert checkpoint is not None and (Run.read(folder).state, checkpoint.update) == ("finished", 2)
    assert "update 1:" not in shown and "update 2:" in shown and "by versions {'writer': [2], 'editor': [2]}" in shown
    episodes = [episode for episode in episodes_of(folder) if episode.ok]
    for number, line in enumerate(curve, 1):
        # The second update is played by what the first one came to, also by what of it was stopped.
        trained = [e for e in episodes if e.info["phase"] == "training" and e.info["update"] == number]
        assert len(trained) >= 4 and (number > 1 or len(trained) == 4)
        assert {(call.seat, call.policy_version) for call in calls(trained)} == {(seat, number - 1) for seat in SEATS}
        for seat in SEATS:
            lesson = line["policies"][seat]
            sampled = sum(len(call.token_ids or ()) for call in calls(trained[-4:]) if call.seat == seat)
            assert (lesson["rows"], lesson["tokens"]) == (4, sampled) and lesson["gradient_norm"] > 0
    after = [episode for episode in episodes if episode.info["phase"] == "after"]
    assert len(after) == 1 and {(call.seat, call.policy_version) for call in calls(after)} == {
        (seat, 2) for seat in SEATS
    }

    # What answered are the weights that were saved, each seat's its own, and no longer those before the steps.
    saved = [checkpoint.path(seat) for seat in SEATS]
    for place in saved:
        assert json.loads((place / "config.json").read_text())["model_type"] == "llama"
    seen = run_peer("smollm", "smollm_logprobs.py", folder, "after", *saved, MODEL)
    assert all(seen["renders"]) and (seen["rows"], seen["delivered"]) == (2, 1.0)
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
