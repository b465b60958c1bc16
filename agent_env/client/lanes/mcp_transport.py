"""HTTP for the MCP SDK's client.

The SDK's own transport lets one request that fails take down every other call of the connection.
"""

from __future__ import annotations

import json
from collections.abc import AsyncGenerator, Generator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any, Final

import httpx2

from agent_env.client.lanes.sdk_http import REFUSALS, Reply, send
from agent_env.errors import AgentEnvError, from_wire
from agent_env.net.mcp_verbs import rpc_code

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
    # Saying goodbye (DELETE) is a courtesy; a server that does not listen must not hold it up.
    seconds = GOODBYE_SECONDS if request.method == "DELETE" else None
    reply = await send(request, headers=(_call_headers.get() or {}).items(), seconds=seconds)
    if reply.content is None:
        return httpx2.Response(reply.status, headers=reply.headers, stream=_Events(reply), request=request)
    if reply.status in REFUSALS and (error := reply.refusal(_told(reply.content))) is not None:
        raise error
    return httpx2.Response(reply.status, headers=reply.headers, content=reply.content, request=request)


def _told(content: bytes) -> AgentEnvError | None:
    """The error in a body, if it is one of ours."""
    try:
        return ours(json.loads(content)["error"]["data"])
    except (ValueError, TypeError, KeyError):
        return None


def ours(data: Any) -> AgentEnvError | None:
    """The error that the `data` of a JSON-RPC error describes, if it is what `to_wire` writes."""
    if isinstance(data, Mapping) and set(data) == {"code", "message", "retryable", "data"}:
        return from_wire(data)
    return None


class _Events(httpx2.AsyncByteStream):
    """A response's body as it arrives; closing it early tells the server to stop."""

    def __init__(self, reply: Reply) -> None:
        self._reply = reply

    async def __aiter__(self) -> AsyncGenerator[bytes]:
        # As it comes: the SDK has a way of its own to go on when a stream breaks.
        async for chunk in self._reply.response.content.iter_any():
            yield chunk

    async def aclose(self) -> None:
        self._reply.close()
