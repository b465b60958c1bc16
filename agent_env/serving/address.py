"""Under which address clients see the server: given, forwarded by a trusted proxy, or the one they asked."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from starlette.requests import HTTPConnection

from agent_env.net.guard import is_loopback

_UNSPECIFIED = ("0.0.0.0", "[::]", "::", "")


@dataclass(frozen=True, slots=True)
class PublicAddress:
    """Finds the base URL for what a request is answered with.

    `public_url` wins; else `Forwarded`-style headers from `trusted_proxies` (addresses; loopback by default), else the
    request's own Host. The result never names an unspecified address: `fallback`, where the server listens, stands
    in for it.
    """

    fallback: str
    public_url: str | None = None
    trusted_proxies: Sequence[str] = ()

    def base(self, connection: HTTPConnection) -> str:
        """The base URL of a request, with its path prefix and without a slash at the end."""
        if self.public_url is not None:
            return self.public_url.rstrip("/")
        headers = connection.headers
        scheme = {"ws": "http", "wss": "https"}.get(connection.url.scheme, connection.url.scheme)
        host = headers.get("host", "")
        prefix = str(connection.scope.get("root_path", ""))
        client = connection.client.host if connection.client else ""
        if client in self.trusted_proxies or (not self.trusted_proxies and is_loopback(client)):
            scheme = _first(headers.get("x-forwarded-proto")) or scheme
            host = _first(headers.get("x-forwarded-host")) or host
            prefix = _first(headers.get("x-forwarded-prefix")) or prefix
        name = host.rpartition(":")[0] if host.rpartition(":")[2].isdigit() else host
        if name in _UNSPECIFIED:
            return self.fallback + prefix.rstrip("/")
        return f"{scheme}://{host}{prefix.rstrip('/')}"


def _first(value: str | None) -> str:
    return (value or "").split(",")[0].strip()
