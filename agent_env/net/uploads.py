"""Bodies of requests that come too slowly: each has a time in which it must be whole."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, MutableMapping
from typing import Any, TypeAlias

from agent_env.errors import RequestTimeout

Scope: TypeAlias = MutableMapping[str, Any]
Message: TypeAlias = MutableMapping[str, Any]
Receive: TypeAlias = Callable[[], Awaitable[Message]]
Send: TypeAlias = Callable[[Message], Awaitable[None]]
App: TypeAlias = Callable[[Scope, Receive, Send], Awaitable[None]]

BODY_SECONDS = 20.0
"""How long a body may be behind the slowest pace that is taken."""

STEADY_BYTES = 1024
"""The slowest pace, in bytes a second: what has arrived buys the rest so much time."""


class TimelyBodies:
    """An ASGI app (3.0) in which reading a request's body raises `RequestTimeout` when it does not come in time.

    Whoever reads it answers as to every error; what is not read is not waited for. Answers and WebSockets are left
    alone.
    """

    def __init__(self, app: App, *, seconds: float = BODY_SECONDS) -> None:
        self._app = app
        self._seconds = seconds

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http":
            receive = timely(receive, self._seconds)
        await self._app(scope, receive, send)


def timely(receive: Receive, seconds: float = BODY_SECONDS) -> Receive:
    """Gives what `receive` gives; raises `RequestTimeout` when a body has not arrived after `seconds` and as much as
    `STEADY_BYTES` a second give it. What comes after the body, that the client has left, is waited for without end."""
    loop = asyncio.get_running_loop()
    started: float | None = None
    size = 0
    whole = False

    async def receive_in_time() -> Message:
        nonlocal started, size, whole
        if whole:
            return await receive()
        if started is None:
            started = loop.time()
        try:
            async with asyncio.timeout_at(started + seconds + size / STEADY_BYTES):
                message = await receive()
        except TimeoutError:
            raise RequestTimeout(
                f"the body of the request was not whole after {loop.time() - started:.0f} s, of which {size} bytes had "
                f"come; send it in one go, or at {STEADY_BYTES} bytes a second at least",
            ) from None
        size += len(message.get("body", b""))
        whole = message["type"] != "http.request" or not message.get("more_body", False)
        return message

    return receive_in_time
