"""Several trainings of one scenario to be compared, by who learns and by seed: stopped as one, gone on with as one."""

from __future__ import annotations

import argparse
import time
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping, MutableMapping, Sequence
from contextlib import aclosing, asynccontextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from agent_env.episodes import Episode, EpisodeStore
from agent_env.errors import AgentFailed, ConfigurationError
from agent_env.training.averages import mean
from agent_env.training.checkpoints import RUNS, Run, find_run, list_runs
from agent_env.training.loop import check_played, evaluate, training_loop
from agent_env.training.place import Place, policies_served
from agent_env.training.policy import Policy
from agent_env.training.progress import RolloutProgress, rollout_progress
from agent_env.training.scenario import Json, Tasks

if TYPE_CHECKING:
    from rich.table import Table


@dataclass
class Study:
    """Where all its runs play: one place, one store, one bar, one folder; each run has a folder in that of the study.

        async with study(outer, episodes=total) as runs:
            for seed in range(3):
                with runs.open(f"both-{seed}") as run:
                    before = await runs.once(run, "before", measure)
                    await runs.train(run, scenario, tasks, policies, updates=60, seed=seed)
                    after = await runs.once(run, "after", measure)
                    run.finish()

    What an earlier start has done is not done again, so a program goes on by being run again on the same folder.
    """

    run: Run
    place: Place
    store: EpisodeStore
    progress: RolloutProgress
    began: float = field(default_factory=time.monotonic)

    def open(self, name: str) -> Run:
        """Begins one of its runs, which is of the study's scenario, or goes on with it."""
        folder = self.run.folder / name
        if folder.exists():
            return Run.open(folder)
        about = {key: value for key, value in self.run.about.items() if key == "scenario"}
        return Run.create(self.run.folder, about, name=name)

    async def once(self, run: Run, name: str, find: Callable[[], Awaitable[Json]], *, episodes: int = 0) -> Any:
        """What a run says about itself under a name: found at the first start, which plays so many episodes for it."""
        if name in run.about:
            self.progress.skip(episodes)
        else:
            run.tell(**{name: await find()})
        return run.about[name]

    async def train(
        self,
        run: Run,
        scenario: object,
        tasks: Tasks,
        policies: MutableMapping[str, Policy],
        *,
        updates: int,
        group_size: int,
        tasks_per_update: int,
        info: Mapping[str, Json],
        **how: Any,
    ) -> None:
        """Brings a run from where it is to its last update; `how` is the rest of what `training_loop` takes."""
        reached = run.latest()
        self.progress.skip(0 if reached is None else reached.update * group_size * tasks_per_update)
        if run.about["finished"]:
            return
        loop = training_loop(
            scenario,
            tasks,
            policies,
            updates=updates,
            run=run,
            place=self.place,
            store=self.store,
            group_size=group_size,
            tasks_per_update=tasks_per_update,
            info={**info, "phase": "training"},
            progress=self.progress,
            **how,
        )
        async with aclosing(loop):
            async for _ in loop:
                pass

    async def evaluate(
        self, scenario: object, tasks: Sequence[Json], policies: Mapping[str, Policy], **how: Any
    ) -> list[Episode]:
        """Plays each task once, as `evaluate` does, which takes what else there is; raises `AgentFailed` when no episode
        could be played."""
        played = await evaluate(
            scenario, tasks, policies, place=self.place, store=self.store, progress=self.progress, **how
        )
        check_played(played)
        return played

    def summary(self) -> str:
        """How much this start has played, how fast, and where it is."""
        seconds, played = time.monotonic() - self.began, self.progress.played
        return (
            f"{played} episodes ({self.progress.failed} failed) in {seconds:.0f} s, {_pace(played, seconds)}, "
            f"all in {self.run.folder}"
        )


def _pace(count: int, seconds: float) -> str:
    """How many there were in a time, in the unit of time that leaves a figure before the point."""
    if count < seconds:
        return f"{60 * count / seconds:.1f} a minute"
    rate = count / seconds
    return f"{rate:.0f} a second" if rate >= 9.95 else f"{rate:.1f} a second"


@asynccontextmanager
async def study(run: Run, *, episodes: int | None = None) -> AsyncGenerator[Study]:
    """Serves policies and keeps episodes for the runs of a study, while the block runs; shows a bar of so many."""
    with EpisodeStore(run.episodes) as store, rollout_progress(episodes) as progress:
        async with policies_served(run.folder / "gateway") as place:
            yield Study(run, place, store, progress)


def mean_score(episodes: Sequence[Episode], name: str) -> float:
    """The mean of one score over the episodes that have it; raises `AgentFailed` when none has."""
    scores = [one.value for episode in episodes for one in episode.rewards if one.name == name]
    values = [value for value in scores if value is not None]
    if not values:
        check_played(episodes)
        raise AgentFailed(f"none of the {len(episodes)} episodes has the score {name!r}; look at what `score` returns")
    return mean(values)


def arms_table(title: str, arms: Mapping[str, Mapping[str, Sequence[float]]], *, kind: str = "") -> Table:
    """A line an arm, with its number of seeds, and in each column (by its heading) the mean of the figures there; `kind`
    says what arms are.

        arms_table("mean reward", {"both learn": {"before": [0.2, 0.21], "after": [0.98, 0.97], "worst": [0.97]}})
    """
    from rich.table import Table

    shown = Table(title=title, title_justify="left")
    headings = next(iter(arms.values()), {})
    shown.add_column(kind, no_wrap=True)
    for heading in ("seeds", *headings):
        shown.add_column(heading, justify="right", no_wrap=True)
    for arm, columns in arms.items():
        seeds = max(map(len, columns.values()))
        shown.add_row(arm, str(seeds), *(f"{mean(column):.3f}" for column in columns.values()))
    return shown


# ── programs ───────────────────────────────────────────────────────────────────────────────────────────────────


def add_run_options(parser: argparse.ArgumentParser, *, runs: str = RUNS) -> None:
    """Gives a program the options `--runs DIR` and `--resume [RUN]`, which `begin_run` reads."""
    parser.add_argument("--runs", default=runs, help="where the results go")
    parser.add_argument(
        "--resume", nargs="?", const="", metavar="RUN", help="go on with that run, or the last, as it was begun"
    )


def begin_run(options: argparse.Namespace, scenario: str) -> tuple[argparse.Namespace, Run]:
    """A new run; or with `--resume` the one to go on with, the newest of that scenario if none is named, and the options
    that it was begun with.

    Raises `SystemExit` with what is wrong: there is no such run, it belongs to another program, another process has it.
    """
    try:
        if options.resume is None:
            return options, Run.create(options.runs, {"scenario": scenario, "options": vars(options)})
        own = [run.id for run in list_runs(options.runs) if _is_of(run, scenario)]
        found = find_run(options.runs, options.resume or (own[-1] if own else None))
        if not _is_of(found, scenario):
            raise ConfigurationError(f"the run {found.id!r} was not begun by this program; name another: --resume RUN")
        return argparse.Namespace(**found.about["options"]), Run.open(found.folder)
    except ConfigurationError as error:
        raise SystemExit(str(error)) from None


def _is_of(run: Run, scenario: str) -> bool:
    return run.about.get("scenario") == scenario and "options" in run.about


def play_run(run: Run, play: Callable[[], object]) -> None:
    """Plays a program's run and closes it; Ctrl-C, and agents that cannot be played, end it with one line, which says how
    to go on.

        play_run(run, lambda: asyncio.run(main(options, run)))
    """
    try:
        with run:
            play()
    except KeyboardInterrupt:
        raise SystemExit(f"stopped; go on with --resume {run.folder}") from None
    except AgentFailed as error:
        raise SystemExit(f"{error}\nwhen that is mended, go on with --resume {run.folder}") from None
