"""Where an A2A agent's card is, and which of the endpoints on it are called."""

from __future__ import annotations

from typing import Final
from urllib.parse import SplitResult, urlsplit, urlunsplit

from a2a.client.card_resolver import parse_agent_card
from a2a.types import AgentCard, AgentInterface

from agent_env.errors import Forbidden, InvalidCard, ProtocolError, UnknownTool
from agent_env.net import bearer_headers, get_json, shown
from agent_env.net.a2a_wire import ParseError
from agent_env.net.origins import same_origin
from agent_env_cards import AGENT_CARD_PATH, AGENT_CARD_PATH_V03

MAX_PARENTS: Final = 3
"""How many folders above an endpoint its card is looked for."""


async def find_card(url: str, token: str | None) -> AgentCard:
    """Reads the Agent Card of the agent at a URL: of a card, of the folder that has one, or of an endpoint on it.

    Raises `ProtocolError` where there is none, `InvalidCard` for one that cannot be read, and `Forbidden` where the
    card would have the token sent to another origin.
    """
    given = urlsplit(url)
    folder = given.path.rstrip("/")
    if folder.endswith(".json"):
        return _near(await _read_card(url, token), given, token)
    folders = [folder]
    while folders[-1] and len(folders) <= MAX_PARENTS:
        folders.append(folders[-1].rpartition("/")[0])
    if folder.endswith("/a2a"):
        folders[:2] = [folders[1], folders[0]]
    missing: Exception | None = None
    for place in folders:
        for path in (AGENT_CARD_PATH, AGENT_CARD_PATH_V03):
            address = urlunsplit((given.scheme, given.netloc, place + path, "", ""))
            try:
                card = await _read_card(address, token)
            except (ProtocolError, UnknownTool) as error:
                missing = missing or error
                continue
            if place == folder:
                return _near(card, given, token)
            # A card further up is this agent's only if the URL is one of its endpoints.
            if _endpoint(card, given):
                return card
    raise ProtocolError(
        f"there is no A2A Agent Card for {shown(url)}; give the address where it is served"
    ) from missing


async def _read_card(address: str, token: str | None) -> AgentCard:
    wire = await get_json(address, headers=bearer_headers(token))
    try:
        return parse_agent_card(wire)
    except (ParseError, TypeError, ValueError, AttributeError) as error:
        raise InvalidCard(f"the Agent Card at {shown(address)} cannot be read: {error}") from error


def _endpoint(card: AgentCard, given: SplitResult) -> bool:
    """Leaves the interfaces at the given address on the card, and tells whether there is one."""
    path = given.path.rstrip("/")
    mine = [entry for entry in card.supported_interfaces if urlsplit(entry.url).path.rstrip("/") == path]
    for interface in mine:
        interface.url = urlunsplit((given.scheme, given.netloc, urlsplit(interface.url).path, "", ""))
    _keep(card, mine)
    return bool(mine)


def _near(card: AgentCard, given: SplitResult, token: str | None) -> AgentCard:
    """Leaves the interfaces at the origin where the card was read; without a token, others do as well."""
    mine = [entry for entry in card.supported_interfaces if same_origin(entry.url, given.geturl())]
    for interface in mine:
        interface.url = urlunsplit((given.scheme, given.netloc, urlsplit(interface.url).path, "", ""))
    if mine:
        _keep(card, mine)
    elif token is not None and card.supported_interfaces:
        elsewhere = ", ".join(sorted({shown(entry.url) for entry in card.supported_interfaces}))
        raise Forbidden(
            f"the card at {shown(given.geturl())} names endpoints at another origin ({elsewhere}); your token is not "
            "sent there. If that is where it belongs, give that URL"
        )
    return card


def _keep(card: AgentCard, interfaces: list[AgentInterface]) -> None:
    kept = [AgentInterface.FromString(entry.SerializeToString()) for entry in interfaces]
    del card.supported_interfaces[:]
    card.supported_interfaces.extend(kept)
