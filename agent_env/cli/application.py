"""The commands of `agent-env`, put together."""

from __future__ import annotations

from typing import Annotated

import typer

from agent_env.cli import calling, cards, checking, diagnosis, episodes, gateway, hub, matching, runs, serving, training
from agent_env.cli.help import Application

app = Application(
    name="agent-env",
    help="Any agent is an environment: wrap it, serve it, find it, pair it, train it.",
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)


def _print_version(asked: bool) -> None:
    if asked:
        from agent_env import __version__

        typer.echo(f"agent-env {__version__}")
        raise typer.Exit


@app.callback()
def options(
    version: Annotated[
        bool, typer.Option("--version", callback=_print_version, is_eager=True, help="Print the version.")
    ] = False,
) -> None:
    """Any agent is an environment: wrap it, serve it, find it, pair it, train it."""


app.command("serve")(serving.serve)
app.command("push")(serving.push)
app.add_typer(cards.app, name="card")
app.command("check")(checking.check)
app.command("call")(calling.call)
app.command("chat")(calling.chat)
app.command("match")(matching.match)
app.add_typer(hub.app, name="hub")
app.command("gateway")(gateway.gateway)
app.add_typer(episodes.app, name="episodes")
app.command("train")(training.train)
app.add_typer(runs.app, name="runs")
app.command("doctor")(diagnosis.doctor)


def run() -> None:
    """Runs the command line."""
    app()
