"""The WebSocket face: many calls over one socket, cancelled, streamed, and resumed when the socket breaks.

The messages are in `agent_env.net.frames`.
"""

from __future__ import annotations

import asyncio
import logging
import secrets
from collections import deque
from collections.abc import AsyncGenerator, Mapping, Sequence
from contextlib import asynccontextmanager
from typing import Any, cast

from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import BaseRoute, Route, WebSocketRoute
from starlette.websockets import WebSocket, WebSocketState

from agent_env.context import Principal
from agent_env.errors import (
    AgentEnvError,
    AtCapacity,
    InvalidArguments,
    MessageTooLarge,
    NotSupported,
    ProtocolError,
)
from agent_env.net.frames import RESUME_SECONDS, SUBPROTOCOL, WINDOW, decode_frame, encode_frame
from agent_env.runtime.parts import encode_event
from agent_env.runtime.verbs import perform
from agent_env.serving.faces.contract import Site
from agent_env_wrappers.contract import Event

log = logging.getLogger("agent_env.serving")

PATH = "/v1/ws"

MAX_CALLS = 4096
"""Calls that one connection may have in flight."""


class WebSocketFace:
    """Serves `/v1/ws`."""

    def __init__(self, site: Site, *, resume_seconds: float = RESUME_SECONDS) -> None:
        self.runtime = site.runtime
        self.access = site.access
        self.address = site.address
        self.resume_seconds = resume_seconds
        self.max_frame = site.runtime.definition.limits.max_request_bytes
        self.digest = site.card.digest()
        self.connections: dict[str, Connection] = {}

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
            if message["type"] == "websocket.disconnect":
                if message.get("code") in (1000, 1001):
                    websocket.state.connection.abandon()
                return
            frame = message.get("text") or message.get("bytes") or ""
            try:
                if len(frame) > self.max_frame:
                    raise MessageTooLarge(f"the frame has {len(frame)} characters; send less in one frame")
                messages = decode_frame(frame)
            except AgentEnvError as error:
                await websocket.close(1009 if isinstance(error, MessageTooLarge) else 1003, error.message[:120])
                websocket.state.connection.abandon()
                return
            if first and messages and "resume" in messages[0]:
                self._resume(websocket, messages.pop(0))
            first = False
            for item in messages:
                websocket.state.connection.receive(item)

    def _resume(self, websocket: WebSocket, message: Mapping[str, Any]) -> None:
        fresh: Connection = websocket.state.connection
        found = self.connections.get(str(message["resume"]))
        if found is None or found.principal != fresh.principal:
            fresh.send({"resumed": False})
            return
        fresh.detach(websocket)
        fresh.abandon()
        found.acknowledge(int(message.get("seen", 0)))
        found.attach(websocket, resumed=True)


class _Flow:
    """How far the events of one call may run ahead of the client."""

    def __init__(self) -> None:
        self._sent = 0
        self._taken = 0
        self._room = asyncio.Event()

    def take(self, taken: int) -> None:
        """Notes how many events the client has taken in; the count is cumulative, so that a lost one does no harm."""
        self._taken = min(max(self._taken, taken), self._sent)
        self._room.set()

    async def allow(self) -> None:
        """Returns when one more event may be sent."""
        while self._sent - self._taken >= WINDOW:
            self._room.clear()
            await self._room.wait()
        self._sent += 1


class Connection:
    """One client's calls; it outlives its socket for a while."""

    def __init__(self, face: WebSocketFace, principal: Principal) -> None:
        self.id = secrets.token_urlsafe(16)
        self.principal = principal
        self._face = face
        self._calls: dict[int, asyncio.Task[None]] = {}
        self._flows: dict[int, _Flow] = {}
        self._sent: deque[dict[str, Any]] = deque()
        self._answered: set[int] = set()
        self._pending: list[dict[str, Any]] = []
        self._seq = 0
        self._wake = asyncio.Event()
        self._writer: asyncio.Task[None] | None = None
        self._websocket: WebSocket | None = None
        self._orphaned: asyncio.TimerHandle | None = None
        face.connections[self.id] = self

    # ── the socket ─────────────────────────────────────────────────────────────────────────────────────────────

    def attach(self, websocket: WebSocket, *, resumed: bool = False) -> None:
        """Speaks through this socket from now on."""
        if self._websocket is not None:
            self.detach(self._websocket)
        if self._orphaned is not None:
            self._orphaned.cancel()
            self._orphaned = None
        websocket.state.connection = self
        self._websocket = websocket
        hello = {
            "connection": self.id,
            "resume_seconds": self._face.resume_seconds,
            "window": WINDOW,
            "max_frame": self._face.max_frame,
            "digest": self._face.digest,
        }
        self._pending = [{"resumed": True}, *self._sent] if resumed else [{"hello": hello}]
        self._wake.set()
        self._writer = asyncio.get_running_loop().create_task(self._write(websocket))

    def detach(self, websocket: WebSocket) -> None:
        """Lets go of a socket; calls run on for `resume_seconds`."""
        if self._websocket is not websocket:
            return
        self._websocket = None
        if self._writer is not None:
            self._writer.cancel()
        if not self._calls and not self._sent:
            self._face.connections.pop(self.id, None)
        elif self.id in self._face.connections:
            loop = asyncio.get_running_loop()
            self._orphaned = loop.call_later(self._face.resume_seconds, self.abandon)

    def abandon(self) -> None:
        """Cancels all calls and forgets the connection."""
        self._face.connections.pop(self.id, None)
        if self._orphaned is not None:
            self._orphaned.cancel()
            self._orphaned = None
        for task in self._calls.values():
            task.cancel()

    async def closed(self) -> None:
        """Returns when every call of the connection has ended."""
        if self._calls:
            await asyncio.wait(self._calls.values())

    async def _write(self, websocket: WebSocket) -> None:
        try:
            while True:
                await self._wake.wait()
                self._wake.clear()
                messages, self._pending = self._pending, []
                if messages and websocket.application_state is WebSocketState.CONNECTED:
                    await websocket.send_text(encode_frame(messages))
        except (RuntimeError, OSError):
            log.debug("connection %s lost its socket while writing", self.id[:6])

    def send(self, message: dict[str, Any]) -> None:
        """Queues a message; several go out in one frame when the socket is busy."""
        self._pending.append(message)
        self._wake.set()

    def _send_numbered(self, message: dict[str, Any]) -> None:
        self._seq += 1
        message["seq"] = self._seq
        self._sent.append(message)
        if self._websocket is not None:
            self.send(message)

    # ── the messages ───────────────────────────────────────────────────────────────────────────────────────────

    def acknowledge(self, seq: int) -> None:
        """Forgets what the client has."""
        while self._sent and self._sent[0]["seq"] <= seq:
            message = self._sent.popleft()
            if "event" not in message:
                self._answered.discard(message["id"])

    def receive(self, message: Mapping[str, Any]) -> None:
        """Takes one message of the client."""
        match message:
            case {"verb": str(), "id": int(id)}:
                if id in self._calls or id in self._answered:
                    return
                if len(self._calls) >= MAX_CALLS:
                    busy = AtCapacity(
                        f"this connection has {MAX_CALLS} calls in flight; wait for answers", retry_after=1
                    )
                    self._answer(id, "error", busy.to_wire())
                    return
                self._flows[id] = _Flow()
                task = asyncio.get_running_loop().create_task(self._serve(id, message))
                self._calls[id] = task
                task.add_done_callback(lambda _: self._ended(id))
            case {"cancel": int(id)}:
                if id in self._calls:
                    self._calls[id].cancel()
            case {"taken": int(taken), "of": int(id)}:
                flow = self._flows.get(id)
                if flow is not None:
                    flow.take(taken)
            case {"ack": int(seq)}:
                self.acknowledge(seq)
            case _:
                error = ProtocolError(f"{message!r:.200} is no message of this protocol")
                self.send({"id": message.get("id"), "error": error.to_wire()})

    def _ended(self, id: int) -> None:
        self._calls.pop(id, None)
        self._flows.pop(id, None)

    def _answer(self, id: int, kind: str, value: Any) -> None:
        self._answered.add(id)
        self._send_numbered({"id": id, kind: value})

    async def _serve(self, id: int, message: Mapping[str, Any]) -> None:
        try:
            arguments = message.get("arguments") or {}
            if not isinstance(arguments, Mapping):
                raise InvalidArguments(f"'arguments' must be an object, not {arguments!r:.100}")
            client = self._websocket.client if self._websocket is not None else None
            caller = self._face.access.caller(
                self.principal, message.get("context") or {}, message.get("run"), client.host if client else None
            )
            result = await perform(
                self._face.runtime,
                message["verb"],
                cast("Mapping[str, Any]", arguments),
                caller,
                self._events(id) if message.get("stream") else None,
            )
            self._answer(id, "result", result)
        except AgentEnvError as error:
            self._answer(id, "error", error.to_wire())
        except asyncio.CancelledError:
            gone = {"code": "cancelled", "message": "the call was cancelled", "retryable": False, "data": {}}
            self._answer(id, "error", gone)
        except BaseException:  # whoever calls gets an answer, and a `SystemExit` would end the server
            log.exception("a call of %r failed inside the server", message.get("verb"))
            self._answer(id, "error", AgentEnvError("the server failed; its log has the details").to_wire())

    def _events(self, id: int) -> Any:
        flow = self._flows[id]

        async def on_event(event: Event) -> None:
            wire = encode_event(event)
            if wire is not None:
                await flow.allow()
                self._send_numbered({"id": id, "event": wire})

        return on_event
