"""`agent-env check`: the contract, run against any environment."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.text import Text

from agent_env.cli.output import Json, TokenOption, console, execute, print_json, print_table, reported

if TYPE_CHECKING:
    from agent_env.testing import Check


def check(
    url: Annotated[str, typer.Argument(help="The URL, or a reference to the hub.")],
    token: TokenOption = None,
    as_json: Json = False,
) -> None:
    """Checks that an environment keeps the Environment Card protocol; names each clause that fails."""
    with reported(as_json=as_json):
        report = execute(_check(url, token), as_json=as_json)
        if as_json:
            print_json(report.to_json())
        else:
            _print(report.checks)
            console.print(report.summary())
        if not report.ok:
            raise typer.Exit(1)


def _print(checks: Sequence[Check]) -> None:
    """Prints a row a clause and a column a lane; what was checked once stands in the first."""
    marks = {"ok": Text("ok", "green"), "failed": Text("failed", "red"), "skipped": Text("-", "yellow")}
    lanes = list(dict.fromkeys(check.lane for check in checks if check.lane)) or ["outcome"]
    clauses: dict[tuple[str, str], dict[str, Check]] = {}
    for check in checks:
        clauses.setdefault((check.clause, check.name), {})[check.lane or lanes[0]] = check
    rows = [
        (
            clause,
            name,
            *(marks[by_lane[lane].outcome] if lane in by_lane else Text() for lane in lanes),
            "; ".join(dict.fromkeys(check.why for check in by_lane.values() if check.why)),
        )
        for (clause, name), by_lane in clauses.items()
    ]
    print_table(("clause", "check", *lanes, "why"), rows)


async def _check(url: str, token: str | None) -> Any:
    from agent_env.testing import check_environment

    return await check_environment(url, auth=token)
