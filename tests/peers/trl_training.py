"""Trains the manager of `examples/multiagent/trl` a few steps both ways, and two by an environment that scores itself,
and tells what became of it as JSON.

Arguments: a folder with the product's metadata, by which served agents find their wrappers; one to work in.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
from pathlib import Path
from typing import Any

EXAMPLE = Path(__file__).parents[2] / "examples" / "multiagent" / "trl"
STEPS = 20
SCORED_STEPS, SCORED_BATCH = 2, 32

metadata, work = Path(sys.argv[1]), Path(sys.argv[2])
os.environ["PYTHONPATH"] += os.pathsep + str(metadata)
os.environ["AGENT_ENV_HUB"] = str(work / "hub.db")
sys.path.insert(0, str(EXAMPLE))

import torch
import train
from datasets import Dataset
from model import make_model, make_tokenizer, warm_up
from scenario import is_right
from trl import GRPOConfig, GRPOTrainer

from agent_env.episodes import Episode, EpisodeStore
from agent_env.training import cut_rows
from agent_env.training.exports.trl import trl_prompts
from agent_env.training.exports.trl_environment import PeerEnvironment, trl_environment
from agent_env.training.pretrained import PretrainedLM
from agent_env.training.update import batch, token_logprobs


def run(way: str, warm: dict[str, Any]) -> dict[str, Any]:
    """One way, from weights that were warmed up: what its trainer logged, and how they changed."""
    options = argparse.Namespace(
        model=None, vllm=None, steps=STEPS, save_steps=STEPS, seed=0, episodes=work / "episodes.db"
    )
    tokenizer = make_tokenizer()
    model = make_model(tokenizer, seed=0)
    model.load_state_dict(warm)
    before = {name: weight.detach().clone() for name, weight in model.named_parameters()}
    result = train.Result(way, (0.0, 0.0))
    trainer = train.train(way, options, work / "runs", model, tokenizer, result)
    after = dict(trainer.model.named_parameters())
    logged = [entry for entry in trainer.state.log_history if "reward" in entry]
    names = ("reward", "loss", "grad_norm", "num_tokens", "entropy", "tools/call_frequency", "episodes/without_reward")
    return {
        "changed": sum(not torch.equal(before[name], weight) for name, weight in after.items()),
        "weights": len(before),
        "trl": trainer.__class__.__module__,
        **{name: [entry.get(name) for entry in logged] for name in names},
    }


def scored(warm: dict[str, Any]) -> dict[str, Any]:
    """Two steps in which the environment scores and there are no reward functions: what it gave, and what TRL logged."""
    given: list[float] = []

    def reward(environment: PeerEnvironment) -> float:
        replies = [call.reply for call in environment.calls]
        given.append(float(any(is_right(reply, environment.row["task"]) for reply in replies)))
        return given[-1]

    tokenizer = make_tokenizer()
    model = make_model(tokenizer, seed=0)
    model.load_state_dict(warm)
    before = {name: weight.detach().clone() for name, weight in model.named_parameters()}
    rows = [{**row, "task": word} for word, row in zip(train.WORDS, trl_prompts(train.WORDS), strict=True)]
    config = GRPOConfig(
        output_dir=str(work / "scored"),
        max_steps=SCORED_STEPS,
        per_device_train_batch_size=SCORED_BATCH,
        num_generations=8,
        max_completion_length=16,
        max_tool_calling_iterations=1,
        learning_rate=1e-3,
        beta=0.0,
        logging_steps=1,
        save_strategy="no",
        report_to=[],
        use_cpu=True,
        bf16=False,
        disable_tqdm=True,
    )
    with trl_environment({name: f"specialist-{name}@1.0.0" for name in train.SPECIALISTS}, reward=reward) as Desk:
        trainer = GRPOTrainer(
            model,
            args=config,
            train_dataset=Dataset.from_list(rows),
            processing_class=tokenizer,
            environment_factory=Desk,
        )
        trainer.train()
    logged = [entry for entry in trainer.state.log_history if "reward" in entry]
    after = dict(trainer.model.named_parameters())
    return {
        "given": given,
        "changed": sum(not torch.equal(before[name], weight) for name, weight in after.items()),
        **{name: [entry[name] for entry in logged] for name in ("reward", "loss", "grad_norm")},
    }


def distance(model: torch.nn.Module, episodes: list[Episode]) -> float:
    """How far the logprobs of what the manager sampled are, at most, from those of a model that reads it afresh."""
    rows, _ = cut_rows(episodes, seats=["manager"])
    tokens, mask = batch([row.token_ids for row in rows], [row.loss_mask for row in rows])
    told = torch.zeros(mask.shape)
    for place, row in enumerate(rows):
        told[place, : len(row.logprobs) - 1] = torch.tensor(row.logprobs[1:])
    with torch.no_grad():
        found, _ = token_logprobs(PretrainedLM(model, ends=[2]), tokens)
    return float(((found - told) * mask).abs().max())


def main() -> None:
    """Runs both ways and reads what was kept."""
    torch.set_num_threads(1)
    tokenizer = make_tokenizer()
    model = make_model(tokenizer, seed=0)
    warm_up(model, tokenizer, seed=0)
    with train.agents():
        told: dict[str, Any] = {"scored": scored(model.state_dict())}
        told |= {way: run(way, model.state_dict()) for way in train.WAYS}
    with EpisodeStore(work / "episodes.db") as store:
        episodes = list(store.find())
    asked = [[edge.callee for edge in one.edges if edge.caller_seat == "manager"] for one in episodes]
    versions = {found.policy_version for one in episodes for trace in one.traces for found in trace.calls}
    told["episodes"] = {
        "count": len(episodes),
        "ok": sum(one.ok for one in episodes),
        "asked": sorted({callee for callees in asked for callee in callees}),
        "calls": sum(map(len, asked)),
        "versions": sorted(versions),
        "off": distance(model, [one for one in episodes if one.info["step"] == 0]),
    }
    print(json.dumps(told))


if __name__ == "__main__":
    main()
