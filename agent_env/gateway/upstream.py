"""The gateway's own HTTP/1.1 client: pooled connections to model servers, and nothing on the way that is not needed.

A general client costs more of a call's time than everything else that the gateway does. This one sends a request head
that was made once an endpoint, hands over a reply's bytes as they come, and tells a connection that was never made from
one that broke: only after the former is it safe to try again.
"""

from __future__ import annotations

import asyncio
import base64
import ssl
from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from typing import Any, TypeAlias

import httptools
from yarl import URL

from agent_env.errors import AgentEnvError, MessageTooLarge, ProtocolError, TransportError
from agent_env.net import PerLoop
from agent_env.net.http import CONNECT_SECONDS, shown

# Servers close idle connections (uvicorn after 5 s), and a request on a closing one cannot be repeated: ours go first.
_KEEP_ALIVE_SECONDS = 4.0
_MOST_WAITING = 1024 * 1024
_MAX_HEAD_BYTES = 64 * 1024
"""How many bytes of a reply wait here before the server has to."""

_Origin: TypeAlias = tuple[str, int, bool]


class NotConnected(Exception):
    """No connection to a server could be made, so nothing was sent."""


@dataclass(frozen=True, slots=True)
class Endpoint:
    """Where requests go, with the head that is the same for all of them."""

    url: str
    origin: _Origin
    head: bytes

    @classmethod
    def of(cls, url: str, headers: Mapping[str, str]) -> Endpoint:
        """Reads an http URL; raises `ValueError`."""
        parsed = URL(url)
        host, port, secure = parsed.raw_host, parsed.port, parsed.scheme == "https"
        if not host or port is None:
            raise ValueError(f"{url!r} has no host")
        name = f"[{host}]" if ":" in host else host
        fields = {
            "Host": name if parsed.is_default_port() else f"{name}:{port}",
            "Content-Type": "application/json",
            "Accept-Encoding": "identity",
        }
        if parsed.user is not None:
            pair = f"{parsed.user}:{parsed.password or ''}".encode()
            fields["Authorization"] = f"Basic {base64.b64encode(pair).decode()}"
        lines = [
            f"POST {parsed.raw_path_qs} HTTP/1.1",
            *(f"{key}: {value}" for key, value in (fields | {**headers}).items()),
        ]
        return cls(shown(url), (host, port, secure), "\r\n".join(lines).encode("latin-1") + b"\r\n")

    def beside(self, path: str, other: str) -> Endpoint:
        """The endpoint at the same server whose path ends with `other` where this one's ends with `path`."""
        line, rest = self.head.split(b"\r\n", 1)
        place = line.split(b" ")[1].removesuffix(path.encode()) + other.encode()
        return Endpoint(self.url.removesuffix(path) + other, self.origin, b"POST %b HTTP/1.1\r\n%b" % (place, rest))


async def post(endpoint: Endpoint, body: bytes, headers: bytes = b"") -> Reply:
    """Sends a request and returns its reply once the reply's head is there; `headers` are further whole lines.

    Raises `NotConnected`, `TransportError` or `ProtocolError`.
    """
    return await _pools.get(None).post(endpoint, body, headers)


class Reply:
    """One reply: `status` and `headers` (lower-case names) are there, the body comes.

    Whoever does not read it to its end must `close` it.
    """

    def __init__(self, url: str, connection: _Connection) -> None:
        self.url = url
        self.status = 0
        self.headers: dict[bytes, bytes] = {}
        self.complete = False
        self._connection = connection
        self._pieces: list[bytes] = []
        self._waiting = 0
        self._error: AgentEnvError | None = None
        self._reader: asyncio.Future[None] | None = None

    async def next(self) -> bytes:
        """The bytes that came since the last time, waiting for some; empty at the end."""
        while not self._pieces:
            if self._error is not None:
                raise self._error
            if self.complete:
                return b""
            await self._wait()
        pieces = self._pieces
        piece = pieces[0] if len(pieces) == 1 else b"".join(pieces)
        pieces.clear()
        self._waiting = 0
        if not self.complete:
            self._connection.go_on()
        return piece

    async def read(self, most: int) -> bytes:
        """The whole body; raises `MessageTooLarge` as soon as it has more than `most` bytes."""
        whole: list[bytes] = []
        size = 0
        while piece := await self.next():
            size += len(piece)
            if size > most:
                raise too_large(most)
            whole.append(piece)
        return whole[0] if len(whole) == 1 else b"".join(whole)

    def close(self) -> None:
        """Gives the reply up: what was not read ends the connection, which ends the server's work."""
        if not self.complete:
            self._connection.abort()

    async def begun(self) -> None:
        """Waits for the head."""
        while not self.status:
            if self._error is not None:
                raise self._error
            await self._wait()

    async def _wait(self) -> None:
        self._reader = asyncio.get_running_loop().create_future()
        try:
            await self._reader
        finally:
            self._reader = None

    def wake(self) -> None:
        if self._reader is not None and not self._reader.done():
            self._reader.set_result(None)

    def take(self, piece: bytes) -> None:
        self._pieces.append(piece)
        self._waiting += len(piece)
        if self._waiting > _MOST_WAITING:
            self._connection.hold()
        self.wake()

    def finish(self) -> None:
        self.complete = True
        self.wake()

    def fail(self, error: AgentEnvError) -> None:
        if not self.complete and self._error is None:
            self._error = error
            self.wake()


def too_large(most: int) -> MessageTooLarge:
    """What a reply beyond the limit raises."""
    return MessageTooLarge(f"the model's server answered with more than {most} bytes", limit=most)


class _Connection(asyncio.Protocol):
    """One connection; it serves one request at a time."""

    def __init__(self, pool: _Pool, origin: _Origin) -> None:
        self.closed = False
        self.idle_since = 0.0
        self._pool = pool
        self._origin = origin
        self._transport: Any = None
        self._reply: Reply | None = None
        self._held = False
        self._headers: dict[bytes, bytes] = {}
        self._head_bytes = 0
        self._parser = httptools.HttpResponseParser(self)

    def send(self, url: str, request: bytes) -> Reply:
        self._reply = reply = Reply(url, self)
        self._transport.write(request)
        return reply

    def hold(self) -> None:
        if not self._held:
            self._held = True
            self._transport.pause_reading()

    def go_on(self) -> None:
        if self._held and not self.closed:
            self._held = False
            self._transport.resume_reading()

    def abort(self) -> None:
        self.closed = True
        self._transport.abort()

    # What the event loop tells:

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = transport

    def data_received(self, data: bytes) -> None:
        if self._reply is None:
            self.abort()  # nobody asked
            return
        try:
            self._parser.feed_data(data)
        except (httptools.HttpParserError, httptools.HttpParserUpgrade) as error:
            self._fail(ProtocolError(f"the reply is none of HTTP: {error}"))
            self.abort()

    def connection_lost(self, exc: Exception | None) -> None:
        self.closed = True
        reply = self._reply
        if reply is None:
            self._pool.forget(self._origin, self)
        elif not reply.status:
            self._fail(TransportError(f"{reply.url} cannot be reached: it closed the connection without an answer"))
        elif exc is None and not {b"content-length", b"transfer-encoding"} & reply.headers.keys():
            reply.finish()  # such a reply ends with its connection (RFC 9112 §6.3)
        else:
            self._fail(TransportError("the connection to the model's server broke within its reply"))

    def _fail(self, error: AgentEnvError) -> None:
        if self._reply is not None:
            if isinstance(error, ProtocolError):
                error = ProtocolError(f"{self._reply.url} sent a broken HTTP response: {error.message}")
            self._reply.fail(error)

    # What the parser tells:

    def on_message_begin(self) -> None:
        if self._reply is None:
            self.abort()  # a reply too many: whoever asked next would get it

    def on_header(self, name: bytes, value: bytes) -> None:
        if self._reply is None or self._reply.status:
            return  # a trailer, which is of no header of the next reply
        self._head_bytes += len(name) + len(value)
        if self._head_bytes > _MAX_HEAD_BYTES:
            self._fail(ProtocolError(f"its head has more than {_MAX_HEAD_BYTES} bytes"))
            self.abort()
            return
        self._headers[name.lower()] = value

    def on_headers_complete(self) -> None:
        status = self._parser.get_status_code()
        headers, self._headers, self._head_bytes = self._headers, {}, 0
        reply = self._reply
        if reply is None or status < 200:
            return  # an interim answer (RFC 9110 §15.2)
        if headers.get(b"content-encoding", b"identity") != b"identity":
            self._fail(ProtocolError("it is compressed, which nobody asked for"))
            self.abort()
            return
        reply.headers = headers
        reply.status = status
        reply.wake()

    def on_body(self, body: bytes) -> None:
        if self._reply is not None:
            self._reply.take(body)

    def on_message_complete(self) -> None:
        reply = self._reply
        if reply is None or not reply.status:
            return
        self._reply = None
        reply.finish()
        self.go_on()  # for whoever asks next: this reply may never be read
        if self._parser.should_keep_alive() and not self.closed:
            self._pool.keep(self._origin, self)
        else:
            self.abort()


class _Pool:
    """The connections of one event loop."""

    def __init__(self, _: None = None) -> None:
        self._idle: dict[_Origin, deque[_Connection]] = {}
        self._sweep: asyncio.TimerHandle | None = None

    async def post(self, endpoint: Endpoint, body: bytes, headers: bytes) -> Reply:
        connection = self._take(endpoint.origin) or await self._connect(endpoint)
        request = b"%bContent-Length: %d\r\n%b\r\n%b" % (endpoint.head, len(body), headers, body)
        reply = connection.send(endpoint.url, request)
        try:
            await reply.begun()
        except BaseException:
            connection.abort()
            raise
        return reply

    def keep(self, origin: _Origin, connection: _Connection) -> None:
        loop = asyncio.get_running_loop()
        connection.idle_since = loop.time()
        self._idle.setdefault(origin, deque()).append(connection)
        if self._sweep is None:
            self._sweep = loop.call_later(_KEEP_ALIVE_SECONDS, self._drop_old)

    def forget(self, origin: _Origin, connection: _Connection) -> None:
        idle = self._idle.get(origin)
        if idle is not None and connection in idle:
            idle.remove(connection)

    async def aclose(self) -> None:
        if self._sweep is not None:
            self._sweep.cancel()
        for idle in self._idle.values():
            for connection in list(idle):
                connection.abort()
        self._idle.clear()
        # The transports are told to close in the next step of the loop; the loop may have only this one left.
        await asyncio.sleep(0)

    def _take(self, origin: _Origin) -> _Connection | None:
        """The connection that was used last, if there is one that its server will still keep."""
        idle = self._idle.get(origin)
        if not idle:
            return None
        oldest = asyncio.get_running_loop().time() - _KEEP_ALIVE_SECONDS
        while idle:
            connection = idle.pop()
            if not connection.closed and connection.idle_since > oldest:
                return connection
            connection.abort()
        return None

    async def _connect(self, endpoint: Endpoint) -> _Connection:
        host, port, secure = endpoint.origin
        try:
            async with asyncio.timeout(CONNECT_SECONDS):
                _, connection = await asyncio.get_running_loop().create_connection(
                    lambda: _Connection(self, endpoint.origin), host, port, ssl=_trust() if secure else None
                )
        except TimeoutError:
            raise NotConnected(
                f"{endpoint.url} cannot be reached: no connection within {CONNECT_SECONDS:g} s"
            ) from None
        except OSError as error:
            raise NotConnected(f"{endpoint.url} cannot be reached: {error.strerror or error}") from error
        return connection

    def _drop_old(self) -> None:
        self._sweep = None
        loop = asyncio.get_running_loop()
        oldest = loop.time() - _KEEP_ALIVE_SECONDS
        for idle in self._idle.values():
            while idle and idle[0].idle_since <= oldest:
                idle.popleft().abort()
        if any(self._idle.values()):
            self._sweep = loop.call_later(_KEEP_ALIVE_SECONDS, self._drop_old)
        self._idle = {origin: idle for origin, idle in self._idle.items() if idle}


@cache
def _trust() -> ssl.SSLContext:
    return ssl.create_default_context()


_pools: PerLoop[None, _Pool] = PerLoop(_Pool, _Pool.aclose)
