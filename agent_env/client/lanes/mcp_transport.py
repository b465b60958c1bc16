"""HTTP for the MCP SDK's client: over the client that all code in this process shares, with our errors.

The SDK's own transport makes an HTTP client, with a TLS context, for each connection; and one request that fails takes
down every other call of the connection.
"""

from __future__ import annotations

import json
from collections.abc import AsyncGenerator, Generator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any, Final

import aiohttp
import httpx2

from agent_env.errors import (
    AgentEnvError,
    AtCapacity,
    Forbidden,
    MessageTooLarge,
    TransportError,
    Unauthenticated,
    from_wire,
)
from agent_env.net.http import CONNECT_SECONDS, MAX_REPLY_BYTES, shared_http, shown, transport_errors
from agent_env.net.mcp_verbs import rpc_code

# The SDK's client writes these for itself, and aiohttp does for itself.
_HOP_HEADERS: Final = frozenset({"host", "connection", "content-length", "accept-encoding", "transfer-encoding"})
# aiohttp gives bodies without their coding, so what it says about that must not reach the SDK.
_BODY_HEADERS: Final = frozenset({"content-length", "content-encoding", "transfer-encoding", "connection"})

_REFUSALS: Final[Mapping[int, tuple[type[AgentEnvError], str]]] = {
    401: (Unauthenticated, "wants a valid bearer token"),
    403: (Forbidden, "does not allow this to the caller"),
    413: (MessageTooLarge, "takes no message of this size"),
    421: (Forbidden, "does not know itself under this address"),
    429: (AtCapacity, "takes no more requests now"),
    502: (TransportError, "answered 502: the server behind it cannot be reached now"),
    503: (AtCapacity, "takes no more requests now"),
    504: (TransportError, "answered 504: the server behind it cannot be reached now"),
}
"""Statuses that say the same whichever version of the protocol a server speaks."""

GOODBYE_SECONDS: Final = 5.0

_call_headers: ContextVar[Mapping[str, str] | None] = ContextVar("agent_env_mcp_headers", default=None)


@contextmanager
def call_headers(headers: Mapping[str, str]) -> Generator[None]:
    """Sends these headers with the requests of the calls that are made inside.

    The SDK sends each request in the context of the task that made the call.
    """
    token = _call_headers.set(headers)
    try:
        yield
    finally:
        _call_headers.reset(token)


class SharedTransport(httpx2.AsyncBaseTransport):
    """Sends the requests of one connection.

    While it is being opened, what goes wrong is raised and ends it; later it becomes the answer to the one request
    that it befell: a JSON-RPC error, whose `data` is ours.
    """

    def __init__(self) -> None:
        self.opened = False

    async def handle_async_request(self, request: httpx2.Request) -> httpx2.Response:
        """Sends a request; answers with the whole body, unless it is a stream of events."""
        try:
            return await _send(request)
        except AgentEnvError as error:
            if not self.opened:
                raise
            failure = {"code": rpc_code(error), "message": error.message, "data": error.to_wire()}
            body = {"jsonrpc": "2.0", "id": None, "error": failure}
            return httpx2.Response(error.http_status, json=body, request=request)


async def _send(request: httpx2.Request) -> httpx2.Response:
    url = str(request.url)
    headers = [(name, value) for name, value in request.headers.multi_items() if name.lower() not in _HOP_HEADERS]
    headers += (_call_headers.get() or {}).items()
    with transport_errors(url):
        response = await shared_http().request(
            request.method,
            url,
            data=await request.aread() or None,
            headers=headers,
            allow_redirects=False,
            timeout=aiohttp.ClientTimeout(
                # Saying goodbye (DELETE) is a courtesy; a server that does not listen must not hold it up.
                total=GOODBYE_SECONDS if request.method == "DELETE" else None,
                sock_connect=CONNECT_SECONDS,
            ),
        )
        kept = [(name, value) for name, value in response.headers.items() if name.lower() not in _BODY_HEADERS]
        if response.status == 200 and response.content_type == "text/event-stream":
            return httpx2.Response(200, headers=kept, stream=_Events(response), request=request)
        async with response:
            content = await _read(response, url)
    if response.status in _REFUSALS:
        raise _refusal(response, content)
    return httpx2.Response(response.status, headers=kept, content=content, request=request)


async def _read(response: aiohttp.ClientResponse, url: str) -> bytes:
    content = bytearray()
    async for chunk in response.content.iter_any():
        content += chunk
        if len(content) > MAX_REPLY_BYTES:
            response.close()
            raise MessageTooLarge(f"{shown(url)} answered with more than {MAX_REPLY_BYTES} bytes")
    return bytes(content)


def _refusal(response: aiohttp.ClientResponse, content: bytes) -> AgentEnvError:
    """The error that a refusing status stands for: the one in the body if it is ours, else by the status."""
    try:
        error = ours(json.loads(content)["error"]["data"])
    except (ValueError, TypeError, KeyError):
        error = None
    if error is None:
        kind, text = _REFUSALS[response.status]
        error = kind(f"{shown(str(response.url))} {text}", status=response.status)
    wait = response.headers.get("Retry-After", "")
    if wait.isdecimal():
        error.data.setdefault("retry_after", float(wait))
    return error


def ours(data: Any) -> AgentEnvError | None:
    """The error that the `data` of a JSON-RPC error describes, if it is what `to_wire` writes."""
    if isinstance(data, Mapping) and set(data) == {"code", "message", "retryable", "data"}:
        return from_wire(data)
    return None


class _Events(httpx2.AsyncByteStream):
    """A response's body as it arrives. Closing it early closes the connection, which tells the server to stop."""

    def __init__(self, response: aiohttp.ClientResponse) -> None:
        self._response = response

    async def __aiter__(self) -> AsyncGenerator[bytes]:
        async for chunk in self._response.content.iter_any():
            yield chunk

    async def aclose(self) -> None:
        self._response.close()
