"""Trains a manager and three specialists together, in part, and not at all, through their served environments.

Six processes: the four agents, the gateway, and this one, which holds the four policies, serves them, plays and
updates. Stop it with Ctrl-C, and go on with `python train.py --resume`.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import random
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import TypeAlias

import torch
import uvloop
from agents import FACTS, NOBODY, SPECIALISTS
from rich.console import Console
from rich.table import Table
from scenario import ANSWERS, EXPERTS, SEATS, WORDS, delegation

from agent_env.launch import agents_served
from agent_env.net.garbage import collect_rarely
from agent_env.training import (
    Policy,
    Run,
    Settings,
    WordTokenizer,
    make_model,
    plot_curves,
    warm_steps,
)
from agent_env.training.study import Study, add_run_options, arms_table, begin_run, mean_score, play_run, study

AGENTS = Path(__file__).with_name("agents.py")
KNOWN = 0.5  # the part of its facts that a fresh specialist knows
HINT = 0.2  # how often a fresh manager has seen the right specialist be asked, and not just anyone

ARMS = {"all": SEATS, "manager": ("manager",), "specialists": SPECIALISTS, "none": ()}
NAMES = {"all": "all learn", "manager": "manager only", "specialists": "specialists only", "none": "none"}
SETTINGS = {
    "manager": Settings(learning_rate=7e-4, entropy=0.01, average="tokens"),
    **dict.fromkeys(SPECIALISTS, Settings(learning_rate=2e-3, entropy=0.005, average="tokens")),
}
TASKS, GROUP = 32, 8

Figures: TypeAlias = dict[str, list[float]]
"""Of fresh episodes, "sampled" and "greedy": the mean reward, and how often the right specialist was asked."""


async def begin(runs: Study, seed: int, options: argparse.Namespace) -> Run:
    """The policies that all arms of a seed begin with, and what they are worth."""
    with runs.open(f"fresh-{seed}") as run:
        if run.latest() is None:
            runs.progress.describe(f"warm start, seed {seed}")
            run.save(0, await fresh_policies(seed))
        runs.progress.describe(f"before, seed {seed}")
        policies, info = loaded(run), {"arm": "fresh", "seed": seed, "phase": "before"}
        await runs.once(run, "figures", lambda: evaluate(runs, policies, options, info), episodes=evaluation(options))
        run.finish()
    return run


async def train(runs: Study, arm: str, seed: int, fresh: Run, options: argparse.Namespace) -> Run:
    """One run of an arm, from where an earlier start left it: updates after every batch of episodes, evaluates."""
    runs.progress.describe(f"{NAMES[arm]}, seed {seed}")
    policies, info = loaded(fresh), {"arm": arm, "seed": seed}
    for seat, policy in policies.items():
        policy.trainable = seat in ARMS[arm]
    with runs.open(f"{arm}-{seed}") as run:
        await runs.train(
            run,
            delegation,
            WORDS,
            policies,
            updates=options.updates,
            group_size=GROUP,
            tasks_per_update=TASKS,
            credit="per_prompt",
            seed=seed,
            info=info,
        )
        after = {**info, "phase": "after"}
        await runs.once(run, "figures", lambda: evaluate(runs, policies, options, after), episodes=evaluation(options))
        run.finish()
    return run


async def evaluate(
    runs: Study, policies: Mapping[str, Policy], options: argparse.Namespace, info: Mapping[str, str | int]
) -> Figures:
    """What fresh episodes are worth, sampled, and greedy: then those of one word are all the same."""
    found: Figures = {}
    for how, temperature, count in (("sampled", 1.0, options.evaluated), ("greedy", 0.0, len(WORDS))):
        words = [WORDS[index % len(WORDS)] for index in range(count)]
        episodes = await runs.evaluate(delegation, words, policies, temperature=temperature, info=info)
        found[how] = [mean_score(episodes, "right"), mean_score(episodes, "routed")]
    return found


def evaluation(options: argparse.Namespace) -> int:
    """How many episodes an evaluation plays."""
    return int(options.evaluated) + len(WORDS)


def loaded(run: Run) -> dict[str, Policy]:
    """The policies of a run's newest checkpoint."""
    checkpoint = run.latest()
    assert checkpoint is not None
    return {seat: checkpoint.load(seat) for seat in SEATS}


async def fresh_policies(seed: int) -> dict[str, Policy]:
    """New models that have learned the form of what they say, and too little of what to say."""
    tokenizer = WordTokenizer([*WORDS, *ANSWERS.values(), *(f"@{name}" for name in SPECIALISTS), NOBODY])
    policies: dict[str, Policy] = {}
    for place, seat in enumerate(SEATS):
        model = make_model(tokenizer, seed=10 * seed + place)
        rng = random.Random(10 * seed + place)
        if seat == "manager":
            warming = warm_steps(model, tokenizer, partial(manager_example, rng), steps=700, batch=96)
        else:
            facts = FACTS[seat]
            known = rng.sample(list(facts), k=int(len(facts) * KNOWN))
            warming = warm_steps(model, tokenizer, partial(specialist_example, rng, facts, known), steps=160)
        for _ in warming:
            await asyncio.sleep(0)  # Ctrl-C is heard meanwhile
        policies[seat] = Policy(seat, model, tokenizer, settings=SETTINGS[seat], seed=10 * seed + place)
    return policies


def manager_example(rng: random.Random) -> tuple[list[dict[str, str]], str]:
    """To ask somebody the word, mostly anybody; and to pass on the reply, whatever it is."""
    word = rng.choice(WORDS)
    name = EXPERTS[word] if rng.random() < HINT else rng.choice(SPECIALISTS)
    said = f"@{name} {word}"
    chat = [{"role": "user", "content": word}]
    if rng.random() < 0.4:
        return chat, said
    reply = rng.choice([*ANSWERS.values(), NOBODY])
    return [*chat, {"role": "assistant", "content": said}, {"role": "user", "content": reply}], reply


def specialist_example(rng: random.Random, facts: Mapping[str, str], known: Sequence[str]) -> tuple[str, str]:
    """The answer to a fact that is known, any answer of the topic to the others, and no answer to other topics."""
    word = rng.choice(list(facts) if rng.random() < 0.7 else WORDS)
    if word not in facts:
        return word, NOBODY
    return word, facts[word] if word in known else rng.choice(list(facts.values()))


def table(title: str, arms: Mapping[str, Sequence[Run]], fresh: Sequence[Run], which: int) -> Table:
    """What each arm reached: the mean over its seeds, and its worst and best seed."""

    def figures(runs: Sequence[Run], how: str) -> list[float]:
        return [run.about["figures"][how][which] for run in runs]

    columns = {
        arm: {
            "sampled\nbefore": figures(fresh, "sampled"),
            "sampled\nafter": figures(runs, "sampled"),
            "worst\nseed": [min(figures(runs, "sampled"))],
            "best\nseed": [max(figures(runs, "sampled"))],
            "greedy\nbefore": figures(fresh, "greedy"),
            "greedy\nafter": figures(runs, "greedy"),
        }
        for arm, runs in arms.items()
    }
    return arms_table(title, columns, kind="who learns")


async def main(options: argparse.Namespace, outer: Run) -> None:
    """Plays every arm and says what came of it."""
    os.environ["AGENT_ENV_HUB"] = str(outer.folder / "hub.db")
    console = Console()
    each = options.updates * TASKS * GROUP + evaluation(options)
    total = options.seeds * (evaluation(options) + len(options.arms) * each)
    fresh: list[Run] = []
    arms: dict[str, list[Run]] = {arm: [] for arm in options.arms}
    async with study(outer, episodes=total) as runs, agents_served(AGENTS, *([seat] for seat in SEATS)):
        for seed in range(options.seeds):
            fresh.append(await begin(runs, seed, options))
            for arm in options.arms:
                arms[arm].append(await train(runs, arm, seed, fresh[-1], options))
        summary = runs.summary()
    outer.finish()
    console.print(table("mean reward of fresh episodes", arms, fresh, 0))
    console.print(table("how often the right specialist was asked", arms, fresh, 1))
    curves = {
        NAMES[arm]: [[line["reward"]["team"] for line in run.curve()] for run in ran] for arm, ran in arms.items()
    }
    plot_curves(outer.folder / "curve.png", curves, title="A manager and three specialists")
    console.print(summary)


def parse(arguments: Sequence[str] | None = None) -> argparse.Namespace:
    """Reads the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--arms", nargs="+", choices=list(ARMS), default=list(ARMS), help="who learns")
    parser.add_argument("--seeds", type=int, default=1, help="runs of each arm")
    parser.add_argument("--updates", type=int, default=120, help=f"updates a run, of {TASKS * GROUP} episodes each")
    parser.add_argument("--evaluated", type=int, default=960, help="fresh episodes a sampled figure")
    add_run_options(parser)
    return parser.parse_args(arguments)


if __name__ == "__main__":
    torch.set_num_threads(1)
    collect_rarely()
    given, outer = begin_run(parse(), delegation.name)
    play_run(outer, lambda: uvloop.run(main(given, outer)))
