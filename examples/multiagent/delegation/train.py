"""Trains a manager and three specialists together, in part, and not at all, through their served environments.

Six processes: the four agents, the gateway, and this one, which holds the four policies, serves them, plays and updates.
Stop it with Ctrl-C and go on with `python train.py --resume`.
"""

from __future__ import annotations

import argparse
import asyncio
import dataclasses
import json
import os
import random
import shutil
import sys
import time
from collections.abc import AsyncGenerator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
import uvloop
from agents import NOBODY, SPECIALISTS
from rich.console import Console
from rich.table import Table

from agent_env.episodes import Episode, EpisodeStore
from agent_env.gateway import GatewayProcess, RunHandle, SeatPolicy, launched, running
from agent_env.net.garbage import collect_rarely
from agent_env.net.serving import STDIN_VARIABLE
from agent_env.training import (
    Policy,
    PolicyServer,
    Scenario,
    Seat,
    Settings,
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
ARMS = {"all": SEATS, "manager": ("manager",), "specialists": SPECIALISTS, "none": ()}
NAMES = {"all": "all learn", "manager": "manager only", "specialists": "specialists only", "none": "none"}
RATES = {"manager": 1e-3, **dict.fromkeys(SPECIALISTS, 3e-3)}
TASKS, GROUP = 32, 8
SAVED = 10  # updates from checkpoint to checkpoint


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
class Result:
    """One run of an arm. Its curves are means a batch; `before` and `after` are those of fresh episodes, sampled and
    greedy. Of each pair the first is the reward, the second the part of the episodes in which the right one was asked.
    """

    arm: str
    seed: int
    before: dict[str, tuple[float, float]] = field(default_factory=dict[str, tuple[float, float]])
    after: dict[str, tuple[float, float]] = field(default_factory=dict[str, tuple[float, float]])
    curve: list[tuple[float, float]] = field(default_factory=list[tuple[float, float]])

    @property
    def name(self) -> str:
        """What its episodes and its checkpoints go by."""
        return f"{self.arm}-{self.seed}"


class Player:
    """Plays episodes through the gateway and keeps them all; what an earlier start has played it takes from there."""

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
        self, run: RunHandle, tasks: Sequence[str], result: Result, phase: str, *, group_size: int = 1, **info: Any
    ) -> tuple[list[Episode], tuple[float, float]]:
        """Plays each task `group_size` times: the episodes, their mean reward and how often the right one was asked."""
        stream = rollout(
            delegation,
            tasks,
            run=run,
            store=self.store,
            run_id=f"{result.name}/{phase}",
            finished="yield",
            group_size=group_size,
            concurrency=self.options.concurrency,
            info={"arm": result.arm, "seed": result.seed, "phase": phase, **info},
            progress=self.progress,
        )
        episodes = await collect(stream)
        return episodes, (mean(episodes, "right"), mean(episodes, "routed"))

    async def evaluate(
        self, seats: Mapping[str, SeatPolicy], result: Result, when: str
    ) -> dict[str, tuple[float, float]]:
        """What fresh episodes are worth, sampled and greedy (which are all the same for the same word)."""
        found: dict[str, tuple[float, float]] = {}
        for how, temperature, count in (("sampled", 1.0, self.options.evaluated), ("greedy", 0.0, len(WORDS))):
            settings = {"temperature": temperature}
            fixed = {seat: dataclasses.replace(policy, settings=settings) for seat, policy in seats.items()}
            tasks = [WORDS[index % len(WORDS)] for index in range(count)]
            async with await self.open(fixed) as run:
                _, found[how] = await self.play(run, tasks, result, f"{when} {how}")
        return found


async def train(player: Player, server: PolicyServer, endpoint: str, arm: str, seed: int, folder: Path) -> Result:
    """One run of an arm, from where an earlier start left it: updates after every batch of episodes, and evaluates."""
    seats = {seat: SeatPolicy(seat, (endpoint,)) for seat in SEATS}
    player.progress.describe(f"{NAMES[arm]}, seed {seed}")
    own, begun = folder / f"{arm}-{seed}", folder / f"fresh-{seed}"
    if (saved := restore(own) or restore(begun)) is None:
        # All arms begin alike, so what they are worth before is found out once.
        policies, result = fresh_policies(seed), Result("fresh", seed)
        serve(server, policies)
        result.before = await player.evaluate(seats, result, "before")
        save(begun, policies, result)
    else:
        policies, result = saved
        player.progress.skip(len(result.curve) * TASKS * GROUP)
    result.arm = arm
    for seat, policy in policies.items():
        policy.trainable = seat in ARMS[arm]
    serve(server, policies)
    async with await player.open(seats) as run:
        for update in range(len(result.curve), player.options.updates):
            tasks = random.Random(f"{seed}/{update}").choices(WORDS, k=TASKS)
            episodes, means = await player.play(
                run, tasks, result, f"update {update}", group_size=GROUP, update=update
            )
            result.curve.append(means)
            learn(policies, episodes, credit="per_prompt")
            if len(result.curve) % SAVED == 0:
                save(own, policies, result)
    result.after = result.after or await player.evaluate(seats, result, "after")
    save(own, policies, result)
    return result


def serve(server: PolicyServer, policies: Mapping[str, Policy]) -> None:
    """Serves the policies in place of those of the run before."""
    for policy in policies.values():
        server.serve(policy)


def fresh_policies(seed: int) -> dict[str, Policy]:
    """New models that have learned the form of what they say, and too little of what to say."""
    tokenizer = WordTokenizer([*WORDS, *ANSWERS.values(), *(f"@{name}" for name in SPECIALISTS), NOBODY])
    policies: dict[str, Policy] = {}
    for place, seat in enumerate(SEATS):
        model = make_model(tokenizer, seed=10 * seed + place)
        rng = random.Random(10 * seed + place)
        if seat == "manager":
            warm_start(model, tokenizer, lambda rng=rng: manager_example(rng), steps=350, batch=96)
        else:
            known = rng.sample(list(FACTS[seat]), k=int(len(FACTS[seat]) * KNOWN))
            example = lambda rng=rng, facts=FACTS[seat], known=known: specialist_example(rng, facts, known)  # noqa: E731
            warm_start(model, tokenizer, example, steps=160)
        settings = Settings(learning_rate=RATES[seat])
        policies[seat] = Policy(seat, model, tokenizer, settings=settings, seed=10 * seed + place)
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
        score.value for episode in episodes for score in episode.rewards if score.name == name and score.value is not None
    ]
    if not values:
        raise SystemExit(f"no episode could be played; the first says: {episodes[0].failures}")
    return sum(values) / len(values)


def save(folder: Path, policies: Mapping[str, Policy], result: Result) -> None:
    """Writes a checkpoint beside the one before, which then goes: there is a whole one at any time."""
    writing = folder / "writing"
    shutil.rmtree(writing, ignore_errors=True)
    for seat, policy in policies.items():
        policy.save(writing / seat)
    (writing / "result.json").write_text(json.dumps(dataclasses.asdict(result)), "utf-8")
    before = checkpoints(folder)
    writing.rename(folder / f"{len(before) and int(before[-1].name) + 1:06d}")
    for old in before:
        shutil.rmtree(old)


def restore(folder: Path) -> tuple[dict[str, Policy], Result] | None:
    """Reads the newest checkpoint, None where there is none."""
    found = checkpoints(folder)
    if not found:
        return None
    policies = {seat: Policy.load(found[-1] / seat) for seat in SEATS}
    return policies, Result(**json.loads((found[-1] / "result.json").read_text("utf-8")))


def checkpoints(folder: Path) -> list[Path]:
    """The whole checkpoints of a run, oldest first."""
    return sorted(path for path in folder.glob("*") if path.name.isdigit())


@asynccontextmanager
async def agents() -> AsyncGenerator[None, None]:
    """Runs the agents, each in a process of its own, until the block ends; they also end when this process dies."""
    program = str(Path(__file__).with_name("agents.py"))
    processes = [
        await asyncio.create_subprocess_exec(
            *(sys.executable, program, seat),
            env={**os.environ, STDIN_VARIABLE: "1"},
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
        )
        for seat in SEATS
    ]
    try:
        for process in processes:
            assert process.stdout is not None
            # A served agent says where it is as soon as it can be called.
            if not await asyncio.wait_for(process.stdout.readline(), 60):
                raise SystemExit("an agent did not start; its error is above")
        yield
    finally:
        for process in processes:
            if process.returncode is None:
                process.terminate()
        for process in processes:
            await process.wait()


def table(title: str, results: Sequence[Result], which: int) -> Table:
    """What each arm reached: the mean over its seeds, and its worst seed."""
    shown = Table(title=title, title_justify="left")
    for name in ("", "seeds", "sampled\nbefore", "sampled\nafter", "worst\nseed", "greedy\nbefore", "greedy\nafter"):
        shown.add_column(name, justify="right" if name else "left", no_wrap=True)
    for arm in dict.fromkeys(result.arm for result in results):
        own = [result for result in results if result.arm == arm]
        pairs = [(when, how) for how in ("sampled", "greedy") for when in ("before", "after")]
        columns = [[getattr(result, when)[how][which] for result in own] for when, how in pairs]
        figures = [sum(column) / len(column) for column in columns]
        figures.insert(2, min(columns[1]))
        shown.add_row(NAMES[arm], str(len(own)), *(f"{figure:.3f}" for figure in figures))
    return shown


def draw(folder: Path, results: Sequence[Result]) -> None:
    """Draws the curves of reward and of routing."""
    for which, name, title in (
        (0, "curve", "A manager and three specialists"),
        (1, "routing", "How often the manager asks the right specialist"),
    ):
        arms = dict.fromkeys(result.arm for result in results)
        curves = {NAMES[arm]: [[m[which] for m in r.curve] for r in results if r.arm == arm] for arm in arms}
        plot_curves(folder / f"{name}.png", curves, title=title, y_label=("mean reward", "routed right")[which])


async def main(options: argparse.Namespace) -> list[Result]:
    """Plays every arm and says what came of it."""
    folder = Path(options.folder)
    os.environ["AGENT_ENV_HUB"] = str(folder / "hub.db")
    console = Console()
    arms = [(arm, seed) for seed in range(options.seeds) for arm in options.arms]
    evaluated = options.evaluated + len(WORDS)
    total = len(arms) * (options.updates * TASKS * GROUP + evaluated) + options.seeds * evaluated
    began = time.monotonic()
    with EpisodeStore(folder / "episodes.db") as store, rollout_progress(total) as progress:
        async with launched(folder / "gateway") as gateway, agents():
            player = Player(options, gateway, store, progress)
            server = PolicyServer(pause=0.005, wait=0.04)
            async with running(server) as url:
                results = [await train(player, server, f"{url}/v1", arm, seed, folder) for arm, seed in arms]
    seconds = time.monotonic() - began
    results.sort(key=lambda result: list(ARMS).index(result.arm))
    console.print(table("mean reward of fresh episodes", results, 0))
    console.print(table("how often the right specialist was asked", results, 1))
    draw(folder, results)
    console.print(
        f"{progress.played} episodes ({progress.failed} failed) in {seconds:.0f} s, {progress.played / seconds:.0f} a "
        f"second, all in {folder}"
    )
    return results


def parse(arguments: Sequence[str] | None = None) -> argparse.Namespace:
    """Reads the command line, and for `--resume` that of the start that it goes on with; makes the folder."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--arms", nargs="+", choices=list(ARMS), default=list(ARMS), help="who learns")
    parser.add_argument("--seeds", type=int, default=1, help="runs of each arm")
    parser.add_argument("--updates", type=int, default=120, help=f"updates a run, of {TASKS * GROUP} episodes each")
    parser.add_argument("--evaluated", type=int, default=960, help="fresh episodes a sampled figure")
    parser.add_argument("--concurrency", type=int, default=TASKS * GROUP, help="episodes at a time")
    parser.add_argument("--runs", default="runs", help="where the results go")
    parser.add_argument("--resume", nargs="?", const="", metavar="FOLDER", help="go on where that run, or the last, was")
    options = parser.parse_args(arguments)
    if options.resume is None:
        options.folder = str(Path(options.runs) / time.strftime("%Y-%m-%d_%H-%M-%S"))
        Path(options.folder).mkdir(parents=True)
        (Path(options.folder) / "options.json").write_text(json.dumps(vars(options)), "utf-8")
        return options
    begun = sorted(Path(options.resume or options.runs).glob("options.json" if options.resume else "*/options.json"))
    if not begun:
        parser.error(f"there is no run to go on with in {options.resume or options.runs!r}")
    return argparse.Namespace(**{**json.loads(begun[-1].read_text("utf-8")), "folder": str(begun[-1].parent)})


if __name__ == "__main__":
    torch.set_num_threads(1)
    collect_rarely()
    given = parse()
    try:
        uvloop.run(main(given))
    except KeyboardInterrupt:
        raise SystemExit(f"stopped; go on with: python train.py --resume {given.folder}") from None
