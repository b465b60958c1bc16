"""`agent-env card`: show, validate, sign and verify Environment Cards."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.tree import Tree

from agent_env.cli.help import Application
from agent_env.cli.output import Json, TokenOption, console, execute, print_json, print_table, reported

if TYPE_CHECKING:
    from agent_env_cards import EnvironmentCard

app = Application(help="Show, validate, sign and verify cards.")

Where = Annotated[str, typer.Argument(help="A file, a URL, or a reference to the hub.")]


@app.command()
def show(where: Where, token: TokenOption = None, as_json: Json = False) -> None:
    """Shows a card."""
    with reported(as_json=as_json):
        from agent_env_cards import EnvironmentCard

        raw = _raw(where, token)
        card = EnvironmentCard.parse(raw)
        if as_json:
            print_json(json.loads(raw) if isinstance(raw, str) else raw)
        else:
            console.print(drawn(card))


@app.command()
def validate(where: Where, token: TokenOption = None, as_json: Json = False) -> None:
    """Lists every clause of the Environment Card protocol that a card breaks; ends with status 1 if there is one."""
    with reported(as_json=as_json):
        from agent_env_cards import validate_card

        problems = validate_card(_raw(where, token))
        if as_json:
            print_json([{"pointer": p.pointer, "message": p.message, "clause": p.clause} for p in problems])
        elif problems:
            print_table(("clause", "at", "problem"), [(p.clause, p.pointer or "/", p.message) for p in problems])
        else:
            console.print("[green]valid[/green]: the card keeps every clause")
        if problems:
            raise typer.Exit(1)


@app.command()
def sign(
    where: Where,
    key: Annotated[Path, typer.Option(help="The private key, a PEM file.", exists=True, dir_okay=False)],
    kid: Annotated[str, typer.Option(help="What names the key to those who verify.")],
    algorithm: Annotated[str | None, typer.Option(help="ES256 or EdDSA; default: what fits the key.")] = None,
    output: Annotated[Path | None, typer.Option("--output", "-o", help="Write here instead of printing.")] = None,
    token: TokenOption = None,
) -> None:
    """Signs a card's digest and writes the card with the signature."""
    with reported():
        signed = _signed(read(where, token), key, kid, algorithm)
        text = signed.to_json(indent=2) + "\n"
        if output is None:
            typer.echo(text, nl=False)
        else:
            output.write_text(text, encoding="utf-8")
            console.print(f"signed {signed.digest()} with [bold]{kid}[/bold] in {output}")


@app.command()
def verify(
    where: Where,
    key: Annotated[Path, typer.Option(help="The public key, a PEM file.", exists=True, dir_okay=False)],
    kid: Annotated[str, typer.Option(help="The id that the key goes by.")],
    token: TokenOption = None,
    as_json: Json = False,
) -> None:
    """Verifies that a trusted key signed what the card says."""
    with reported(as_json=as_json):
        from agent_env_cards.signing import verify_card

        card = read(where, token)
        held = verify_card(card, {kid: key.read_bytes()}.get)
        if as_json:
            print_json({"digest": card.digest(), "verified": held})
        else:
            console.print(f"[green]verified[/green]: {', '.join(held)} signed {card.digest()}")


def _signed(card: EnvironmentCard, key: Path, kid: str, algorithm: str | None) -> EnvironmentCard:
    from cryptography.hazmat.primitives.asymmetric.ec import EllipticCurvePrivateKey
    from cryptography.hazmat.primitives.serialization import load_pem_private_key

    from agent_env.errors import ConfigurationError
    from agent_env_cards.signing import sign_card

    try:
        private = load_pem_private_key(key.read_bytes(), password=None)
    except (ValueError, TypeError) as error:
        raise ConfigurationError(f"{key} is no private key in PEM form without a password: {error}") from None
    fitting = "ES256" if isinstance(private, EllipticCurvePrivateKey) else "EdDSA"
    return sign_card(card, private, kid=kid, algorithm=algorithm or fitting)


def _raw(where: str, token: str | None) -> Any:
    from agent_env.errors import ConfigurationError

    path = Path(where)
    if path.is_file():
        try:
            return path.read_text(encoding="utf-8")
        except UnicodeDecodeError:
            raise ConfigurationError(f"{where} is no UTF-8 text, as a card must be") from None
    if where.startswith(("http://", "https://")):
        return execute(_fetch(where, token))
    if path.suffix == ".json":
        raise ConfigurationError(f"there is no file {where!r}")
    return execute(_resolve(where))


def read(where: str, token: str | None) -> EnvironmentCard:
    """Reads a card from a file, a URL or the hub."""
    from agent_env_cards import EnvironmentCard

    return EnvironmentCard.parse(_raw(where, token))


async def _fetch(url: str, token: str | None) -> Any:
    from agent_env.net import bearer_headers, get_json
    from agent_env_cards import CARD_PATH

    address = url if url.endswith(".json") else url.rstrip("/") + CARD_PATH
    return await get_json(address, headers=bearer_headers(token), timeout=30)


async def _resolve(ref: str) -> Any:
    from agent_env.hub import shared_hub

    return dict((await shared_hub().resolve(ref)).release.card_json)


def drawn(card: EnvironmentCard) -> Tree:
    """Draws a card as a tree."""
    from rich.markup import escape

    tree = Tree(f"[bold]{escape(card.ref)}[/bold] {escape(card.description)}")
    tree.add(f"digest {card.digest()}")
    tools = tree.add("tools")
    for tool in card.capabilities.tools:
        names = ", ".join(tool.input_schema.get("properties", {}))
        tools.add(f"[cyan]{escape(tool.name)}[/cyan]({escape(names)})  {escape(tool.description)}")
    if card.offers.skills or card.offers.tags:
        offers = tree.add("offers")
        for skill in card.offers.skills:
            offers.add(f"[green]{escape(skill.id)}[/green] {escape(skill.description)}")
        if card.offers.tags:
            offers.add(f"tags {escape(', '.join(card.offers.tags))}")
    if card.needs:
        needs = tree.add("needs")
        for need in card.needs:
            asked = ", ".join([*need.requires.skills, *need.requires.tags]) or "anybody"
            needs.add(f"[yellow]{escape(need.seat)}[/yellow]: {escape(asked)}")
    if card.rewards:
        rewards = tree.add("rewards")
        for reward in card.rewards:
            rewards.add(f"{escape(reward.name)}  {escape(reward.description)}")
    ways = tree.add("interfaces")
    for interface in card.interfaces:
        ways.add(f"{interface.transport} at {escape(interface.url)} {', '.join(interface.protocol_versions)}")
    return tree
