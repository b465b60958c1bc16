"""Serving inside a program: the app on its socket, and a lease in the hub for as long."""

from __future__ import annotations

import logging
import socket
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import urlsplit

from starlette.types import ASGIApp

from agent_env.hub import Heartbeat, shared_hub
from agent_env.net import is_loopback
from agent_env.net.serving import served
from agent_env.runtime.environment import Runtime
from agent_env.runtime.local import announce, withdraw
from agent_env_cards import AGENT_CARD_PATH, CARD_PATH, EnvironmentCard, resolve_url

log = logging.getLogger("agent_env.serving")


@dataclass(frozen=True, slots=True)
class Server:
    """An environment that is being served: `url` is what clients use, `local_url` where it listens."""

    url: str
    local_url: str
    card: EnvironmentCard
    runtime: Runtime

    @property
    def urls(self) -> dict[str, str]:
        """The URLs of both cards, of every face, and of the docs."""
        card = self.url + CARD_PATH
        found = {"environment card": card, "agent card": self.url + AGENT_CARD_PATH}
        for face in self.card.interfaces:
            found[face.transport] = resolve_url(card, face.url, transport=face.transport)
        return found | {"docs": f"{self.url}/docs"}


@asynccontextmanager
async def serve(
    app: ASGIApp,
    listener: socket.socket,
    server: Server,
    *,
    register: bool,
    hub: str | Path | None,
    source: str | None = None,
    launch_id: str | None = None,
) -> AsyncGenerator[Server]:
    """Runs the app on a listening socket, and lists it in the hub, until the block ends.

    It leaves the hub first, so that nobody new comes, and then lets the requests that run come to an end.
    """
    # Each face bounds messages itself, in its own error form; this is only the transport's backstop.
    # A character takes four bytes at most.
    most = 4 * server.runtime.definition.limits.max_request_bytes
    async with served(app, listener, max_frame_bytes=most):
        announce(server.url, server.runtime)
        try:
            async with _listed(server, register, hub, source, launch_id):
                yield server
        finally:
            withdraw(server.url)


@asynccontextmanager
async def _listed(
    server: Server, register: bool, hub: str | Path | None, source: str | None, launch_id: str | None
) -> AsyncGenerator[None]:
    if not register:
        yield
        return
    runtime, known = server.runtime, shared_hub(hub)
    if known.location.remote and not known.location.local and is_loopback(urlsplit(server.url).hostname or ""):
        log.warning(
            "the hub %s is on another machine, and %s can be reached from this one alone; "
            "serve with --public-url (public_url=...)",
            known.location,
            server.url,
        )
    heartbeat = Heartbeat(
        known,
        server.card,
        server.url,
        capacity=runtime.definition.limits.max_sessions,
        load=lambda: len(runtime.sessions),
        source=source,
        launch_id=launch_id,
    )
    async with heartbeat:
        yield
