"""One client of the WebSocket face: its calls, and the socket that it speaks through now."""

from __future__ import annotations

import asyncio
import logging
import secrets
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, cast

from starlette.websockets import WebSocket, WebSocketState

from agent_env.context import Principal
from agent_env.errors import AgentEnvError, AgentFailed, AtCapacity, InvalidArguments, ProtocolError
from agent_env.net.frames import WINDOW
from agent_env.runtime.parts import encode_event
from agent_env.runtime.verbs import perform
from agent_env.serving.faces.websocket_outbox import Outbox
from agent_env_wrappers.contract import Event

if TYPE_CHECKING:
    from agent_env.serving.faces.websocket import WebSocketFace

log = logging.getLogger("agent_env.serving")

MAX_CALLS = 4096
"""Calls that one connection may have in flight."""

MAX_STRAYS = 8
"""Messages that are none of this protocol which a connection answers; with one more it is closed."""

ROOM_SECONDS = 5.0
"""How long a new call waits for the client to acknowledge what it has, before it is refused."""


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
        self._outbox = Outbox(face.max_held)
        self._answered: set[int] = set()
        self._strays = 0
        self._refused = False
        self._writer: asyncio.Task[None] | None = None
        self._websocket: WebSocket | None = None
        self._orphaned: asyncio.TimerHandle | None = None
        face.connections[self.id] = self

    # ── the socket ─────────────────────────────────────────────────────────────────────────────────────────────

    def attach(self, websocket: WebSocket, *, resumed: bool = False) -> None:
        """Speaks through this socket from now on."""
        if self._websocket is not None:
            old = self._websocket
            self.detach(old)
            self._face.close(old, "the connection was resumed on another socket")
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
        self._outbox.begin({"resumed": True} if resumed else {"hello": hello}, again=resumed)
        self._writer = asyncio.get_running_loop().create_task(self._write(websocket))

    def speaks_through(self, websocket: WebSocket) -> bool:
        """Whether this is the connection's socket now."""
        return self._websocket is websocket

    def detach(self, websocket: WebSocket) -> None:
        """Lets go of a socket; calls run on for `resume_seconds`."""
        if self._websocket is not websocket:
            return
        self._websocket = None
        if self._writer is not None:
            self._writer.cancel()
        if not self._calls and not self._outbox.unacknowledged:
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

    def _refuse(self, reason: str) -> None:
        """Closes the socket of a client that keeps to no bound, and lets go of all that it made the server hold."""
        websocket = self._websocket
        if websocket is not None:
            self.detach(websocket)
            self._face.close(websocket, reason)
        self.abandon()
        self._refused = True
        self._outbox.clear()

    async def closed(self) -> None:
        """Returns when every call of the connection has ended."""
        if self._calls:
            await asyncio.wait(self._calls.values())

    async def _write(self, websocket: WebSocket) -> None:
        try:
            while True:
                await self._outbox.wake.wait()
                self._outbox.wake.clear()
                frame = self._outbox.take()
                if frame is not None and websocket.application_state is WebSocketState.CONNECTED:
                    await websocket.send_text(frame)
        except (RuntimeError, OSError):
            log.debug("connection %s lost its socket while writing", self.id[:6])

    def send(self, message: dict[str, Any]) -> None:
        """Queues a message; several go out in one frame when the socket is busy."""
        if self._may_hold():
            self._outbox.put(message)

    def _send_numbered(self, message: dict[str, Any], *, answers: int | None = None) -> None:
        if self._may_hold():
            self._outbox.number(message, answers=answers, now=self._websocket is not None)

    def _may_hold(self) -> bool:
        """Whether one more message may wait for the client; closes the connection when it may not."""
        if not self._refused and self._outbox.overflown:
            self._refuse("too much is not acknowledged")
        return not self._refused

    # ── the messages ───────────────────────────────────────────────────────────────────────────────────────────

    def acknowledge(self, seq: int) -> None:
        """Forgets what the client has."""
        self._answered.difference_update(self._outbox.acknowledge(seq))

    def receive(self, message: Mapping[str, Any]) -> None:
        """Takes one message of the client."""
        if self._refused:
            return
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
                self._strays += 1
                if self._strays > MAX_STRAYS:
                    self._refuse("too many messages are none of this protocol")
                    return
                keys = ", ".join(repr(key)[:40] for key in list(message)[:5])
                error = ProtocolError(f"a message with the keys {keys or '(none)'} is none of this protocol")
                number = message.get("id")
                self.send({"id": number if isinstance(number, int) else None, "error": error.to_wire()})

    def _ended(self, id: int) -> None:
        self._calls.pop(id, None)
        self._flows.pop(id, None)

    def _answer(self, id: int, kind: str, value: Any) -> None:
        self._answered.add(id)
        self._send_numbered({"id": id, kind: value}, answers=id)

    async def _room(self) -> None:
        """Waits until the client has taken in what it was sent before; raises `AtCapacity` when it does not."""
        if not self._outbox.full:
            return
        limit = asyncio.timeout(ROOM_SECONDS)
        try:
            async with limit:
                await self._outbox.room()
        except TimeoutError:
            raise AtCapacity(
                "this connection has too much that was not acknowledged; acknowledge what you received", retry_after=1
            ) from None

    async def _serve(self, id: int, message: Mapping[str, Any]) -> None:
        try:
            await self._room()
            arguments, context = _object(message, "arguments"), _object(message, "context")
            client = self._websocket.client if self._websocket is not None else None
            caller = self._face.access.caller(
                self.principal, context, message.get("run"), client.host if client else None
            )
            result = await perform(
                self._face.runtime,
                message["verb"],
                arguments,
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
                try:
                    self._send_numbered({"id": id, "event": wire})
                except (TypeError, ValueError, RecursionError) as error:
                    agent = self._face.runtime.definition.identity
                    raise AgentFailed(f"an event of {agent} holds what is no JSON: {error}", agent=agent) from error

        return on_event


def _object(message: Mapping[str, Any], key: str) -> Mapping[str, Any]:
    value = message.get(key)
    if value is None:
        return {}
    if not isinstance(value, Mapping):
        raise InvalidArguments(f"{key!r} must be an object, not a {type(value).__name__}")
    return cast("Mapping[str, Any]", value)
