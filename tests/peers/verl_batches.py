"""Runs with verl installed: our rows as its `AgentLoopOutput`s and `DataProto`, and what verl itself makes of them.

python verl_batches.py GOLDEN.jsonl EXPORTED.jsonl
"""

from __future__ import annotations

import asyncio
import json
import pickle
import sys
from pathlib import Path
from types import SimpleNamespace

import torch
from tokenizers import Tokenizer
from tokenizers.models import WordLevel
from transformers import PreTrainedTokenizerFast
from verl import DataProto
from verl.experimental.agent_loop.agent_loop import AgentLoopOutput, AgentLoopWorker
from verl.trainer.ppo.core_algos import agg_loss, compute_grpo_outcome_advantage
from verl.trainer.ppo.metric_utils import compute_data_metrics

from agent_env.episodes import EpisodeReader
from agent_env.training.exports.verl import data_proto, from_agent_loop, from_verl, plain, read
from agent_env.training.learning import credit_rows

golden, exported = Path(sys.argv[1]), Path(sys.argv[2])
rows, _, report = credit_rows(EpisodeReader(golden))
PROMPT, RESPONSE, PAD = 16, 24, 0

# The file, and verl's own outputs, hold the same rows.
lines = [json.loads(line)["output"] for line in exported.read_text("utf-8").splitlines()]
outputs = [AgentLoopOutput(**line) for line in lines]
assert from_agent_loop([output.model_dump() for output in outputs]) == rows == read(exported)
for output, row in zip(outputs, rows, strict=True):
    told = output.as_dict()
    assert torch.cat([told["prompts"], told["responses"]]).tolist() == row.token_ids
    assert told["response_mask"].sum().item() == row.sampled
    assert abs(told["rm_scores"][-1].item() - row.reward) < 1e-6

# Our padding is that of verl's own agent loop worker.
batch = data_proto(rows, pad_token_id=PAD, prompt_length=PROMPT, response_length=RESPONSE)
assert type(batch) is DataProto and len(batch) == len(rows)
worker = object.__new__(AgentLoopWorker)
worker.rollout_config = SimpleNamespace(prompt_length=PROMPT, response_length=RESPONSE)
worker.tokenizer = PreTrainedTokenizerFast(
    tokenizer_object=Tokenizer(WordLevel({"<pad>": PAD}, unk_token="<pad>")), pad_token="<pad>"
)
worker.processor, worker.mm_processor_kwargs = None, {}
worker.reward_loop_worker_handles, worker.distillation_enabled = None, False


async def pad_with_verl() -> DataProto:
    padded = [await worker._agent_loop_postprocess(one, False, raw_prompt=[]) for one in outputs]
    return worker._postprocess(padded)


theirs = asyncio.run(pad_with_verl())
same = [*("prompts", "responses", "input_ids", "attention_mask", "position_ids", "response_mask"), "rollout_log_probs"]
for name in same:
    assert torch.equal(batch.batch[name], theirs.batch[name]), name
assert torch.equal(batch.batch["token_level_scores"], theirs.batch["rm_scores"])
assert theirs.non_tensor_batch["min_global_steps"].tolist() == [row.versions[0] for row in rows]

# The batch survives what verl does with batches, and is the same rows after it.
again = DataProto.concat(pickle.loads(pickle.dumps(batch)).chunk(2))
for row, other in zip(rows, from_verl(plain(again)), strict=True):
    assert max(abs(one - two) for one, two in zip(row.logprobs, other.logprobs, strict=True)) < 1e-6
    other.logprobs = row.logprobs
    assert other == row
metrics = compute_data_metrics(batch, use_critic=False)
assert metrics["critic/score/max"] == max(torch.tensor(row.reward) for row in rows)
assert metrics["critic/advantages/max"] == max(torch.tensor(row.advantage) for row in rows)

# What its estimator makes of our groups is what we made of them, where no row was forked: its standard deviation is over
# n - 1, ours over n, and each group of duels has two.
duels = [index for index, row in enumerate(rows) if row.episode.startswith("e-duel")]
chosen = batch.select_idxs(duels)
for divided, ours in ((False, 1.0), (True, 2**0.5)):
    advantages, _ = compute_grpo_outcome_advantage(
        chosen.batch["token_level_rewards"], chosen.batch["response_mask"], chosen.non_tensor_batch["uid"],
        norm_adv_by_std_in_grpo=divided,
    )  # fmt: skip
    assert torch.allclose(advantages * ours, chosen.batch["advantages"], atol=1e-3)
loss = agg_loss(-batch.batch["advantages"], batch.batch["response_mask"].float(), "token-mean")
mean = -sum(row.advantage * row.sampled for row in rows) / report.delivered_tokens
assert abs(loss.item() - mean) < 1e-6
print(json.dumps({"rows": len(rows), "trained": int(batch.batch["response_mask"].sum()), "same": same}))
