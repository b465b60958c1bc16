"""Origins of URLs: what a credential is bound to (RFC 6454 §4)."""

from __future__ import annotations

from urllib.parse import SplitResult, urlsplit

from agent_env.net.guard import is_loopback

_PORTS = {"http": 80, "https": 443}
_SCHEMES = {"ws": "http", "wss": "https"}


def origin_of(url: str) -> str:
    """The origin of a URL, with its port; a WebSocket is of the origin of the server that it is opened at.

    Raises `ValueError` for what is no URL with a host.

    Example:
        >>> origin_of("wss://Agents.example/v1/ws")
        'https://agents.example:443'
    """
    parts = urlsplit(url)
    scheme = _scheme(parts)
    if scheme not in _PORTS or not parts.hostname:
        raise ValueError(f"{url!r} is no http(s) URL with a host")
    host = f"[{parts.hostname}]" if ":" in parts.hostname else parts.hostname
    return f"{scheme}://{host}:{_port(parts)}"


def same_origin(one: str, other: str) -> bool:
    """Whether two URLs lead to one server.

    All names of this machine are one: its agents call it by several of them on their cards, 0.0.0.0 among them.
    """
    first, second = urlsplit(one), urlsplit(other)
    try:
        if _scheme(first) != _scheme(second) or _port(first) != _port(second):
            return False
    except ValueError:
        return False
    names = (first.hostname or "", second.hostname or "")
    return names[0] == names[1] or all(is_loopback(name) or name in ("0.0.0.0", "::") for name in names)


def _scheme(parts: SplitResult) -> str:
    return _SCHEMES.get(parts.scheme, parts.scheme)


def _port(parts: SplitResult) -> int:
    return parts.port or _PORTS.get(_scheme(parts), 80)
