"""`agent-env hub`: what exists, where it runs, and serving it to others."""

from __future__ import annotations

import re
import time
from collections import Counter
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, TypeVar

import typer
from rich.text import Text

from agent_env.cli.help import Application
from agent_env.cli.output import HubOption, Json, console, execute, nothing_in, print_json, print_table, reported, say

if TYPE_CHECKING:
    from agent_env.hub import Hub
    from agent_env.hub.local import LocalHub
    from agent_env.net import Tokens

T = TypeVar("T")

_UNITS = {"s": 1, "m": 60, "h": 3600, "d": 86400}
"""The units of a length of time, in seconds."""

app = Application(help="List, show, yank, prune and serve what the hub knows.")


@app.command("serve")
def serve(
    host: Annotated[str, typer.Option(help="Where to listen.")] = "127.0.0.1",
    port: Annotated[int, typer.Option(help="The port.")] = 8790,
    tokens: Annotated[
        Path | None,
        typer.Option(
            help="A file of bearer tokens, needed beyond loopback; a line of it is a token, its scopes with commas "
            "between them, and an id: s3cret publish ann.",
            exists=True,
            dir_okay=False,
        ),
    ] = None,
    insecure: Annotated[bool, typer.Option("--insecure", help="Serve beyond loopback without tokens.")] = False,
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
def list_(
    name: Annotated[str | None, typer.Argument(help="Only this name.")] = None,
    hub: HubOption = None,
    as_json: Json = False,
) -> None:
    """Lists every release, whether it runs, and where."""
    with reported(as_json=as_json):
        entries = execute(_ask(hub, lambda hub: hub.list(name)), as_json=as_json)
        if as_json:
            print_json([entry.to_json() for entry in entries])
            return
        if not entries:
            say(nothing_in(hub, name))
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
def show(
    ref: Annotated[str, typer.Argument(help="A reference, such as name@^1.")],
    hub: HubOption = None,
    as_json: Json = False,
) -> None:
    """Shows what a reference resolves to."""
    with reported(as_json=as_json):
        resolution = execute(_ask(hub, lambda hub: hub.resolve(ref)), as_json=as_json)
        if as_json:
            print_json(resolution.to_json())
            return
        from agent_env.cli.cards import drawn

        console.print(drawn(resolution.card))
        rows = [
            (i.url, i.state, f"{i.load} of {i.capacity if i.capacity is not None else 'any number'}")
            for i in resolution.instances
        ]
        if rows:
            print_table(("instance", "state", "sessions"), rows)
        elif resolution.release.launch is not None:
            say("no instance of it runs; its first caller launches one")
        else:
            say("no instance of it runs, and the hub cannot launch one; serve it with `agent-env serve`")


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
        yanked = execute(_ask(hub, lambda hub: hub.yank(reference.name, version, reason)), as_json=as_json)
        if as_json:
            print_json(yanked.to_json())
        else:
            console.print(f"yanked [bold]{yanked.name}@{yanked.version}[/bold]: {reason}")


@app.command()
def prune(
    drafts: Annotated[bool, typer.Option("--drafts", help="Also remove the drafts that nobody serves.")] = False,
    older_than: Annotated[
        str | None,
        typer.Option(help="With --drafts: only those that were not served for so long: 90s, 30m, 12h or 7d."),
    ] = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Only tell what would be removed.")] = False,
    hub: HubOption = None,
    as_json: Json = False,
) -> None:
    """Removes what is left of instances that are gone, and drafts that nobody serves. Releases stay for ever."""
    with reported(as_json=as_json):
        from agent_env.errors import InvalidArguments

        if older_than is not None and not drafts:
            raise InvalidArguments("--older-than narrows what --drafts removes; give --drafts too, or leave it out")
        age = _seconds(older_than) if older_than is not None else 0.0 if drafts else None
        pruned = execute(_ask(hub, lambda hub: hub.prune(drafts_older_than=age, dry_run=dry_run)), as_json=as_json)
        if as_json:
            print_json(pruned.to_json())
            return
        for draft in pruned.drafts:
            console.print(f"the draft {draft.name}, last heard of {_since(draft.seen)} ago", highlight=False)
        instances = Counter(f"{instance.name}@{instance.version}" for instance in pruned.instances)
        for ref, count in sorted(instances.items()):
            console.print(f"{_counted(count, 'ended instance')} of {ref}", highlight=False)
        if pruned.drafts or instances:
            told = f"{_counted(len(pruned.drafts), 'draft')} and {_counted(len(pruned.instances), 'ended instance')}"
            say(f"would remove {told}" if dry_run else f"removed {told}")
        else:
            say("there is nothing to remove")
        if age is None:
            say("drafts are kept; --drafts removes those that nobody serves")


def _seconds(text: str) -> float:
    from agent_env.errors import InvalidArguments

    found = re.fullmatch(r"(\d{1,6})([smhd])", text)
    if found is None:
        raise InvalidArguments(f"--older-than must be a number and s, m, h or d, such as 7d, not {text!r}")
    return int(found[1]) * _UNITS[found[2]]


def _since(moment: float) -> str:
    """How long ago something was, in the largest unit that it fills."""
    passed = max(0.0, time.time() - moment)
    unit = next((unit for unit, seconds in reversed(_UNITS.items()) if passed >= seconds), "s")
    return f"{passed // _UNITS[unit]:.0f}{unit}"


def _counted(number: int, what: str) -> str:
    return f"{number} {what}" if number == 1 else f"{number} {what}s"


async def _ask(hub: str | None, question: Callable[[Hub], Awaitable[T]]) -> T:
    """Asks the hub; it belongs to the event loop, so it is opened in it."""
    from agent_env.hub import shared_hub

    return await question(shared_hub(hub))
