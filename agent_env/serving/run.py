"""`serve_agent_as_env`: wrap, serve, register, block."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Collection, Generator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import TYPE_CHECKING, Unpack

from agent_env.errors import ConfigurationError
from agent_env.net.serving import run_loop, stop_signals
from agent_env.runtime.environment import Runtime
from agent_env.serving.environment import AgentEnvironment
from agent_env.serving.options import Options

if TYPE_CHECKING:
    from agent_env.serving.server import Server

log = logging.getLogger("agent_env.serving")

_importing: ContextVar[bool] = ContextVar("agent_env_importing", default=False)

_LOOK_SECONDS = 0.5


@contextmanager
def importing() -> Generator[None]:
    """Says that the code inside imports somebody's module to find an agent in it, not to run it."""
    token = _importing.set(True)
    try:
        yield
    finally:
        _importing.reset(token)


def serve_agent_as_env(
    agent: object,
    *,
    name: str | None = None,
    version: str | None = None,
    host: str = "127.0.0.1",
    port: int = 0,
    public_url: str | None = None,
    trusted_proxies: Collection[str] = (),
    insecure: bool = False,
    **options: Unpack[Options],
) -> None:
    """Serves an agent as an environment until it is interrupted, and prints where.

    `options` are those of `AgentEnvironment`; `agent` may be one. Without a name it is the agent's own as a slug,
    without a version a draft, without a port a free one. Raises `ConfigurationError` for an agent that cannot be
    wrapped or a port that is taken, and inside a running event loop, where `env.serving()` is what you want.

        serve_agent_as_env(my_agent, name="agent-b", version="1.0.0")
    """
    if _importing.get():
        raise ConfigurationError(
            'the module serves its agent as soon as it is imported; put that under `if __name__ == "__main__":`, so '
            "that others can import the agent"
        )
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        pass
    else:
        raise ConfigurationError(
            "serve_agent_as_env blocks, and an event loop runs already; write "
            "`env = AgentEnvironment(agent, …)` and `async with env.serving() as server:` instead"
        )
    run_loop(
        serve_until_stopped(
            agent,
            name=name,
            version=version,
            host=host,
            port=port,
            public_url=public_url,
            trusted_proxies=trusted_proxies,
            insecure=insecure,
            **options,
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
    trusted_proxies: Collection[str] = (),
    insecure: bool = False,
    linger: float | None = None,
    source: str | None = None,
    on_ready: Callable[[Server], None] | None = None,
    **options: Unpack[Options],
) -> None:
    """Serves until SIGINT or SIGTERM, or until nobody has used it for `linger` seconds."""
    if isinstance(agent, AgentEnvironment):
        if name is not None or version is not None or options:
            raise ConfigurationError("an AgentEnvironment has its name, version and options already; drop these here")
        env = agent
    else:
        env = AgentEnvironment(agent, name=name, version=version, **options)
    serving = env.serving(
        host, port, public_url=public_url, trusted_proxies=trusted_proxies, insecure=insecure, source=source
    )
    with stop_signals() as stop:
        async with serving as server:
            (on_ready or announce)(server)
            if linger is None:
                await stop.wait()
            else:
                await _until_unused(server.runtime, linger, stop)


async def _until_unused(runtime: Runtime, linger: float, stop: asyncio.Event) -> None:
    """Returns when there was no session and no call for `linger` seconds, or at `stop`."""
    loop = asyncio.get_running_loop()
    held = loop.time()
    while not stop.is_set():
        if len(runtime.sessions):
            held = loop.time()
        left = linger - min(runtime.activity.idle_seconds, loop.time() - held)
        if left <= 0:
            log.info("nobody has used %s for %g s; stopping", runtime.definition.identity, linger)
            return
        try:
            async with asyncio.timeout(min(left, _LOOK_SECONDS)):
                await stop.wait()
        except TimeoutError:
            continue


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
