"""What commands print: tables for people, JSON for scripts, errors with the remedy."""

from __future__ import annotations

import asyncio
import json
import os
import sys
from collections.abc import Coroutine, Generator, Iterable, Sequence
from contextlib import contextmanager
from typing import Annotated, Any, TypeVar

import typer
from rich.console import Console
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

T = TypeVar("T")

_FOLDED_WIDTH = 24
"""How narrow a column of a table may become: text that is folded more than that is not read."""

BAD_INPUT = 2
"""The status for what is to be asked otherwise, as for an option that there is not; 1 is for what went wrong."""


class _Errors(Console):
    """Standard error; where nobody reads it any more, a command goes on without it."""

    def on_broken_pipe(self) -> None:
        """Writes nothing from now on, nor does Python what is left when the program ends."""
        self.quiet = True
        nowhere = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nowhere, sys.stderr.fileno())
        os.close(nowhere)


console = Console()
errors = _Errors(stderr=True)

Json = Annotated[bool, typer.Option("--json", help="Print JSON, for scripts.")]
HubOption = Annotated[
    str | None, typer.Option("--hub", help="The hub: a path, a database URL, or the URL of a served hub.")
]
TokenOption = Annotated[str | None, typer.Option("--token", envvar="AGENT_ENV_TOKEN", help="A bearer token to send.")]


def print_json(value: Any) -> None:
    """Prints one JSON document on standard output, as it is."""
    sys.stdout.write(json.dumps(value, ensure_ascii=False, indent=2) + "\n")


def say(sentence: str) -> None:
    """Prints a sentence as it is, in one line, so that a command or a path in it can be copied."""
    console.print(sentence, markup=False, highlight=False, soft_wrap=True)


def nothing_in(hub: str | None, name: str | None = None) -> str:
    """What to do next with a hub that has nothing, or nothing of a name."""
    from agent_env.hub import locate

    if name is not None:
        return f"the hub {locate(hub)} has no {name!r}; `agent-env hub list` shows what it has"
    return f"the hub {locate(hub)} is empty; publish an agent with `agent-env push module:agent`, or serve one"


def print_table(columns: Sequence[str], rows: Iterable[Sequence[Any]], *, title: str | None = None) -> None:
    """Prints a table; a cell is text as it is, or a `Text` with a style.

    Where the terminal is too narrow for its columns, each row becomes a few lines under its first cell instead.
    """
    cells = [[item if isinstance(item, Text) else Text(str(item)) for item in row] for row in rows]
    widths = [max(map(_width, column)) for column in zip(map(Text, columns), *cells, strict=True)]
    least = [min(width, _FOLDED_WIDTH) for width in widths]
    if sum(least) + 3 * len(least) + 1 > console.width:
        _print_rows(columns, cells, title)
        return
    table = Table(title=title, title_justify="left", header_style="bold")
    for column, width in zip(columns, least, strict=True):
        table.add_column(column, overflow="fold", min_width=width)
    for row in cells:
        table.add_row(*row)
    console.print(table)


def _print_rows(columns: Sequence[str], cells: Sequence[Sequence[Text]], title: str | None) -> None:
    """Prints each row as its first cell, and the others with their names in as few lines as they fill."""
    if title is not None:
        console.print(Text(title, "italic"))
    for first, *rest in cells:
        first.stylize("bold")
        console.print(first)
        lines: list[Text] = []
        for column, cell in zip(columns[1:], rest, strict=True):
            if cell.plain:
                named = Text.assemble((f"{column} ", "dim"), Text(", ").join(cell.split()))
                if lines and lines[-1].cell_len + named.cell_len + 5 <= console.width:
                    lines[-1] = Text(" · ").join((lines[-1], named))
                else:
                    lines.append(named)
        for line in lines:
            console.print(Padding(line, (0, 0, 0, 2), expand=False))


def _width(cell: Text) -> int:
    return max((line.cell_len for line in cell.split()), default=0)


def execute(work: Coroutine[Any, Any, T], *, as_json: bool = False) -> T:
    """Runs a command's coroutine; an error of ours is printed with what to do next, and ends as `reported` says."""
    with reported(as_json=as_json):
        return asyncio.run(work)


@contextmanager
def reported(*, as_json: bool = False) -> Generator[None]:
    """Prints errors as a command prints them, without a traceback.

    The status is 2 for bad input, a file that cannot be used included, and 1 for what went wrong with good one.
    """
    from agent_env.errors import AgentEnvError, ConfigurationError, RequestError
    from agent_env_cards import CardError

    try:
        yield
    except AgentEnvError as error:
        _print_error(error.to_wire(), as_json)
        raise typer.Exit(BAD_INPUT if isinstance(error, ConfigurationError | RequestError) else 1) from error
    except CardError as error:
        problems = [
            {"pointer": problem.pointer, "message": problem.message, "clause": problem.clause}
            for problem in error.problems
        ]
        _print_error({"code": "invalid_card", "message": str(error), "data": {"problems": problems}}, as_json)
        raise typer.Exit(BAD_INPUT) from error
    except OSError as error:
        if error.filename is None:
            raise
        refused = ConfigurationError(f"{str(error.filename)!r} cannot be used: {error.strerror}; name another")
        _print_error(refused.to_wire(), as_json)
        raise typer.Exit(BAD_INPUT) from error
    except KeyboardInterrupt:
        raise typer.Exit(130) from None


def _print_error(wire: dict[str, Any], as_json: bool) -> None:
    if as_json:
        print_json({"error": wire})
    else:
        line = Text.assemble((f"{wire['code']}: ", "bold red"), wire["message"])
        errors.print(line, soft_wrap=True, highlight=False)
