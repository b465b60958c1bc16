"""Where an environment is reached: interfaces, and how a path on a card becomes an address."""

from __future__ import annotations

from pydantic import Field

from agent_env_cards.fact import Fact

CARD_PATH = "/.well-known/agent-env.json"
AGENT_CARD_PATH = "/.well-known/agent-card.json"
AGENT_CARD_PATH_V03 = "/.well-known/agent.json"

TRANSPORTS = ("websocket", "mcp", "a2a", "http", "openenv")


class Interface(Fact):
    """One way in: a transport, a path relative to the card's address, and the versions of the protocol spoken there.

    `transport` is one of `TRANSPORTS`; a reader keeps others and does not use them.
    """

    transport: str
    url: str
    protocol_versions: list[str] = Field(default=[])


class Provider(Fact):
    """Who runs the environment."""

    organization: str
    url: str = ""


def base_url(card_address: str) -> str:
    """The address that the paths on a card are relative to, from the one where the card was fetched.

    Example:
        >>> base_url("https://host/sandbox/7/.well-known/agent-env.json")
        'https://host/sandbox/7'
    """
    address = card_address.partition("?")[0].partition("#")[0]
    return address.removesuffix(CARD_PATH).rstrip("/")


def resolve_url(card_address: str, url: str, *, transport: str = "http") -> str:
    """The address of a URL on the card that was fetched from `card_address`.

    A path is joined to the base as it is (not as in RFC 3986 §5), so that a prefix survives; an absolute URL stays.
    For the transport "websocket" the scheme becomes ws or wss.

    Example:
        >>> resolve_url("https://host/sandbox/7/.well-known/agent-env.json", "/v1/ws", transport="websocket")
        'wss://host/sandbox/7/v1/ws'
    """
    address = url if "://" in url else f"{base_url(card_address)}/{url.lstrip('/')}"
    scheme, separator, rest = address.partition("://")
    if transport == "websocket":
        scheme = {"http": "ws", "https": "wss"}.get(scheme, scheme)
    return f"{scheme}{separator}{rest}"
