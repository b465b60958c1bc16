"""`agent-env match`: who meets a need, and why the others do not."""

from __future__ import annotations

from typing import Annotated, Any

import typer
from rich.text import Text

from agent_env.cli.output import HubOption, Json, execute, nothing_in, print_json, print_table, reported, say


def match(
    subject: Annotated[
        str | None,
        typer.Argument(help="Whose needs: a card file, a URL or a reference; or use --skill, --tag, --name."),
    ] = None,
    seat: Annotated[str | None, typer.Option(help="Which of its needs; default: all, as a team.")] = None,
    skill: Annotated[
        list[str] | None, typer.Option("--skill", help="A skill that is needed; may be given again.")
    ] = None,
    tag: Annotated[list[str] | None, typer.Option("--tag", help="A tag that is needed; may be given again.")] = None,
    name: Annotated[str | None, typer.Option(help="The name that is needed.")] = None,
    version: Annotated[str | None, typer.Option(help="The range of versions that is needed.")] = None,
    example: Annotated[
        list[str] | None, typer.Option("--example", help="A request like those to come; may be given again.")
    ] = None,
    explain: Annotated[str | None, typer.Option("--explain", help="Explain this candidate, rule by rule.")] = None,
    limit: Annotated[int, typer.Option(help="How many candidates to explain.")] = 10,
    hub: HubOption = None,
    as_json: Json = False,
) -> None:
    """Ranks who in the hub meets a need, and says of everybody why or why not; status 1 when nobody does."""
    with reported(as_json=as_json):
        from agent_env.errors import InvalidArguments
        from agent_env_cards import Need

        asked: Any
        if subject is not None:
            from agent_env.cli.cards import read

            asked = read(subject, None)
        elif skill or tag or name or version or example:
            asked = Need(seat or "peer", skills=skill, tags=tag, name=name, version=version, examples=example)
        else:
            raise InvalidArguments(
                "say whose needs (a card or a reference), or what is needed (--skill, --tag, --name)"
            )
        if explain is not None:
            _explain(asked, explain, hub, as_json)
        elif isinstance(asked, Need) or seat is not None:
            _pair(asked, seat, limit, hub, as_json)
        else:
            _team(asked, limit, hub, as_json)


def _pair(asked: Any, seat: str | None, limit: int, hub: str | None, as_json: bool) -> None:
    from agent_env.matchmaking import HEADER
    from agent_env_cards import Need

    matchmaker = execute(_matchmaker(hub), as_json=as_json)
    report = matchmaker.pair(asked, seat=None if isinstance(asked, Need) else seat, limit=limit)
    if as_json:
        print_json(report.to_json())
    else:
        if report.rows():
            print_table(HEADER, report.rows())
        say(report.summary)
        if not report.considered:
            say(nothing_in(hub))
    if report.best is None:
        raise typer.Exit(1)


def _team(card: Any, limit: int, hub: str | None, as_json: bool) -> None:
    from agent_env.matchmaking import HEADER

    matchmaker = execute(_matchmaker(hub), as_json=as_json)
    team = matchmaker.team(card, limit=limit)
    if as_json:
        print_json(team.to_json())
    else:
        if not team.seats:
            say(f"{card.ref} needs nobody; ask with --skill, --tag or --name instead")
            return
        print_table(("seat", *HEADER), team.rows())
        say(team.summary)


def _explain(asked: Any, candidate: str, hub: str | None, as_json: bool) -> None:
    matchmaker = execute(_matchmaker(hub), as_json=as_json)
    explanations = matchmaker.explain(asked, candidate)
    if as_json:
        print_json([explanation.to_json() for explanation in explanations])
        return
    colours = {"yes": "green", "no": "red", "unknown": "yellow", "partial": "yellow"}
    for explanation in explanations:
        rows = [
            (found.rule, Text(found.result, colours[found.result]), found.why, found.change or "")
            for found in explanation.findings
        ]
        print_table(("rule", "result", "why", "what would change it"), rows, title=explanation.summary)


async def _matchmaker(hub: str | None) -> Any:
    from agent_env.hub import shared_hub
    from agent_env.matchmaking import Matchmaker

    return await Matchmaker.of(shared_hub(hub))
