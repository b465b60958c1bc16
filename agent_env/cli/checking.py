"""`agent-env check`: the contract, run against any environment."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from agent_env.cli.output import Json, TokenOption, console, execute, print_json, print_table, reported


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
            marks = {"ok": "[green]ok[/green]", "failed": "[red]failed[/red]", "skipped": "[yellow]skipped[/yellow]"}
            rows = [(c.clause, c.name, c.lane or "", marks[c.outcome], c.why or "") for c in report.checks]
            print_table(("clause", "check", "lane", "outcome", "why"), rows)
            console.print(report.summary())
        if not report.ok:
            raise typer.Exit(1)


async def _check(url: str, token: str | None) -> Any:
    from agent_env.testing import check_environment

    return await check_environment(url, auth=token)
