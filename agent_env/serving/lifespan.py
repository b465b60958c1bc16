"""An app that starts and ends with its server."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

from starlette.types import ASGIApp, Receive, Scope, Send

from agent_env.errors import AgentEnvError, ConfigurationError


def lazily(build: Callable[[], Awaitable[ASGIApp]], close: Callable[[], Awaitable[None]]) -> ASGIApp:
    """An app that is built when its server's lifespan starts and closed when it ends.

    An error of ours while it is built fails the server's start, with its message.
    """
    built: list[ASGIApp] = []

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "lifespan":
            try:
                built.append(await build())
            except AgentEnvError as error:
                await receive()
                await send({"type": "lifespan.startup.failed", "message": error.message})
                return
            try:
                await built[-1](scope, receive, send)
            finally:
                built.clear()
                await close()
        elif built:
            await built[-1](scope, receive, send)
        else:
            raise ConfigurationError(
                "the app of an AgentEnvironment starts with its server's lifespan, which did not run; an app that "
                "mounts it must run its lifespan too"
            )

    return app
