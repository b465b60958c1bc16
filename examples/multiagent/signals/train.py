"""Trains the sender and the receiver together, and each alone, through served agents: `python train.py`.

Four processes: both agents, the gateway, and this one, which holds the policies, serves them, plays and updates.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import random
import sys
import time
from collections.abc import AsyncGenerator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path

import torch
import uvloop
from agents import CODES, OBJECTS
from rich.console import Console
from rich.table import Table

from agent_env import Environment
from agent_env.episodes import Episode, EpisodeWriter
from agent_env.gateway import GatewayProcess, RunHandle, SeatPolicy, launched, running
from agent_env.training import (
    Policy,
    PolicyServer,
    WordTokenizer,
    learn,
    make_model,
    plot_curves,
    rollout,
    rollout_progress,
    warm_start,
)
from agent_env.training.progress import RolloutProgress

HERE = Path(__file__).parent
SENDER = "signal-sender@1.0.0"
ARMS = {"both": ("sender", "receiver"), "A only": ("sender",), "B only": ("receiver",), "none": ()}
TASKS, GROUP, EVALUATED = 32, 8, 1000
HABIT = 0.3  # how often a fresh policy follows the one convention that both half know


@dataclass
class Result:
    """One training run: its curve, and the mean reward of 1,000 fresh episodes, sampled and greedy."""

    arm: str
    seed: int
    curve: list[float] = field(default_factory=list)
    before: tuple[float, float] = (0.0, 0.0)
    after: tuple[float, float] = (0.0, 0.0)


async def play(obj: str) -> str:
    """One episode: the object goes to the sender in a session of its own; whom the sender asks is its own matter."""
    async with Environment(SENDER, seat="sender") as sender:
        return (await sender.call_tool("chat", {"message": obj})).text


def score(episode: Episode) -> None:
    """Both are rewarded when the answer is the object."""
    episode.score("named", float(episode.info["result"] == episode.task))


class Trainer:
    """Plays and trains one run after another against the same served agents."""

    def __init__(
        self, gateway: GatewayProcess, store: EpisodeWriter, progress: RolloutProgress, options: argparse.Namespace
    ) -> None:
        self.gateway = gateway
        self.store = store
        self.progress = progress
        self.options = options
        self.server = PolicyServer(wait=0.004)
        self.seconds = 0.0

    async def train(self, arm: str, seed: int, endpoint: str) -> Result:
        """One run: evaluate, update, evaluate."""
        result = Result(arm, seed)
        tokenizer = WordTokenizer([*OBJECTS, *CODES])
        policies = {
            seat: fresh_policy(seat, tokenizer, 2 * seed + place, trainable=seat in ARMS[arm])
            for place, seat in enumerate(("sender", "receiver"), start=1)
        }
        for policy in policies.values():
            self.server.serve(policy)
        self.progress.describe(f"{arm}, seed {seed}")
        seats = {seat: SeatPolicy(policy.name, (endpoint,)) for seat, policy in policies.items()}
        result.before = await self.evaluate(seats, result)
        rng = random.Random(seed)
        async with await self.open(seats) as run:
            for update in range(self.options.updates):
                tasks = [obj for obj in rng.choices(OBJECTS, k=TASKS) for _ in range(GROUP)]
                episodes = await self.play(tasks, run, result, update=update)
                result.curve.append(mean(episodes))
                learn(policies, episodes)
        result.after = await self.evaluate(seats, result)
        return result

    async def evaluate(self, seats: dict[str, SeatPolicy], result: Result) -> tuple[float, float]:
        """The mean reward of fresh episodes, sampled and greedy."""
        found: list[float] = []
        for temperature in (1.0, 0.0):
            fixed = {
                seat: SeatPolicy(policy.model, policy.endpoints, policy.api_key, {"temperature": temperature}, policy.tokens)
                for seat, policy in seats.items()
            }
            tasks = [OBJECTS[index % len(OBJECTS)] for index in range(self.options.evaluated)]
            async with await self.open(fixed) as run:
                found.append(mean(await self.play(tasks, run, result, temperature=temperature)))
        return found[0], found[1]

    async def open(self, seats: dict[str, SeatPolicy]) -> RunHandle:
        # Every episode is kept below, so the gateway need not keep its records of them as well.
        return await RunHandle.open(self.gateway.url, self.gateway.admin_token, seats, keep_journal=False)

    async def play(self, tasks: Sequence[str], run: RunHandle, result: Result, **info: float) -> list[Episode]:
        began = time.monotonic()
        episodes = await rollout(
            tasks, play, run=run, score=score, concurrency=256, on_episode=self.progress.played_one
        )
        self.seconds += time.monotonic() - began
        for episode in episodes:
            episode.info |= {"arm": result.arm, "seed": result.seed, **info}
        self.progress.scored(episodes)
        self.store.append(episodes)
        return episodes


def fresh_policy(seat: str, tokenizer: WordTokenizer, seed: int, *, trainable: bool) -> Policy:
    """A new model that has learned the form of an answer and, weakly, a convention: word i stands for object i."""
    rng = random.Random(seed)
    model = make_model(tokenizer, seed=seed)

    def example() -> tuple[str, str]:
        place = rng.randrange(len(OBJECTS))
        code = CODES[place] if rng.random() < HABIT else rng.choice(CODES)
        return (OBJECTS[place], code) if seat == "sender" else (code, OBJECTS[place])

    warm_start(model, tokenizer, example)
    return Policy(seat, model, tokenizer, trainable=trainable, seed=seed)


def mean(episodes: Sequence[Episode]) -> float:
    """The mean reward over the episodes that were scored."""
    rewards = [reward for reward in (episode.reward() for episode in episodes) if reward is not None]
    return sum(rewards) / len(rewards) if rewards else 0.0


@asynccontextmanager
async def agents(*flags: str) -> AsyncGenerator[None, None]:
    """Runs both agents, each in a process of its own, until the block ends."""
    processes = [
        await asyncio.create_subprocess_exec(
            sys.executable, str(HERE / "agents.py"), name, *flags, stdout=asyncio.subprocess.PIPE
        )
        for name in ("receiver", "sender")
    ]
    try:
        for process in processes:
            assert process.stdout is not None
            # An agent says where it is served when it is ready.
            if not await asyncio.wait_for(process.stdout.readline(), 60):
                raise SystemExit("an agent did not start; see above")
        yield
    finally:
        for process in processes:
            if process.returncode is None:
                process.terminate()
        for process in processes:
            await process.wait()


def table(results: Sequence[Result]) -> Table:
    """Arms against figures, with the mean over seeds and the worst seed."""
    shown = Table("arm", "seeds", "sampled before", "sampled after", "worst seed", "greedy before", "greedy after")
    for arm in dict.fromkeys(result.arm for result in results):
        own = [result for result in results if result.arm == arm]
        columns = [[r.before[0] for r in own], [r.after[0] for r in own], [r.before[1] for r in own], [r.after[1] for r in own]]
        before, after, greedy_before, greedy_after = (sum(column) / len(column) for column in columns)
        worst = min(result.after[0] for result in own)
        figures = [f"{value:.2f}" for value in (before, after, worst, greedy_before, greedy_after)]
        shown.add_row(arm, str(len(own)), *figures)
    return shown


async def main(options: argparse.Namespace) -> list[Result]:
    folder = Path(options.runs) / time.strftime("%Y-%m-%d_%H-%M-%S")
    folder.mkdir(parents=True)
    os.environ["AGENT_ENV_HUB"] = str(folder / "hub.db")
    plan = [(arm, seed) for arm in options.arms for seed in range(options.seeds if arm == "both" or options.full else 1)]
    each = options.updates * TASKS * GROUP + 4 * options.evaluated
    results: list[Result] = []
    console = Console()
    with EpisodeWriter(folder / "episodes.jsonl") as store, rollout_progress(len(plan) * each) as progress:
        async with launched(folder / "gateway") as gateway, agents():
            trainer = Trainer(gateway, store, progress, options)
            async with running(trainer.server) as endpoint:
                for arm, seed in plan:
                    results.append(await trainer.train(arm, seed, f"{endpoint}/v1"))
    console.print(table(results))
    console.print(f"{progress.played} episodes, {progress.played / trainer.seconds:.0f} a second, in {folder}")
    return results


def parse(arguments: Sequence[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--arms", nargs="+", choices=list(ARMS), default=list(ARMS))
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--full", action="store_true", help="three seeds of the controls too")
    parser.add_argument("--updates", type=int, default=60)
    parser.add_argument("--evaluated", type=int, default=EVALUATED)
    parser.add_argument("--runs", default="runs")
    return parser.parse_args(arguments)


if __name__ == "__main__":
    torch.set_num_threads(1)
    uvloop.run(main(parse()))
