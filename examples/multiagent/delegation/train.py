"""Trains a manager and three specialists together, in part, and not at all, through their served environments.

Six processes: the four agents, the gateway, and this one, which holds the four policies, serves them, plays and
updates. Stop it with Ctrl-C, and go on with `python train.py --resume`.
"""

from __future__ import annotations

import argparse
import os
import random
import time
from collections.abc import Mapping, Sequence
from contextlib import aclosing
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TypeAlias

import torch
import uvloop
from agents import NOBODY, SPECIALISTS
from rich.console import Console
from rich.table import Table

from agent_env.episodes import Episode, EpisodeStore
from agent_env.launch import agents_served
from agent_env.net.garbage import collect_rarely
from agent_env.training import (
    Policy,
    Run,
    Scenario,
    Seat,
    Settings,
    Team,
    WordTokenizer,
    evaluate,
    make_model,
    plot_curves,
    rollout_progress,
    training_loop,
    warm_start,
)
from agent_env.training.checkpoints import find_run
from agent_env.training.place import Place, policies_served
from agent_env.training.progress import RolloutProgress

FACTS = {
    "ann": {
        "austria": "vienna",
        "chile": "santiago",
        "ghana": "accra",
        "iran": "tehran",
        "latvia": "riga",
        "norway": "oslo",
        "nepal": "kathmandu",
        "qatar": "doha",
    },
    "bob": {
        "bitter": "sweet",
        "cheap": "dear",
        "early": "late",
        "empty": "full",
        "loud": "quiet",
        "sharp": "blunt",
        "thick": "thin",
        "weak": "strong",
    },
    "eve": {
        "calf": "cow",
        "chick": "hen",
        "cub": "bear",
        "fawn": "deer",
        "foal": "horse",
        "kid": "goat",
        "lamb": "sheep",
        "puppy": "dog",
    },
}
ANSWERS = {word: answer for facts in FACTS.values() for word, answer in facts.items()}
WORDS = list(ANSWERS)
EXPERTS = {word: name for name, facts in FACTS.items() for word in facts}
KNOWN = 0.5  # the part of its facts that a fresh specialist knows
HINT = 0.25  # how often a fresh manager has seen the right specialist be asked, and not just anyone

SEATS = ("manager", *SPECIALISTS)
AGENTS = Path(__file__).with_name("agents.py")
ARMS = {"all": SEATS, "manager": ("manager",), "specialists": SPECIALISTS, "none": ()}
NAMES = {"all": "all learn", "manager": "manager only", "specialists": "specialists only", "none": "none"}
SETTINGS = {
    "manager": Settings(learning_rate=1e-3, entropy=0.01),
    **dict.fromkeys(SPECIALISTS, Settings(learning_rate=2e-3, entropy=0.005)),
}
TASKS, GROUP = 32, 8

Figures: TypeAlias = dict[str, list[float]]
"""Of fresh episodes, "sampled" and "greedy": the mean reward, and how often the right specialist was asked."""


async def play(team: Team, word: str) -> str:
    """One episode: the word goes to the manager; whom that asks, and what it makes of the reply, is its own matter."""
    return (await team["manager"].chat(word)).text


def score(episode: Episode) -> dict[str, dict[str, float | tuple[float, float]]]:
    """All are rewarded when the answer is right. Whether the right one was asked is noted and rewards nobody."""
    asked = [edge.callee_seat for edge in episode.edges if edge.caller_seat == "manager"]
    right = float(episode.info["result"] == ANSWERS[episode.task])
    return {"team": {"right": right, "routed": (float(asked == [EXPERTS[episode.task]]), 0.0)}}


delegation = Scenario(
    play,
    score,
    {"manager": Seat("delegation-manager@1.0.0", "manager"), **{name: Seat(policy=name) for name in SPECIALISTS}},
    "delegation",
)


@dataclass
class Trainer:
    """What all runs have in common: where policies are served, where episodes go, and the bar."""

    options: argparse.Namespace
    folder: Path
    place: Place
    store: EpisodeStore
    progress: RolloutProgress

    async def begin(self, seed: int) -> Run:
        """The policies that all arms of a seed begin with, and what they are worth."""
        with self.open(f"fresh-{seed}") as run:
            if not run.about["finished"]:
                policies = fresh_policies(seed)
                self.progress.describe(f"before, seed {seed}")
                run.save(0, policies)
                run.about["figures"] = await self.evaluate(policies, arm="fresh", seed=seed, phase="before")
                run.finish()
        return run

    async def train(self, arm: str, seed: int, fresh: Run) -> Run:
        """One run of an arm, from where an earlier start left it: updates after every batch of episodes, evaluates."""
        with self.open(f"{arm}-{seed}") as run:
            if run.about["finished"]:
                self.progress.skip(self.options.updates * TASKS * GROUP + self.options.evaluated + len(WORDS))
                return run
            self.progress.describe(f"{NAMES[arm]}, seed {seed}")
            begun = fresh.latest()
            assert begun is not None
            policies = {seat: begun.load(seat) for seat in SEATS}
            for seat, policy in policies.items():
                policy.trainable = seat in ARMS[arm]
            if (checkpoint := run.latest()) is not None:
                self.progress.skip(checkpoint.update * TASKS * GROUP)
            updates = training_loop(
                delegation,
                WORDS,
                policies,
                updates=self.options.updates,
                run=run,
                place=self.place,
                store=self.store,
                group_size=GROUP,
                tasks_per_update=TASKS,
                credit="per_prompt",
                seed=seed,
                info={"arm": arm, "seed": seed, "phase": "training"},
                progress=self.progress,
            )
            async with aclosing(updates):
                async for _ in updates:
                    pass
            run.about["figures"] = await self.evaluate(policies, arm=arm, seed=seed, phase="after")
            run.finish()
        return run

    async def evaluate(self, policies: Mapping[str, Policy], **info: str | int) -> Figures:
        """What fresh episodes are worth, sampled, and greedy: then those of one word are all the same."""
        found: Figures = {}
        for how, temperature, count in (("sampled", 1.0, self.options.evaluated), ("greedy", 0.0, len(WORDS))):
            episodes = await evaluate(
                delegation,
                [WORDS[index % len(WORDS)] for index in range(count)],
                policies,
                place=self.place,
                temperature=temperature,
                store=self.store,
                info=info,
                progress=self.progress,
            )
            found[how] = [mean(episodes, "right"), mean(episodes, "routed")]
        return found

    def open(self, name: str) -> Run:
        """Begins a run within this one, or goes on with it."""
        return Run.open(self.folder / name) if (self.folder / name).exists() else Run.create(self.folder, name=name)


def fresh_policies(seed: int) -> dict[str, Policy]:
    """New models that have learned the form of what they say, and too little of what to say."""
    tokenizer = WordTokenizer([*WORDS, *ANSWERS.values(), *(f"@{name}" for name in SPECIALISTS), NOBODY])
    policies: dict[str, Policy] = {}
    for place, seat in enumerate(SEATS):
        model = make_model(tokenizer, seed=10 * seed + place)
        rng = random.Random(10 * seed + place)
        if seat == "manager":
            warm_start(model, tokenizer, partial(manager_example, rng), steps=350, batch=96)
        else:
            facts = FACTS[seat]
            known = rng.sample(list(facts), k=int(len(facts) * KNOWN))
            warm_start(model, tokenizer, partial(specialist_example, rng, facts, known), steps=160)
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


def mean(episodes: Sequence[Episode], name: str) -> float:
    """The mean of one score; raises `SystemExit` when no episode was scored."""
    values = [
        score.value
        for episode in episodes
        for score in episode.rewards
        if score.name == name and score.value is not None
    ]
    if not values:
        raise SystemExit(f"no episode could be played; the first says: {episodes[0].failures}")
    return sum(values) / len(values)


def table(title: str, runs: Mapping[tuple[str, int], Run], which: int) -> Table:
    """What each arm reached: the mean over its seeds, and its worst seed."""
    shown = Table(title=title, title_justify="left")
    for name in ("", "seeds", "sampled\nbefore", "sampled\nafter", "worst\nseed", "greedy\nbefore", "greedy\nafter"):
        shown.add_column(name, justify="right" if name else "left", no_wrap=True)
    for arm in [arm for arm in ARMS if any(arm == ran for ran, _ in runs)]:
        seeds = [seed for ran, seed in runs if ran == arm]
        figures: list[float] = []
        for how in ("sampled", "greedy"):
            before, after = (
                [runs[name, seed].about["figures"][how][which] for seed in seeds] for name in ("fresh", arm)
            )
            figures += [sum(before) / len(seeds), sum(after) / len(seeds), *([min(after)] if how == "sampled" else [])]
        shown.add_row(NAMES[arm], str(len(seeds)), *(f"{figure:.3f}" for figure in figures))
    return shown


def draw(path: Path, runs: Mapping[tuple[str, int], Run]) -> None:
    """Draws the mean reward of each batch."""
    curves = {
        name: [[line["reward"][""] for line in run.curve()] for (ran, _), run in runs.items() if ran == arm]
        for arm, name in NAMES.items()
    }
    plot_curves(path, curves, title="A manager and three specialists")


async def main(options: argparse.Namespace, outer: Run) -> dict[tuple[str, int], Run]:
    """Plays every arm and says what came of it."""
    folder = outer.folder
    os.environ["AGENT_ENV_HUB"] = str(folder / "hub.db")
    console = Console()
    evaluated = options.evaluated + len(WORDS)
    total = options.seeds * (evaluated + len(options.arms) * (options.updates * TASKS * GROUP + evaluated))
    runs: dict[tuple[str, int], Run] = {}
    began = time.monotonic()
    with EpisodeStore(outer.episodes) as store, rollout_progress(total) as progress:
        async with policies_served(folder / "gateway") as place, agents_served(AGENTS, *([seat] for seat in SEATS)):
            trainer = Trainer(options, folder, place, store, progress)
            for seed in range(options.seeds):
                fresh = runs["fresh", seed] = await trainer.begin(seed)
                for arm in options.arms:
                    runs[arm, seed] = await trainer.train(arm, seed, fresh)
    outer.finish()
    seconds = time.monotonic() - began
    console.print(table("mean reward of fresh episodes", runs, 0))
    console.print(table("how often the right specialist was asked", runs, 1))
    draw(folder / "curve.png", runs)
    console.print(
        f"{progress.played} episodes ({progress.failed} failed) in {seconds:.0f} s, {progress.played / seconds:.0f} a "
        f"second, all in {folder}"
    )
    return runs


def parse(arguments: Sequence[str] | None = None) -> argparse.Namespace:
    """Reads the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--arms", nargs="+", choices=list(ARMS), default=list(ARMS), help="who learns")
    parser.add_argument("--seeds", type=int, default=1, help="runs of each arm")
    parser.add_argument("--updates", type=int, default=120, help=f"updates a run, of {TASKS * GROUP} episodes each")
    parser.add_argument("--evaluated", type=int, default=960, help="fresh episodes a sampled figure")
    parser.add_argument("--runs", default="runs", help="where the results go")
    parser.add_argument(
        "--resume", nargs="?", const="", metavar="RUN", help="go on with that run, or the last, as it was begun"
    )
    return parser.parse_args(arguments)


def start(options: argparse.Namespace) -> tuple[argparse.Namespace, Run]:
    """A new run, or the one to go on with and how that was begun."""
    if options.resume is None:
        return options, Run.create(options.runs, {"scenario": delegation.name, "options": vars(options)})
    run = Run.open(find_run(options.runs, options.resume or None).folder)
    return argparse.Namespace(**run.about["options"]), run


if __name__ == "__main__":
    torch.set_num_threads(1)
    collect_rarely()
    given, outer = start(parse())
    try:
        with outer:
            uvloop.run(main(given, outer))
    except KeyboardInterrupt:
        raise SystemExit(f"stopped; go on with --resume {outer.folder}") from None
