"""Serving an ASGI app inside a program: from a listening socket to a bounded end, at a signal if need be."""

from __future__ import annotations

import asyncio
import logging
import os
import signal
import socket
import threading
from collections.abc import AsyncGenerator, Callable, Coroutine, Generator
from contextlib import asynccontextmanager, contextmanager, suppress
from typing import Any

import anyio
import uvicorn

from agent_env.errors import ConfigurationError
from agent_env.net.garbage import collect_rarely
from agent_env.net.protocols import HttpConnection, SocketConnection

log = logging.getLogger("agent_env.net")

STDIN_VARIABLE = "AGENT_ENV_UNTIL_STDIN_ENDS"
"""The environment variable that says, as 1, to stop serving when standard input ends.

For a process that must not outlive the one that starts it: that one makes standard input a pipe and keeps its other
end, which is closed however it dies, on every system."""

KEEP_ALIVE_SECONDS = 60
"""How long an idle connection is kept: longer than the shared client keeps one, so that it never uses a closing one."""

PING_SECONDS = 20.0
"""How often a WebSocket is asked whether its client is there, and how long that may take to answer."""

LIFESPAN_SECONDS = 15.0
"""How long an app may take to end, once its last request has ended, before it is left behind."""


class _Server(uvicorn.Server):
    """A server that leaves the program's signals alone and tells when it is ready."""

    def __init__(self, config: uvicorn.Config) -> None:
        super().__init__(config)
        self.ready = asyncio.Event()

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        if not self.should_exit:
            self.ready.set()

    @contextmanager
    def capture_signals(self) -> Generator[None, None, None]:
        yield

    async def run_on(self, listener: socket.socket) -> None:
        """Serves until it is told to stop; raises `ConfigurationError` when the app did not start."""
        # It exits when the app did not start, which is for a program of its own: in ours it would end everybody's loop.
        with suppress(SystemExit):
            await self.serve([listener])
        if not self.ready.is_set():
            raise ConfigurationError("the app did not start; the log of the program has the reason")


@asynccontextmanager
async def served(
    app: Any,
    listener: socket.socket,
    *,
    lifespan: bool = True,
    max_frame_bytes: int | None = None,
    stop_seconds: int = 5,
) -> AsyncGenerator[None, None]:
    """Serves an ASGI app on a listening socket (see `listen`) while the block runs, and closes the socket.

    `lifespan` runs the app's startup and shutdown. Without `max_frame_bytes` there are no WebSockets. At the end
    requests have `stop_seconds` to finish and are then cancelled. Raises `ConfigurationError` when the app's startup
    fails. Logging and signals stay as the program has them, and headers of proxies are left to the app.
    """
    server = _Server(
        uvicorn.Config(
            app,
            log_config=None,
            access_log=False,
            interface="asgi3",
            http=HttpConnection,
            ws="none" if max_frame_bytes is None else SocketConnection,
            ws_ping_interval=PING_SECONDS,
            ws_ping_timeout=PING_SECONDS,
            ws_max_size=max_frame_bytes or 0,
            ws_per_message_deflate=False,
            lifespan="on" if lifespan else "off",
            server_header=False,
            proxy_headers=False,
            timeout_keep_alive=KEEP_ALIVE_SECONDS,
            timeout_graceful_shutdown=stop_seconds,
        )
    )
    # A task and no task group: what the block raises must reach the caller as it is.
    serving = asyncio.ensure_future(server.run_on(listener))
    ready = asyncio.ensure_future(server.ready.wait())
    try:
        await asyncio.wait((serving, ready), return_when=asyncio.FIRST_COMPLETED)
        if not ready.done():
            await serving
        yield
    finally:
        ready.cancel()
        server.should_exit = True
        with anyio.CancelScope(shield=True):
            await asyncio.wait({serving}, timeout=stop_seconds + LIFESPAN_SECONDS)
            if not serving.done():
                log.error("an app did not end within %g s of its last request; it is left behind", LIFESPAN_SECONDS)
                serving.cancel()
                await asyncio.wait({serving}, timeout=1.0)
        listener.close()
        if serving.done() and not serving.cancelled() and (error := serving.exception()) is not None:
            raise error


@contextmanager
def stop_signals(*, until_stdin_ends: bool | None = None) -> Generator[asyncio.Event]:
    """Gives an event that SIGINT and SIGTERM set while the block runs, in place of what they do otherwise.

    With `until_stdin_ends`, by default where the environment variable `STDIN_VARIABLE` is 1, the end of standard input
    sets it too. Only the main thread is told of all this; in another one nothing sets it.
    """
    stop = asyncio.Event()
    if threading.current_thread() is not threading.main_thread():
        yield stop
        return
    loop = asyncio.get_running_loop()
    # It is meant for this process: what we start has a standard input of its own.
    asked = os.environ.pop(STDIN_VARIABLE, "") == "1"
    if asked if until_stdin_ends is None else until_stdin_ends:
        threading.Thread(target=_wait_for_stdin, args=(loop, stop), name="wait for stdin", daemon=True).start()
    for kind in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(kind, stop.set)
    try:
        yield stop
    finally:
        for kind in (signal.SIGINT, signal.SIGTERM):
            loop.remove_signal_handler(kind)


def _wait_for_stdin(loop: asyncio.AbstractEventLoop, stop: asyncio.Event) -> None:
    # Read from the descriptor: the buffer of `sys.stdin` has a lock, which a thread that is left behind would keep.
    with suppress(OSError):
        while os.read(0, 4096):
            pass
    with suppress(RuntimeError):  # the loop has ended before
        loop.call_soon_threadsafe(stop.set)


def run_loop(work: Coroutine[Any, Any, None]) -> None:
    """Runs a coroutine as all that this process does: in the faster event loop where it is installed, as uvicorn does,
    and with few full collections."""
    factory: Callable[[], asyncio.AbstractEventLoop] | None = None
    with suppress(ImportError):
        import uvloop

        factory = uvloop.new_event_loop
    collect_rarely()
    with asyncio.Runner(loop_factory=factory) as runner:
        runner.run(work)
