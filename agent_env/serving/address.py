"""Under which address clients see the server: given, forwarded by a trusted proxy, or the one they asked."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass

from starlette.requests import HTTPConnection

from agent_env.net.guard import is_loopback

ADDRESS_HEADERS = ("Host", "X-Forwarded-Host", "X-Forwarded-Proto", "X-Forwarded-Prefix")
"""What an answer that tells addresses depends on."""

_UNSPECIFIED = ("0.0.0.0", "[::]", "")


@dataclass(frozen=True, slots=True)
class PublicAddress:
    """Finds the base URL for what a request is answered with.

    `public_url` wins; else the headers X-Forwarded-Host, -Proto and -Prefix from `trusted_proxies` (addresses;
    loopback by default), else the request's own Host. A path prefix is what the server runs under (ASGI's
    `root_path`), after the one that the proxy took off. The result never names an unspecified address: `fallback`,
    where the server listens, stands in for it.
    """

    fallback: str
    public_url: str | None = None
    trusted_proxies: Collection[str] = ()

    def base(self, connection: HTTPConnection) -> str:
        """The base URL of a request, with its path prefix and without a slash at the end."""
        if self.public_url is not None:
            return self.public_url.rstrip("/")
        headers = connection.headers
        scheme = {"ws": "http", "wss": "https"}.get(connection.scope["scheme"], connection.scope["scheme"])
        host = headers.get("host", "")
        prefix = _path(str(connection.scope.get("root_path", "")))
        if self._trusts(connection.client.host if connection.client else ""):
            scheme = _first(headers.get("x-forwarded-proto")) or scheme
            host = _first(headers.get("x-forwarded-host")) or host
            taken_off = _path(_first(headers.get("x-forwarded-prefix")))
            # A server that was told the prefix (uvicorn's --root-path) has it in its own already.
            prefix = prefix if f"{prefix}/".startswith(f"{taken_off}/") else taken_off + prefix
        name = host.rpartition(":")[0] if host.rpartition(":")[2].isdigit() else host
        if name in _UNSPECIFIED:
            return self.fallback + prefix
        return f"{scheme}://{host}{prefix}"

    def _trusts(self, client: str) -> bool:
        return client in self.trusted_proxies if self.trusted_proxies else is_loopback(client)


def _first(value: str | None) -> str:
    return (value or "").split(",")[0].strip()


def _path(prefix: str) -> str:
    path = prefix.strip("/")
    return f"/{path}" if path else ""
