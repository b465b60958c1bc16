"""Asks transformers alone what it makes of recorded tokens: whose logprobs they are, and whose prompts.

`python smollm_logprobs.py EPISODES PHASE FOLDER…` prints, by seat and folder, how far the recorded logprobs are from
those of the model in the folder, and whether its tokenizer makes the same prompts.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

from agent_env.episodes import open_episodes
from agent_env.training import cut_rows

torch.set_num_threads(1)


def distances(folder: Path) -> dict[str, float]:
    """By seat, the mean distance of a sampled token's recorded logprob from the model's."""
    model: Any = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
    apart: dict[str, list[float]] = {}
    with torch.inference_mode():
        for row in rows:
            logits = model(input_ids=torch.tensor([row.token_ids])).logits[0, :-1]
            told = torch.log_softmax(logits, dim=-1).gather(1, torch.tensor(row.token_ids[1:])[:, None])[:, 0]
            apart.setdefault(row.seat, []).extend(
                abs(mine - float(theirs))
                for mine, theirs, sampled in zip(row.logprobs[1:], told, row.loss_mask[1:], strict=True)
                if sampled
            )
    return {seat: sum(found) / len(found) for seat, found in apart.items()}


def renders(folder: Path) -> list[bool]:
    """Of each call, whether the folder's template and tokenizer make the same prompt."""
    tokenizer: Any = AutoTokenizer.from_pretrained(folder)
    calls = [call for episode in episodes for trace in episode.traces for call in trace.calls]
    return [
        tokenizer.apply_chat_template(call.request["messages"], add_generation_prompt=True, return_dict=False)
        == call.prompt_token_ids
        for call in calls
    ]


with open_episodes(sys.argv[1]) as kept:
    episodes = [episode for episode in kept.find() if episode.info.get("phase", "") == sys.argv[2]]
rows, report = cut_rows(episodes)
folders = [Path(name) for name in sys.argv[3:]]
print(
    json.dumps(
        {
            "rows": len(rows),
            "delivered": report.delivered_ratio,
            "distances": [distances(folder) for folder in folders],
            "renders": renders(folders[0]),
        }
    )
)
