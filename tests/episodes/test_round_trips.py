"""What is written is read as the same: JSON, lines, a database, and files of an earlier release."""

from __future__ import annotations

import json
import re
import tempfile
from collections.abc import Iterator
from pathlib import Path
from types import UnionType
from typing import Any, Literal, get_args, get_origin, get_type_hints

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from agent_env.episodes import (
    CallRecord,
    EdgeRecord,
    Episode,
    EpisodeReader,
    EpisodeStore,
    EpisodeSummary,
    EpisodeWriter,
    Failure,
    RewardRecord,
    Trace,
    TurnRecord,
    open_episodes,
    render_tree,
)
from agent_env.errors import ProtocolError

EARLIER = Path(__file__).parent / "files" / "release-1.jsonl"

text = st.text(st.characters() | st.sampled_from("\ud800\x00\n\u2028"), max_size=6)
numbers = st.floats(allow_nan=False, allow_infinity=False)
values = st.recursive(
    st.none() | st.booleans() | st.integers() | numbers | text,
    lambda inner: st.lists(inner, max_size=2) | st.dictionaries(text, inner, max_size=2),
    max_leaves=4,
)


def of(hint: Any) -> st.SearchStrategy[Any]:
    """Values of an annotation, as JSON can have them."""
    if hint is Any:
        return values
    if get_origin(hint) is UnionType:
        return st.one_of([of(part) for part in get_args(hint)])
    if get_origin(hint) is Literal:
        return st.sampled_from(get_args(hint))
    if get_origin(hint) is list:
        return st.lists(of(get_args(hint)[0]), max_size=2)
    if get_origin(hint) is dict:
        return st.dictionaries(text, values, max_size=2)
    if hint in (str, float):
        return text if hint is str else numbers
    return built(hint) if hasattr(hint, "kind") else st.from_type(hint)


def built(kind: type[Any]) -> st.SearchStrategy[Any]:
    hints = get_type_hints(kind)
    return st.builds(kind, **{name: st.deferred(lambda hint=hints[name]: of(hint)) for name in kind.__match_args__})


episodes = built(Episode)


@given(episodes)
def test_an_episode_in_json_reads_as_the_same_episode(episode: Episode) -> None:
    wire = json.loads(json.dumps(episode.to_json()))
    assert Episode.from_json(wire) == episode
    assert Episode.from_json(wire).to_json() == wire
    summary = EpisodeSummary.of(episode)
    assert EpisodeSummary.from_json(json.loads(json.dumps(summary.to_json()))) == summary


@settings(max_examples=40)
@given(st.lists(st.lists(episodes, max_size=3), max_size=4), text)
def test_a_database_and_lines_hold_what_was_appended_and_give_it_back(batches: list[list[Episode]], run: str) -> None:
    with tempfile.TemporaryDirectory() as folder:
        expected: dict[str, Episode] = {}
        for number, episode in enumerate(episode for batch in batches for episode in batch):
            # Some come again under the same id, in the same batch or later.
            episode.id, episode.run = f"{run}{number % 5}", run
            expected.pop(episode.id, None)
            expected[episode.id] = episode
        with EpisodeStore(Path(folder) / "a.db") as store, EpisodeWriter(Path(folder) / "a.jsonl") as lines:
            for batch in batches:
                store.append(batch)
                lines.append(batch)
            assert list(store) == list(expected.values())
            assert store.finished(run) == set(expected)
            assert all(store.get(name) == episode for name, episode in expected.items())
            assert list(store.summaries()) == [EpisodeSummary.of(episode) for episode in expected.values()]
            store.export_lines(Path(folder) / "b.jsonl")
            assert list(EpisodeReader(Path(folder) / "a.jsonl")) == [episode for batch in batches for episode in batch]
        assert list(EpisodeReader(Path(folder) / "b.jsonl")) == list(expected.values())
        with EpisodeStore(Path(folder) / "c.db") as store:
            store.import_lines(Path(folder) / "a.jsonl")
            assert list(store) == list(expected.values())


@settings(max_examples=40)
@given(st.lists(episodes, max_size=6), st.sampled_from([None, True, False]), st.data())
def test_a_database_and_a_file_choose_the_same(given_: list[Episode], ok: bool | None, data: st.DataObject) -> None:
    def some(of: Iterator[Any]) -> st.SearchStrategy[Any]:
        return st.sampled_from([None, *of])

    seats = {seat for episode in given_ for seat in episode.seats()}
    choice: Any = {
        "ok": ok,
        "run": data.draw(some(episode.run for episode in given_)),
        "group": data.draw(some(episode.group for episode in given_)),
        "seat": data.draw(some(iter(sorted(seats)))),
        "limit": data.draw(st.none() | st.integers(0, 3)),
        "newest_first": data.draw(st.booleans()),
    }
    for number, episode in enumerate(given_):
        episode.id = str(number)
    with tempfile.TemporaryDirectory() as folder, EpisodeStore(Path(folder) / "a.db") as store:
        store.append(given_)
        store.export_lines(Path(folder) / "a.jsonl")
        file = open_episodes(Path(folder) / "a.jsonl")
        found = [episode.id for episode in file.find(**choice)]
        assert [episode.id for episode in store.find(**choice)] == found
        assert [summary.id for summary in store.summaries(**choice)] == found
        assert [json.loads(line)["id"] for line in file.lines(**choice)] == found
        assert store.count(**choice) == file.count(**choice) == len(found)


def test_the_names_of_verifiers_are_used_for_what_it_has_as_well() -> None:
    episode = Episode("e1", "go", env="maze", seed=3, run="r1")
    episode.traces = [Trace("ann@1.0.0", "solver", "s1", trainable=False), Trace(None, "scout", None)]
    episode.failures = [Failure("transport", "transport_error", "gone", "t1"), Failure("program", "KeyError", "x")]
    episode.rewards = [RewardRecord("found", 0.5, 0.2, "judge", "seat", "solver"), RewardRecord("style")]
    assert episode.to_json() == {
        "kind": "episode",
        "id": "e1",
        "task": "go",
        "run": "r1",
        "ok": True,
        "env": "maze",
        "seed": 3,
        "info": {},
        "errors": [
            {"boundary": "transport", "type": "transport_error", "message": "gone", "call_id": "t1"},
            {"boundary": "program", "type": "KeyError", "message": "x"},
        ],
        "traces": [
            {
                "id": "s1",
                "agent": {"name": "solver", "release": "ann@1.0.0", "trainable": False},
                "turns": [],
                "calls": [],
            },
            {"agent": {"name": "scout"}, "turns": [], "calls": []},
        ],
        "edges": [],
        # Its `score` is the `value` here; its own `value` is that times the weight.
        "rewards": [
            {
                "kind": "reward",
                "name": "found",
                "value": 0.5,
                "weight": 0.2,
                "source": "judge",
                "target": "seat",
                "target_id": "solver",
            },
            {"kind": "reward", "name": "style", "weight": 1.0, "source": "env", "target": "episode"},
        ],
    }


@pytest.mark.parametrize(
    "odd", [[1], {"kind": "episode"}, {"kind": "summary"}, {"kind": "summary", "id": "e", "ok": 3}]
)
def test_json_that_is_no_summary_is_refused(odd: Any) -> None:
    with pytest.raises(ProtocolError):
        EpisodeSummary.from_json(odd)


def test_a_trace_tells_how_its_last_turn_ended() -> None:
    trace = Trace("a@1.0.0", None, "s")
    assert trace.stop_condition is None
    trace.turns.append(TurnRecord("t2", "a@1.0.0", "s", stop="input_required", started=2.0))
    trace.turns.append(TurnRecord("t1", "a@1.0.0", "s", status="agent_failed", started=1.0))
    assert trace.stop_condition == "input_required"
    trace.turns.append(TurnRecord("t3", "a@1.0.0", "s", status="agent_failed", started=3.0))
    assert trace.stop_condition == "agent_failed"


def test_a_file_of_an_earlier_release_reads_as_what_was_written_then() -> None:
    first, second = EpisodeReader(EARLIER)
    expected = Episode("e1", {"object": "boat"}, "boat", "r1", 1790000000.5, 2.25)
    body = {"messages": [{"role": "user", "content": "go"}]}
    answer = {"choices": [{"message": {"role": "assistant", "content": "left"}}]}
    edge = EdgeRecord("d1", "guide@1.0.0", "e1", callee_seat="guide", callee_call_id="t1", protocol="http")
    edge.started, edge.seconds = 1790000000.5, 2.0
    turn = TurnRecord("t1", "guide@1.0.0", "s1", "e1", seat="guide", request="go", reply="left")
    turn.started, turn.seconds = 1790000000.75, 1.5
    call = CallRecord("k1", "t1", "guide", "tiny", "e1", "r1", request=body, response=answer)
    call.prompt_token_ids, call.token_ids, call.logprobs, call.policy_version = [1, 2], [3], [-0.25], 4
    call.started, call.seconds = 1790000001.0, 0.5
    expected.add([edge, turn, call, CallRecord("k2", "t9", "scout", "tiny", "e1", "r1", status="upstream_error")])
    expected.score("arrived", 1.0)
    expected.add([RewardRecord("brief", None, 0.5, "judge", "seat", "guide", "e1")])
    expected.info["update"] = 3
    assert first == expected
    assert (second.ok, second.run) == (False, "r1")
    assert second.failures == [
        Failure("transport", "transport_error", "the agent is gone", "t5"),
        Failure("program", "ZeroDivisionError", "division"),
    ]
    assert [Episode.from_json(episode.to_json()) for episode in (first, second)] == [first, second]


NAMES = [
    "kind",
    "errors",
    "failures",
    "agent",
    "type",
    "code",
    "name",
    "release",
    "trainable",
    *Episode.__match_args__,
    *TurnRecord.__match_args__,
    *CallRecord.__match_args__,
    *EdgeRecord.__match_args__,
    *RewardRecord.__match_args__,
]
anything = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats()
    | text
    | st.sampled_from(["turn", "episode", "agent", 10**400]),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(NAMES) | text, inner, max_size=6),
    max_leaves=12,
)


def places(value: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """Every place in some JSON."""
    if path:
        yield path
    entries = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for name, inner in entries:
        yield from places(inner, (*path, name))


def read_or_refused(value: Any) -> None:
    """It is an episode with which all that is done to episodes can be done, or a protocol error says what it is not."""
    try:
        episode = Episode.from_json(value)
    except ProtocolError as error:
        assert len(error.message) < 400
        return
    assert Episode.from_json(episode.to_json()) == episode
    summary = EpisodeSummary.of(episode)
    assert EpisodeSummary.from_json(summary.to_json()) == summary
    list(episode.tree().walk())
    render_tree(episode)
    assert episode.reward() is None or isinstance(episode.reward(), float | int)


@given(st.dictionaries(st.sampled_from(NAMES) | text, anything, max_size=12), st.booleans())
def test_any_json_object_is_an_episode_or_refused(value: dict[str, Any], named: bool) -> None:
    read_or_refused({**value, "kind": "episode", "id": "e"} if named else value)


@given(built(Episode), anything, st.data())
def test_an_episode_with_anything_in_any_place_is_one_or_refused(
    episode: Episode, odd: Any, data: st.DataObject
) -> None:
    wire = json.loads(json.dumps(episode.to_json()))
    *above, last = data.draw(st.sampled_from(list(places(wire))))
    inner = wire
    for name in above:
        inner = inner[name]
    inner[last] = odd
    read_or_refused(wire)


WRONG = [
    ("errors", 5, "the field 'errors' of a 'episode' record must be list, not 5"),
    ("errors", None, "the field 'errors' of a 'episode' record must be list, not None"),
    ("errors", [5], "a 'failure' record is a JSON object, not 5"),
    ("errors", [{"type": "x", "message": "m", "boundary": "moon"}], "must be Boundary, not 'moon'"),
    ("failures", "x", "must be list[Failure], not 'x'"),
    ("traces", {}, "must be list[Trace], not {}"),
    ("traces", [None], "a trace is a JSON object, not None"),
    ("traces", [{"turns": 3}], "the field 'turns' of a 'trace' record must be list[TurnRecord], not 3"),
    ("traces", [{"agent": {"name": 3}}], "the field 'seat' of a 'trace' record must be str | None, not 3"),
    ("edges", [[]], "a 'edge' record is a JSON object, not []"),
    (
        "rewards",
        [{"name": "x", "value": float("nan")}],
        "'value' of a 'reward' record must be finite (float | None), not nan",
    ),
    ("started", "noon", "the field 'started' of a 'episode' record must be float | None, not 'noon'"),
    ("seconds", float("inf"), "must be finite (float | None), not inf"),
    ("ok", 1, "the field 'ok' of a 'episode' record must be bool, not 1"),
    ("info", [], "must be dict[str, Json], not []"),
]


@pytest.mark.parametrize("field, value, told", WRONG)
def test_a_line_with_a_field_of_a_wrong_type_is_refused_with_its_number_field_and_value(
    field: str, value: Any, told: str, tmp_path: Path
) -> None:
    path = tmp_path / "in.jsonl"
    good = Episode("good").to_json()
    path.write_text(json.dumps(good) + "\n" + json.dumps({**good, "id": "bad", field: value}) + "\n")
    for reading in (lambda: list(EpisodeReader(path)), lambda: list(open_episodes(path).summaries())):
        with pytest.raises(ProtocolError, match=rf"line 2 of .* is no episode: .*{re.escape(told)}"):
            reading()
    with (
        EpisodeStore(tmp_path / "in.db") as store,
        pytest.raises(ProtocolError, match=f"line 2 of .*{re.escape(told)}"),
    ):
        store.import_lines(path)
