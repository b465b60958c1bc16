"""Running an ASGI app inside a program, and the gateway in a process of its own."""

from __future__ import annotations

import asyncio
import json
import os
import secrets
import socket
import sys
from collections.abc import AsyncGenerator, Generator
from contextlib import asynccontextmanager, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import anyio
import uvicorn

from agent_env.errors import ConfigurationError, LaunchFailed
from agent_env.net import bound_url, listen

ADMIN_VARIABLE = "AGENT_ENV_GATEWAY_TOKEN"
"""The environment variable that hands a gateway process its admin token."""

_LAUNCH_SECONDS = 30.0
_STOP_SECONDS = 5.0


class _Server(uvicorn.Server):
    """A server that leaves the program's signals alone and tells when it is ready."""

    def __init__(self, config: uvicorn.Config) -> None:
        super().__init__(config)
        self.ready = asyncio.Event()

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        self.ready.set()

    @contextmanager
    def capture_signals(self) -> Generator[None, None, None]:
        yield


@asynccontextmanager
async def running(app: Any, *, host: str = "127.0.0.1", port: int = 0) -> AsyncGenerator[str, None]:
    """Serves an ASGI app in this program while the block runs; gives its base URL.

    Raises `ConfigurationError` when the port is taken.
    """
    listener = listen(host, port)
    server = _Server(
        uvicorn.Config(
            app,
            log_level="warning",
            access_log=False,
            interface="asgi3",
            http="httptools",
            ws="none",
            lifespan="off",
            server_header=False,
            date_header=False,
            proxy_headers=False,
            # Longer than the shared client keeps a connection, so that it never uses one that is being closed.
            timeout_keep_alive=60,
            timeout_graceful_shutdown=1,
        )
    )
    # A task and no task group: what the block raises must reach the caller as it is.
    serving = asyncio.ensure_future(server.serve([listener]))
    ready = asyncio.ensure_future(server.ready.wait())
    try:
        await asyncio.wait((serving, ready), return_when=asyncio.FIRST_COMPLETED)
        if not ready.done():
            await serving
            raise ConfigurationError("the server ended before it was ready; its log has the reason")
        yield bound_url(listener)
    finally:
        ready.cancel()
        server.should_exit = True
        with anyio.CancelScope(shield=True):
            await serving
        listener.close()


@dataclass(frozen=True, slots=True)
class GatewayProcess:
    """A gateway that runs in a process of its own."""

    url: str
    admin_token: str
    pid: int


@asynccontextmanager
async def launched(directory: str | Path) -> AsyncGenerator[GatewayProcess, None]:
    """Runs a gateway in a process of its own while the block runs; it also ends when this process dies.

    Raises `LaunchFailed` with the last lines of what the process said.
    """
    token = secrets.token_urlsafe(32)
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "agent_env.gateway", "--directory", str(directory), "--until-stdin-ends"),
        env={**os.environ, ADMIN_VARIABLE: token},
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
    )
    assert process.stdin is not None and process.stdout is not None
    try:
        try:
            line = await asyncio.wait_for(process.stdout.readline(), _LAUNCH_SECONDS)
            url = str(json.loads(line)["url"])
        except (TimeoutError, ValueError, KeyError) as error:
            raise LaunchFailed(f"the gateway process {process.pid} did not start; its stderr says why") from error
        yield GatewayProcess(url, token, process.pid)
    finally:
        process.stdin.close()
        try:
            await asyncio.wait_for(process.wait(), _STOP_SECONDS)
        except TimeoutError:
            with suppress(ProcessLookupError):
                process.kill()
            await process.wait()
