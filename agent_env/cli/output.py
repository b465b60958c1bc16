"""What commands print: tables for people, JSON for scripts, errors with the remedy."""

from __future__ import annotations

import asyncio
import json
import sys
from collections.abc import Coroutine, Generator, Iterable, Sequence
from contextlib import contextmanager
from typing import Annotated, Any, TypeVar

import typer
from rich.console import Console
from rich.table import Table
from rich.text import Text

T = TypeVar("T")

console = Console()
errors = Console(stderr=True)

Json = Annotated[bool, typer.Option("--json", help="Print JSON, for scripts.")]
HubOption = Annotated[
    str | None, typer.Option("--hub", help="The hub: a path, a database URL, or the URL of a served hub.")
]
TokenOption = Annotated[str | None, typer.Option("--token", envvar="AGENT_ENV_TOKEN", help="A bearer token to send.")]


def print_json(value: Any) -> None:
    """Prints one JSON document on standard output, as it is."""
    sys.stdout.write(json.dumps(value, ensure_ascii=False, indent=2) + "\n")


def print_table(columns: Sequence[str], rows: Iterable[Sequence[Any]], *, title: str | None = None) -> None:
    """Prints a table; a cell is text as it is, or a `Text` with a style."""
    table = Table(title=title, title_justify="left", header_style="bold")
    for column in columns:
        table.add_column(column, overflow="fold")
    for row in rows:
        table.add_row(*(item if isinstance(item, Text) else Text(str(item)) for item in row))
    console.print(table)


def execute(work: Coroutine[Any, Any, T], *, as_json: bool = False) -> T:
    """Runs a command's coroutine; an error of ours is printed with what to do next, and ends with status 1."""
    with reported(as_json=as_json):
        return asyncio.run(work)


@contextmanager
def reported(*, as_json: bool = False) -> Generator[None]:
    """Prints errors as a command prints them, without a traceback."""
    from agent_env.errors import AgentEnvError
    from agent_env_cards import CardError

    try:
        yield
    except AgentEnvError as error:
        _print_error(error.to_wire(), as_json)
        raise typer.Exit(1) from error
    except CardError as error:
        problems = [
            {"pointer": problem.pointer, "message": problem.message, "clause": problem.clause}
            for problem in error.problems
        ]
        _print_error({"code": "invalid_card", "message": str(error), "data": {"problems": problems}}, as_json)
        raise typer.Exit(1) from error
    except KeyboardInterrupt:
        raise typer.Exit(130) from None


def _print_error(wire: dict[str, Any], as_json: bool) -> None:
    if as_json:
        print_json({"error": wire})
    else:
        line = Text.assemble((f"{wire['code']}: ", "bold red"), wire["message"])
        errors.print(line, soft_wrap=True, highlight=False)
