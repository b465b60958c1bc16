"""`agent-env runs`: what was trained, and its curves."""

from __future__ import annotations

import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.text import Text

from agent_env.cli.help import Application
from agent_env.cli.output import BAD_INPUT, Json, console, errors, print_json, print_table, reported, say
from agent_env.cli.training import RunsOption

if TYPE_CHECKING:
    from agent_env.training.checkpoints import Run

app = Application(help="List training runs, and draw their curves.")

_STYLES = {"running": "green", "stopped": "yellow", "finished": ""}


@app.command("list")
def list_(runs: RunsOption = Path("runs"), as_json: Json = False) -> None:
    """Lists runs, the newest last."""
    with reported(as_json=as_json):
        from agent_env.errors import ConfigurationError
        from agent_env.training.checkpoints import read_runs

        readable, damaged = read_runs(runs)
        found: list[dict[str, Any]] = []
        for run in readable:
            try:
                found.append(_summary(run))
            except ConfigurationError as error:
                damaged.append(error)
        if as_json:
            print_json(found)
        elif found:
            columns = ("run", "scenario", "state", "updates", "reward", "checkpoint", "began")
            print_table(columns, map(_row, found))
        elif not damaged:
            say(f"there are no runs in {runs}; `agent-env train` makes one")
        for problem in damaged:
            # What is damaged hides no other.
            errors.print(problem.message, markup=False, highlight=False, soft_wrap=True)
        if damaged:
            raise typer.Exit(BAD_INPUT)


@app.command()
def plot(
    name: Annotated[
        str | None, typer.Argument(metavar="[RUN]", help="Its name or folder; default: the newest.")
    ] = None,
    png: Annotated[Path | None, typer.Option(metavar="FILE", help="Draw a picture instead.", dir_okay=False)] = None,
    window: Annotated[int, typer.Option(min=1, help="The mean over so many updates.")] = 5,
    runs: RunsOption = Path("runs"),
    as_json: Json = False,
) -> None:
    """Draws the curve of a run: the mean reward of each seat over the updates."""
    with reported(as_json=as_json):
        from agent_env.cli.drawing import draw
        from agent_env.errors import InvalidArguments
        from agent_env.training.checkpoints import find_run
        from agent_env.training.plots import plot_curves, smoothed

        run = find_run(runs, name)
        curve = run.curve()
        seats = dict.fromkeys(seat for line in curve for seat in line["reward"])
        series = {
            seat: [(line["update"], line["reward"][seat]) for line in curve if seat in line["reward"]] for seat in seats
        }
        if as_json:
            print_json({**_summary(run), "curve": curve})
        elif not series:
            raise InvalidArguments(f"the run {run.id!r} has made no update with a reward yet{_arms(run)}")
        if png is not None and png.suffix.lower() != ".png":
            raise InvalidArguments(f"a picture is a PNG, so name a file such as curve.png, not {str(png)!r}")
        if png is not None and series:
            values = {seat: [[value for _, value in points]] for seat, points in series.items()}
            plot_curves(png, values, title=_title(run), window=window, y_range=None)
            if not as_json:
                say(f"the curve is in {png}")
        elif not as_json:
            lines = {
                seat: list(zip((at for at, _ in points), smoothed([value for _, value in points], window), strict=True))
                for seat, points in series.items()
            }
            over = "" if window == 1 else f" (over {window} updates)"
            console.print(f"{_title(run)}: mean reward{over}", style="bold", markup=False, highlight=False)
            coloured = console.color_system is not None and not console.no_color
            console.print(draw(lines, width=console.width, height=16, coloured=coloured))


def _title(run: Run) -> str:
    """What a picture is of: the scenario, where the run tells it, and the run."""
    scenario = _text(run.about.get("scenario"))
    return run.id if scenario is None else f"{scenario}, {run.id}"


def _arms(run: Run) -> str:
    """What to draw of a study, which makes no update itself."""
    from agent_env.training.checkpoints import read_runs

    arms, _ = read_runs(run.folder)
    if not arms:
        return ""
    names = ", ".join(arm.id for arm in arms)
    return f"; it is a study of the runs {names}; `agent-env runs plot {arms[0].folder}` draws one"


def _summary(run: Run) -> dict[str, Any]:
    curve = run.curve()
    checkpoint = run.latest()
    return {
        "run": run.id,
        "folder": str(run.folder),
        "scenario": _text(run.about.get("scenario")),
        "state": run.state,
        "updates": len(curve),
        "wanted": run.about.get("updates"),
        "reward": curve[-1]["reward"] if curve else {},
        "checkpoint": None if checkpoint is None else checkpoint.update,
        "created": run.about["created"],
    }


def _text(value: Any) -> str | None:
    return None if value is None else str(value)


def _row(run: dict[str, Any]) -> tuple[Any, ...]:
    wanted = "" if run["wanted"] is None else f"/{run['wanted']}"
    reward = "  ".join(f"{seat} {value:.3f}" for seat, value in run["reward"].items())
    return (
        run["run"],
        run["scenario"] or "",
        Text(run["state"], _STYLES[run["state"]]),
        f"{run['updates']}{wanted}",
        reward or "—",
        "—" if run["checkpoint"] is None else run["checkpoint"],
        time.strftime("%Y-%m-%d %H:%M", time.localtime(run["created"])),
    )
