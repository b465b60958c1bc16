"""Rules about the URLs on a card."""

from __future__ import annotations

import ipaddress
from collections.abc import Iterator, Mapping
from typing import Any
from urllib.parse import SplitResult, urlsplit

from agent_env_cards.pointers import strings

Found = Iterator[tuple[str, str]]

_PLACES = (("url",), ("agentCard",), ("interfaces", "*", "url"), ("additionalInterfaces", "*", "url"))
_SCHEMES = frozenset({"http", "https", "ws", "wss"})


def urls_are_paths_or_absolute(card: Mapping[str, Any]) -> Found:
    """EC-20: a URL is a path from "/", relative to where the card was fetched, or an absolute http or WebSocket URL."""
    for path in _PLACES:
        for at, url in strings(card, *path):
            if not (_is_path(url) or _is_absolute(url)):
                yield at, f"{url!r} is neither a path that starts with one / nor an http, https, ws or wss URL"


def hosts_can_be_reached(card: Mapping[str, Any]) -> Found:
    """EC-22: a URL names no unspecified address, which is where a server listens and not where it is reached."""
    for path in _PLACES:
        for at, url in strings(card, *path):
            parts = _split(url)
            if parts is not None and _is_unspecified(parts.hostname or ""):
                yield at, f"{url!r} names the unspecified address, which no caller can reach; write a path"


def _split(url: str) -> SplitResult | None:
    try:
        return urlsplit(url)
    except ValueError:
        return None


def _is_path(url: str) -> bool:
    segments = url.split("/")
    return url.startswith("/") and not url.startswith("//") and ".." not in segments and _is_clean(url)


def _is_absolute(url: str) -> bool:
    parts = _split(url)
    return parts is not None and parts.scheme in _SCHEMES and bool(parts.hostname) and _is_clean(url)


def _is_clean(url: str) -> bool:
    return url.isprintable() and not any(character.isspace() or character == "\\" for character in url)


def _is_unspecified(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_unspecified
    except ValueError:
        return False
