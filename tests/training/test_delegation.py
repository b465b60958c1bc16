"""The example `delegation`, run shortened, stopped once and gone on with."""

from __future__ import annotations

import importlib.util
import sys
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from statistics import mean
from types import ModuleType

import pytest
import torch
from example_runs import SECONDS, Stopped

from agent_env.episodes import CallRecord, EdgeRecord, Episode
from agent_env.training import Policy, cut_rows, learn
from agent_env.training.checkpoints import Run

EXAMPLE = Path(__file__).parents[2] / "examples" / "multiagent" / "delegation"
SEATS = ("manager", "ann", "bob", "eve")
UPDATES, BATCH, EVALUATED = 8, 256, 48

pytestmark = [pytest.mark.long, pytest.mark.timeout(3 * SECONDS)]


def figures(shown: str, table: str, arm: str) -> list[float]:
    """A line of one of the tables: sampled before, after, worst, best, greedy before, after."""
    lines = shown[shown.index(table) :].splitlines()
    line = next(line for line in lines if line.startswith(f"│ {arm}"))
    return [float(cell) for cell in line.split("│")[3:] if cell.strip()]


def policies(folder: Path) -> dict[str, Policy]:
    """The policies that a run ended with."""
    checkpoint = Run.read(folder).latest()
    assert checkpoint is not None
    return {seat: checkpoint.load(seat) for seat in SEATS}


@pytest.fixture(scope="module")
def played(stopped_example: Callable[[str], Stopped]) -> Stopped:
    return stopped_example("delegation")


@pytest.fixture
def example(monkeypatch: pytest.MonkeyPatch) -> Iterator[ModuleType]:
    """The module that trains."""
    monkeypatch.syspath_prepend(str(EXAMPLE))
    monkeypatch.delitem(sys.modules, "agents", raising=False)  # the example's own, and not a package of that name
    spec = importlib.util.spec_from_file_location("delegation_train", EXAMPLE / "train.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    monkeypatch.setitem(sys.modules, spec.name, module)
    spec.loader.exec_module(module)
    yield module
    sys.modules.pop("agents", None)


def test_what_all_arms_begin_with_is_a_run_as_well(played: Stopped) -> None:
    fresh = Run.read(played.folder / "fresh-0")
    assert fresh.state == "finished" and fresh.curve() == []
    assert set(fresh.about["figures"]) == {"sampled", "greedy"}


def test_the_manager_learns_whom_to_ask(played: Stopped) -> None:
    routed: dict[int, list[float]] = {}
    for episode in played.episodes:
        if episode.info["phase"] == "training":
            routed.setdefault(episode.info["update"], []).append(scores(episode)["routed"])
    first, last = (mean([*routed[update], *routed[update + 1]]) for update in (1, UPDATES - 1))
    assert 1 / 3 < first < 0.6 and last > first + 0.06


def test_both_tables_are_shown_and_every_figure_is_that_of_the_episodes_on_disk(played: Stopped) -> None:
    assert "(0 failed)" in played.shown
    for table, score in (("mean reward", "right"), ("how often the right specialist was asked", "routed")):
        shown: list[float] = []
        for heat in (1.0, 0.0):
            for phase in ("before", "after"):
                fresh = [e for e in played.episodes if e.info["phase"] == phase and e.info["temperature"] == heat]
                shown.append(round(mean([scores(episode)[score] for episode in fresh]), 3))
        before, after, worst, best, greedy_before, greedy_after = figures(played.shown, table, "manager")
        assert [before, after, greedy_before, greedy_after] == shown and worst == best == after


def test_every_episode_is_on_disk_with_whom_the_manager_asked_and_what_it_made_of_it(
    played: Stopped, example: ModuleType
) -> None:
    phases = Counter(episode.info["phase"] for episode in played.episodes)
    fresh = EVALUATED + len(example.WORDS)
    assert (phases["before"], phases["after"]) == (fresh, fresh) and phases["training"] >= UPDATES * BATCH
    for episode in played.episodes:
        values = scores(episode)
        right = episode.info["result"] == example.ANSWERS[episode.task]
        assert episode.ok and episode.reward() == values["right"] == right
        first, second = sorted(calls(episode, "manager"), key=lambda call: call.started or 0.0)
        said, answered = said_in(first), said_in(second)
        assert answered == episode.info["result"]
        name, _, word = said.partition(" ")
        asked = edges(episode)
        if not word or name.removeprefix("@") not in example.SPECIALISTS:
            assert not asked and values["routed"] == 0.0
            assert second.request["messages"][-1]["content"] == example.NOBODY
            continue
        (edge,) = asked
        assert (f"@{edge.callee_seat}", edge.callee) == (name, f"specialist-{name[1:]}@1.0.0")
        (call,) = calls(episode, name[1:])
        assert (call.policy, call.request["messages"][-1]["content"]) == (name[1:], word)
        assert second.request["messages"][-1]["content"] == said_in(call)
        assert values["routed"] == (example.EXPERTS[episode.task] == name[1:])


def test_each_policy_trains_on_its_own_turns_alone(played: Stopped) -> None:
    trained, fresh = policies(played.folder / "manager-0"), policies(played.folder / "fresh-0")
    assert trained["manager"].version == UPDATES and not same(trained["manager"], fresh["manager"])
    for seat in SEATS[1:]:
        assert trained[seat].version == 0 and same(trained[seat], fresh[seat])
    batch = [e for e in played.episodes if e.info["phase"] == "training" and e.info["update"] == 1][:BATCH]
    rows, report = cut_rows(batch)
    own = {call.call_id: call for episode in batch for seat in SEATS for call in calls(episode, seat)}
    assert report.delivered_ratio == 1.0 and {row.seat for row in rows} == set(SEATS)
    for row in rows:
        spoken = [own[call] for call in row.calls]
        assert {call.seat for call in spoken} == {call.policy for call in spoken} == {row.seat}
        sampled = [token for call in spoken for token in call.token_ids or ()]
        assert [token for token, ours in zip(row.token_ids, row.loss_mask, strict=True) if ours] == sampled
    # Both turns of the manager are one conversation, but for words that it is shown otherwise than it said them.
    merged = [row for row in rows if row.seat == "manager" and len(row.calls) == 2]
    assert report.merged == len(merged) > 0.9 * BATCH
    for policy in fresh.values():
        policy.trainable = True
    lessons = learn(fresh, batch, credit="per_prompt")
    for seat in SEATS:
        update = lessons.policies[seat].update
        tokens = sum(len(call.token_ids or ()) for call in own.values() if call.seat == seat)
        assert update is not None and update.tokens == tokens
    assert not any(same(fresh[seat], trained[seat]) for seat in SEATS)


def scores(episode: Episode) -> dict[str, float]:
    return {reward.name: reward.value for reward in episode.rewards if reward.value is not None}


def calls(episode: Episode, seat: str) -> list[CallRecord]:
    return [call for trace in episode.traces for call in trace.calls if call.seat == seat]


def edges(episode: Episode) -> list[EdgeRecord]:
    return [edge for edge in episode.edges if edge.caller_seat == "manager"]


def said_in(call: CallRecord) -> str:
    return call.response["choices"][0]["message"]["content"]


def same(one: Policy, other: Policy) -> bool:
    weights = other.model.state_dict()
    return all(torch.equal(value, weights[name]) for name, value in one.model.state_dict().items())
