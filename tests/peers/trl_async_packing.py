"""Runs with TRL installed: our worker under its protocol, and our rows through its own queue, planners and packing.

python trl_async_packing.py GOLDEN.jsonl EXPORTED.jsonl
"""

from __future__ import annotations

import dataclasses
import inspect
import json
import sys
import typing
from collections import defaultdict
from collections.abc import AsyncIterator
from itertools import islice
from pathlib import Path
from queue import SimpleQueue

from accelerate import PartialState
from trl.experimental.async_grpo.async_grpo_trainer import (
    DataCollatorForRollout,
    FixedCountBatcher,
    RolloutQueueDataset,
    RolloutWorkerProtocol,
    TokenBudgetBatcher,
)
from trl.experimental.async_grpo.async_rollout_worker import RolloutSample

from agent_env.episodes import Episode, EpisodeReader
from agent_env.training.exports.labels import label_of
from agent_env.training.exports.trl_async import from_trl_async, read, rollout_samples
from agent_env.training.exports.trl_worker import RolloutWorker
from agent_env.training.learning import credit_rows

golden, exported = Path(sys.argv[1]), Path(sys.argv[2])
rows, _, report = credit_rows(EpisodeReader(golden))
seen: dict[str, object] = {}

# The file, and TRL's own samples, hold the same rows.
assert read(exported) == rows
samples = rollout_samples(rows)
assert all(type(sample) is RolloutSample for sample in samples)
back = from_trl_async([dataclasses.asdict(sample) for sample in samples], map(label_of, rows))
assert [row.token_ids for row in back] == [row.token_ids for row in rows]
assert [row.loss_mask for row in back] == [row.loss_mask for row in rows]
assert [row.advantage for row in back] == [row.advantage for row in rows]
assert all(
    abs(ours - theirs) < 1e-6
    for row, again in zip(rows, back, strict=True)
    for ours, theirs in zip(row.logprobs, again.logprobs, strict=True)
)

# The worker is what the protocol of the installed release asks for, method by method.
asked = [name for name, _ in inspect.getmembers(RolloutWorkerProtocol, inspect.isfunction) if name[0] != "_"]
for name in asked:
    wanted = inspect.signature(getattr(RolloutWorkerProtocol, name))
    has = inspect.signature(getattr(RolloutWorker, name))
    assert list(has.parameters) == list(wanted.parameters), (name, has, wanted)
seen["methods"] = asked


async def play(version: int) -> AsyncIterator[Episode]:
    for episode in EpisodeReader(golden):
        yield episode


worker = RolloutWorker(play, group_size=2, capacity=4)
assert not set(typing.get_type_hints(RolloutWorkerProtocol)) - set(vars(worker))

# A worker that plays, the trainer's queue, its two planners, and its packing.
PartialState()  # TRL logs by way of it
metrics: dict[str, list[object]] = defaultdict(list)
worker.start()
try:
    queue = RolloutQueueDataset(worker.rollout_buffer, lambda: 4, worker.check_health, 60.0, metrics, max_staleness=1)
    taken = list(islice(queue, len(rows)))
    assert sorted(len(one["input_ids"]) for one in taken) == sorted(len(row.token_ids) for row in rows)
    assert {one["group_id"] for one in taken} == {sample.group_id for sample in samples}
    (planned,) = FixedCountBatcher(taken, 1, len(rows))
    collator = DataCollatorForRollout(pad_token_id=0, metrics=metrics)
    batch = collator([planned])
    assert batch["old_log_probs"].numel() == report.delivered_tokens
    own = sorted(round(row.advantage, 4) for row in rows for _ in range(row.sampled))
    assert sorted(round(one, 4) for one in batch["advantages"].flatten().tolist()) == own
    seen["packed_tokens"] = int(batch["attention_mask"].sum())
    seen["groups"] = len(collator.groups_trained)
    budgeted = list(TokenBudgetBatcher(taken * 8, 1, 100, metrics))
    seen["budgeted"] = [sum(len(row.tokens) for row in planned) for planned in budgeted]
finally:
    worker.stop()
seen["played"] = worker.metrics_queue.get_nowait()["episodes/played_total"]

# What is too old for the trainer it drops, by the oldest version of a row.
old, new = rollout_samples([row for row in rows if row.episode == "e-fan"])[:2]
assert (old.model_version, new.model_version) == (3, 4)
late: SimpleQueue[RolloutSample] = SimpleQueue()
late.put(old)
late.put(new)
dropping = RolloutQueueDataset(late, lambda: 5, worker.check_health, 60.0, metrics, max_staleness=1)
assert len(next(iter(dropping))["input_ids"]) == len(new.input_ids)
assert metrics["sample/dropped_stale_total"] == [1.0]
seen |= {"rows": len(rows), "trained": report.delivered_tokens}
print(json.dumps(seen))
