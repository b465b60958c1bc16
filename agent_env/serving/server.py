"""Serving inside a program: a bound socket, a uvicorn server, a lease in the hub."""

from __future__ import annotations

import asyncio
import os
import socket as sockets
from collections.abc import AsyncGenerator, Generator
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass
from pathlib import Path

import uvicorn
from starlette.types import ASGIApp

from agent_env.errors import ConfigurationError
from agent_env.hub import Heartbeat, shared_hub
from agent_env.runtime.environment import Runtime
from agent_env.runtime.local import announce, withdraw
from agent_env_cards import AGENT_CARD_PATH, CARD_PATH, EnvironmentCard

SHUTDOWN_SECONDS = 5
LAUNCH_VARIABLE = "AGENT_ENV_LAUNCH_ID"


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
        paths = {"environment card": CARD_PATH, "agent card": AGENT_CARD_PATH}
        paths |= {face.transport: face.url for face in self.card.interfaces} | {"docs": "/docs"}
        found = {name: self.url + path for name, path in paths.items()}
        found["websocket"] = "ws" + found["websocket"].removeprefix("http")
        return found


@contextmanager
def listen(host: str, port: int) -> Generator[sockets.socket]:
    """Binds a socket; raises `ConfigurationError` when that cannot be done."""
    family = sockets.AF_INET6 if ":" in host else sockets.AF_INET
    # The protocol is named, since asyncio turns off Nagle's algorithm only where it is: 40 ms for each answer.
    socket = sockets.socket(family, sockets.SOCK_STREAM, sockets.IPPROTO_TCP)
    try:
        socket.setsockopt(sockets.SOL_SOCKET, sockets.SO_REUSEADDR, 1)
        try:
            socket.bind((host.strip("[]"), port))
            socket.listen(2048)
        except OSError as error:
            reason = error.strerror or str(error)
            raise ConfigurationError(
                f"cannot listen on {host}:{port}: {reason.lower()}; choose another port, or 0 for a free one"
            ) from error
        yield socket
    finally:
        socket.close()


class _InProgram(uvicorn.Server):
    """A server that tells when it has started, and leaves the program's signals alone."""

    def __init__(self, config: uvicorn.Config) -> None:
        super().__init__(config)
        self.ready = asyncio.Event()

    async def startup(self, sockets: list[sockets.socket] | None = None) -> None:
        await super().startup(sockets)
        self.ready.set()

    @contextmanager
    def capture_signals(self) -> Generator[None, None, None]:
        yield


@asynccontextmanager
async def serve(
    app: ASGIApp,
    socket: sockets.socket,
    server: Server,
    *,
    register: bool,
    hub: str | Path | None,
    source: str | None = None,
    launch_id: str | None = None,
) -> AsyncGenerator[Server]:
    """Runs the app on the socket, and lists it in the hub, until the block ends."""
    config = uvicorn.Config(
        app,
        log_config=None,
        access_log=False,
        lifespan="on",
        timeout_graceful_shutdown=SHUTDOWN_SECONDS,
        # The face bounds messages itself, in its own error form; this is only the transport's backstop.
        ws_max_size=4 * server.runtime.definition.limits.max_message_bytes,
        ws_per_message_deflate=False,
        # Address headers are read by `PublicAddress`, by its own rule about proxies.
        proxy_headers=False,
    )
    uvicorn_server = _InProgram(config)
    task = asyncio.create_task(uvicorn_server.serve(sockets=[socket]))
    ready = asyncio.create_task(uvicorn_server.ready.wait())
    try:
        await asyncio.wait({task, ready}, return_when=asyncio.FIRST_COMPLETED)
        if not uvicorn_server.ready.is_set() or uvicorn_server.should_exit:
            await task
            raise ConfigurationError("the server did not start; its log has the reason")
        announce(server.url, server.runtime)
        try:
            async with _listed(server, register, hub, source, launch_id):
                yield server
        finally:
            withdraw(server.url)
    finally:
        ready.cancel()
        uvicorn_server.should_exit = True
        await asyncio.wait({task})
        if not task.cancelled() and (error := task.exception()) is not None:
            raise error


@asynccontextmanager
async def _listed(
    server: Server, register: bool, hub: str | Path | None, source: str | None, launch_id: str | None
) -> AsyncGenerator[None]:
    if not register:
        yield
        return
    runtime = server.runtime
    heartbeat = Heartbeat(
        shared_hub(hub),
        server.card,
        server.url,
        capacity=runtime.definition.limits.max_sessions,
        load=lambda: len(runtime.sessions),
        source=source,
        launch_id=launch_id or os.environ.get(LAUNCH_VARIABLE),
    )
    async with heartbeat:
        yield
