"""Trains one policy against itself and its past versions, with role baselines and without: `python train.py`.

Three processes: the player, the gateway, and this one, which holds the policies, serves them, deals, plays and updates.
Stop it with Ctrl-C, and go on with `python train.py --resume`.
"""

from __future__ import annotations

import argparse
import asyncio
import copy
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from random import Random
from typing import Any, TypeAlias

import torch
import uvloop
from game import MOST, NAMES, OTHER, PLAYER, deal, duel, moves, told
from rich.console import Console
from rich.table import Table

from agent_env.launch import agents_served
from agent_env.net.garbage import collect_rarely
from agent_env.training import (
    Policy,
    RoleBaseline,
    Run,
    Seat,
    Settings,
    TinyLM,
    WordTokenizer,
    make_model,
    plot_curves,
    warm_steps,
)
from agent_env.training.credit import Credit, Credited
from agent_env.training.study import Study, add_run_options, arms_table, begin_run, play_run, study
from agent_env.training.units import Unit

AGENT = Path(__file__).with_name("agents.py")
GAMES = 384  # an update
PAST = 8  # updates from one past version to the next
SETTINGS = Settings(learning_rate=1e-3, entropy=0.05, epochs=3, average="tokens")
START = "past-0"
UPDATES = 48
WARM = 1000  # supervised steps of a fresh model
FULL = 0.6  # of the heaps that it then sees are not empty


def no_baseline(units: Sequence[Unit]) -> Credited:
    """Compares rewards with nothing."""
    return Credited([unit.reward for unit in units], [None] * len(units))


ARMS: Mapping[str, Callable[[], Credit]] = {"baselines": RoleBaseline, "none": lambda: no_baseline}
TITLES = {"baselines": "by role", "none": "none"}

Warm: TypeAlias = tuple[TinyLM, WordTokenizer]
"""A model that knows which moves can be made."""


async def train(runs: Study, arm: str, seed: int, warm: Warm, options: argparse.Namespace) -> Run:
    """One run of an arm, from where an earlier start left it: plays by turns in the first seat against a past version,
    in the second against one, and in both; evaluates before and after."""
    runs.progress.describe(f"baselines: {TITLES[arm]}, seed {seed}")
    info = {"arm": arm, "seed": seed}
    policies = fresh_policies(seed, warm)

    def seats(number: int) -> dict[str, Seat]:
        """Who plays in an update. Half of the past versions are the oldest, so that it is not forgotten."""
        version = f"past-{(number - 1) // PAST * PAST}"
        if version not in policies:
            policies[version] = frozen(version, policies["player"], seed)
        rng = Random(f"{seed}/{number}")
        past = rng.choice([START, rng.choice([name for name in policies if name != "player"])])
        own = taught(number)
        return {OTHER[own]: Seat(PLAYER, past, trainable=False)} if own else {}

    with runs.open(f"{arm}-{seed}") as run:
        copies = fresh_policies(seed, warm)
        before = {**info, "phase": "before"}
        await runs.once(run, "before", lambda: measure(runs, copies, options, before), episodes=options.evaluated)
        await runs.train(
            run,
            duel,
            lambda rng, count: [deal(rng) for _ in range(count)],
            policies,
            updates=options.updates,
            group_size=1,
            tasks_per_update=GAMES,
            concurrency=GAMES,
            credit=ARMS[arm](),
            seed=seed,
            before=seats,
            info=info,
        )
        after = {**info, "phase": "after"}
        copies = {**fresh_policies(seed, warm), "player": policies["player"]}
        await runs.once(run, "after", lambda: measure(runs, copies, options, after), episodes=options.evaluated)
        run.finish()
    return run


async def measure(
    runs: Study, policies: Mapping[str, Policy], options: argparse.Namespace, info: Mapping[str, Any]
) -> dict[str, float]:
    """What a policy reaches in fresh games against the frozen start, every position played twice, seats swapped: the part
    that it wins, in all and by seat, and the part that it loses by a move that cannot be made."""
    seed = info["seed"]
    rng = Random(f"fresh {seed} {info['phase']}")
    starts = [deal(rng) for _ in range(options.evaluated // 2)]
    won: dict[str, float] = {}
    illegal: list[bool] = []
    for seat, other in OTHER.items():
        against = replace(duel, seats={**duel.seats, other: Seat(PLAYER, START, trainable=False)})
        played = await runs.evaluate(against, starts, policies, seed=seed, info={**info, "seat": seat})
        ended = [game.info["result"] for game in played if game.ok]
        won[seat] = mean([game["winner"] == seat for game in ended])
        illegal += [game["illegal"] and game["winner"] != seat for game in ended]
    return {"won": mean(list(won.values())), **won, "illegal": mean(illegal)}


def taught(number: int) -> str | None:
    """The seat in which the policy plays against a past version in an update; None when it plays against itself."""
    return ("first", "second", None)[(number - 1) % 3]


def fresh_policies(seed: int, warm: Warm) -> dict[str, Policy]:
    """A policy that knows which moves can be made and nothing of which are good, and its frozen copy."""
    model, tokenizer = warm
    player = Policy("player", copy.deepcopy(model), tokenizer, settings=SETTINGS, seed=seed)
    return {"player": player, START: frozen(START, player, seed)}


async def warmed(seed: int, steps: int) -> Warm:
    """A model that has seen positions with any move that can be made, each as often as any other."""
    positions = [f"{name}{stones}" for name in NAMES for stones in range(MOST + 1)]
    tokenizer = WordTokenizer([*positions, *NAMES, *map(str, range(MOST))])
    model = make_model(tokenizer, seed=seed, layers=1)
    rng = Random(seed)

    def example() -> tuple[str, str]:
        heaps = [0] * len(NAMES)
        while not any(heaps):
            heaps = [rng.randint(1, MOST) if rng.random() < FULL else 0 for _ in NAMES]
        return told(heaps), rng.choice(moves(heaps))

    for _ in warm_steps(model, tokenizer, example, steps=steps, learning_rate=5e-3):
        await asyncio.sleep(0)  # Ctrl-C is heard meanwhile
    return model, tokenizer


def frozen(name: str, policy: Policy, seed: int) -> Policy:
    """A copy that plays as the policy does now, and stays so."""
    return Policy(name, copy.deepcopy(policy.model), policy.tokenizer, trainable=False, seed=seed + 1000)


def table(arms: Mapping[str, Sequence[Run]]) -> Table:
    """What each arm reached: means over its seeds, and its worst seed."""
    columns: dict[str, dict[str, list[float]]] = {}
    for arm, runs in arms.items():
        before, after = ([run.about[when] for run in runs] for when in ("before", "after"))
        columns[arm] = {
            "before": [figures["won"] for figures in before],
            "after": [figures["won"] for figures in after],
            "worst\nseed": [min(figures["won"] for figures in after)],
            "as\nfirst": [figures["first"] for figures in after],
            "as\nsecond": [figures["second"] for figures in after],
            "fouls\nbefore": [figures["illegal"] for figures in before],
            "fouls\nafter": [figures["illegal"] for figures in after],
        }
    return arms_table("fresh games won against the frozen start", columns, kind="baseline")


def curve(run: Run) -> list[float]:
    """The part of the games won, update by update, against past versions."""
    return [(1 + line["reward"][seat]) / 2 for line in run.curve() if (seat := taught(line["update"]))]


def mean(values: Sequence[float]) -> float:
    """The arithmetic mean."""
    return sum(values) / len(values)


async def main(options: argparse.Namespace, outer: Run) -> None:
    """Plays every arm and says what came of it."""
    os.environ["AGENT_ENV_HUB"] = str(outer.folder / "hub.db")
    console = Console()
    total = options.seeds * len(options.arms) * (options.updates * GAMES + 2 * options.evaluated)
    arms: dict[str, list[Run]] = {TITLES[arm]: [] for arm in options.arms}
    async with study(outer, episodes=total) as runs, agents_served(AGENT, []):
        for seed in range(options.seeds):
            runs.progress.describe(f"warm start, seed {seed}")
            warm = await warmed(seed, options.warm)
            for arm, ran in zip(options.arms, arms.values(), strict=True):
                ran.append(await train(runs, arm, seed, warm, options))
        summary = runs.summary()
    outer.finish()
    console.print(table(arms))
    plot_curves(
        outer.folder / "curve.png",
        {f"baselines: {arm}": [curve(run) for run in ran] for arm, ran in arms.items()},
        title="One policy against its past versions",
        x_label="update against a past version",
        y_label="games won",
        levels={"as good as they": 0.5},
    )
    console.print(summary)


def parse(arguments: Sequence[str] | None = None) -> argparse.Namespace:
    """Reads the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--arms", nargs="+", choices=list(ARMS), default=list(ARMS), help="with baselines, without")
    parser.add_argument("--seeds", type=int, default=3, help="runs of each arm")
    parser.add_argument("--warm", type=int, default=WARM, help="supervised steps that teach which moves can be made")
    parser.add_argument("--updates", type=int, default=UPDATES, help=f"updates a run, of {GAMES} games each")
    parser.add_argument("--evaluated", type=int, default=1000, help="fresh games a figure, an even number")
    add_run_options(parser)
    options = parser.parse_args(arguments)
    if options.evaluated < 2 or options.evaluated % 2:
        parser.error(f"--evaluated must be an even number, since seats are swapped, not {options.evaluated}")
    return options


if __name__ == "__main__":
    torch.set_num_threads(1)
    collect_rarely()
    given, outer = begin_run(parse(), duel.name)
    play_run(outer, lambda: uvloop.run(main(given, outer)))
