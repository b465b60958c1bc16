"""Records of verifiers v1: messages of every dialect, rewards by name, and records that verifiers made itself."""

from __future__ import annotations

import json
import random
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from test_rows_trees import Forest

from agent_env.episodes import CallRecord, Episode, MessageNode, RewardRecord, TurnRecord
from agent_env.errors import ProtocolError
from agent_env.training.exports.verifiers import from_verifiers, read, to_verifiers, write
from agent_env.training.exports.verifiers_messages import messages_of
from agent_env.training.learning import credit_rows
from agent_env.training.rows import cut_rows


def node(**message: Any) -> MessageNode:
    return MessageNode(None, message)


@pytest.mark.parametrize(
    ("message", "told"),
    [
        ({"role": "developer", "content": "be brief"}, [{"role": "system", "content": "be brief"}]),
        ({"role": "user", "content": None}, [{"role": "user", "content": ""}]),
        (
            {"role": "user", "content": [{"type": "text", "text": "a"}, {"type": "input_text", "text": "b"}]},
            [{"role": "user", "content": "a\nb"}],
        ),
        (
            {"role": "user", "content": [{"type": "image_url", "image_url": {"url": "data:x", "detail": "low"}}]},
            [{"role": "user", "content": [{"type": "image_url", "image_url": {"url": "data:x"}}]}],
        ),
        (
            {"role": "user", "content": [{"type": "input_image", "image_url": "data:x"}]},
            [{"role": "user", "content": [{"type": "image_url", "image_url": {"url": "data:x"}}]}],
        ),
        (
            {
                "role": "user",
                "content": [
                    {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": "AA"}},
                    {"type": "image", "source": {"type": "url", "url": "https://a/b"}},
                ],
            },
            [
                {
                    "role": "user",
                    "content": [
                        {"type": "image_url", "image_url": {"url": "data:image/png;base64,AA"}},
                        {"type": "image_url", "image_url": {"url": "https://a/b"}},
                    ],
                }
            ],
        ),
        (
            {
                "role": "user",
                "content": [
                    {"type": "tool_result", "tool_use_id": "t1", "content": [{"type": "text", "text": "4"}]},
                    {"type": "tool_result", "tool_use_id": "t2", "content": "5"},
                    {"type": "text", "text": "go on"},
                ],
            },
            [
                {"role": "tool", "tool_call_id": "t1", "content": "4"},
                {"role": "tool", "tool_call_id": "t2", "content": "5"},
                {"role": "user", "content": "go on"},
            ],
        ),
        (
            {"role": "tool", "tool_call_id": "t1", "content": "4"},
            [{"role": "tool", "tool_call_id": "t1", "content": "4"}],
        ),
        (
            {
                "role": "assistant",
                "content": None,
                "reasoning_content": "hm",
                "tool_calls": [
                    {"id": "t1", "type": "function", "function": {"name": "ask", "arguments": "{}"}},
                    {"id": "t2", "type": "custom", "custom": {"name": "run", "input": "ls"}},
                ],
            },
            [
                {
                    "role": "assistant",
                    "content": None,
                    "reasoning_content": "hm",
                    "tool_calls": [
                        {"id": "t1", "name": "ask", "arguments": "{}"},
                        {"id": "t2", "type": "custom", "name": "run", "arguments": "ls"},
                    ],
                }
            ],
        ),
        (
            {
                "role": "assistant",
                "content": [
                    {"type": "thinking", "thinking": "hm", "signature": "s"},
                    {"type": "text", "text": "ask"},
                    {"type": "tool_use", "id": "t1", "name": "ask", "input": {"a": 1}},
                ],
            },
            [
                {
                    "role": "assistant",
                    "content": "ask",
                    "reasoning_content": "hm",
                    "tool_calls": [{"id": "t1", "name": "ask", "arguments": '{"a": 1}'}],
                }
            ],
        ),
        (
            {"type": "function_call", "call_id": "t1", "name": "ask", "arguments": "{}"},
            [{"role": "assistant", "content": None, "tool_calls": [{"id": "t1", "name": "ask", "arguments": "{}"}]}],
        ),
        (
            {"type": "function_call_output", "call_id": "t1", "output": "4"},
            [{"role": "tool", "tool_call_id": "t1", "content": "4"}],
        ),
        (
            {"type": "reasoning", "summary": [{"type": "summary_text", "text": "hm"}]},
            [{"role": "assistant", "content": None, "reasoning_content": "hm"}],
        ),
    ],
)
def test_a_message_of_any_dialect_is_one_of_verifiers(message: dict[str, Any], told: list[dict[str, Any]]) -> None:
    assert messages_of(node(**message)) == told


@pytest.mark.parametrize(
    ("message", "why"),
    [
        ({"type": "web_search_call", "id": "w"}, "no message for one of the type 'web_search_call'"),
        ({"content": "x"}, "no message for one of the type 'message'"),
        ({"role": "function", "content": "x"}, "no message of the role 'function'"),
        ({"role": "user", "content": [{"type": "input_audio"}]}, "no part of a message for 'input_audio'"),
        ({"role": "assistant", "content": [{"type": "server_tool_use"}]}, "no part of an answer for 'server_tool_use'"),
    ],
)
def test_what_verifiers_has_no_form_of_is_refused(message: dict[str, Any], why: str) -> None:
    with pytest.raises(ProtocolError, match=why):
        messages_of(node(**message))


def an_episode(**fields: Any) -> Episode:
    episode = Episode("e", **fields)
    bodies: dict[str, Any] = {
        "request": {"messages": [{"role": "user", "content": "hi"}]},
        "response": {"choices": [{"message": {"role": "assistant", "content": "ho"}}]},
    }
    episode.add(
        [
            TurnRecord("t", "a@1.0.0", "s", "e", seat="a"),
            CallRecord("c", "t", "a", "m", "e", prompt_token_ids=[1], token_ids=[2], logprobs=[-0.5], **bodies),
        ]
    )
    return episode


def test_rewards_of_one_name_are_told_apart_and_their_sum_is_what_the_seat_gets() -> None:
    episode = an_episode(task={"n": 1})
    for value in (1.0, 2.0):
        episode.score("won", value)
    for value in (4.0, 8.0):
        episode.score("won", value, seat="a", weight=0.5)
    (record,) = to_verifiers([episode])
    rewards = record["traces"][0]["rewards"]
    assert rewards == {
        "won": {"score": 1.0, "weight": 1.0},
        "episode/won": {"score": 2.0, "weight": 1.0},
        "seat/won": {"score": 4.0, "weight": 0.5},
        "seat/won/2": {"score": 8.0, "weight": 0.5},
    }
    (row,), _ = cut_rows(from_verifiers([record]))
    (ours,), _ = cut_rows([episode])
    assert row.reward == ours.reward == 9.0
    assert row == ours


def test_what_the_team_would_have_got_is_a_metric_and_comes_back_for_credit() -> None:
    episodes = [an_episode(task="x"), an_episode(task="x")]
    episodes[1].id = "e2"
    for episode in episodes:
        episode.score("won", 1.0)
        episode.rewards.append(RewardRecord("alone", 0.25, 0.0, "difference", "seat", "a"))
    records = list(to_verifiers(episodes))
    assert [record["traces"][0]["metrics"] for record in records] == [{"alone": 0.25}] * 2
    assert [row.advantage for row in credit_rows(from_verifiers(records), credit="difference")[0]] == [0.75, 0.75]


def test_a_judges_score_keeps_its_source() -> None:
    episode = an_episode(task="x")
    episode.score("won", 1.0)
    episode.score("clear", 0.5, seat="a", source="judge")
    (row,), _ = cut_rows(from_verifiers(to_verifiers([episode])), propagation="judge")
    assert row.reward == 0.5


def test_usage_counts_what_a_cache_gave_apart() -> None:
    episode = an_episode()
    call = episode.traces[0].calls[0]
    call.usage = {"prompt_tokens": 9, "completion_tokens": 2, "prompt_tokens_details": {"cached_tokens": 4}}
    call.request |= {"top_p": 0.5, "temperature": 1.5}
    call.temperature = 0.5
    (record,) = to_verifiers([episode])
    (told,) = record["traces"][0]["calls"]
    assert told["usage"] == {"prompt_tokens": 5, "completion_tokens": 2, "cached_input_tokens": 4}
    # What the model was asked for, not what the agent asked.
    assert told["sampling"] == {"temperature": 0.5, "top_p": 0.5}


def test_two_tool_results_in_one_message_are_two_nodes_whose_tokens_still_add_up() -> None:
    episode = an_episode()
    results = [{"type": "tool_result", "tool_use_id": f"t{n}", "content": "4"} for n in range(2)]
    call = episode.traces[0].calls[0]
    call.api = "messages"
    call.request = {"system": "add", "messages": [{"role": "user", "content": results}]}
    call.response = {"role": "assistant", "content": [{"type": "text", "text": "8"}]}
    call.prompt_token_ids = [1, 2, 3]
    episode.score("won", 1.0)
    (record,) = to_verifiers([episode])
    nodes = record["traces"][0]["nodes"]
    assert [(one["message"]["role"], one["parent"]) for one in nodes] == [
        *(("system", None), ("tool", 0), ("tool", 1), ("assistant", 2)),
    ]
    assert [token for one in nodes for token in one.get("token_ids", [])] == [1, 2, 3, 2]
    assert cut_rows(from_verifiers([record]))[0] == cut_rows([episode])[0]


def foreign() -> dict[str, Any]:
    """A record as verifiers writes it of its own: no word of ours in it."""
    answer = {"role": "assistant", "content": "x"}
    return {
        "id": "v",
        "env": {"id": "gsm8k"},
        "task": {"type": "Task", "data": {"prompt": "1+1"}},
        "group": {"id": "g"},
        "run": {"type": "train", "id": "r", "work": {"type": "train", "step": 3, "policy": {"start": 3, "end": 4}}},
        "ok": True,
        "traces": [
            {
                "id": "tr",
                "agent": {"name": "solver", "config": {"model": "m"}, "trainable": True},
                "nodes": [
                    {"parent": None, "message": {"role": "user", "content": "1+1"}, "token_ids": [1, 2]},
                    {
                        "parent": 0, "message": answer, "sampled": True, "token_ids": [3, 4, 5],
                        "mask": [False, True, True], "logprobs": [-0.5, -0.25],
                    },
                    {
                        "parent": 1, "message": answer, "sampled": True, "token_ids": [6, 7],
                        "mask": [False, True], "logprobs": [-1.0],
                    },
                ],
                "calls": [{"node": 2, "model": "m", "finish_reason": "length", "sampling": {"temperature": 0.5}}],
                "rewards": {"correct": {"score": 1.0, "weight": 2.0}, "style": None},
                "metrics": {"turns": 2.0},
            }
        ],
    }  # fmt: skip


def test_a_record_that_verifiers_made_gives_rows_to_train_on() -> None:
    (row,), report = cut_rows(from_verifiers([foreign()]))
    assert report.dropped == {}
    assert row.token_ids == [1, 2, 3, 4, 5, 6, 7]
    assert row.loss_mask == [0, 0, 0, 1, 1, 0, 1]
    assert row.logprobs == [0.0, 0.0, 0.0, -0.5, -0.25, 0.0, -1.0]
    assert (row.seat, row.group, row.reward, row.versions) == ("solver", "r/gsm8k/g/solver", 2.0, (3, 4))
    assert [(span.temperature, span.finish_reason) for span in row.spans] == [(None, None), (0.5, "length")]
    assert row.truncated


def test_a_trace_that_is_not_trainable_gives_none_and_is_of_no_version() -> None:
    record = foreign()
    record["traces"][0]["agent"]["trainable"] = False
    (episode,) = from_verifiers([record])
    assert cut_rows([episode])[0] == []
    assert {call.policy_version for call in episode.traces[0].calls} == {None}


def judged(*, nested: bool) -> Episode:
    """An agent at version 25, and a judge at 0 that never learns; `nested`: asked in the agent's own turn as well."""
    episode = an_episode(task="x", run="r")
    (call,) = episode.traces[0].calls
    call.policy_version, call.policy_version_end = 25, 26
    episode.add([TurnRecord("j", "judge@1.0.0", "sj", "e", seat="judge")])
    told = replace(call, call_id="cj", parent_call_id="j", seat="judge", policy_version=0, policy_version_end=0)
    episode.add([told, replace(told, call_id="cn", parent_call_id="t")] if nested else [told])
    episode.traces[0].trainable, episode.traces[1].trainable = True, False
    return episode


@pytest.mark.parametrize("nested", [False, True])
def test_the_versions_of_a_run_are_those_of_policies_that_learn(nested: bool) -> None:
    (record,) = to_verifiers([judged(nested=nested)])
    assert record["run"]["work"] == {"type": "train", "step": 25, "policy": {"start": 25, "end": 26}}
    told = {(trace["agent"]["name"], trace["agent"]["trainable"]) for trace in record["traces"]}
    assert told == {("a", True), ("judge", False)}
    (read_again,) = from_verifiers([record])
    versions = {(call.seat, call.policy_version) for trace in read_again.traces for call in trace.calls}
    assert versions == {("a", 25), ("judge", 0)}


def test_an_agent_that_learns_stays_one_in_the_turn_of_a_frozen_one() -> None:
    episode = judged(nested=False)
    asked = replace(episode.traces[0].calls[0], call_id="c2", parent_call_id="j")
    episode.add([asked])
    episode.score("won", 1.0)
    rows, _ = cut_rows([episode])
    assert len(rows) == 2
    assert cut_rows(from_verifiers(to_verifiers([episode])))[0] == rows


def test_a_run_in_which_nobody_learns_is_of_no_version() -> None:
    episode = judged(nested=False)
    episode.traces[0].trainable = False
    (record,) = to_verifiers([episode])
    assert record["run"] == {"type": "eval", "id": "r"}


@pytest.mark.parametrize("lacking", ["id", "task"])
def test_a_record_that_is_not_whole_is_refused(lacking: str) -> None:
    record = foreign()
    del record[lacking]
    with pytest.raises(ProtocolError, match=rf"is no episode of verifiers v1: KeyError '{lacking}'"):
        list(from_verifiers([record]))


def test_tokens_amid_an_answer_that_nobody_sampled_are_refused() -> None:
    record = foreign()
    record["traces"][0]["nodes"][1]["mask"] = [True, False, True]
    with pytest.raises(ProtocolError, match="the node 1 of 'tr' has tokens that were not sampled amid its answer"):
        list(from_verifiers([record]))


def test_a_file_that_verifiers_wrote_is_read(tmp_path: Path) -> None:
    path = tmp_path / "traces.jsonl"
    path.write_text(json.dumps(foreign()) + "\n")
    assert [episode.id for episode in read(path)] == ["v"]
    assert write(read(path), tmp_path / "again.jsonl") == 1


@settings(max_examples=80)
@given(st.randoms(use_true_random=False), st.integers(1, 25))
def test_made_up_trees_of_calls_come_back_as_the_same_rows(rng: random.Random, count: int) -> None:
    """With sessions that interleave, forks, retries that fail, drifting contexts, and parents that nobody can tell."""
    forest = Forest(rng)
    for _ in range(count):
        forest.grow()
    for call in forest.calls:
        call.request = {"messages": [{"role": "user", "content": str(token)} for token in call.prompt_token_ids or ()]}
        call.response = {"choices": [{"message": {"role": "assistant", "content": str(call.token_ids)}}]}
    episode = forest.episode()
    rows, report = cut_rows([episode])
    records = json.loads(json.dumps(list(to_verifiers([episode]))))
    again, other = cut_rows(from_verifiers(records))
    assert sorted(again, key=lambda row: row.row_id) == sorted(rows, key=lambda row: row.row_id)
    assert (other.delivered_tokens, other.forked, other.quarantined) == (
        report.delivered_tokens,
        report.forked,
        report.quarantined,
    )
    for record in records:
        for trace in record["traces"]:
            assert all(one["parent"] is None or one["parent"] < at for at, one in enumerate(trace["nodes"]))


def test_an_answer_whose_retry_failed_is_what_the_agent_went_on_with() -> None:
    episode = an_episode(task="x")
    (call,) = episode.traces[0].calls
    episode.add([replace(call, call_id="c2", retry_of="c", status="upstream_error", response=None)])
    episode.score("won", 1.0)
    (row,), _ = cut_rows(from_verifiers(to_verifiers([episode])))
    assert row.calls == ["c"]
    assert [row] == cut_rows([episode])[0]


def test_a_number_that_json_has_no_form_of_is_refused(tmp_path: Path) -> None:
    episode = an_episode(task=float("inf"))
    with pytest.raises(ProtocolError, match="the episode 'e' has no form in JSON"):
        write([episode], tmp_path / "out.jsonl")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("odd", [float("-inf"), float("nan"), float("inf")])
def test_an_answer_with_a_logprob_that_is_not_finite_has_none_and_refuses_no_other(tmp_path: Path, odd: float) -> None:
    ill, well = an_episode(), an_episode()
    ill.traces[0].calls[0].logprobs, ill.id, well.id = [odd], "ill", "well"
    for episode in (ill, well):
        episode.score("won", 1.0)
    path = tmp_path / "out.jsonl"
    assert write([ill, well], path) == 2
    first, second = map(json.loads, path.read_text("utf-8").splitlines())
    assert [node.get("logprobs") for node in first["traces"][0]["nodes"]] == [[], []]
    assert first["traces"][0]["nodes"][-1]["token_ids"] == [2]
    assert second["traces"][0]["nodes"][-1]["logprobs"] == [-0.5]
    rows, _ = cut_rows(read(path))
    assert rows == cut_rows([ill, well])[0] and [row.episode for row in rows] == ["well"]
