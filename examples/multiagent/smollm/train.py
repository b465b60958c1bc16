"""Trains writer and editor, each a whole SmolLM2 of its own, through their served environments: `python train.py`.

Four processes: both agents, the gateway, and this one, which holds both policies, serves them, plays and updates. What
was trained is saved, read again, and plays as the policies' next version. Stop it with Ctrl-C, and go on with
`python train.py --resume`.
"""

from __future__ import annotations

import argparse
import asyncio
import gc
import os
import resource
import sys
import time
from collections.abc import Sequence
from contextlib import aclosing
from pathlib import Path

import torch
from headlines import AGENTS, SEATS, THINGS, headlines, table
from model import NAME, THREADS, model_folder
from rich.console import Console
from safetensors.torch import load_file

from agent_env.episodes import Episode, EpisodeStore
from agent_env.launch import agents_served
from agent_env.training import Policy, Settings, evaluate, load_pretrained, policies_served, training_loop
from agent_env.training.checkpoints import Run
from agent_env.training.study import add_run_options, begin_run, play_run

SETTINGS = Settings(learning_rate=1e-5, entropy=0.0, batch_tokens=256)
"""Each token that goes through the model at a time costs memory for 49,152 logits, several times over."""


async def main(options: argparse.Namespace, run: Run) -> None:
    """Trains, reads back what was saved, plays with it, and shows what changed."""
    os.environ["AGENT_ENV_HUB"] = str(run.folder / "hub.db")
    console = Console()
    began = time.monotonic()
    folder = await asyncio.to_thread(model_folder, Path(options.model))
    with EpisodeStore(run.episodes) as store:
        async with agents_served(AGENTS, *([seat] for seat in SEATS)):
            await train(options, run, store, folder, console)
            # What plays from here on comes from the disk; what was trained, two gigabytes a seat, makes room for it.
            gc.collect()
            policies = saved(run)
            for seat, policy in policies.items():
                moved = distance(folder, path_of(run, seat))
                console.print(f"{seat}: version {policy.version}, {moved:.4f} away from {NAME}")
            async with policies_served(run.folder / "gateway") as place:
                episodes = await evaluate(
                    headlines,
                    THINGS[: options.tasks],
                    policies,
                    place=place,
                    store=store,
                    concurrency=options.tasks,
                    seconds=options.seconds,
                    info={"phase": "after"},
                )
    run.finish()
    console.print(table(f"after {options.updates} updates, by versions {versions(episodes)}", episodes))
    seconds = time.monotonic() - began
    console.print(f"{seconds:.0f} s, {most_memory():.1f} gigabytes of memory at most, all in {run.folder}")


async def train(options: argparse.Namespace, run: Run, store: EpisodeStore, folder: Path, console: Console) -> None:
    """Plays and updates, and leaves a checkpoint of what came of it."""
    policies = {
        seat: load_pretrained(seat, folder, settings=SETTINGS, seed=number, max_tokens=32)
        for number, seat in enumerate(SEATS)
    }
    async with policies_served(run.folder / "gateway") as place:
        updates = training_loop(
            headlines,
            THINGS,
            policies,
            updates=options.updates,
            run=run,
            place=place,
            store=store,
            group_size=options.group,
            tasks_per_update=options.tasks,
            concurrency=options.group * options.tasks,
            seconds=options.seconds,
            sampling={"temperature": 1.0},
            info={"phase": "training"},
        )
        async with aclosing(updates):
            async for update in updates:
                rewards = ", ".join(f"{seat} {reward:.2f}" for seat, reward in update.reward.items())
                console.print(f"update {update.number}: mean rewards {rewards}, {update.seconds:.0f} s")


def saved(run: Run) -> dict[str, Policy]:
    """The policies of the newest checkpoint, as they were written."""
    return {seat: Policy.load(path_of(run, seat)) for seat in SEATS}


def path_of(run: Run, seat: str) -> Path:
    """The folder of a seat's policy in the newest checkpoint."""
    checkpoint = run.latest()
    assert checkpoint is not None
    return checkpoint.path(seat)


def distance(before: Path, after: Path) -> float:
    """How far all weights together have moved from one folder's to the other's, in a straight line."""
    fresh, moved = (load_file(folder / "model.safetensors") for folder in (before, after))
    return sum(float((moved[name] - weights.float()).pow(2).sum()) for name, weights in fresh.items()) ** 0.5


def versions(episodes: Sequence[Episode]) -> dict[str, list[int]]:
    """By seat, which versions of its policy answered."""
    found: dict[str, set[int]] = {seat: set() for seat in SEATS}
    for episode in episodes:
        for trace in episode.traces:
            for call in trace.calls:
                found[call.seat].add(call.policy_version)
    return {seat: sorted(seen) for seat, seen in found.items()}


def most_memory() -> float:
    """How many gigabytes this process has had at most."""
    most = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return most * (1 if sys.platform == "darwin" else 1024) / 1e9


def parse(arguments: Sequence[str] | None = None) -> argparse.Namespace:
    """Reads the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--updates", type=int, default=1, help="gradient steps of each seat")
    parser.add_argument("--tasks", type=int, default=4, help="things an update")
    parser.add_argument("--group", type=int, default=4, help="episodes of each thing")
    parser.add_argument("--seconds", type=float, default=600, help="how long an episode may take")
    parser.add_argument("--model", default=f"models/{NAME}", help="where the model's folder is, or will be written to")
    add_run_options(parser)
    return parser.parse_args(arguments)


if __name__ == "__main__":
    torch.set_num_threads(THREADS)
    given, outer = begin_run(parse(), headlines.name)
    play_run(outer, lambda: asyncio.run(main(given, outer)))
