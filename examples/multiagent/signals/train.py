"""Trains the two agents together, each alone, and neither, through their served environments: `python train.py`.

Four processes: both agents, the gateway, and this one, which holds the policies, serves them, plays and updates.
"""

from __future__ import annotations

import argparse
import dataclasses
import os
import random
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
import uvloop
from agents import CODES, OBJECTS
from rich.console import Console
from rich.table import Table

from agent_env.episodes import Episode, EpisodeStore
from agent_env.gateway import GatewayProcess, RunHandle, SeatPolicy, launched, running
from agent_env.launch import agents_served
from agent_env.net.garbage import collect_rarely
from agent_env.training import (
    Policy,
    PolicyServer,
    Scenario,
    Seat,
    Team,
    WordTokenizer,
    collect,
    learn,
    make_model,
    plot_curves,
    rollout,
    rollout_progress,
    warm_start,
)
from agent_env.training.progress import RolloutProgress

SENDER = "signal-sender@1.0.0"
AGENTS = Path(__file__).with_name("agents.py")
SEATS = ("sender", "receiver")
ARMS = {"both": SEATS, "A": ("sender",), "B": ("receiver",), "none": ()}
NAMES = {"both": "both learn", "A": "only A", "B": "only B", "none": "neither"}
TASKS, GROUP = 32, 8
HABIT = 0.3  # how often a fresh policy follows the convention that both have seen a little of
CHANCE = 1 / len(OBJECTS)


async def play(team: Team, obj: str) -> str:
    """One episode: the object goes to A in a session of its own; whom A asks is A's own matter."""
    return (await team["sender"].chat(obj)).text


def score(episode: Episode) -> dict[str, dict[str, float]]:
    """Both are rewarded when the answer is the object."""
    return {"team": {"named": float(episode.info["result"] == episode.task)}}


signals = Scenario(play, score, {"sender": Seat(SENDER, "sender"), "receiver": Seat(policy="receiver")}, "signals")


@dataclass
class Result:
    """One run of an arm: its curve, and the mean rewards of fresh episodes, (sampled, greedy)."""

    arm: str
    seed: int
    before: tuple[float, float] = (0.0, 0.0)
    after: tuple[float, float] = (0.0, 0.0)
    curve: list[float] = field(default_factory=list[float])


class Player:
    """Plays episodes through the gateway and keeps them all."""

    def __init__(
        self, options: argparse.Namespace, gateway: GatewayProcess, store: EpisodeStore, progress: RolloutProgress
    ) -> None:
        self.options = options
        self.gateway = gateway
        self.store = store
        self.progress = progress

    async def open(self, seats: Mapping[str, SeatPolicy]) -> RunHandle:
        """Opens a run; every episode is kept below, so the gateway need not keep its part of them as well."""
        return await RunHandle.open(self.gateway.url, self.gateway.admin_token, seats, keep_journal=False)

    async def play(
        self, run: RunHandle, tasks: Sequence[str], result: Result, *, group_size: int = 1, **info: Any
    ) -> list[Episode]:
        """Plays each task `group_size` times."""
        stream = rollout(
            signals,
            tasks,
            run=run,
            store=self.store,
            group_size=group_size,
            concurrency=self.options.concurrency,
            info={"arm": result.arm, "seed": result.seed, **info},
            progress=self.progress,
        )
        return await collect(stream)

    async def evaluate(self, seats: Mapping[str, SeatPolicy], result: Result, when: str) -> tuple[float, float]:
        """The mean reward of fresh episodes, sampled and greedy."""
        tasks = [OBJECTS[index % len(OBJECTS)] for index in range(self.options.evaluated)]
        means: list[float] = []
        for temperature in (1.0, 0.0):
            settings = {"temperature": temperature}
            fixed = {seat: dataclasses.replace(policy, settings=settings) for seat, policy in seats.items()}
            async with await self.open(fixed) as run:
                means.append(mean(await self.play(run, tasks, result, phase=when, temperature=temperature)))
        return means[0], means[1]


async def train(player: Player, server: PolicyServer, endpoint: str, result: Result) -> None:
    """One run of an arm: evaluates, updates after every batch of episodes, evaluates."""
    tokenizer = WordTokenizer([*OBJECTS, *CODES])
    policies = {
        seat: fresh_policy(seat, tokenizer, 2 * result.seed + place, trainable=seat in ARMS[result.arm])
        for place, seat in enumerate(SEATS, start=1)
    }
    for policy in policies.values():
        server.serve(policy)
    seats = {seat: SeatPolicy(policy.name, (endpoint,)) for seat, policy in policies.items()}
    player.progress.describe(f"{NAMES[result.arm]}, seed {result.seed}")
    result.before = await player.evaluate(seats, result, "before")
    rng = random.Random(result.seed)
    async with await player.open(seats) as run:
        for update in range(player.options.updates):
            tasks = rng.choices(OBJECTS, k=TASKS)
            episodes = await player.play(run, tasks, result, group_size=GROUP, phase="training", update=update)
            result.curve.append(mean(episodes))
            learn(policies, episodes, credit="per_prompt")
    result.after = await player.evaluate(seats, result, "after")


def fresh_policy(seat: str, tokenizer: WordTokenizer, seed: int, *, trainable: bool) -> Policy:
    """A new model that has learned the form of an answer and, weakly, one convention: code i for object i."""
    rng = random.Random(seed)
    model = make_model(tokenizer, seed=seed)

    def example() -> tuple[str, str]:
        place = rng.randrange(len(OBJECTS))
        code = CODES[place] if rng.random() < HABIT else rng.choice(CODES)
        return (OBJECTS[place], code) if seat == "sender" else (code, OBJECTS[place])

    warm_start(model, tokenizer, example)
    return Policy(seat, model, tokenizer, trainable=trainable, seed=seed)


def mean(episodes: Sequence[Episode]) -> float:
    """The mean reward of the episodes that were scored; raises `SystemExit` when none was."""
    rewards = [reward for episode in episodes if (reward := episode.reward()) is not None]
    if not rewards:
        raise SystemExit(f"no episode could be played; the first says: {episodes[0].failures}")
    return sum(rewards) / len(rewards)


def table(results: Sequence[Result]) -> Table:
    """What each arm reached: the mean over its seeds, and its worst seed."""
    shown = Table(title=f"mean reward of fresh episodes (chance {CHANCE:.3f})", title_justify="left")
    for name in ("", "seeds", "sampled\nbefore", "sampled\nafter", "worst\nseed", "greedy\nbefore", "greedy\nafter"):
        shown.add_column(name, justify="right" if name else "left", no_wrap=True)
    for arm in dict.fromkeys(result.arm for result in results):
        own = [result for result in results if result.arm == arm]
        columns = [[r.before[0] for r in own], [r.after[0] for r in own], [r.before[1] for r in own]]
        figures = [sum(column) / len(column) for column in columns]
        figures.insert(2, min(result.after[0] for result in own))
        figures.append(sum(result.after[1] for result in own) / len(own))
        shown.add_row(NAMES.get(arm, arm), str(len(own)), *(f"{figure:.3f}" for figure in figures))
    return shown


def caveat(results: Sequence[Result]) -> str:
    """What the warm start already held."""
    greedy = sum(result.before[1] for result in results) / len(results)
    return (
        f"The warm start shows both policies one convention in {HABIT:.0%} of its examples, so their most likely words "
        f"agree before any reward (greedy {greedy:.2f}): what reward teaches is to commit to them, not a new language."
    )


async def main(options: argparse.Namespace) -> list[Result]:
    """Plays every arm and says what came of it."""
    folder = Path(options.runs) / time.strftime("%Y-%m-%d_%H-%M-%S")
    folder.mkdir(parents=True)
    os.environ["AGENT_ENV_HUB"] = str(folder / "hub.db")
    console = Console()
    if options.endpoint:
        results = [Result(options.model, 0)]
        total = 2 * options.evaluated
    else:
        arms = [(arm, seed) for arm in options.arms for seed in range(seeds_of(arm, options))]
        results = [Result(arm, seed) for arm, seed in arms]
        total = len(results) * (options.updates * TASKS * GROUP + 4 * options.evaluated)
    began = time.monotonic()
    with EpisodeStore(folder / "episodes.db") as store, rollout_progress(total) as progress:
        flags = ["--explain"] if options.endpoint else []
        agents = agents_served(AGENTS, *([seat, *flags] for seat in SEATS))
        async with launched(folder / "gateway") as gateway, agents:
            player = Player(options, gateway, store, progress)
            if options.endpoint:
                key = os.environ[options.key_variable] if options.key_variable else None
                policy = SeatPolicy(options.model, (options.endpoint,), key, tokens=False)
                results[0].before = results[0].after = await player.evaluate(
                    dict.fromkeys(SEATS, policy), results[0], "evaluation"
                )
            else:
                server = PolicyServer(pause=0.005, wait=0.04)
                async with running(server) as url:
                    for result in results:
                        await train(player, server, f"{url}/v1", result)
    seconds = time.monotonic() - began
    console.print(table(results))
    if not options.endpoint:
        console.print(caveat(results))
        curves = {NAMES[arm]: [r.curve for r in results if r.arm == arm] for arm in options.arms}
        plot_curves(folder / "curve.png", curves, title="Two agents learn a common language", levels={"chance": CHANCE})
    console.print(
        f"{progress.played} episodes ({progress.failed} failed) in {seconds:.0f} s, {progress.played / seconds:.0f} a "
        f"second, all in {folder}"
    )
    return results


def seeds_of(arm: str, options: argparse.Namespace) -> int:
    """How often an arm is run: the controls once, unless everything is wanted."""
    return int(options.seeds if arm == "both" or options.full else min(1, options.seeds))


def parse(arguments: Sequence[str] | None = None) -> argparse.Namespace:
    """Reads the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--arms", nargs="+", choices=list(ARMS), default=list(ARMS), help="who learns")
    parser.add_argument("--seeds", type=int, default=3, help="runs of the arm in which both learn")
    parser.add_argument("--full", action="store_true", help="as many runs of the other arms")
    parser.add_argument("--updates", type=int, default=60, help=f"updates a run, of {TASKS * GROUP} episodes each")
    parser.add_argument("--evaluated", type=int, default=1000, help="fresh episodes a figure")
    parser.add_argument("--concurrency", type=int, default=TASKS * GROUP, help="episodes at a time")
    parser.add_argument("--endpoint", metavar="URL", help="evaluate an OpenAI-compatible server instead (…/v1)")
    parser.add_argument("--model", default="", help="the model's name there")
    parser.add_argument("--key-variable", metavar="NAME", help="the environment variable with the key for it")
    parser.add_argument("--runs", default="runs", help="where the results go")
    options = parser.parse_args(arguments)
    if options.endpoint and not options.model:
        parser.error("--endpoint needs --model")
    return options


if __name__ == "__main__":
    torch.set_num_threads(1)
    collect_rarely()
    try:
        uvloop.run(main(parse()))
    except KeyboardInterrupt:
        raise SystemExit("stopped; what was played is on disk") from None
