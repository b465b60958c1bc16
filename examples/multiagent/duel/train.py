"""Trains one policy against itself and its past versions, with role baselines and without: `python train.py`.

Three processes: the player, the gateway, and this one, which holds the policies, serves them, deals, plays and updates.
"""

from __future__ import annotations

import argparse
import copy
import functools
import os
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import aclosing
from dataclasses import asdict, astuple, dataclass, field, replace
from pathlib import Path
from random import Random
from typing import Any

import torch
import uvloop
from game import MOST, NAMES, OTHER, PLAYER, deal, duel, moves, told
from rich.console import Console
from rich.table import Table

from agent_env.episodes import Episode, EpisodeStore
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
    evaluate,
    make_model,
    plot_curves,
    policies_served,
    rollout_progress,
    training_loop,
    warm_start,
)
from agent_env.training.checkpoints import find_run
from agent_env.training.credit import Credit, Credited
from agent_env.training.place import Place
from agent_env.training.progress import RolloutProgress
from agent_env.training.units import Unit

AGENT = Path(__file__).with_name("agents.py")
GAMES = 192  # an update
PAST = 6  # updates from one past version to the next
SETTINGS = Settings(learning_rate=6e-4, entropy=0.0, epochs=3)
START = "past-0"
UPDATES = 30
WARM = 1000  # supervised steps of a fresh model
FULL = 0.6  # of the heaps that it then sees are not empty


def no_baseline(units: Sequence[Unit]) -> Credited:
    """Compares rewards with nothing."""
    return Credited([unit.reward for unit in units], [None] * len(units))


ARMS: Mapping[str, Callable[[], Credit]] = {"baselines": RoleBaseline, "none": lambda: no_baseline}
TITLES = {"baselines": "by role", "none": "none"}


@dataclass(frozen=True)
class Figures:
    """What a policy reaches against the frozen start: the part of the games that it wins, in all and by seat, and the
    part that it loses by a move that cannot be made."""

    won: float
    first: float
    second: float
    illegal: float


@dataclass
class Result:
    """One run of an arm; its curve is the part of the games won against past versions."""

    arm: str
    seed: int
    before: Figures
    after: Figures
    curve: list[float] = field(default_factory=list[float])


class Trainer:
    """Plays where policies are served, and keeps every game."""

    def __init__(
        self, options: argparse.Namespace, folder: Path, place: Place, store: EpisodeStore, progress: RolloutProgress
    ) -> None:
        self.options = options
        self.folder = folder
        self.place = place
        self.store = store
        self.progress = progress

    async def train(self, arm: str, seed: int) -> Result:
        """One run of an arm, from where an earlier start left it: evaluates, learns, evaluates."""
        self.progress.describe(f"baselines: {TITLES[arm]}, seed {seed}")
        folder = self.folder / f"{arm}-{seed}"
        if not folder.exists():
            facts = {"arm": arm, "seed": seed}
            about = {"scenario": duel.name, **facts, "before": asdict(await self.measure({**facts, "phase": "before"}))}
            Run.create(self.folder, about, name=folder.name).close()
        else:
            self.progress.skip(self.options.evaluated)
        with Run.open(folder) as run:
            reached = run.latest()
            self.progress.skip(0 if reached is None else reached.update * GAMES)
            if "after" in run.about:
                self.progress.skip(self.options.evaluated)
            else:
                await self.learn(run)
            curve = [(1 + line["reward"][seat]) / 2 for line in run.curve() if (seat := taught(line["update"]))]
            return Result(arm, seed, Figures(**run.about["before"]), Figures(**run.about["after"]), curve)

    async def learn(self, run: Run) -> None:
        """Plays by turns in the first seat against a past version, in the second against one, and in both; then
        evaluates."""
        facts = {name: run.about[name] for name in ("arm", "seed")}
        seed = facts["seed"]
        policies = fresh_policies(seed, self.options.warm)

        def seats(number: int) -> dict[str, Seat]:
            """Who plays in an update. Half of the past versions are the oldest, so that it is not forgotten."""
            version = f"past-{(number - 1) // PAST * PAST}"
            if version not in policies:
                policies[version] = frozen(version, policies["player"], seed)
            rng = Random(f"{seed}/{number}")
            past = rng.choice([START, rng.choice([name for name in policies if name != "player"])])
            own = taught(number)
            return {OTHER[own]: Seat(PLAYER, past, trainable=False)} if own else {}

        loop = training_loop(
            duel,
            lambda rng, count: [deal(rng) for _ in range(count)],
            policies,
            updates=self.options.updates,
            run=run,
            place=self.place,
            store=self.store,
            group_size=1,
            tasks_per_update=GAMES,
            concurrency=GAMES,
            credit=ARMS[facts["arm"]](),
            seed=seed,
            before=seats,
            info={**facts, "phase": "training"},
            progress=self.progress,
        )
        async with aclosing(loop):
            async for _ in loop:
                pass
        run.about["after"] = asdict(await self.measure({**facts, "phase": "after"}, policies["player"]))
        run.finish()

    async def measure(self, facts: Mapping[str, Any], player: Policy | None = None) -> Figures:
        """Plays fresh games of the policy, or else of a fresh one, against the frozen start: every position twice, seats
        swapped."""
        seed = facts["seed"]
        policies = fresh_policies(seed, self.options.warm)
        policies["player"] = player or policies["player"]
        rng = Random(f"fresh {seed} {facts['phase']}")
        starts = [deal(rng) for _ in range(self.options.evaluated // 2)]
        played = {
            seat: ended(
                await evaluate(
                    replace(duel, seats={**duel.seats, OTHER[seat]: Seat(PLAYER, START, trainable=False)}),
                    starts,
                    policies,
                    place=self.place,
                    store=self.store,
                    seed=seed,
                    info={**facts, "seat": seat},
                    progress=self.progress,
                )
            )
            for seat in OTHER
        }
        first, second = (mean([game["winner"] == seat for game in played[seat]]) for seat in OTHER)
        illegal = [game["illegal"] and game["winner"] != seat for seat in OTHER for game in played[seat]]
        return Figures((first + second) / 2, first, second, mean(illegal))


def taught(number: int) -> str | None:
    """The seat in which the policy plays against a past version in an update; None when it plays against itself."""
    return ("first", "second", None)[(number - 1) % 3]


def ended(games: Sequence[Episode]) -> list[dict[str, Any]]:
    """How the games ended that were played to their end; raises `SystemExit` when none was."""
    found = [game.info["result"] for game in games if game.ok]
    if not found:
        raise SystemExit(f"no game could be played; the first says: {games[0].failures}")
    return found


def fresh_policies(seed: int, warm: int) -> dict[str, Policy]:
    """A policy that knows which moves can be made and nothing of which are good, and its frozen copy."""
    model, tokenizer = warmed(seed, warm)
    player = Policy("player", copy.deepcopy(model), tokenizer, settings=SETTINGS, seed=seed)
    return {"player": player, START: frozen(START, player, seed)}


@functools.cache
def warmed(seed: int, steps: int) -> tuple[TinyLM, WordTokenizer]:
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

    warm_start(model, tokenizer, example, steps=steps, learning_rate=5e-3)
    return model, tokenizer


def frozen(name: str, policy: Policy, seed: int) -> Policy:
    """A copy that plays as the policy does now, and stays so."""
    return Policy(name, copy.deepcopy(policy.model), policy.tokenizer, trainable=False, seed=seed + 1000)


def table(results: Sequence[Result]) -> Table:
    """What each arm reached: means over its seeds, and its worst seed."""
    shown = Table(title="fresh games won against the frozen start", title_justify="left")
    for name in (
        "",
        "seeds",
        "before",
        "after",
        "worst\nseed",
        "as first\n/ second",
        "illegal\nbefore",
        "illegal\nafter",
    ):
        shown.add_column(name, justify="left" if name == "baselines" else "right", no_wrap=True)
    for arm in dict.fromkeys(result.arm for result in results):
        own = [result for result in results if result.arm == arm]
        before, after = averaged([result.before for result in own]), averaged([result.after for result in own])
        shown.add_row(
            TITLES[arm],
            str(len(own)),
            f"{before.won:.3f}",
            f"{after.won:.3f}",
            f"{min(result.after.won for result in own):.3f}",
            f"{after.first:.2f}/{after.second:.2f}",
            f"{before.illegal:.3f}",
            f"{after.illegal:.3f}",
        )
    return shown


def mean(values: Sequence[float]) -> float:
    """The arithmetic mean."""
    return sum(values) / len(values)


def averaged(figures: Sequence[Figures]) -> Figures:
    """The mean of each figure."""
    return Figures(*(mean(column) for column in zip(*map(astuple, figures), strict=True)))


async def main(options: argparse.Namespace, outer: Run) -> list[Result]:
    """Plays every arm and says what came of it."""
    os.environ["AGENT_ENV_HUB"] = str(outer.folder / "hub.db")
    console = Console()
    runs = [(arm, seed) for seed in range(options.seeds) for arm in options.arms]
    total = len(runs) * (options.updates * GAMES + 2 * options.evaluated)
    began = time.monotonic()
    with EpisodeStore(outer.episodes) as store, rollout_progress(total) as progress:
        async with policies_served(outer.folder / "gateway") as place, agents_served(AGENT, []):
            trainer = Trainer(options, outer.folder, place, store, progress)
            reached = [await trainer.train(arm, seed) for arm, seed in runs]
    outer.finish()
    seconds = time.monotonic() - began
    console.print(table(reached))
    plot_curves(
        outer.folder / "curve.png",
        {
            f"baselines: {TITLES[arm]}": [result.curve for result in reached if result.arm == arm]
            for arm in options.arms
        },
        title="One policy against its past versions",
        x_label="update against a past version",
        y_label="games won",
        levels={"as good as they": 0.5},
    )
    console.print(
        f"{progress.played} games ({progress.failed} failed) in {seconds:.0f} s, {progress.played / seconds:.0f} a "
        f"second, all in {outer.folder}"
    )
    return reached


def parse(arguments: Sequence[str] | None = None) -> argparse.Namespace:
    """Reads the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--arms", nargs="+", choices=list(ARMS), default=list(ARMS), help="with baselines, without")
    parser.add_argument("--seeds", type=int, default=3, help="runs of each arm")
    parser.add_argument("--warm", type=int, default=WARM, help="supervised steps that teach which moves can be made")
    parser.add_argument("--updates", type=int, default=UPDATES, help=f"updates a run, of {GAMES} games each")
    parser.add_argument("--evaluated", type=int, default=1000, help="fresh games a figure, an even number")
    parser.add_argument("--runs", default="runs", help="where the results go")
    parser.add_argument(
        "--resume", nargs="?", const="", metavar="RUN", help="go on with that run, or the last, as it was begun"
    )
    options = parser.parse_args(arguments)
    if options.evaluated < 2 or options.evaluated % 2:
        parser.error(f"--evaluated must be an even number, since seats are swapped, not {options.evaluated}")
    return options


def start(options: argparse.Namespace) -> tuple[argparse.Namespace, Run]:
    """A new run, or the one to go on with and how that was begun."""
    if options.resume is None:
        return options, Run.create(options.runs, {"scenario": duel.name, "options": vars(options)})
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
