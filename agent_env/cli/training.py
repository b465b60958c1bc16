"""`agent-env train`: policies learn to play the seats of a scenario."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Mapping, Sequence
from contextlib import aclosing
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, NamedTuple

import typer

from agent_env.cli.lessons import failures_told, lessons_told
from agent_env.cli.logs import told_briefly
from agent_env.cli.making import (
    Options,
    begin,
    check_device,
    check_known,
    check_numbers,
    checked_average,
    credit_named,
    folders_of,
    kept_options,
    propagation_named,
    read_tasks,
    refuse_changes,
)
from agent_env.cli.output import Json, console, print_json, print_table, reported, say

if TYPE_CHECKING:
    from agent_env.training.checkpoints import Checkpoint, Run
    from agent_env.training.policy import Policy
    from agent_env.training.scenario import Scenario, Tasks

_SHOWN = 5
"""How many updates a figure of the table is the mean of."""

_UPDATES = 100

_MOST = 1_000_000
"""What more of is a slip of the finger."""

_CREDIT = (
    "What a reward is compared with: per_seat, per_parent_call, per_prompt, broadcast, difference or role_baseline."
)

RunsOption = Annotated[Path, typer.Option("--runs", help="The folder of runs.")]


class Prepared(NamedTuple):
    """What is ready to be trained."""

    scenario: Scenario
    tasks: Tasks
    policies: dict[str, Policy]


def train(
    context: typer.Context,
    scenario: Annotated[
        str | None,
        typer.Argument(
            metavar="[SCENARIO]",
            help="module:attribute, or path/to/file.py:attribute; after --resume the run's name instead.",
        ),
    ] = None,
    policy: Annotated[
        list[str] | None,
        typer.Option("--policy", metavar="SEAT=DIR", help="The model that plays a seat; may be given again."),
    ] = None,
    tasks: Annotated[
        Path | None,
        typer.Option(help="A file of tasks, JSON lines; default: the scenario's.", exists=True, dir_okay=False),
    ] = None,
    tiny: Annotated[bool, typer.Option("--tiny", help="Make small models for the other seats.")] = False,
    lora: Annotated[bool, typer.Option("--lora", help="Train adapters and leave the models as they are.")] = False,
    updates: Annotated[
        int | None,
        typer.Option(min=1, help=f"How many updates, earlier ones included; default: {_UPDATES}, or as before."),
    ] = None,
    group_size: Annotated[int, typer.Option(min=1, max=_MOST, help="How often each task is played in an update.")] = 8,
    tasks_per_update: Annotated[int, typer.Option(min=1, max=_MOST, help="How many tasks an update plays.")] = 16,
    concurrency: Annotated[
        int | None, typer.Option(min=1, help="How many episodes are played at a time; default: 64, or as before.")
    ] = None,
    seconds: Annotated[
        float | None, typer.Option(help="How long an episode may take; default: 300, or as before.")
    ] = None,
    credit: Annotated[str, typer.Option(help=_CREDIT)] = "per_seat",
    propagation: Annotated[
        str, typer.Option(help="What an agent is rewarded with: team, discounted, own or judge.")
    ] = "team",
    average: Annotated[
        str, typer.Option(help="What counts the same in the loss: units, a seat in an episode each, or tokens.")
    ] = "units",
    lr: Annotated[float | None, typer.Option("--lr", help="The learning rate; default: by the kind of model.")] = None,
    device: Annotated[str | None, typer.Option(help="cpu, cuda, …; default: the first GPU, or else the CPU.")] = None,
    seed: Annotated[int, typer.Option(min=0, max=2**31 - 1, help="What everything random comes from.")] = 0,
    checkpoint_every: Annotated[
        int | None, typer.Option(min=1, help="A checkpoint after so many updates; default: 10, or as before.")
    ] = None,
    runs: RunsOption = Path("runs"),
    name: Annotated[str | None, typer.Option("--run", help="The name of a new run; default: the time.")] = None,
    resume: Annotated[bool, typer.Option("--resume", help="Go on with a run: the one named, or the newest.")] = False,
    debug: Annotated[bool, typer.Option("--debug", help="Show the tracebacks of agents that fail.")] = False,
    as_json: Json = False,
) -> None:
    """Trains the policies of a scenario's seats until all updates are made; Ctrl-C leaves a checkpoint."""
    with reported(as_json=as_json), told_briefly(tracebacks=debug):
        from agent_env.cli.target import located
        from agent_env.errors import ConfigurationError
        from agent_env.training.checkpoints import Run, find_run

        check_numbers(lr=lr, seconds=seconds)
        free = {"concurrency": concurrency, "seconds": seconds, "checkpoint_every": checkpoint_every}
        if resume:
            refuse_changes(context)
            found = find_run(runs, scenario)
            options, before = kept_options(found)
            wanted = updates or before
            if found.state == "finished" and wanted <= (reached := len(found.curve())):
                _report(found, runs, False, as_json)
                if not as_json:
                    _tell_finished(found, runs, reached)
                return
            run = Run.open(found.folder)
            try:
                latest = run.latest()
                if updates is not None and latest is not None and updates < latest.update:
                    raise ConfigurationError(
                        f"the run {run.id!r} has made {latest.update} updates of {before} already, so it cannot end at "
                        f"{updates}; `--updates` takes at least what it has made"
                    )
                options = options.changed(**free)
                prepared = _prepare(options, device, latest)
                run.tell(updates=wanted, options=asdict(options))
            except BaseException:
                run.close()
                raise
        else:
            if scenario is None:
                raise ConfigurationError("name a scenario, such as team:scenario; or go on with a run: --resume")
            folder, target = located(scenario, of="scenario")
            options = Options(
                target,
                str(folder),
                folders_of(policy or []),
                None if tasks is None else str(tasks.resolve()),
                tiny,
                lora,
                group_size,
                tasks_per_update,
                credit,
                propagation,
                lr,
                seed,
                checked_average(average),
            ).changed(**free)
            prepared = _prepare(options, device, None)  # what cannot be trained leaves no run behind
            wanted = updates or _UPDATES
            run = begin(runs, scenario, wanted, options, name=name)
        with run:
            work = _Work(run, options, prepared, wanted, device, visible=not as_json)
            stopped = work.run()
            if not stopped:
                run.finish()
        _report(run, runs, stopped, as_json)
    if stopped:
        raise typer.Exit(130)


class _Work:
    """One start of a training."""

    def __init__(
        self,
        run: Run,
        options: Options,
        prepared: Prepared,
        updates: int,
        device: str | None,
        *,
        visible: bool,
    ) -> None:
        self._run = run
        self._options = options
        self._prepared = prepared
        self._updates = updates
        self._device = device
        self._visible = visible
        self._stopped = False

    def run(self) -> bool:
        """Trains; tells whether it was stopped."""
        from agent_env.net.serving import run_loop

        run_loop(self._until_stopped())
        return self._stopped

    async def _until_stopped(self) -> None:
        from agent_env.net.serving import stop_signals

        with stop_signals() as stop:
            training = asyncio.create_task(self._train())
            stopping = asyncio.create_task(stop.wait())
            try:
                await asyncio.wait({training, stopping}, return_when=asyncio.FIRST_COMPLETED)
                if not training.done():
                    training.cancel()
                    self._stopped = True
                    await asyncio.wait({training})
            finally:
                stopping.cancel()
            if not training.cancelled():
                training.result()

    async def _train(self) -> None:
        from agent_env.training.loop import training_loop
        from agent_env.training.progress import rollout_progress

        options = self._options
        scenario, tasks, policies = self._prepared
        checkpoint = self._run.latest()
        done = 0 if checkpoint is None else checkpoint.update
        episodes = max(0, self._updates - done) * options.tasks_per_update * options.group_size
        with rollout_progress(episodes, visible=self._visible) as progress:
            progress.describe(f"update {done + 1}/{self._updates}")
            loop = training_loop(
                scenario,
                tasks,
                policies,
                updates=self._updates,
                run=self._run,
                group_size=options.group_size,
                tasks_per_update=options.tasks_per_update,
                concurrency=options.concurrency,
                seconds=options.seconds,
                credit=credit_named(options.credit),
                propagation=propagation_named(options.propagation),
                seed=options.seed,
                checkpoint_every=options.checkpoint_every,
                device=self._device,
                progress=progress,
            )
            async with aclosing(loop):
                async for update in loop:
                    # The last one's figures stay, since the episodes of an update end together, just before its end.
                    progress.describe(f"update {min(update.number + 1, self._updates)}/{self._updates}", keep=True)


def _prepare(options: Options, device: str | None, checkpoint: Checkpoint | None) -> Prepared:
    """The scenario, its tasks, and the policies that a checkpoint has not; raises `ConfigurationError` for what cannot
    be trained."""
    from agent_env.cli.target import load
    from agent_env.errors import ConfigurationError
    from agent_env.training.scenario import Scenario
    from agent_env.training.seating import make_policies, seat_policies

    credit_named(options.credit)
    propagation_named(options.propagation)
    check_device(device)
    check_numbers(concurrency=options.concurrency, seconds=options.seconds, checkpoint_every=options.checkpoint_every)
    sys.path.insert(0, options.folder)
    given = Scenario.of(load(options.scenario))
    scenario, folders = seat_policies(given, {seat: Path(folder) for seat, folder in options.policies.items()})
    if not any(seat.policy and seat.trainable for seat in scenario.seats.values()):
        raise ConfigurationError(
            f"no seat of {options.scenario!r} has a policy that learns; give one a model (--policy SEAT=DIR), or name "
            'policies in its seats: Seat(env, policy="…")'
        )
    tasks = scenario.tasks if options.tasks is None else read_tasks(Path(options.tasks))
    if not callable(tasks) and not tasks:
        if options.tasks is not None:
            raise ConfigurationError(f"{options.tasks!r} has no tasks; write one to a line, as JSON")
        raise ConfigurationError(f"{options.scenario!r} has no tasks; set its `tasks`, or pass --tasks FILE")
    if checkpoint is not None:
        check_known(scenario, checkpoint)
    policies = make_policies(
        scenario,
        folders,
        tiny=options.tiny,
        lora=options.lora,
        learning_rate=options.lr,
        average=options.average,
        device=device,
        seed=options.seed,
        known=() if checkpoint is None else checkpoint.policies,
    )
    return Prepared(scenario, tasks, policies)


def _tell_finished(run: Run, runs: Path, reached: int) -> None:
    where = "" if runs == Path("runs") else f" --runs {runs}"
    made = "its one update" if reached == 1 else f"all of its {reached} updates"
    console.print(f"the run {run.id!r} is [green]finished[/green]: it has made {made}; to train further:")
    say(f"agent-env train --resume {run.id}{where} --updates {2 * reached}")


def _report(run: Run, runs: Path, stopped: bool, as_json: bool) -> None:
    curve = run.curve()
    checkpoint = run.latest()
    if as_json:
        print_json(
            {
                "run": run.id,
                "folder": str(run.folder),
                "state": run.state,
                "updates": len(curve),
                "last": curve[-1] if curve else None,
                "policies": {}
                if checkpoint is None
                else {name: str(checkpoint.path(name)) for name in checkpoint.policies},
            }
        )
        return
    if curve:
        rows = [(seat, *map(_figure, rewards)) for seat, rewards in _rewards(curve).items()]
        shown = min(_SHOWN, len(curve))
        if rows:
            print_table(("seat", f"first {shown}", f"last {shown}", "best"), rows, title=f"mean reward, {run.id}")
        else:
            say(f"no seat got a reward in {run.id}")
        for line in (*lessons_told(curve[-_SHOWN:]), *failures_told(curve, run.folder)):
            say(line)
    if checkpoint is not None:
        for name in checkpoint.policies:
            say(f"{name} is in {checkpoint.path(name)}")
    if stopped:
        where = "" if runs == Path("runs") else f" --runs {runs}"
        said = f"after {len(curve)} update{'s' * (len(curve) > 1)}" if curve else "before the first update"
        console.print(f"[yellow]stopped[/yellow] {said}; to go on:")
        say(f"agent-env train --resume {run.id}{where}")


def _rewards(curve: Sequence[Mapping[str, Any]]) -> dict[str, tuple[float, float, float]]:
    """Of each seat: the mean reward of the first and of the last updates, and the best of one update."""
    found: dict[str, tuple[float, float, float]] = {}
    for seat in dict.fromkeys(seat for line in curve for seat in line["reward"]):
        rewards = [line["reward"][seat] for line in curve if seat in line["reward"]]
        first, last = rewards[:_SHOWN], rewards[-_SHOWN:]
        found[seat] = sum(first) / len(first), sum(last) / len(last), max(rewards)
    return found


def _figure(value: float) -> str:
    return f"{value:.3f}"
