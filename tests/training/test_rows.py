"""Rows: every sampled token under one mask, lineages merged on exact prefixes alone."""

from __future__ import annotations

from typing import Any

import pytest

from agent_env.episodes import CallRecord, Episode, TurnRecord
from agent_env.errors import ConfigurationError
from agent_env.training.rows import Row, Span, cut_rows


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
        group=row.group,
        reward=1.0,
        versions=(3, 3),
        calls=["k1"],
        row_id="ep/a/k1",
        instance="s1",
        spans=[Span("k1", 2, 4, 3)],
    )
    assert row.version_ids == [-1, -1, 3, 3] and row.sampled == 2
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
    assert (row.prompt_len, row.versions, row.calls) == (1, (2, 4), ["k1", "k2"])
    assert row.version_ids == [-1, 2, -1, -1, 4]
    assert report.merge_ratio == 0.5


def test_a_prompt_that_differs_in_one_token_begins_a_row() -> None:
    rows, report = cut_rows([episode(call("k1", [5], [7, 1]), call("k2", [5, 7, 2, 9], [8]))])
    assert [row.token_ids for row in rows] == [[5, 7, 1], [5, 7, 2, 9, 8]]
    assert [masked(row) for row in rows] == [[7, 1], [8]]
    assert report.merged == 0


def test_calls_whose_times_nobody_told_are_ordered_by_what_they_continue() -> None:
    later, first = call("k2", [5, 7, 9], [8], started=None), call("k1", [5], [7], started=None)
    (row,), _ = cut_rows([episode(later, first)])
    assert row.calls == ["k1", "k2"]


def test_the_reports_of_parts_add_up_to_that_of_the_whole() -> None:
    one = episode(
        *(call("k1", [5], [7]), call("k2", [5, 7, 9], [8]), call("k3", [4], [6])),
        *(call("k4", [5], [7], status="model_failed"), call("k5", [5], [7], logprobs=None, model="B")),
    )
    other = episode(call("k1", [5], [7], seat="b"), call("k2", [5], [7], status="model_failed"))
    other.id = "other"
    _, total = cut_rows([one])
    _, more = cut_rows([other])
    total.add(more)
    assert total == cut_rows([one, other])[1]
    assert total.dropped_of == {"A": {"call failed": 2}, "B": {"no logprobs": 1}} and more.dropped_of["A"].total() == 1


def test_each_token_has_the_temperature_of_its_call_and_a_greedy_or_unknown_one_counts_as_1() -> None:
    calls = [
        *(call("k1", [5], [7], temperature=0.5), call("k2", [5, 7, 9], [8, 4], temperature=0.0)),
        *(call("k3", [5, 7, 9, 8, 4], [6], temperature=None), call("k4", [5, 7, 9, 8, 4, 6], [3], temperature=2.0)),
    ]
    (row,), _ = cut_rows([episode(*calls)])
    assert row.temperatures == [1.0, 0.5, 1.0, 1.0, 1.0, 1.0, 2.0]


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
    failed.id, failed.ok = "ep2", False
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


def test_a_call_with_two_possible_parents_stands_apart_and_nobody_guesses() -> None:
    """Two calls said the very same, and a third goes on from there: whose version and call it continues is not known."""
    twins = [call("k1", [5], [7], policy_version=1), call("k2", [5], [7], policy_version=2)]
    made = episode(*twins, call("k3", [5, 7, 9], [8]), call("k4", [5, 7, 9, 8, 4], [6]))
    rows, report = cut_rows([made])
    assert [row.calls for row in rows] == [["k1"], ["k2"], ["k3", "k4"]]
    assert [row.quarantined for row in rows] == [False, False, True] and report.quarantined == 1
    assert [masked(row) for row in rows] == [[7], [7], [8, 6]] and report.forked == 2
    rows, report = cut_rows([made], ambiguous="drop")
    assert [row.calls for row in rows] == [["k1"], ["k2"]]
    assert report.dropped == {"ambiguous parent": 2} and report.delivered_tokens == 2 and report.captured_tokens == 4


def test_of_a_call_and_its_marked_retries_the_last_that_was_answered_is_trained() -> None:
    rows, report = cut_rows([episode(call("k1", [5], [7]), call("k2", [5], [8], retry_of="k1"))])
    assert [row.calls for row in rows] == [["k2"]] and report.dropped == {"retried": 1}
    failed = {"status": "upstream_error"}
    rows, report = cut_rows([episode(call("k1", [5], [7]), call("k2", [5], [], retry_of="k1", **failed))])
    assert [row.calls for row in rows] == [["k1"]] and report.dropped == {"call failed": 1}
    chain = [call("k1", [5], [7]), call("k2", [5], [8], retry_of="k1"), call("k3", [5], [9], retry_of="k2")]
    rows, report = cut_rows([episode(*chain, call("k4", [5, 9, 1], [6]))])
    assert [row.calls for row in rows] == [["k3", "k4"]] and report.dropped == {"retried": 2}


def test_a_mark_that_leads_nowhere_or_round_in_a_circle_costs_no_token_twice() -> None:
    rows, _ = cut_rows([episode(call("k1", [5], [7], retry_of="gone"))])
    assert [row.calls for row in rows] == [["k1"]]
    circle = [call("k1", [5], [7], retry_of="k2"), call("k2", [5], [8], retry_of="k1")]
    rows, report = cut_rows([episode(*circle)])
    assert [row.calls for row in rows] == [["k2"]] and report.dropped == {"retried": 1}


def test_whole_numbers_beyond_a_float_are_no_logprobs() -> None:
    for odd in ([10**308, 10**308], [-(10**308), -(10**308)], [1e308, 1e308], [float("-inf"), 0.0]):
        rows, report = cut_rows([episode(call("k1", [5], [7, 8], logprobs=odd))])
        assert rows == [] and report.dropped == {"logprobs not finite": 1}


def test_conversations_that_interleave_in_one_session_each_merge() -> None:
    """Joining calls in the order in which they came breaks every row where sub-agents take turns (rllm pull requests
    772 to 775)."""
    calls: list[CallRecord] = []
    known: dict[str, list[int]] = {"x": [1], "y": [2], "z": [3]}
    for number in range(30):
        name = "xyz"[number % 3]
        calls.append(call(f"k{number}", known[name], [10 + number]))
        known[name] = [*known[name], 10 + number, 5]
    rows, report = cut_rows([episode(*calls)])
    assert len(rows) == 3 and all(len(row.calls) == 10 for row in rows)
    assert report.merge_ratio == 27 / 30


def test_agents_of_one_seat_in_two_sessions_do_not_enter_each_others_history() -> None:
    """A gateway with one conversation a session mixed the histories of sub-agents (verl pull request 6299)."""
    made = episode(
        *(call("k1", [5], [7], turn="t1"), call("k2", [5], [7], turn="t2")),
        *(call("k3", [5, 7, 9], [8], turn="t1"), call("k4", [5, 7, 9], [6], turn="t2")),
        turns={"t1": "s1", "t2": "s2"},
    )
    rows, report = cut_rows([made])
    assert {row.instance: row.calls for row in rows} == {"s1": ["k1", "k3"], "s2": ["k2", "k4"]}
    assert report.quarantined == 0


def test_all_branches_of_a_rollout_are_delivered() -> None:
    """A trainer that took the main chain alone dropped what sub-agents had sampled (NeMo Gym pull request 3212)."""
    made = episode(
        *(call("k1", [5], [7]), call("k2", [5, 7, 1], [8]), call("k3", [5, 7, 2], [9]), call("k4", [6], [4])),
        call("k5", [5, 7, 1, 8, 0], [3], seat="helper"),
    )
    rows, report = cut_rows([made])
    assert sorted(token for row in rows for token in masked(row)) == [3, 4, 7, 8, 9]
    assert report.delivered_ratio == 1.0


def test_a_compressed_context_makes_a_second_row_and_no_second_weight() -> None:
    """Rollouts that come to several rows must not weigh more for it (verl issue 5375, rllm issue 512)."""
    compressed = [call("k1", [5], [7, 7, 7]), call("k2", [5, 7, 7, 7, 1], [8, 8, 8]), call("k3", [5, 0], [9, 9])]
    rows, report = cut_rows([episode(*compressed, call("k4", [2], [3], seat="b"))])
    assert {tuple(row.calls): row.weight for row in rows} == {("k1", "k2"): 0.75, ("k3",): 0.25, ("k4",): 1.0}
    assert report.forked == 1


def test_a_rollout_without_logprobs_or_with_broken_ones_is_told_and_not_trained() -> None:
    """Lost logprobs went unseen in a multi-agent example (slime issue 1995)."""
    broken = [call("k1", [5], [7], logprobs=[float("nan")]), call("k2", [6], [7], logprobs=[float("-inf")])]
    rows, report = cut_rows([episode(*broken, call("k3", [8], [7], logprobs=None))])
    assert rows == [] and report.dropped == {"logprobs not finite": 2, "no logprobs": 1}
    assert report.dropped_tokens == {"logprobs not finite": 2, "no logprobs": 1} and report.delivered_ratio == 0.0


def test_a_failed_rollout_invents_no_agent_and_ends_no_batch() -> None:
    """One rollout that fails must neither count as an agent's reward of 0 (prime-rl issue 3183) nor lose the others
    (SkyRL issue 1613)."""
    failed, empty, good = Episode("ep1"), Episode("ep2"), episode(call("k1", [5], [7]))
    failed.fail(RuntimeError("gone"))
    empty.score("x", 1.0)
    rows, report = cut_rows([failed, empty, good])
    assert [row.episode for row in rows] == ["ep"] and report.calls == 1 and not report.dropped


@pytest.mark.parametrize("rewarded", [float("nan"), float("inf"), 10**400])
def test_a_reward_that_is_no_number_is_no_reward(rewarded: float) -> None:
    rows, report = cut_rows([episode(call("k1", [5], [7]))], propagation=lambda instance: rewarded)
    assert rows == [] and report.dropped == {"reward not finite": 1}


def test_rewards_that_add_up_to_more_than_a_number_holds_are_none() -> None:
    made = episode(call("k1", [5], [7]), reward=1.7e308)
    made.score("again", 1.7e308)
    rows, report = cut_rows([made])
    assert rows == [] and report.dropped == {"reward not finite": 1}


def test_a_frozen_trace_makes_no_rows() -> None:
    made = episode(call("k1", [5], [7]), call("k2", [6], [8], turn="t2"), turns={"t1": "s1", "t2": "s2"})
    made.traces[1].trainable = False
    for seats in (None, ["a"]):
        rows, report = cut_rows([made], seats=seats)
        assert [row.calls for row in rows] == [["k1"]] and report.calls == 1


def test_an_episode_that_came_twice_is_cut_once() -> None:
    made = episode(call("k1", [5], [7]))
    rows, report = cut_rows([made, made])
    assert len(rows) == 1 and report.dropped == {"episode came twice": 1}


def test_refused_episodes_tell_why() -> None:
    rows, report = cut_rows([episode(call("k1", [5], [7, 8]))], refused={"ep": "stale"})
    assert rows == [] and report.dropped == {"stale": 1} and report.dropped_tokens == {"stale": 2}


def test_a_row_tells_how_each_of_its_calls_was_sampled() -> None:
    first = call("k1", [5], [7], temperature=1.0, finish_reason="stop", policy="p", policy_version_end=4)
    second = call("k2", [5, 7, 1], [8], finish_reason="length", policy="p", policy_version="unknown")
    (row,), _ = cut_rows([episode(first, second)])
    assert row.policy == "p" and row.truncated and row.versions == (3, 4)
    assert row.spans == [Span("k1", 1, 2, 3, 1.0, "stop"), Span("k2", 3, 4, None, None, "length")]
    assert row.version_ids == [-1, 3, -1, -1]


def test_a_group_holds_attempts_of_one_seat_at_one_problem() -> None:
    """One group for turns of different agents compared what cannot be compared (agent-lightning issue 489)."""
    first, second = episode(call("k1", [5], [7])), episode(call("k1", [6], [8]), call("k2", [5], [7], seat="b"))
    other = episode(call("k1", [5], [7]))
    second.id, other.id, other.task = "ep2", "ep3", "another"
    rows, _ = cut_rows([first, second, other])
    assert [row.group == rows[0].group for row in rows] == [True, True, False, False]
    first.group = second.group = other.group = "7"
    rows, _ = cut_rows([first, second, other])
    assert [row.group for row in rows] == ["//7/a", "//7/a", "//7/b", "//7/a"]
    second.env, other.run = "another game", "r2"
    rows, _ = cut_rows([first, second, other])
    assert len({row.group for row in rows}) == 4


def test_words_that_it_does_not_know_are_refused() -> None:
    with pytest.raises(ConfigurationError, match=r'"apart" or "drop", not \'guess\''):
        cut_rows([], ambiguous="guess")  # type: ignore[arg-type]
    with pytest.raises(ConfigurationError, match="no propagation 'nobody'; there are team, discounted, own, judge"):
        cut_rows([], propagation="nobody")
