"""HTTP beneath the SDKs' clients: over the client that all code in this process shares, with our errors.

The SDKs' own HTTP clients cost a TLS context for each new one, and more CPU for a call than the call itself.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Final, Protocol

import aiohttp

from agent_env.errors import AgentEnvError, AtCapacity, Forbidden, MessageTooLarge, TransportError, Unauthenticated
from agent_env.net.http import CONNECT_SECONDS, MAX_REPLY_BYTES, read_body, shared_http, shown, transport_errors

# The SDKs' clients write these for themselves, and aiohttp does for itself.
_HOP_HEADERS: Final = frozenset({"host", "connection", "content-length", "accept-encoding", "transfer-encoding"})
# aiohttp gives bodies without their coding, so what it says about that must not reach the SDKs.
_BODY_HEADERS: Final = frozenset({"content-length", "content-encoding", "transfer-encoding", "connection"})

REFUSALS: Final[Mapping[int, tuple[type[AgentEnvError], str]]] = {
    401: (Unauthenticated, "wants a valid bearer token"),
    403: (Forbidden, "does not allow this to the caller"),
    413: (MessageTooLarge, "takes no message of this size"),
    421: (Forbidden, "does not know itself under this address"),
    429: (AtCapacity, "takes no more requests now"),
    502: (TransportError, "answered 502: the server behind it cannot be reached now"),
    503: (AtCapacity, "takes no more requests now"),
    504: (TransportError, "answered 504: the server behind it cannot be reached now"),
}
"""Statuses that say the same in every version of MCP and of A2A."""


class Request(Protocol):
    """A request of httpx, whichever of its generations an SDK uses."""

    @property
    def method(self) -> str: ...
    @property
    def url(self) -> Any: ...
    @property
    def headers(self) -> Any: ...
    async def aread(self) -> bytes: ...


@dataclass(frozen=True, slots=True)
class Reply:
    """An answer; `content` is None for a stream of events, which `chunks` gives as they arrive."""

    url: str
    status: int
    headers: list[tuple[str, str]]
    content: bytes | None
    response: aiohttp.ClientResponse

    async def chunks(self) -> AsyncIterator[bytes]:
        """What arrives; raises `MessageTooLarge`, and `TransportError` where the connection breaks."""
        size = 0
        try:
            async for chunk in self.response.content.iter_any():
                size += len(chunk)
                if size > MAX_REPLY_BYTES:
                    self.close()
                    raise MessageTooLarge(f"{shown(self.url)} answered with more than {MAX_REPLY_BYTES} bytes")
                yield chunk
        except (aiohttp.ClientPayloadError, aiohttp.ClientConnectionError) as error:
            raise TransportError(f"the connection to {shown(self.url)} broke before the answer was complete") from error

    def close(self) -> None:
        """Breaks the connection, which tells the server that nobody listens."""
        self.response.close()

    def refusal(self, told: AgentEnvError | None) -> AgentEnvError | None:
        """The error that a refusing answer stands for: what its body `told`, else by its status; None for neither."""
        error = told
        if error is None and self.status in REFUSALS:
            kind, what = REFUSALS[self.status]
            error = kind(f"{shown(self.url)} {what}", status=self.status)
        wait = self.response.headers.get("Retry-After", "").strip()
        if error is not None and wait.isdecimal():
            error.data.setdefault("retry_after", float(wait))
        return error


async def send(request: Request, *, headers: Iterable[tuple[str, str]] = (), seconds: float | None = None) -> Reply:
    """Sends a request of an SDK, with more headers; answers with the whole body, unless it is a stream of events."""
    url = str(request.url)
    given = [(name, value) for name, value in request.headers.multi_items() if name.lower() not in _HOP_HEADERS]
    with transport_errors(url):
        response = await shared_http().request(
            request.method,
            url,
            data=await request.aread() or None,
            headers=[*given, *headers],
            # A redirect would carry the caller's token to an address that nobody chose.
            allow_redirects=False,
            timeout=aiohttp.ClientTimeout(total=seconds, sock_connect=CONNECT_SECONDS),
        )
        kept = [(name, value) for name, value in response.headers.items() if name.lower() not in _BODY_HEADERS]
        content: bytes | None = None
        if response.status != 200 or response.content_type != "text/event-stream":
            async with response:
                content = await read_body(response, MAX_REPLY_BYTES)
    return Reply(url, response.status, kept, content, response)
