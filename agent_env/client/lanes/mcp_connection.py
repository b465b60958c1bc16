"""Connections of the MCP lane: one SDK client each, shared by whoever calls the same server."""

from __future__ import annotations

import asyncio
import contextvars
import logging
from collections.abc import Awaitable, Callable
from functools import partial
from importlib.metadata import version
from typing import Any, Final, TypeAlias, TypeVar

import httpx2
import mcp_types as types
from mcp.client import Client
from mcp.client.streamable_http import streamable_http_client
from mcp.shared.exceptions import MCPError
from mcp_types.version import MODERN_PROTOCOL_VERSIONS
from pydantic import ValidationError

from agent_env.client.lanes.mcp_transport import SharedTransport, ours
from agent_env.errors import (
    AgentEnvError,
    AgentFailed,
    DeadlineExceeded,
    InvalidArguments,
    NotSupported,
    ProtocolError,
    TransportError,
)
from agent_env.net import PerLoop, bearer_headers, shown
from agent_env.net.http import MAX_REPLY_BYTES
from agent_env.net.mcp_verbs import VERB_KEY

log = logging.getLogger("agent_env.client")

T = TypeVar("T")

OnMessage: TypeAlias = Callable[[str], Awaitable[None]]
"""Takes the message of a progress notification."""

LINGER_SECONDS: Final = 20.0
"""How long a connection that nobody uses is kept for the next one."""

MAX_PAGES: Final = 100
"""Pages of a listing that are read."""


class Connection:
    """One MCP client.

    It lives in a task of its own, because the SDK's scopes must be left by the task that entered them. `tools` are the
    server's, `native` tells that it serves environments, `stateful` that the server keeps a session for this
    connection (the handshake era), so that conversations must not share it.
    """

    def __init__(self, url: str, token: str | None) -> None:
        loop = asyncio.get_running_loop()
        self.where = shown(url)
        self.users = 0
        self.lost = False
        self.native = False
        self.stateful = False
        self.tools: dict[str, types.Tool] = {}
        self._client: Client | None = None
        self._end = asyncio.Event()
        self._ready: asyncio.Future[None] = loop.create_future()
        # What the first caller has in its context (its run, with tokens) must not stick to all later requests.
        self._task = loop.create_task(self._live(url, token), context=contextvars.Context())

    async def ready(self) -> None:
        """Returns when it is open; raises why it could not be opened."""
        await asyncio.shield(self._ready)

    @property
    def opened(self) -> bool:
        """Tells whether it is open, or was."""
        return self._ready.done() and self._ready.exception() is None

    def close(self) -> None:
        """Closes it, or stops opening it; calls that still wait fail."""
        if self.opened:
            self._end.set()
        else:
            self._task.cancel()

    async def ended(self) -> None:
        """Returns when nothing of it is left."""
        await asyncio.wait({self._task})

    @property
    def client(self) -> Client:
        """The SDK's client; there is one while the connection is open."""
        if self._client is None or self.lost:
            raise TransportError(f"the connection to {self.where} is closed")
        return self._client

    async def _live(self, url: str, token: str | None) -> None:
        transport = SharedTransport()
        http = httpx2.AsyncClient(
            transport=transport,
            headers=bearer_headers(token),
            timeout=None,
            trust_env=False,
        )
        streams = streamable_http_client(url, http_client=http, max_sse_event_size=MAX_REPLY_BYTES)
        identity = types.Implementation(name="agent-env", version=version("agent-env"))
        try:
            async with http, Client(streams, cache=None, client_info=identity) as client:
                self._client = client
                self.stateful = client.protocol_version not in MODERN_PROTOCOL_VERSIONS
                transport.opened = True
                await self.refresh()
                self._ready.set_result(None)
                await self._end.wait()
        except Exception as error:
            log.debug("the MCP connection to %s ended", self.where, exc_info=True)
            if not self._ready.done():
                self._ready.set_exception(failure(error, self.where))
        finally:
            self.lost = True
            if not self._ready.done():
                self._ready.set_exception(TransportError(f"the connection to {self.where} was closed"))
            # Whoever asked for the connection may have gone; that its failure is heard by nobody is no news then.
            self._ready.exception()

    async def refresh(self) -> None:
        """Reads the server's tools again."""
        self.tools = {tool.name: tool for tool in await self.list_tools(None)}
        self.native = any(VERB_KEY in (tool.meta or {}) for tool in self.tools.values())

    async def list_tools(self, meta: Any) -> list[types.Tool]:
        """All tools that the server lists."""
        tools: list[types.Tool] = []
        cursor: str | None = None
        for _ in range(MAX_PAGES):
            page = await self.ask(partial(self._page, types.PaginatedRequestParams(cursor=cursor, _meta=meta)))
            tools += page.tools
            cursor = page.next_cursor
            if cursor is None:
                return tools
        raise ProtocolError(f"{self.where} lists its tools on more than {MAX_PAGES} pages")

    async def _page(self, params: types.PaginatedRequestParams, _: None) -> types.ListToolsResult:
        return await self.client.session.list_tools(params=params)

    async def ask(self, send: Callable[[Any], Awaitable[T]], on_message: OnMessage | None = None) -> T:
        """Makes a request; `send` gets the progress callback. Raises our errors in place of the SDK's."""
        try:
            if on_message is None:
                return await send(None)
            return await _heard(send, on_message)
        except (MCPError, ValidationError, RuntimeError) as error:
            raise failure(error, self.where) from error


async def _heard(send: Callable[[Any], Awaitable[T]], on_message: OnMessage) -> T:
    """Makes a request and gives its progress to `on_message`, in order, before the answer."""
    # The SDK calls back from a task of its own for each message, and swallows what a callback raises; so the callback
    # only puts the message by, in its first step, and those come in the order of the messages.
    messages: asyncio.Queue[str | None] = asyncio.Queue()

    async def put_by(progress: float, total: float | None, message: str | None) -> None:
        if message is not None:
            messages.put_nowait(message)

    async def sent() -> T:
        return await send(put_by)

    request = asyncio.get_running_loop().create_task(sent())
    request.add_done_callback(lambda _: messages.put_nowait(None))
    try:
        while (message := await messages.get()) is not None:
            await on_message(message)
        return await request
    finally:
        if not request.done():
            request.cancel()
            await asyncio.wait({request})


def failure(error: BaseException, where: str) -> AgentEnvError:
    """What went wrong, as one of our errors; the SDK wraps what ends a connection in groups."""
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    if isinstance(error, AgentEnvError):
        return error
    if isinstance(error, MCPError):
        return _by_code(error, where)
    if isinstance(error, ValidationError | RuntimeError):
        return ProtocolError(f"{where} answered what MCP does not allow ({type(error).__name__})")
    return TransportError(f"the MCP connection to {where} broke ({type(error).__name__})")


def _by_code(error: MCPError, where: str) -> AgentEnvError:
    known = ours(error.data)
    if known is not None:
        return known
    said = f"{where} answered with the error {error.code}: {error.message}"
    match error.code:
        case types.INVALID_PARAMS:
            return InvalidArguments(said)
        case types.METHOD_NOT_FOUND | types.MISSING_REQUIRED_CLIENT_CAPABILITY:
            return NotSupported(said)
        case types.REQUEST_TIMEOUT:
            return DeadlineExceeded(said)
        case types.CONNECTION_CLOSED:
            return TransportError(f"the connection to {where} broke before it had answered: {error.message}")
        case types.INVALID_REQUEST if error.message == "Session terminated":
            return TransportError(f"{where} has ended the MCP session, and what it remembered is lost")
        case types.PARSE_ERROR | types.INVALID_REQUEST | types.HEADER_MISMATCH | types.UNSUPPORTED_PROTOCOL_VERSION:
            return ProtocolError(said)
        case _:
            return AgentFailed(said)


class Pool:
    """The connections to one server, with one token, in one event loop."""

    def __init__(self, key: tuple[str, str | None]) -> None:
        self._key = key
        self._shared: Connection | None = None

    async def borrow(self) -> Connection:
        """A connection that is open: the shared one, or one's own where the server keeps a session for it."""
        connection = self._shared
        if connection is None or connection.lost:
            connection = self._shared = Connection(*self._key)
        connection.users += 1
        try:
            await connection.ready()
            if connection.stateful:
                if self._shared is connection:
                    self._shared = None
                elif connection.users > 1:
                    connection.users -= 1
                    connection = Connection(*self._key)
                    connection.users += 1
                    await connection.ready()
        except BaseException:
            self.give_back(connection)
            raise
        return connection

    def give_back(self, connection: Connection) -> None:
        """Ends one use of a connection."""
        connection.users -= 1
        if connection.users:
            return
        if connection is self._shared and connection.opened:
            asyncio.get_running_loop().call_later(LINGER_SECONDS, self._close_unused, connection)
        else:
            self.forget(connection)
            connection.close()

    def forget(self, connection: Connection) -> None:
        """Lends a connection to nobody any more; whoever has it may go on with it."""
        if connection is self._shared:
            self._shared = None

    async def aclose(self) -> None:
        """Closes the shared connection."""
        if self._shared is not None:
            self._shared.close()
            await self._shared.ended()

    def _close_unused(self, connection: Connection) -> None:
        if not connection.users:
            self.forget(connection)
            connection.close()


pools: PerLoop[tuple[str, str | None], Pool] = PerLoop(Pool, Pool.aclose)
# A cache, not a registry: what is in it can be dropped at any time and is opened again when needed.
