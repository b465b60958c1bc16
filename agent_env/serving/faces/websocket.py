"""The WebSocket face: many calls over one socket, cancelled, streamed, and resumed when the socket breaks.

The messages are in `agent_env.net.frames`.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncGenerator, Mapping, Sequence
from contextlib import asynccontextmanager
from typing import Any

from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import BaseRoute, Route, WebSocketRoute
from starlette.websockets import WebSocket

from agent_env.errors import AgentEnvError, MessageTooLarge, NotSupported, ProtocolError
from agent_env.net.frames import RESUME_SECONDS, SUBPROTOCOL, decode_frame
from agent_env.serving.faces.contract import Site
from agent_env.serving.faces.websocket_connection import Connection

log = logging.getLogger("agent_env.serving")

PATH = "/v1/ws"


class WebSocketFace:
    """Serves `/v1/ws`."""

    def __init__(self, site: Site, *, resume_seconds: float = RESUME_SECONDS) -> None:
        self.runtime = site.runtime
        self.access = site.access
        self.address = site.address
        self.resume_seconds = resume_seconds
        self.max_frame = site.runtime.definition.limits.max_request_bytes
        self.max_held = 4 * site.runtime.definition.limits.max_message_bytes
        self.digest = site.card.digest()
        self.connections: dict[str, Connection] = {}
        self._closing: set[asyncio.Task[None]] = set()

    def routes(self) -> Sequence[BaseRoute]:
        """The socket, and what a plain request for it is told."""
        return (WebSocketRoute(PATH, self.serve), Route(PATH, self.explain))

    @asynccontextmanager
    async def running(self) -> AsyncGenerator[None]:
        """Cancels what still runs when the app stops."""
        try:
            yield
        finally:
            for connection in list(self.connections.values()):
                connection.abandon()
                await connection.closed()
            for task in self._closing:
                task.cancel()

    async def explain(self, request: Request) -> Response:
        """Answers a request without an upgrade: with the error that a handshake would get, or how to make one."""
        try:
            self.access.admit(request.scope, request.headers, self.address)
            error: AgentEnvError = NotSupported("this is a WebSocket; open it with the subprotocol agent-env.v1")
            status = 426
        except AgentEnvError as refusal:
            error, status = refusal, refusal.http_status
        return JSONResponse({"error": error.to_wire()}, status, {"Upgrade": "websocket"} if status == 426 else None)

    async def serve(self, websocket: WebSocket) -> None:
        """Serves one socket until it closes."""
        try:
            principal = self.access.admit(websocket.scope, websocket.headers, self.address)
        except AgentEnvError as error:
            await websocket.send_denial_response(JSONResponse({"error": error.to_wire()}, error.http_status))
            return
        offered = websocket.scope.get("subprotocols", ())
        await websocket.accept(SUBPROTOCOL if SUBPROTOCOL in offered else None)
        connection = Connection(self, principal)
        try:
            await self._receive(websocket, connection)
        finally:
            websocket.state.connection.detach(websocket)

    async def _receive(self, websocket: WebSocket, connection: Connection) -> None:
        connection.attach(websocket)
        first = True
        while True:
            message = await websocket.receive()
            connection = websocket.state.connection
            if not connection.speaks_through(websocket) and message["type"] != "websocket.disconnect":
                continue  # closed by us, or resumed on another socket; it is read until it agrees to be closed
            if message["type"] == "websocket.disconnect":
                if connection.speaks_through(websocket) and message.get("code") in (1000, 1001):
                    connection.abandon()
                return
            frame = message.get("text") or message.get("bytes") or ""
            try:
                if len(frame) > self.max_frame:
                    raise MessageTooLarge(f"the frame has {len(frame)} characters; send less in one frame")
                messages = decode_frame(frame)
                if first and messages and "resume" in messages[0]:
                    self._resume(websocket, messages.pop(0))
            except AgentEnvError as error:
                await websocket.close(1009 if isinstance(error, MessageTooLarge) else 1003, _reason(error.message))
                connection.abandon()
                return
            first = False
            for item in messages:
                websocket.state.connection.receive(item)

    def _resume(self, websocket: WebSocket, message: Mapping[str, Any]) -> None:
        fresh: Connection = websocket.state.connection
        seen = message.get("seen", 0)
        if not isinstance(seen, int):
            raise ProtocolError("'seen' must be the number of the last message that was received")
        found = self.connections.get(str(message["resume"]))
        if found is None or found.principal != fresh.principal:
            fresh.send({"resumed": False})
            return
        fresh.detach(websocket)
        fresh.abandon()
        found.acknowledge(seen)
        found.attach(websocket, resumed=True)

    def close(self, websocket: WebSocket, reason: str) -> None:
        """Closes a socket whose client broke the rules (RFC 6455: 1008), without waiting for it to agree."""
        task = asyncio.get_running_loop().create_task(_close(websocket, reason))
        self._closing.add(task)
        task.add_done_callback(self._closing.discard)


async def _close(websocket: WebSocket, reason: str) -> None:
    try:
        await websocket.close(1008, _reason(reason))
    except (RuntimeError, OSError):
        log.debug("a socket was gone before it was closed")


def _reason(text: str) -> str:
    """As much of a text as a close frame holds: 123 bytes."""
    return text.encode("utf-8", "replace")[:120].decode("utf-8", "ignore")
