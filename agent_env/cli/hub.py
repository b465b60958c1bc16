"""`agent-env hub`: what exists, where it runs, and serving it to others."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.text import Text

from agent_env.cli.output import HubOption, Json, console, execute, print_json, print_table, reported

if TYPE_CHECKING:
    from agent_env.hub.local import LocalHub
    from agent_env.net import Tokens

app = typer.Typer(no_args_is_help=True, help="List, show, yank and serve what the hub knows.")


@app.command("serve")
def serve(
    host: Annotated[str, typer.Option(help="Where to listen.")] = "127.0.0.1",
    port: Annotated[int, typer.Option(help="The port.")] = 8790,
    tokens: Annotated[
        Path | None, typer.Option(help="A file of bearer tokens; needed beyond loopback.", exists=True, dir_okay=False)
    ] = None,
    insecure: Annotated[bool, typer.Option(help="Serve beyond loopback without tokens.")] = False,
    hub: HubOption = None,
) -> None:
    """Serves the hub to other machines; point them at it with AGENT_ENV_HUB=http://…"""
    with reported():
        from agent_env.errors import ConfigurationError
        from agent_env.hub import locate
        from agent_env.hub.local import LocalHub
        from agent_env.net import Tokens, check_binding
        from agent_env.net.serving import run_loop

        accepted = None if tokens is None else Tokens.from_file(tokens)
        check_binding(host, accepted, insecure=insecure)
        location = locate(hub)
        if location.remote:
            raise ConfigurationError(f"{location} is a hub that is served already; give a path or a database")
        run_loop(_serve(LocalHub(location, steady=True), accepted, host, port))


async def _serve(store: LocalHub, tokens: Tokens | None, host: str, port: int) -> None:
    from agent_env.hub.app import hub_app
    from agent_env.net import bound_url, listen
    from agent_env.net.serving import served, stop_signals

    listener = listen(host, port)
    with stop_signals() as stop:
        async with served(hub_app(store, tokens), listener):
            console.print(f"the hub {store.location} is served at {bound_url(listener)}")
            await stop.wait()


@app.command("list")
def list_(name: Annotated[str | None, typer.Argument()] = None, hub: HubOption = None, as_json: Json = False) -> None:
    """Lists every release, whether it runs, and where."""
    with reported(as_json=as_json):
        entries = execute(_list(name, hub), as_json=as_json)
        if as_json:
            print_json([entry.to_json() for entry in entries])
            return
        colours = {"up": "green", "suspect": "yellow", "launchable": "cyan", "unreachable": "red"}
        rows: list[tuple[str | Text, ...]] = []
        for entry in entries:
            colour = colours[entry.liveness]
            notes = [f"yanked: {entry.release.yanked}"] if entry.release.yanked else []
            notes += [f"deprecated: {entry.release.deprecated}"] if entry.release.deprecated else []
            skills = ", ".join(skill.id for skill in entry.card.offers.skills)
            where = "\n".join(instance.url for instance in entry.instances)
            rows.append(
                (
                    f"{entry.release.name}@{entry.release.version}",
                    Text(entry.liveness, colour),
                    where,
                    skills,
                    "; ".join(notes),
                )
            )
        print_table(("release", "state", "where", "skills", "notes"), rows)


@app.command()
def show(ref: Annotated[str, typer.Argument()], hub: HubOption = None, as_json: Json = False) -> None:
    """Shows what a reference resolves to."""
    with reported(as_json=as_json):
        resolution = execute(_resolve(ref, hub), as_json=as_json)
        if as_json:
            print_json(resolution.to_json())
            return
        from agent_env.cli.cards import drawn

        console.print(drawn(resolution.card))
        print_table(
            ("instance", "state", "sessions"),
            [
                (i.url, i.state, f"{i.load} of {i.capacity if i.capacity is not None else 'any number'}")
                for i in resolution.instances
            ],
        )


@app.command()
def yank(
    release: Annotated[str, typer.Argument(help="name@version")],
    reason: Annotated[str, typer.Option(help="Why; everybody who pins the version sees it.")],
    hub: HubOption = None,
    as_json: Json = False,
) -> None:
    """Takes a release out of every range; exact references still find it."""
    with reported(as_json=as_json):
        from agent_env.errors import InvalidArguments
        from agent_env_cards import parse_ref

        reference = parse_ref(release)
        version = reference.version
        if version is None:
            raise InvalidArguments(f"{release!r} must be one release, such as {reference.name}@1.0.0")
        yanked = execute(_yank(reference.name, version, reason, hub), as_json=as_json)
        if as_json:
            print_json(yanked.to_json())
        else:
            console.print(f"yanked [bold]{yanked.name}@{yanked.version}[/bold]: {reason}")


async def _list(name: str | None, hub: str | None) -> Any:
    from agent_env.hub import shared_hub

    return await shared_hub(hub).list(name)


async def _resolve(ref: str, hub: str | None) -> Any:
    from agent_env.hub import shared_hub

    return await shared_hub(hub).resolve(ref)


async def _yank(name: str, version: str, reason: str, hub: str | None) -> Any:
    from agent_env.hub import shared_hub

    return await shared_hub(hub).yank(name, version, reason)
