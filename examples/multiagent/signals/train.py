"""Trains the two agents together, each alone, and neither, through their served environments: `python train.py`.

Four processes: both agents, the gateway, and this one, which holds the policies, serves them, plays and updates. Stop
it with Ctrl-C, and go on with `python train.py --resume`.
"""

from __future__ import annotations

import argparse
import os
import random
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
import uvloop
from agents import CODES, OBJECTS
from rich.console import Console
from rich.table import Table

from agent_env.episodes import Episode
from agent_env.gateway import SeatPolicy
from agent_env.launch import agents_served
from agent_env.net.garbage import collect_rarely
from agent_env.training import (
    Policy,
    Run,
    Scenario,
    Seat,
    Team,
    WordTokenizer,
    collect,
    make_model,
    plot_curves,
    rollout,
    warm_start,
)
from agent_env.training.study import Study, add_run_options, arms_table, begin_run, mean_score, play_run, study

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


async def train(runs: Study, arm: str, seed: int, options: argparse.Namespace) -> Run:
    """One run of an arm, from where an earlier start left it: evaluates, updates after every batch of episodes,
    evaluates."""
    runs.progress.describe(f"{NAMES[arm]}, seed {seed}")
    info = {"arm": arm, "seed": seed}
    tokenizer = WordTokenizer([*OBJECTS, *CODES])
    policies: dict[str, Policy] = {
        seat: fresh_policy(seat, tokenizer, 2 * seed + place, trainable=seat in ARMS[arm])
        for place, seat in enumerate(SEATS, start=1)
    }

    async def measure(when: str) -> list[float]:
        return await evaluate(runs, runs.place.serve(policies), options, {**info, "phase": when})

    with runs.open(f"{arm}-{seed}") as run:
        await runs.once(run, "before", lambda: measure("before"), episodes=2 * options.evaluated)
        await runs.train(
            run,
            signals,
            lambda rng, count: rng.choices(OBJECTS, k=count),
            policies,
            updates=options.updates,
            group_size=GROUP,
            tasks_per_update=TASKS,
            concurrency=options.concurrency,
            credit="per_prompt",
            seed=seed,
            info=info,
        )
        await runs.once(run, "after", lambda: measure("after"), episodes=2 * options.evaluated)
        run.finish()
    return run


async def evaluate(
    runs: Study, seats: Mapping[str, SeatPolicy], options: argparse.Namespace, info: Mapping[str, Any]
) -> list[float]:
    """The mean reward of fresh episodes, sampled and greedy, of whatever plays the seats."""
    tasks = [OBJECTS[index % len(OBJECTS)] for index in range(options.evaluated)]
    means: list[float] = []
    for temperature in (1.0, 0.0):
        fixed = {seat: replace(policy, settings={"temperature": temperature}) for seat, policy in seats.items()}
        async with await runs.place.open(fixed) as run:
            stream = rollout(
                signals,
                tasks,
                run=run,
                store=runs.store,
                concurrency=options.concurrency,
                info={**info, "temperature": temperature},
                progress=runs.progress,
            )
            means.append(mean_score(await collect(stream), "named"))
    return means


async def evaluate_endpoint(runs: Study, options: argparse.Namespace) -> None:
    """The same of a model that is served elsewhere, and learns nothing."""
    key = os.environ[options.key_variable] if options.key_variable else None
    policy = SeatPolicy(options.model, (options.endpoint,), key, tokens=False)
    seats: dict[str, SeatPolicy] = dict.fromkeys(SEATS, policy)
    info = {"arm": options.model, "seed": 0, "phase": "evaluation"}
    found = await runs.once(runs.run, "before", lambda: evaluate(runs, seats, options, info))
    runs.run.tell(after=found)


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


def table(results: Mapping[str, Sequence[Run]]) -> Table:
    """What each arm reached: the mean over its seeds, and its worst seed."""
    arms: dict[str, dict[str, list[float]]] = {}
    for name, runs in results.items():
        before, after = ([run.about[when] for run in runs] for when in ("before", "after"))
        arms[name] = {
            "sampled\nbefore": [sampled for sampled, _ in before],
            "sampled\nafter": [sampled for sampled, _ in after],
            "worst\nseed": [min(sampled for sampled, _ in after)],
            "greedy\nbefore": [greedy for _, greedy in before],
            "greedy\nafter": [greedy for _, greedy in after],
        }
    return arms_table(f"mean reward of fresh episodes (chance {CHANCE:.3f})", arms)


def caveat(runs: Sequence[Run]) -> str:
    """What the warm start already held."""
    greedy = sum(run.about["before"][1] for run in runs) / len(runs)
    return (
        f"The warm start shows both policies one convention in {HABIT:.0%} of its examples, so their most likely words "
        f"agree before any reward (greedy {greedy:.2f}): what reward teaches is to commit to them, not a new language."
    )


async def main(options: argparse.Namespace, outer: Run) -> None:
    """Plays every arm and says what came of it."""
    os.environ["AGENT_ENV_HUB"] = str(outer.folder / "hub.db")
    console = Console()
    arms = {} if options.endpoint else {arm: range(seeds_of(arm, options)) for arm in options.arms}
    count = sum(map(len, arms.values()))
    total = count * (options.updates * TASKS * GROUP + 4 * options.evaluated) or 2 * options.evaluated
    flags = ["--explain"] if options.endpoint else []
    async with study(outer, episodes=total) as runs, agents_served(AGENTS, *([seat, *flags] for seat in SEATS)):
        if options.endpoint:
            await evaluate_endpoint(runs, options)
        results = {NAMES[arm]: [await train(runs, arm, seed, options) for seed in seeds] for arm, seeds in arms.items()}
        summary = runs.summary()
    outer.finish()
    console.print(table(results or {options.model: [outer]}))
    if results:
        console.print(caveat([run for ran in results.values() for run in ran]))
        curves = {
            name: [[line["reward"]["team"] for line in run.curve()] for run in ran] for name, ran in results.items()
        }
        title = "Two agents learn a common language"
        plot_curves(outer.folder / "curve.png", curves, title=title, levels={"chance": CHANCE})
    console.print(summary)


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
    add_run_options(parser)
    options = parser.parse_args(arguments)
    if options.endpoint and not options.model:
        parser.error("--endpoint needs --model")
    return options


if __name__ == "__main__":
    torch.set_num_threads(1)
    collect_rarely()
    given, outer = begin_run(parse(), signals.name)
    play_run(outer, lambda: uvloop.run(main(given, outer)))
