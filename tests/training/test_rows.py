"""Rows: every sampled token under one mask, lineages merged on exact prefixes alone."""

from __future__ import annotations

import random
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agent_env.episodes import CallRecord, Episode, TurnRecord
from agent_env.training.rows import Row, cut_rows


def call(name: str, prompt: list[int], sampled: list[int], *, turn: str = "t1", **fields: Any) -> CallRecord:
    values: dict[str, Any] = {
        "seat": "a",
        "model": "A",
        "started": float(name[1:]),
        "logprobs": [-0.1 * token for token in sampled],
        "policy_version": 3,
    }
    return CallRecord(name, turn, prompt_token_ids=prompt, token_ids=sampled, **{**values, **fields})


def episode(*calls: CallRecord, reward: float | None = 1.0, turns: dict[str, str] | None = None) -> Episode:
    made = Episode("ep")
    made.add(TurnRecord(turn, "a@1.0.0", session) for turn, session in (turns or {"t1": "s1"}).items())
    made.add(calls)
    made.score("x", reward)
    return made


def masked(row: Row) -> list[int]:
    return [token for token, mask in zip(row.token_ids, row.loss_mask, strict=True) if mask]


def test_one_call_is_one_row_with_the_mask_on_what_was_sampled() -> None:
    (row,), report = cut_rows([episode(call("k1", [5, 6], [7, 8]))])
    assert row == Row(
        *("ep", "a", "a@1.0.0", "A", [5, 6, 7, 8], [0, 0, 1, 1], [0.0, 0.0, -0.7000000000000001, -0.8], 2),
        group=("a", (5, 6)),
        reward=1.0,
        versions=(3, 3),
        calls=["k1"],
    )
    assert (report.calls, report.rows, report.merged, report.merge_ratio) == (1, 1, 0, 0.0)
    assert report.captured_tokens == report.delivered_tokens == 2


def test_calls_that_continue_each_other_share_a_row_and_others_words_are_masked() -> None:
    (row,), report = cut_rows(
        [
            episode(
                call("k1", [5], [7], policy_version=2),
                call("k2", [5, 7, 9, 9], [8], turn="t2", policy_version=4),
                turns={"t1": "s1", "t2": "s1"},
            )
        ]
    )
    assert row.token_ids == [5, 7, 9, 9, 8] and row.loss_mask == [0, 1, 0, 0, 1]
    assert row.logprobs == pytest.approx([0.0, -0.7, 0.0, 0.0, -0.8])
    assert (row.prompt_len, row.versions, row.calls, row.group) == (1, (2, 4), ["k1", "k2"], ("a", (5,)))
    assert report.merge_ratio == 0.5


def test_a_prompt_that_differs_in_one_token_begins_a_row() -> None:
    rows, report = cut_rows([episode(call("k1", [5], [7, 1]), call("k2", [5, 7, 2, 9], [8]))])
    assert [row.token_ids for row in rows] == [[5, 7, 1], [5, 7, 2, 9, 8]]
    assert [masked(row) for row in rows] == [[7, 1], [8]]
    assert report.merged == 0


def test_two_continuations_of_one_call_train_what_they_share_once() -> None:
    rows, _ = cut_rows([episode(call("k1", [5], [7]), call("k2", [5, 7, 9], [8]), call("k3", [5, 7, 4], [6]))])
    assert [masked(row) for row in rows] == [[7, 8], [6]]
    assert rows[1].token_ids == [5, 7, 4, 6] and rows[1].loss_mask == [0, 0, 0, 1]


def test_the_longest_sequence_is_continued() -> None:
    rows, _ = cut_rows([episode(call("k1", [5], [7]), call("k2", [5, 7], [9]), call("k3", [5, 7, 9, 4], [6]))])
    assert [row.token_ids for row in rows] == [[5, 7, 9, 4, 6]]
    rows, _ = cut_rows([episode(call("k1", [5], [7]), call("k2", [5], [7, 9]), call("k3", [5, 7, 9, 4], [6]))])
    assert [row.calls for row in rows] == [["k1"], ["k2", "k3"]]


def test_equal_prompts_are_two_calls_and_no_retry() -> None:
    rows, report = cut_rows([episode(call("k1", [5], [7]), call("k2", [5], [7]))])
    assert [masked(row) for row in rows] == [[7], [7]] and report.delivered_tokens == 2


@pytest.mark.parametrize(
    "second",
    [{"turn": "t2"}, {"seat": "b"}, {"model": "B"}],
    ids=["another session", "another seat", "another policy"],
)
def test_calls_of_different_lineages_are_never_merged(second: dict[str, Any]) -> None:
    made = episode(
        call("k1", [5], [7]), call("k2", [5, 7, 9], [8], **second), turns={"t1": "s1", "t2": "s2"}, reward=0.5
    )
    rows, _ = cut_rows([made])
    assert [row.token_ids for row in rows] == [[5, 7], [5, 7, 9, 8]]


def test_calls_whose_turns_nobody_told_are_merged_within_a_turn_alone() -> None:
    made = Episode("ep")
    made.add(
        [call("k1", [5], [7], turn="x"), call("k2", [5, 7, 2], [8], turn="y"), call("k3", [5, 7, 3], [9], turn="x")]
    )
    made.score("x", 1.0)
    rows, _ = cut_rows([made])
    assert sorted(row.calls for row in rows) == [["k1", "k3"], ["k2"]]


def test_what_makes_no_row_is_counted_with_its_reason() -> None:
    bad = [
        call("k1", [5], [7], status="upstream_error"),
        call("k2", [5], []),
        call("k3", [], [7]),
        call("k4", [5], [7, 8], logprobs=[-0.1]),
        call("k5", [5], [7], logprobs=None),
        call("k6", [5], [9]),
    ]
    rows, report = cut_rows([episode(*bad)])
    assert [row.calls for row in rows] == [["k6"]]
    assert report.dropped == {"call failed": 1, "no token ids": 2, "no logprobs": 2}
    assert (report.captured_tokens, report.delivered_tokens) == (6, 1)
    unscored, failed = episode(call("k1", [5], [7]), reward=None), episode(call("k1", [5], [7]))
    failed.ok = False
    rows, report = cut_rows([unscored, failed])
    assert rows == [] and report.dropped == {"not scored": 1, "episode not ok": 1} and report.merge_ratio is None


def test_only_the_seats_that_were_asked_for_are_cut() -> None:
    made = episode(call("k1", [5], [7]), call("k2", [5], [7], seat="b"))
    rows, report = cut_rows([made], seats=["b"])
    assert [row.seat for row in rows] == ["b"] and report.calls == 1


def test_a_seats_own_reward_counts_for_its_rows_alone() -> None:
    made = episode(call("k1", [5], [7]), call("k2", [5], [7], seat="b"))
    made.score("brief", 0.5, seat="b")
    rows, _ = cut_rows([made])
    assert {row.seat: row.reward for row in rows} == {"a": 1.0, "b": 1.5}


@given(st.randoms(use_true_random=False), st.integers(1, 14))
def test_every_sampled_token_is_trained_exactly_once(rng: random.Random, count: int) -> None:
    """Over made-up trees of calls: sessions that interleave, continue, branch, restart and drift."""
    sequences: list[tuple[str, list[int]]] = []
    calls: list[CallRecord] = []
    sampled: dict[str, list[int]] = {}
    for number in range(count):
        session = rng.choice("xyz")
        known = [sequence for name, sequence in sequences if name == session]
        prompt = list(rng.choice(known)) if known and rng.random() < 0.7 else []
        if prompt and rng.random() < 0.2:
            prompt[rng.randrange(len(prompt))] = 0
        prompt += [rng.randrange(3) for _ in range(rng.randrange(0 if prompt else 1, 3))]
        # A token that occurs nowhere else tells where it was trained.
        tokens = [1000 * (number + 1) + place for place in range(rng.randrange(1, 4))]
        name = f"k{number}"
        sampled[name] = tokens
        calls.append(call(name, prompt, tokens, turn=f"t{session}"))
        sequences.append((session, prompt + tokens))
    made = episode(*calls, turns={f"t{session}": f"s{session}" for session in "xyz"})
    rows, report = cut_rows([made])
    trained = [token for row in rows for token in masked(row)]
    assert sorted(trained) == sorted(token for tokens in sampled.values() for token in tokens)
    assert report.delivered_tokens == report.captured_tokens == len(trained)
    assert sorted(name for row in rows for name in row.calls) == sorted(sampled)
    by_name = {record.call_id: record for record in calls}
    for row in rows:
        assert len(row.token_ids) == len(row.loss_mask) == len(row.logprobs)
        assert row.loss_mask.index(1) == row.prompt_len
        assert all(logprob == 0.0 for logprob, mask in zip(row.logprobs, row.loss_mask, strict=True) if not mask)
        # Each call's tokens stand in its row behind exactly the prompt that it was sampled from.
        for name in row.calls:
            whole = [*(by_name[name].prompt_token_ids or ()), *sampled[name]]
            assert row.token_ids[: len(whole)] == whole
