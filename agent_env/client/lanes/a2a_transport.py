"""HTTP for the A2A SDK's client: over the client that all code in this process shares, with our errors.

The SDK's own HTTP client costs a TLS context for each new one, and more CPU for a call than the call itself.
"""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Mapping
from typing import Any, Final

import aiohttp
import httpx

from agent_env.errors import (
    AgentEnvError,
    AtCapacity,
    Forbidden,
    MessageTooLarge,
    TransportError,
    Unauthenticated,
    from_wire,
)
from agent_env.net.a2a_wire import EXTENSION, as_object
from agent_env.net.http import CONNECT_SECONDS, MAX_REPLY_BYTES, shared_http, shown, transport_errors

# The SDK's client writes these for itself, and aiohttp does for itself.
_HOP_HEADERS: Final = frozenset({"host", "connection", "content-length", "accept-encoding", "transfer-encoding"})
# aiohttp gives bodies without their coding, so what it says about that must not reach the SDK.
_BODY_HEADERS: Final = frozenset({"content-length", "content-encoding", "transfer-encoding", "connection"})

_REFUSALS: Final[Mapping[int, tuple[type[AgentEnvError], str]]] = {
    401: (Unauthenticated, "wants a valid bearer token"),
    403: (Forbidden, "does not allow this to the caller"),
    413: (MessageTooLarge, "takes no message of this size"),
    429: (AtCapacity, "takes no more requests now"),
    502: (TransportError, "answered 502: the server behind it cannot be reached now"),
    503: (AtCapacity, "takes no more requests now"),
    504: (TransportError, "answered 504: the server behind it cannot be reached now"),
}
"""Statuses that say the same in every version of A2A."""


class SharedTransport(httpx.AsyncBaseTransport):
    """Sends requests through `shared_http`; raises our errors for what never becomes an answer of A2A."""

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        """Sends a request; answers with the whole body, unless it is a stream of events."""
        url = str(request.url)
        headers = [(name, value) for name, value in request.headers.multi_items() if name.lower() not in _HOP_HEADERS]
        with transport_errors(url):
            response = await shared_http().request(
                request.method,
                url,
                data=await request.aread() or None,
                headers=headers,
                # A redirect would carry the caller's token to an address that nobody chose.
                allow_redirects=False,
                timeout=aiohttp.ClientTimeout(total=None, sock_connect=CONNECT_SECONDS),
            )
            kept = [(name, value) for name, value in response.headers.items() if name.lower() not in _BODY_HEADERS]
            if response.status == 200 and response.content_type == "text/event-stream":
                return httpx.Response(200, headers=kept, stream=_Events(response), request=request)
            async with response:
                content = b"".join([chunk async for chunk in _bounded(response, url)])
        if response.status >= 300 and (error := _refusal(response, content)) is not None:
            raise error
        return httpx.Response(response.status, headers=kept, content=content, request=request)


class _Events(httpx.AsyncByteStream):
    """A stream of events; closing it early breaks the connection, which tells the server that nobody listens."""

    def __init__(self, response: aiohttp.ClientResponse) -> None:
        self._response = response

    async def __aiter__(self) -> AsyncIterator[bytes]:
        url = str(self._response.url)
        try:
            async for chunk in _bounded(self._response, url):
                yield chunk
        except (aiohttp.ClientPayloadError, aiohttp.ClientConnectionError) as error:
            raise TransportError(f"the connection to {shown(url)} broke before the answer was complete") from error

    async def aclose(self) -> None:
        self._response.close()


async def _bounded(response: aiohttp.ClientResponse, url: str) -> AsyncIterator[bytes]:
    size = 0
    async for chunk in response.content.iter_any():
        size += len(chunk)
        if size > MAX_REPLY_BYTES:
            response.close()
            raise MessageTooLarge(f"{shown(url)} answered with more than {MAX_REPLY_BYTES} bytes")
        yield chunk


def _refusal(response: aiohttp.ClientResponse, content: bytes) -> AgentEnvError | None:
    """The error that a status stands for: ours if the body has it, else by the status; None to let the SDK tell."""
    found = _ours(content)
    if found is None and response.status in _REFUSALS:
        kind, what = _REFUSALS[response.status]
        found = kind(f"{shown(str(response.url))} {what}")
    retry_after = response.headers.get("Retry-After", "").strip()
    if found is not None and retry_after.isdecimal():
        found.data.setdefault("retry_after", float(retry_after))
    return found


def _ours(content: bytes) -> AgentEnvError | None:
    try:
        error: Any = json.loads(content)["error"]
        details: Any = error.get("details") or error.get("data") or ()
        for detail in details:
            wire = as_object(detail["metadata"].get(EXTENSION))
            if wire:
                return from_wire(wire)
    except (ValueError, TypeError, KeyError, AttributeError):
        pass  # somebody else's form
    return None
