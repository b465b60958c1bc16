"""The socket that a server listens on."""

from __future__ import annotations

import errno
import socket

from agent_env.errors import ConfigurationError

_BACKLOG = 2048


def listen(host: str = "127.0.0.1", port: int = 0) -> socket.socket:
    """Opens a listening socket; port 0 takes a free one. Hand it to `uvicorn.Server.serve(sockets=[...])`.

    Raises `ConfigurationError` for a port that is taken or not allowed, and a host that is not this machine's.
    """
    if not 0 <= port <= 65535:  # a resolver would take it modulo 65536
        raise ConfigurationError(f"the port {port!r} is not one of 0 to 65535; port 0 takes a free one")
    try:
        family, _, _, _, address = socket.getaddrinfo(
            host.strip("[]"), port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE | socket.AI_NUMERICSERV
        )[0]
    except OSError as error:
        raise ConfigurationError(
            f"the host {host!r} does not resolve ({error.strerror or error}); bind to 127.0.0.1 or to 0.0.0.0"
        ) from error
    # The protocol is named since asyncio turns Nagle's algorithm off only where it is; without that each answer
    # waits 40 ms for an acknowledgement.
    listener = socket.socket(family, socket.SOCK_STREAM, socket.IPPROTO_TCP)
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind(address)
        listener.listen(_BACKLOG)
    except OSError as error:
        listener.close()
        raise ConfigurationError(_remedy(host, port, error)) from error
    listener.setblocking(False)
    return listener


def bound_url(listener: socket.socket) -> str:
    """The URL under which this machine reaches the listener: a wildcard host is replaced by the loopback address."""
    address = listener.getsockname()[0]
    if address in ("0.0.0.0", "::"):
        address = "127.0.0.1" if address == "0.0.0.0" else "::1"
    shown = f"[{address}]" if ":" in address else address
    return f"http://{shown}:{listener.getsockname()[1]}"


def _remedy(host: str, port: int, error: OSError) -> str:
    if error.errno == errno.EADDRINUSE:
        return f"the port {port} of {host} is taken by another program; choose another port, or 0 for a free one"
    if error.errno == errno.EACCES:
        return f"the port {port} of {host} is not allowed to this user; choose one above 1023, or port 0 for a free one"
    return f"the host {host!r} is not an address of this machine ({error.strerror}); bind to 127.0.0.1 or to 0.0.0.0"
