"""`serve_agent_as_env`: wrap, serve, register, block."""

from __future__ import annotations

import asyncio
import logging
import signal
from collections.abc import Callable
from typing import Any

from agent_env.errors import ConfigurationError
from agent_env.serving.environment import AgentEnvironment
from agent_env.serving.server import Server


def serve_agent_as_env(
    agent: object,
    *,
    name: str | None = None,
    version: str | None = None,
    host: str = "127.0.0.1",
    port: int = 0,
    public_url: str | None = None,
    insecure: bool = False,
    **options: Any,
) -> None:
    """Serves an agent as an environment until it is interrupted, and prints where.

    `options` are those of `AgentEnvironment`; `agent` may be one. Without a name it is the agent's own as a slug,
    without a version a draft, without a port a free one. Raises `ConfigurationError` for an agent that cannot be
    wrapped or a port that is taken, and inside a running event loop, where `env.serving()` is what you want.

        serve_agent_as_env(my_agent, name="agent-b", version="1.0.0")
    """
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        pass
    else:
        raise ConfigurationError(
            "serve_agent_as_env blocks, and an event loop runs already; write "
            "`async with AgentEnvironment(agent, …).serving() as server:` instead"
        )
    asyncio.run(
        serve_until_stopped(
            agent, name=name, version=version, host=host, port=port, public_url=public_url, insecure=insecure, **options
        )
    )


async def serve_until_stopped(
    agent: object,
    *,
    name: str | None = None,
    version: str | None = None,
    host: str = "127.0.0.1",
    port: int = 0,
    public_url: str | None = None,
    insecure: bool = False,
    linger: float | None = None,
    source: str | None = None,
    on_ready: Callable[[Server], None] | None = None,
    **options: Any,
) -> None:
    """Serves until SIGINT or SIGTERM, or until no session was open for `linger` seconds."""
    if isinstance(agent, AgentEnvironment):
        if name is not None or version is not None or options:
            raise ConfigurationError("an AgentEnvironment has its name, version and options already; drop these here")
        env = agent
    else:
        env = AgentEnvironment(agent, name=name, version=version, **options)
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    for kind in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(kind, stop.set)
    try:
        async with env.serving(host, port, public_url=public_url, insecure=insecure, source=source) as server:
            (on_ready or announce)(server)
            if linger is None:
                await stop.wait()
            else:
                await _until_unused(server, linger, stop)
    finally:
        for kind in (signal.SIGINT, signal.SIGTERM):
            loop.remove_signal_handler(kind)


async def _until_unused(server: Server, linger: float, stop: asyncio.Event) -> None:
    sessions = server.runtime.sessions
    used = loop_time()
    while not stop.is_set():
        if len(sessions):
            used = loop_time()
        left = used + linger - loop_time()
        if left <= 0:
            logging.getLogger("agent_env.serving").info("no session for %g s; stopping", linger)
            return
        try:
            await asyncio.wait_for(stop.wait(), min(left, 1.0) if not len(sessions) else 1.0)
        except TimeoutError:
            continue


def loop_time() -> float:
    """Now, on the running loop's clock."""
    return asyncio.get_running_loop().time()


def announce(server: Server) -> None:
    """Prints where the environment is served."""
    from rich.console import Console
    from rich.table import Table

    table = Table.grid(padding=(0, 2))
    for what, url in server.urls.items():
        table.add_row(what, url)
    console = Console()
    console.print(f"[bold]{server.card.ref}[/bold] is an environment now:")
    console.print(table)
    console.print(f"Call it: [green]Environment({server.url!r})[/green] · stop it with Ctrl-C", highlight=False)
