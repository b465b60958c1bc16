"""HTTP for the A2A SDK's client."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from typing import Any

import httpx

from agent_env.client.lanes.sdk_http import Reply, send
from agent_env.errors import AgentEnvError, from_wire
from agent_env.net.a2a_wire import EXTENSION, as_object


class SharedTransport(httpx.AsyncBaseTransport):
    """Sends requests through `shared_http`; raises our errors for what never becomes an answer of A2A."""

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        """Sends a request; answers with the whole body, unless it is a stream of events."""
        reply = await send(request)
        if reply.content is None:
            return httpx.Response(reply.status, headers=reply.headers, stream=_Events(reply), request=request)
        if reply.status >= 300 and (error := reply.refusal(_ours(reply.content))) is not None:
            raise error
        return httpx.Response(reply.status, headers=reply.headers, content=reply.content, request=request)


class _Events(httpx.AsyncByteStream):
    """A stream of events; closing it early tells the server that nobody listens."""

    def __init__(self, reply: Reply) -> None:
        self._reply = reply

    def __aiter__(self) -> AsyncIterator[bytes]:
        return self._reply.chunks()

    async def aclose(self) -> None:
        self._reply.close()


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
