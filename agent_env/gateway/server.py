"""Running an ASGI app inside a program, and the gateway in a process of its own."""

from __future__ import annotations

import asyncio
import json
import os
import secrets
import sys
from collections.abc import AsyncGenerator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import anyio

from agent_env.errors import LaunchFailed
from agent_env.gateway.app import Gateway
from agent_env.gateway.runs import ENDING_SECONDS
from agent_env.net import bound_url, listen
from agent_env.net.processes import ended
from agent_env.net.serving import LIFESPAN_SECONDS, served, stop_signals

ADMIN_VARIABLE = "AGENT_ENV_GATEWAY_TOKEN"
"""The environment variable that hands a gateway process its admin token."""

_LAUNCH_SECONDS = 30.0
_GRACE_SECONDS = 1
_STOP_SECONDS = (_GRACE_SECONDS + ENDING_SECONDS) + (_GRACE_SECONDS + LIFESPAN_SECONDS) + 5.0
"""Longer than a gateway takes to stop: one that is killed before loses the records of answers that it gave."""


@asynccontextmanager
async def running(app: Any, *, host: str = "127.0.0.1", port: int = 0) -> AsyncGenerator[str, None]:
    """Serves an ASGI app in this program while the block runs; gives its base URL.

    At its end the requests that are under way have a second; those of a gateway are then told that it stops, and its
    runs are closed (`Gateway.stop`). Raises `ConfigurationError` when the port is taken, or the gateway is served
    already.
    """
    listener = listen(host, port)
    if isinstance(app, Gateway):
        try:
            app.start()
        except BaseException:
            listener.close()
            raise
    async with served(app, listener, lifespan=False, stop_seconds=_GRACE_SECONDS):
        try:
            yield bound_url(listener)
        finally:
            if isinstance(app, Gateway):
                with anyio.CancelScope(shield=True):
                    await app.stop(_GRACE_SECONDS)


async def serve(
    gateway: Gateway,
    host: str,
    port: int,
    *,
    on_ready: Callable[[str], None],
    until_stdin_ends: bool | None = None,
) -> None:
    """Serves a gateway until the process is told to stop; `on_ready` is given its URL."""
    with stop_signals(until_stdin_ends=until_stdin_ends) as stop:
        async with running(gateway, host=host, port=port) as url:
            on_ready(url)
            await stop.wait()


@dataclass(frozen=True, slots=True)
class GatewayProcess:
    """A gateway that runs in a process of its own."""

    url: str
    admin_token: str
    pid: int


@asynccontextmanager
async def launched(directory: str | Path) -> AsyncGenerator[GatewayProcess, None]:
    """Runs a gateway in a process of its own while the block runs; it also ends when this process dies.

    Raises `LaunchFailed` when it does not start; it writes the reason to the standard error of this program.
    """
    token = secrets.token_urlsafe(32)
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "agent_env.gateway", "--directory", str(directory), "--until-stdin-ends"),
        env={**os.environ, ADMIN_VARIABLE: token},
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
        # Ctrl-C is for the program, which still has records to collect and the run to close.
        start_new_session=True,
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
        await ended(process, _STOP_SECONDS)
