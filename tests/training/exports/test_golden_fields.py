"""What each trainer reads of the golden tree: its own fields, token by token, held against this table of it.

The label that goes beside the fields is never looked at here.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeAlias

import pytest

from agent_env.episodes import Episode
from agent_env.training.exports import agent_lightning, areal, prime_rl, trl, trl_async, verifiers, verl
from agent_env.training.rows import Row

Sampled: TypeAlias = tuple[int, int, int, float | None]
"""Where a span of sampled tokens starts and ends (exclusive), the policy version and the temperature."""


@dataclass(frozen=True)
class Told:
    """A row as the tree tells it, `length` tokens long."""

    seat: str
    length: int
    spans: tuple[Sampled, ...]
    reward: float
    advantage: float
    group: str

    def spread(self, off: Any, on: Callable[[Sampled], Any]) -> list[Any]:
        """A value a token: `off`, and on the sampled ones what `on` makes of their span."""
        values = [off] * self.length
        for span in self.spans:
            values[span[0] : span[1]] = [on(span)] * (span[1] - span[0])
        return values

    @property
    def mask(self) -> list[int]:
        return self.spread(0, lambda _: 1)

    def credit(self, _: Sampled) -> float:
        return self.advantage

    @property
    def prompt(self) -> int:
        return self.spans[0][0]


TOLD = [
    # The second call at 0.9, by the policy that was published in between.
    Told("manager", 19, ((4, 7, 3, 0.7), (12, 15, 4, 0.9), (18, 19, 4, 0.7)), 1.0, 1.0, "sum/manager"),
    Told("manager", 12, ((10, 12, 4, 0.7),), 1.0, 1.0, "sum/manager"),
    Told("worker", 5, ((3, 5, 3, 0.7),), 1.35, 1.2258, "sum/worker"),
    Told("worker", 5, ((3, 5, 3, 0.7),), 1.1, 0.7451, "sum/worker"),
    Told("manager", 14, ((4, 7, 3, 0.7), (12, 14, 3, 0.7)), 0.0, -1.0, "sum/manager"),
    # The server's own temperature, which nobody told.
    Told("worker", 5, ((3, 5, 3, None),), 0.2, -0.9854, "sum/worker"),
    Told("left", 14, ((4, 7, 3, 0.7), (11, 14, 4, 0.7)), 1.0, 1.0, "duel/left"),
    # Greedy.
    Told("right", 14, ((4, 7, 3, 0.0), (11, 14, 4, 0.0)), -1.0, -1.0, "duel/right"),
    Told("left", 14, ((4, 7, 3, 0.7), (11, 14, 4, 0.7)), -1.0, -1.0, "duel/left"),
    Told("right", 14, ((4, 7, 3, 0.0), (11, 14, 4, 0.0)), 1.0, 1.0, "duel/right"),
]


def close(value: Any) -> Any:
    """Credit divides by a standard deviation and a little more."""
    return pytest.approx(value, abs=1e-3)


def logprobs(told: Told, tokens: list[int]) -> list[float]:
    """What make_golden.py gives each token that was sampled."""
    return [-0.125 * (1 + token % 7) if one else 0.0 for token, one in zip(tokens, told.mask, strict=True)]


def forms(module: Any, name: str, golden: list[Episode], tmp_path: Path) -> list[Any]:
    """The trainer's form of each row, out of a file for it."""
    module.write(golden, tmp_path / "out.jsonl", policies=["boss", "hand", "player"])
    lines = (tmp_path / "out.jsonl").read_text("utf-8").splitlines()
    assert len(lines) == len(TOLD)
    return [json.loads(line)[name] for line in lines]


def test_prime_rl_has_a_temperature_and_an_advantage_for_each_token(golden: list[Episode], tmp_path: Path) -> None:
    for told, sample in zip(TOLD, forms(prime_rl, "sample", golden, tmp_path), strict=True):
        assert sample["mask"] == [one == 1 for one in told.mask] and sample["env_name"] == told.seat
        assert sample["logprobs"] == logprobs(told, sample["token_ids"])
        # It divides by them: context, greedy and unknown ones count as 1.
        assert sample["temperatures"] == told.spread(1.0, lambda span: span[3] or 1.0)
        assert sample["advantages"] == close(told.spread(0.0, told.credit)) and sample["reward"] == told.reward
        # Absent weights are 1 on each trainable token, and it divides by the tokens of all samples.
        assert {"rl_weights", "ce_weights", "ref_kl_weights"}.isdisjoint(sample)


def test_areal_has_a_reward_a_trajectory_and_a_version_for_each_token(golden: list[Episode], tmp_path: Path) -> None:
    for told, one in zip(TOLD, forms(areal, "trajectory", golden, tmp_path), strict=True):
        assert one["rewards"] == [told.reward]
        assert one["versions"] == [told.spread(-1, lambda span: span[2])]
        assert one["loss_mask"] == [told.mask] and one["attention_mask"] == [[True] * told.length]
        assert one["logprobs"] == [logprobs(told, one["input_ids"][0])]


def test_areal_has_our_credit_in_place_of_the_reward(golden_rows: list[Row]) -> None:
    scored = [one["rewards"] for one in areal.to_areal(golden_rows, scored="advantage")]
    assert scored == [[close(told.advantage)] for told in TOLD]


def test_trl_async_bounds_staleness_by_the_oldest_version(golden: list[Episode], tmp_path: Path) -> None:
    samples = forms(trl_async, "sample", golden, tmp_path)
    numbers: dict[str, set[int]] = {}
    for told, sample in zip(TOLD, samples, strict=True):
        assert sample["model_version"] == min(version for _, _, version, _ in told.spans)
        assert sample["advantage"] == close(told.advantage)
        assert sample["metrics"] == {"reward": told.reward, f"rewards/{told.seat}": told.reward}
        assert sample["completion_mask"] == told.mask
        assert sample["old_log_probs"] == logprobs(told, sample["input_ids"])
        numbers.setdefault(told.group, set()).add(sample["group_id"])
    assert {sample["model_version"] for sample in samples} == {3, 4}
    # A number a group, and no two groups of one.
    assert [len(one) for one in numbers.values()] == [1, 1, 1, 1] and len(set().union(*numbers.values())) == 4


def test_trl_has_what_others_said_out_of_the_mask(golden_rows: list[Row]) -> None:
    batch = trl.to_trl(golden_rows)
    assert batch["reward"] == [told.reward for told in TOLD]
    assert batch["env_mask"] == [told.mask[told.prompt :] for told in TOLD]
    for told, prompt, completion, sampled in zip(
        TOLD, batch["prompt_ids"], batch["completion_ids"], batch["logprobs"], strict=True
    ):
        assert len(prompt) == told.prompt
        assert [0.0] * told.prompt + sampled == logprobs(told, [*prompt, *completion])


def test_verl_has_advantages_and_returns_on_sampled_tokens_and_the_score_on_the_last(golden_rows: list[Row]) -> None:
    data = verl.to_verl(golden_rows, prompt_length=10, response_length=16)
    uids: dict[str, set[str]] = {}
    for index, told in enumerate(TOLD):
        batch = {name: values[index] for name, values in data["batch"].items()}
        after = [0.0] * (16 - (told.length - told.prompt))
        given = [*told.spread(0.0, told.credit)[told.prompt :], *after]
        assert batch["advantages"] == close(given) and batch["returns"] == close(given)
        assert batch["response_mask"] == [*told.mask[told.prompt :], *map(int, after)]
        scored = [0.0] * 16
        scored[told.length - told.prompt - 1] = told.reward
        assert batch["token_level_scores"] == scored and batch["token_level_rewards"] == scored
        assert batch["attention_mask"] == [0] * (10 - told.prompt) + [1] * told.length + [0] * len(after)
        tokens = batch["input_ids"][10 - told.prompt :][: told.length]
        assert batch["rollout_log_probs"] == [*logprobs(told, tokens)[told.prompt :], *after]
        uids.setdefault(told.group, set()).add(data["non_tensor_batch"]["uid"][index])
    assert [len(one) for one in uids.values()] == [1, 1, 1, 1] and len(set().union(*uids.values())) == 4


def test_an_agent_loop_of_verl_tells_the_score_and_the_versions(golden: list[Episode], tmp_path: Path) -> None:
    for told, output in zip(TOLD, forms(verl, "output", golden, tmp_path), strict=True):
        versions = [version for _, _, version, _ in told.spans]
        extra = output["extra_fields"]
        assert (extra["min_global_steps"], extra["max_global_steps"]) == (min(versions), max(versions))
        assert (output["reward_score"], output["num_turns"]) == (told.reward, 2 * len(told.spans))
        assert output["response_mask"] == told.mask[told.prompt :]
        tokens = [*output["prompt_ids"], *output["response_ids"]]
        assert [0.0] * told.prompt + output["response_logprobs"] == logprobs(told, tokens)


def test_agent_lightning_has_a_request_a_call_and_one_reward(golden: list[Episode], tmp_path: Path) -> None:
    problems: dict[str, set[str]] = {}
    for told, posted in zip(TOLD, forms(agent_lightning, "posted", golden, tmp_path), strict=True):
        problems.setdefault(told.group, set()).add(posted["rollout"]["input"]["data_id"])
        *requests, reward = posted["events"]
        assert (reward["event_type"], reward["data"]["value"]) == ("reward", told.reward)
        assert len(requests) == len(told.spans)
        for (start, end, version, temperature), request in zip(told.spans, requests, strict=True):
            data = request["data"]
            response = data["response"]
            (choice,) = response["choices"]
            assert (data["model_version"], data["server"]["version"]) == (version, version)
            assert data["request"] == ({} if temperature is None else {"temperature": temperature})
            assert (len(response["prompt_token_ids"]), len(choice["token_ids"])) == (start, end - start)
            told_of = [entry["logprob"] for entry in choice["logprobs"]["content"]]
            assert told_of == [-0.125 * (1 + token % 7) for token in choice["token_ids"]]
            assert choice["finish_reason"] == data["finish_reason"] == ("length" if start == 18 else "stop")
    # Attempts of one seat at one problem are told to be that.
    assert [len(one) for one in problems.values()] == [1, 1, 1, 1] and len(set().union(*problems.values())) == 4
    assert all(one.endswith("/" + told.rpartition("/")[2]) for told, ids in problems.items() for one in ids)


PLAYED = {
    # Who is trained, its whole reward, and of each answer how many tokens were sampled at which temperature.
    "e-fan/s-m": (True, 1.0, [(3, 0.7), (3, 0.9), (2, 0.7), (1, 0.7)]),
    "e-fan/s-w1": (True, 1.35, [(2, 0.7)]),
    "e-fan/s-w2": (True, 1.1, [(2, 0.7)]),  # the answer that stands, not the one that was retried
    "e-fan/s-j": (False, 1.0, [(2, 0.7)]),
    "e-fail/s-fm": (True, 0.0, [(3, 0.7), (2, 0.7)]),
    "e-fail/s-fw1": (True, 0.2, [(2, None)]),
    "e-fail/s-fw2": (True, 0.2, []),
    "e-late/s-lm": (True, 0.0, [(3, 0.7)]),
    "e-duel-0/s-d0-left": (True, 1.0, [(3, 0.7), (3, 0.7)]),
    "e-duel-0/s-d0-right": (True, -1.0, [(3, 0.0), (3, 0.0)]),
    "e-duel-1/s-d1-left": (True, -1.0, [(3, 0.7), (3, 0.7)]),
    "e-duel-1/s-d1-right": (True, 1.0, [(3, 0.0), (3, 0.0)]),
}


def test_verifiers_has_the_rewards_and_tokens_of_each_agent(golden: list[Episode], tmp_path: Path) -> None:
    verifiers.write(golden, tmp_path / "out.jsonl")
    records = [json.loads(line) for line in (tmp_path / "out.jsonl").read_text("utf-8").splitlines()]
    assert [record["ok"] for record in records] == [True, True, False, True, True]
    played: dict[str, Any] = {}
    for trace in (trace for record in records for trace in record["traces"]):
        scores = [one["score"] * one["weight"] for one in trace["rewards"].values() if one is not None]
        answers = [(len(node["token_ids"]), node) for node in trace["nodes"] if node["sampled"]]
        heat = {call["node"]: call["sampling"].get("temperature") for call in trace["calls"] if "node" in call}
        told = [(count, heat[trace["nodes"].index(node)]) for count, node in answers]
        played[trace["id"]] = (trace["agent"]["trainable"], close(sum(scores)), told)
        for count, node in answers:
            assert node["mask"] == [True] * count
            assert node["logprobs"] == [-0.125 * (1 + token % 7) for token in node["token_ids"]]
        assert not any(any(node["mask"]) for node in trace["nodes"] if not node["sampled"])
    assert played == PLAYED


@pytest.mark.parametrize("module", [prime_rl, areal, trl_async])
def test_a_fork_trains_each_token_once_however_many_rows_it_makes(
    module: Any, golden: list[Episode], tmp_path: Path
) -> None:
    name, mask = {prime_rl: ("sample", "mask"), areal: ("trajectory", "loss_mask")}.get(
        module, ("sample", "completion_mask")
    )
    masks = [one[mask][0] if module is areal else one[mask] for one in forms(module, name, golden, tmp_path)]
    (fan_out,) = [trace for trace in golden[0].traces if trace.seat == "manager"]
    # The two rows of the forked conversation, and what its four calls had sampled.
    assert sum(masks[0]) + sum(masks[1]) == sum(len(call.token_ids or ()) for call in fan_out.calls) == 9
