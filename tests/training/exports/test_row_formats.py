"""The forms of rows: whatever rows there are, each form holds them, aligned token by token."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from agent_env.errors import ConfigurationError, ProtocolError
from agent_env.training.exports import agent_lightning, areal, files, prime_rl, trl, trl_async, verl
from agent_env.training.exports.labels import label_of
from agent_env.training.rows import Row, Span

IDS = st.integers(0, 2**31 - 1)
FLOATS = st.floats(-50, 0, allow_nan=False)
SCORES = st.floats(-10, 10, allow_nan=False)
VERSIONS = st.none() | st.integers(0, 9)


@st.composite
def a_row(draw: st.DrawFn) -> Row:
    tokens: list[int] = []
    mask: list[int] = []
    logprobs: list[float] = []
    spans: list[Span] = []
    for number in range(draw(st.integers(1, 3))):
        context = draw(st.lists(IDS, min_size=1, max_size=4))
        sampled = draw(st.lists(IDS, min_size=1, max_size=4))
        start = len(tokens) + len(context)
        tokens += [*context, *sampled]
        mask += [0] * len(context) + [1] * len(sampled)
        logprobs += [0.0] * len(context) + [draw(FLOATS) for _ in sampled]
        temperature = draw(st.none() | st.floats(0, 2))
        reason = draw(st.sampled_from([None, "stop", "length"]))
        spans.append(Span(f"c{number}", start, len(tokens), draw(VERSIONS), temperature, reason))
    known = [span.version for span in spans if span.version is not None]
    return Row(
        draw(st.text(max_size=4)), draw(st.sampled_from("ab")), draw(st.none() | st.just("a@1.0.0")), "p",
        tokens, mask, logprobs, mask.index(1), f"g/{draw(st.integers(0, 3))}", draw(SCORES), draw(SCORES),
        draw(st.floats(0.01, 1)), (min(known), max(known)) if known else None, [span.call_id for span in spans],
        draw(st.text(max_size=8)), "i", spans, draw(st.booleans()), spans[-1].finish_reason == "length",
        draw(st.dictionaries(st.text(max_size=3), st.integers(), max_size=2)),
    )  # fmt: skip


def by_json(value: Any) -> Any:
    return json.loads(json.dumps(value, allow_nan=False))


def around_verl(rows: list[Row]) -> list[Row]:
    return verl.from_verl(by_json(verl.to_verl(rows, pad_token_id=7, prompt_length=20, response_length=30)))


AROUND: dict[str, Callable[[list[Row]], list[Row]]] = {
    "verl": around_verl,
    "verl, as long as the longest": lambda rows: verl.from_verl(by_json(verl.to_verl(rows))),
    "agent loop": lambda rows: verl.from_agent_loop(by_json(verl.to_agent_loop(rows))),
    "trl": lambda rows: trl.from_trl(by_json(trl.to_trl(rows)), by_json([label_of(row) for row in rows])),
    "trl async": lambda rows: trl_async.from_trl_async(
        by_json(trl_async.to_trl_async(rows, version=0)), by_json([label_of(row) for row in rows])
    ),
    "prime-rl": lambda rows: prime_rl.from_prime_rl(
        by_json(prime_rl.to_prime_rl(rows)), by_json([label_of(row) for row in rows])
    ),
    "areal": lambda rows: areal.from_areal(by_json(areal.to_areal(rows)), by_json([label_of(row) for row in rows])),
    "agent-lightning": lambda rows: agent_lightning.from_agent_lightning(
        by_json(agent_lightning.to_agent_lightning(rows))
    ),
}


@pytest.mark.parametrize("name", AROUND)
@settings(max_examples=40)
@given(rows=st.lists(a_row(), max_size=3))
def test_rows_come_back_as_they_went(name: str, rows: list[Row]) -> None:
    assert AROUND[name](rows) == rows


@pytest.mark.parametrize("name", AROUND)
def test_the_rows_of_the_golden_tree_come_back_as_they_went(name: str, golden_rows: list[Row]) -> None:
    assert AROUND[name](golden_rows) == golden_rows


@settings(max_examples=40)
@given(row=a_row())
def test_every_form_is_aligned_with_the_tokens(row: Row) -> None:
    (sample,) = prime_rl.to_prime_rl([row])
    assert {len(sample[name]) for name in ("token_ids", "mask", "logprobs", "temperatures", "advantages")} == {
        len(row.token_ids)
    }
    assert min(sample["temperatures"]) > 0
    (trajectory,) = areal.to_areal([row])
    assert trajectory["versions"] == [row.version_ids]
    assert all(
        version == -1
        for version, one in zip(trajectory["versions"][0], trajectory["loss_mask"][0], strict=True)
        if not one
    )
    (rollout,) = agent_lightning.to_agent_lightning([row])
    *requests, reward = rollout["events"]
    assert reward["data"]["value"] == row.reward
    prompts = [request["data"]["response"]["prompt_token_ids"] for request in requests]
    # The gateway there takes two requests with one prompt for a retry.
    assert len({tuple(prompt) for prompt in prompts}) == len(prompts) == len(row.spans)


def test_verl_pads_prompts_on_the_left_and_responses_on_the_right() -> None:
    row = Row("e", "a", None, "p", [5, 6, 1, 7, 2], [0, 0, 1, 0, 1], [0, 0, -1, 0, -2], 2, "g", 3.0, 0.5)
    data = verl.to_verl([row], pad_token_id=9, prompt_length=3, response_length=5)
    assert data["batch"] == {
        "prompts": [[9, 5, 6]],
        "responses": [[1, 7, 2, 9, 9]],
        "input_ids": [[9, 5, 6, 1, 7, 2, 9, 9]],
        "attention_mask": [[0, 1, 1, 1, 1, 1, 0, 0]],
        "position_ids": [[0, 0, 1, 2, 3, 4, 4, 4]],
        "response_mask": [[1, 0, 1, 0, 0]],
        "rollout_log_probs": [[-1, 0, -2, 0, 0]],
        "token_level_scores": [[0, 0, 3.0, 0, 0]],
        "token_level_rewards": [[0, 0, 3.0, 0, 0]],
        "advantages": [[0.5, 0, 0.5, 0, 0]],
        "returns": [[0.5, 0, 0.5, 0, 0]],
    }
    assert data["non_tensor_batch"]["uid"] == ["g"]


def test_a_row_that_is_too_long_for_verl_is_refused_and_not_cut() -> None:
    row = Row("e", "a", None, "p", [5, 6, 1], [0, 0, 1], [0, 0, -1], 2, "g", 1.0, row_id="r")
    for lengths in ({"prompt_length": 1}, {"response_length": 0}):
        with pytest.raises(ConfigurationError, match=r"the row 'r' has 2 \+ 1 tokens, more than"):
            verl.to_verl([row], **lengths)


@pytest.mark.parametrize("convert", [verl.to_verl, areal.to_areal, agent_lightning.to_agent_lightning])
def test_a_reward_that_nobody_gave_is_never_taken_for_nought(convert: Callable[[list[Row]], Any]) -> None:
    row = Row("e", "a", None, "p", [5, 1], [0, 1], [0, -1], 1, row_id="r")
    with pytest.raises(ConfigurationError, match="nobody scored the row 'r'"):
        convert([row])
    assert trl_async.to_trl_async([row], version=1)[0]["metrics"] == {}
    assert verl.to_agent_loop([row])[0]["reward_score"] is None


def test_trl_bounds_staleness_by_the_oldest_version_and_asks_for_one_where_none_is_known() -> None:
    row = Row("e", "a", None, "p", [5, 1], [0, 1], [0, -1], 1, versions=(3, 5), row_id="r")
    assert trl_async.to_trl_async([row], version=9)[0]["model_version"] == 3
    unknown = replace(row, versions=None)
    assert trl_async.to_trl_async([unknown], version=9)[0]["model_version"] == 9
    with pytest.raises(ConfigurationError, match="no policy version is known of the row 'r'"):
        trl_async.to_trl_async([unknown])


def test_trl_shows_the_text_of_both_parts_where_tokens_can_be_read() -> None:
    row = Row("e", "a", None, "p", [5, 1], [0, 1], [0, -1], 1, versions=(0, 0))
    (sample,) = trl_async.to_trl_async([row], decode=lambda ids: f"<{ids}>")
    assert sample["prompt"] == [{"role": "user", "content": "<[5]>"}]
    assert sample["completion"] == [{"role": "assistant", "content": "<[1]>"}]
    assert trl_async.group_number("a/b") != trl_async.group_number("a/c")
    assert 0 <= trl_async.group_number("a/b") < 2**63


def test_areal_takes_our_advantage_in_place_of_a_reward_and_tensors_of_its_kinds() -> None:
    row = Row("e", "a", None, "p", [5, 1], [0, 1], [0, -1], 1, "g", 1.0, -0.5, spans=[Span("c", 1, 2, 4)])
    (trajectory,) = areal.to_areal([row], scored="advantage")
    tensors = areal.tensors(trajectory)
    assert tensors["rewards"].tolist() == [-0.5]
    assert tensors["versions"].tolist() == [[-1, 4]]
    assert {name: tensor.dtype for name, tensor in tensors.items()} == {
        "input_ids": torch.int32,
        "loss_mask": torch.int32,
        "logprobs": torch.float32,
        "versions": torch.int32,
        "attention_mask": torch.bool,
        "rewards": torch.float32,
    }


def test_requests_of_a_rollout_that_do_not_continue_each_other_are_refused(golden_rows: list[Row]) -> None:
    (rollout,) = agent_lightning.to_agent_lightning(golden_rows[:1])
    rollout["events"][1]["data"]["response"]["prompt_token_ids"][0] += 1
    with pytest.raises(ProtocolError, match="'e-fan/manager/m1-a' do not continue each other"):
        agent_lightning.from_agent_lightning([rollout])


def test_a_trainer_that_is_not_installed_is_named_with_what_to_run(golden_rows: list[Row]) -> None:
    with pytest.raises(ConfigurationError, match=r"needs trl, which is not installed; run: pip install 'trl"):
        trl_async.rollout_samples(golden_rows)
    with pytest.raises(ConfigurationError, match=r"needs verl, which is not installed; run: pip install 'verl"):
        verl.data_proto(golden_rows)
    assert files.package("json", "").dumps([]) == "[]"
