"""The guard on outward calls: which of the URLs that callers give us this server may call."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Iterable
from dataclasses import dataclass, field
from ipaddress import IPv4Address, IPv4Network, IPv6Address, IPv6Network, ip_address, ip_network
from typing import TypeAlias
from urllib.parse import urlsplit

from aiohttp.abc import AbstractResolver, ResolveResult
from aiohttp.resolver import ThreadedResolver

from agent_env.errors import Forbidden, InvalidArguments, TransportError

Address: TypeAlias = IPv4Address | IPv6Address
Network: TypeAlias = IPv4Network | IPv6Network

_NAT64 = IPv6Network("64:ff9b::/96")


def is_loopback(host: str) -> bool:
    """Tells whether a host to bind to, or to call, is this machine alone: `localhost`, 127.0.0.0/8 or ::1."""
    if host.lower().rstrip(".") == "localhost":
        return True
    try:
        return _innermost(ip_address(host.strip("[]"))).is_loopback
    except ValueError:
        return False


@dataclass(frozen=True)
class OutwardGuard:
    """Decides about a URL that somebody else chose: a push notification's, a run's gateway.

    Only http and https pass. A server that is bound beyond loopback calls public addresses alone; one that is bound
    to loopback has only local callers, and calls loopback and private addresses too. Link-local addresses (where
    clouds keep their metadata), multicast and unspecified ones never pass. `networks` and `hosts` are what the owner
    allows besides.

    A name passes when every address it resolves to does. Since a name may resolve differently a moment later, calls
    are made through `shared_http(guard)`, which asks the guard again about the very addresses it connects to.

    Example: `await OutwardGuard(local=is_loopback(host)).check(url)`.
    """

    local: bool = False
    networks: tuple[Network, ...] = ()
    hosts: frozenset[str] = field(default_factory=frozenset[str])

    @classmethod
    def of(cls, *, local: bool, allow: Iterable[str] = ()) -> OutwardGuard:
        """Makes a guard whose `allow` lists networks (`10.0.0.0/8`), addresses and host names."""
        networks: list[Network] = []
        hosts: set[str] = set()
        for entry in allow:
            try:
                networks.append(ip_network(entry, strict=False))
            except ValueError:
                hosts.add(entry.lower().rstrip("."))
        return cls(local, tuple(networks), frozenset(hosts))

    def allows(self, address: str | Address) -> bool:
        """Tells whether calls to this address may be made."""
        try:
            given = ip_address(address.partition("%")[0]) if isinstance(address, str) else address
        except ValueError:
            return False
        inner = _innermost(given)
        if any(inner.version == network.version and inner in network for network in self.networks):
            return True
        if inner.is_multicast or inner.is_unspecified or inner.is_link_local:
            return False
        return inner.is_global or (self.local and (inner.is_loopback or inner.is_private))

    def allows_name(self, host: str) -> bool:
        """Tells whether the owner allows this host by name, whatever it resolves to."""
        return host.lower().rstrip(".") in self.hosts

    async def check(self, url: str) -> None:
        """Raises `InvalidArguments` for what is no http URL, `Forbidden` for a URL that must not be called, and
        `TransportError` for a name that does not resolve."""
        host, port = _target(url)
        if self.allows_name(host):
            return
        try:
            found = await asyncio.get_running_loop().getaddrinfo(host, port, type=socket.SOCK_STREAM)
        except OSError as error:
            raise TransportError(f"the host {host!r} does not resolve: {error.strerror or error}") from error
        for *_, sockaddr in found:
            if not self.allows(str(sockaddr[0])):
                raise Forbidden(_refusal(host))


def _refusal(host: str) -> str:
    return (
        f"this server does not call {host!r}, which is not a public address; "
        f"the owner of the server can allow it by name or network"
    )


def _target(url: str) -> tuple[str, int]:
    try:
        parts = urlsplit(url)
        port = parts.port or (443 if parts.scheme == "https" else 80)
        host = parts.hostname or ""
    except ValueError as error:
        raise InvalidArguments(f"{url!r} is not a URL: {error}") from None
    if parts.scheme not in ("http", "https") or not host:
        raise InvalidArguments(f"{url!r} must be an http or https URL with a host")
    if parts.username is not None or parts.password is not None:
        raise InvalidArguments("a URL to call must not hold a user name or password; send a token instead")
    return host, port


def _innermost(address: Address) -> Address:
    """The IPv4 address that an IPv6 address stands for (mapped, 6to4, Teredo, NAT64), else the address itself."""
    if isinstance(address, IPv4Address):
        return address
    if address.ipv4_mapped is not None:
        return address.ipv4_mapped
    if address.sixtofour is not None:
        return address.sixtofour
    if address.teredo is not None:
        return address.teredo[1]
    if address in _NAT64:
        return IPv4Address(int(address) & 0xFFFFFFFF)
    return address


class RefusedAddress(OSError):
    """A name resolved, at the time of the call, to an address that must not be called."""


class GuardedResolver(AbstractResolver):
    """Resolves names for an aiohttp connector and refuses what the guard does not allow.

    aiohttp does not ask a resolver about an address that is written out, so `OutwardGuard.check` comes first.
    """

    def __init__(self, guard: OutwardGuard) -> None:
        self._guard = guard
        self._resolver = ThreadedResolver()

    async def resolve(
        self, host: str, port: int = 0, family: socket.AddressFamily = socket.AF_UNSPEC
    ) -> list[ResolveResult]:
        """Resolves a name; raises `RefusedAddress` when one of its addresses is refused."""
        found = await self._resolver.resolve(host, port, family)
        if not self._guard.allows_name(host) and not all(self._guard.allows(entry["host"]) for entry in found):
            raise RefusedAddress(_refusal(host))
        return found

    async def close(self) -> None:
        await self._resolver.close()
