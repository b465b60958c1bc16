"""Episodes: assembled from records in any order, scored, drawn as a tree."""

from __future__ import annotations

import json
import random
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agent_env.episodes import (
    AnyRecord,
    CallRecord,
    EdgeRecord,
    Episode,
    Failure,
    Node,
    RewardRecord,
    TurnRecord,
    render_tree,
)
from agent_env.errors import (
    AgentFailed,
    AtCapacity,
    DeadlineExceeded,
    InvalidArguments,
    PeerFailed,
    ProtocolError,
    TransportError,
)

# A manager asks two workers, one of them twice in the same session; each turn asks its model once.
RECORDS: Sequence[AnyRecord] = (
    EdgeRecord("e0", "manager@1.0.0", "ep", callee_seat="manager", callee_call_id="m1", started=1.0, seconds=9.0),
    TurnRecord("m1", "manager@1.0.0", "sm", "ep", seat="manager", request="go", reply="done", started=1.1, seconds=8.0),
    EdgeRecord(
        *("e1", "ann@1.0.0", "ep", None, "manager@1.0.0", "manager", "m1", "ann", "a1"), started=2.0, protocol="http"
    ),
    TurnRecord("a1", "ann@1.0.0", "sa", "ep", "m1", seat="ann", request="one", reply="uno", started=2.1),
    EdgeRecord("e2", "bob@1.0.0", "ep", None, "manager@1.0.0", "manager", "m1", "bob", "b1", started=3.0),
    TurnRecord("b1", "bob@1.0.0", "sb", "ep", "m1", seat="bob", started=3.1),
    EdgeRecord("e3", "ann@1.0.0", "ep", None, "manager@1.0.0", "manager", "m1", "ann", "a2", started=4.0),
    TurnRecord("a2", "ann@1.0.0", "sa", "ep", "m1", seat="ann", started=4.1),
    CallRecord("k1", "m1", "manager", "M", "ep", started=1.2, prompt_token_ids=[1], token_ids=[2, 3]),
    CallRecord("k2", "a1", "ann", "W", "ep", started=2.2),
    CallRecord("k3", "b1", "bob", "W", "ep", started=3.2),
    CallRecord("k4", "a2", "ann", "W", "ep", started=4.2, status="upstream_error"),
)


def shape(node: Node) -> tuple[str | None, list[str], list[object]]:
    return node.call_id, [call.call_id for call in node.calls], [shape(child) for child in node.children]


TREE = (None, [], [("m1", ["k1"], [("a1", ["k2"], []), ("b1", ["k3"], []), ("a2", ["k4"], [])])])


@given(st.randoms(use_true_random=False), st.integers(0, len(RECORDS)))
def test_records_make_the_same_episode_in_whatever_order_and_however_often_they_come(
    rng: random.Random, cut: int
) -> None:
    records = list(RECORDS)
    rng.shuffle(records)
    episode = Episode("ep")
    episode.add(records[:cut])
    episode.add(record.to_json() for record in records)
    episode.add(records[cut:])
    assert {(trace.agent, trace.seat, trace.session) for trace in episode.traces} == {
        ("manager@1.0.0", "manager", "sm"),
        ("ann@1.0.0", "ann", "sa"),
        ("bob@1.0.0", "bob", "sb"),
    }
    ann = next(trace for trace in episode.traces if trace.seat == "ann")
    assert {turn.call_id for turn in ann.turns} == {"a1", "a2"}
    assert {call.call_id for call in ann.calls} == {"k2", "k4"}
    assert len(episode.edges) == 4
    assert shape(episode.tree()) == TREE


@given(st.randoms(use_true_random=False), st.integers(0, len(RECORDS)))
def test_an_episode_written_as_json_text_reads_as_the_same_episode(rng: random.Random, count: int) -> None:
    episode = Episode("ep", {"object": "boat"}, "boat", "run", 1.5, 2.5)
    episode.add(rng.sample(list(RECORDS), count))
    episode.score("named", 1.0, weight=0.5)
    episode.score("brief", None, seat="ann", source="judge")
    episode.fail(AtCapacity("full"), call_id="m1")
    episode.info["update"] = 3
    wire = json.loads(json.dumps(episode.to_json()))
    assert Episode.from_json(wire) == episode
    assert Episode.from_json(wire).to_json() == wire


def test_one_more_record_costs_little_for_each_that_is_there(
    instructions: Callable[[Callable[[], object]], int],
) -> None:
    episode = Episode("ep")
    episode.add(TurnRecord(f"t{number}", "ann@1.0.0", "s") for number in range(1000))
    episode.add(EdgeRecord(f"e{number}", "ann@1.0.0") for number in range(1000))
    episode.add(CallRecord(f"k{number}", f"t{number}", "ann", "W") for number in range(1000))
    more = (TurnRecord("t", "ann@1.0.0", "s"), EdgeRecord("e", "ann@1.0.0"), CallRecord("k", "t", "ann", "W"))
    for record in more:
        assert instructions(partial(episode.add, [record])) < 20 * 3000
    episode.add(more)
    assert len(list(episode.records())) == 3003


def test_a_model_call_whose_turn_nobody_told_is_kept_by_its_seat() -> None:
    episode = Episode("ep")
    episode.add([CallRecord("k1", "unknown", "ann", "W", "ep")])
    assert [(trace.agent, trace.seat, trace.session) for trace in episode.traces] == [(None, "ann", None)]
    assert shape(episode.tree()) == (None, ["k1"], [])
    episode.add([TurnRecord("other", "bob@1.0.0", "s", "ep"), CallRecord("k2", "unknown", "bob", "W", "ep")])
    assert sorted((trace.seat or trace.agent or "") for trace in episode.traces) == ["ann", "bob", "bob@1.0.0"]
    episode.add([TurnRecord("unknown", "ann@1.0.0", "s", "ep", seat="ann")])
    assert [trace.agent for trace in episode.traces] == ["bob@1.0.0", "ann@1.0.0"]
    assert [call.call_id for call in episode.traces[1].calls] == ["k1", "k2"]


def test_a_callee_that_told_nothing_and_a_caller_that_told_nothing_are_both_in_the_tree() -> None:
    episode = Episode("ep")
    episode.add(
        [
            TurnRecord("m1", "manager@1.0.0", "s", "ep"),
            EdgeRecord("e1", "foreign", "ep", caller_call_id="m1", status="transport_error", started=5.0),
            TurnRecord("w1", "worker@1.0.0", "t", "ep", "m1", started=4.0),
        ]
    )
    (manager,) = episode.tree().children
    assert [(child.call_id, child.edge is None, child.turn is None) for child in manager.children] == [
        ("w1", True, False),
        (None, False, True),
    ]
    assert [node.call_id for node in episode.tree().walk()] == [None, "m1", "w1", None]


def test_two_edges_to_one_turn_are_two_calls() -> None:
    episode = Episode("ep")
    episode.add([TurnRecord("w1", "w@1.0.0", "t", "ep")])
    episode.add([EdgeRecord("e1", "w@1.0.0", callee_call_id="w1"), EdgeRecord("e2", "w@1.0.0", callee_call_id="w1")])
    assert [child.turn is not None for child in episode.tree().children] == [True, False]


def test_a_record_of_another_episode_is_refused() -> None:
    with pytest.raises(ProtocolError, match="of episode 'other' came to 'ep'"):
        Episode("ep").add([TurnRecord("c1", "a@1.0.0", "s", "other")])


def test_a_line_of_another_kind_is_no_episode() -> None:
    with pytest.raises(ProtocolError, match="kind 'episode', not 'turn'"):
        Episode.from_json({"kind": "turn"})


def test_a_reward_is_the_weighted_sum_of_what_counts_for_the_seat() -> None:
    episode = Episode("ep")
    assert episode.reward() is None and episode.reward("ann") is None
    episode.score("unscored", None)
    assert episode.reward("ann") is None
    episode.score("solved", 1.0)
    episode.score("brief", 0.5, seat="ann", weight=0.2)
    episode.score("polite", 7.0, seat="bob")
    assert episode.reward() == 1.0
    assert episode.reward("ann") == pytest.approx(1.1)
    episode.add([RewardRecord("early", 100.0, target="call", target_id="m1", episode="ep")])
    assert episode.reward("ann") == pytest.approx(1.1)


@pytest.mark.parametrize(
    ("error", "boundary"),
    [
        (InvalidArguments("no"), "request"),
        (AtCapacity("full"), "refused"),
        (DeadlineExceeded("late"), "deadline"),
        (AgentFailed("broke"), "agent"),
        (AgentFailed("its model broke", kind="model"), "model"),
        (AgentFailed("its tool broke", kind="tool"), "agent"),
        (PeerFailed("broke"), "peer"),
        (PeerFailed("broke", error=AgentFailed("broke").to_wire()), "peer"),
        (PeerFailed("broke", error=AgentFailed("its model broke", kind="model").to_wire()), "model"),
        (PeerFailed("broke", error=TransportError("gone").to_wire()), "peer"),
        (PeerFailed("broke", error=TransportError("gone", model_call="m1").to_wire()), "model"),
        (
            PeerFailed("a", error=PeerFailed("b", error=TransportError("c", model_call="m1").to_wire()).to_wire()),
            "model",
        ),
        (PeerFailed("broke", error="no wire"), "peer"),
        (PeerFailed("broke", error={"code": "peer_failed", "data": ["no", "data"]}), "peer"),
        (TransportError("gone", model_call="m1"), "model"),
        (TransportError("gone"), "transport"),
        (ProtocolError("odd"), "protocol"),
        (ZeroDivisionError("division"), "program"),
    ],
)
def test_a_failure_belongs_to_the_boundary_that_failed(error: Exception, boundary: str) -> None:
    episode = Episode("ep")
    episode.fail(error)
    assert not episode.ok and episode.failures[0].boundary == boundary
    assert episode.failures[0].message == str(error)
    assert Failure.of(error, boundary="reward").boundary == "reward"


def test_the_drawn_tree_tells_who_asked_whom_what_it_took_and_what_it_earned() -> None:
    from rich.console import Console

    episode = Episode("ep", "task [bold]", seconds=9.5)
    episode.add(RECORDS)
    episode.add(
        [EdgeRecord("e9", "gone@1.0.0", "ep", status="transport_error"), CallRecord("k9", "?", "ann", "W", "ep")]
    )
    bob = next(trace for trace in episode.traces if trace.seat == "bob")
    bob.turns[0] = replace(bob.turns[0], reward=0.25)
    moved: Any = {"policy": "left", "policy_version": 3, "policy_version_end": 4, "retries": 2, "started": 3.3}
    again: Any = {"policy": "left", "policy_version": 4, "policy_version_end": 4, "retries": 1, "retry_of": "r1"}
    episode.add([CallRecord("r1", "b1", "bob", "M", **moved), CallRecord("r2", "b1", "bob", "M", **again)])
    episode.score("solved", 0.5, weight=2.0)
    episode.score("brief", None, seat="ann", source="judge")
    episode.fail(TransportError("gone"))
    console = Console(width=160, record=True, file=open("/dev/null", "w"))  # noqa: PTH123, SIM115
    console.print(render_tree(episode))
    console.file.close()
    drawn = console.export_text()
    for expected in (
        "ep failed 9.50 s 1+2 tokens reward 1 task [bold]",
        "transport: transport_error gone",
        "manager@1.0.0 as manager 8.00 s",
        "go -> done",
        "M 1+2 tokens",
        "ann@1.0.0 as ann over http",
        "W no token ids upstream_error",
        "gone@1.0.0",
        "(told nothing)",
        "solved = 0.5 x 2, team, by env",
        "brief = not scored x 1, seat ann, by judge",
        "ann reward 1 in all",
        "bob@1.0.0 as bob reward 0.25\n",
        "M by left v3→v4 no token ids 2 retries",
        "M by left v4 no token ids 1 retry again r1",
    ):
        assert expected in drawn, drawn
    assert drawn.index("uno") < drawn.index("bob@1.0.0")


@pytest.mark.parametrize(
    "odd",
    [
        [1],
        {"kind": "episode", "id": 3},
        {"kind": "episode", "id": "e1", "failures": [3]},
        {"kind": "episode", "id": "e1", "failures": {}},
        {"kind": "episode", "id": "e1", "failures": [{"boundary": "moon", "code": "x", "message": "y"}]},
        {"kind": "episode", "id": "e1", "traces": [[]]},
        {"kind": "episode", "id": "e1", "traces": [{"turns": 3}]},
        {"kind": "episode", "id": "e1", "traces": [{"seat": [1]}]},
        {"kind": "episode", "id": "e1", "traces": [{"turns": ["x"]}]},
        {"kind": "episode", "id": "e1", "edges": ["x"]},
        {"kind": "episode", "id": "e1", "rewards": None},
        {"kind": "episode", "id": "e1", "info": []},
    ],
)
def test_json_that_is_no_episode_is_refused(odd: Any) -> None:
    with pytest.raises(ProtocolError):
        Episode.from_json(odd)
