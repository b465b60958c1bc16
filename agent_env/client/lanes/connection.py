"""The client's end of one multiplexed WebSocket: numbering, batching, cancelling, resuming."""

from __future__ import annotations

import asyncio
import itertools
import sys
from collections import deque
from collections.abc import Mapping
from typing import Any

import aiohttp

from agent_env.client.lanes.contract import OnEvent, Outgoing
from agent_env.context import encode_run, inject
from agent_env.errors import (
    AgentEnvError,
    DeadlineExceeded,
    InvalidArguments,
    MessageTooLarge,
    ProtocolError,
    TransportError,
    from_wire,
)
from agent_env.net.frames import (
    ACK_EVERY,
    ACK_LENGTH,
    RESUME_SECONDS,
    SUBPROTOCOL,
    WINDOW,
    decode_frame,
    encode_frame,
    encode_message,
    pack,
)
from agent_env.net.http import CONNECT_SECONDS, error_of, shared_http, shown, transport_errors
from agent_env.runtime.parts import decode_event

HEARTBEAT_SECONDS = 20.0
"""A peer that does not answer a ping for half of this is gone."""


class _Call:
    """A call that waits for its answer; `over` when there is one, or can be none."""

    __slots__ = ("arrived", "messages", "over", "taken", "text")

    def __init__(self, text: str) -> None:
        self.text = text
        self.taken = 0
        self.over = False
        self.messages: deque[dict[str, Any] | AgentEnvError] = deque()
        self.arrived = asyncio.Event()

    def put(self, message: dict[str, Any] | AgentEnvError) -> None:
        self.messages.append(message)
        self.arrived.set()


class Connection:
    """One socket to one peer, opened by its first call."""

    def __init__(self, url: str, token: str | None, digest: str | None = None) -> None:
        self.lost = False
        self._url = url
        self._token = token
        self._digest = digest
        self._calls: dict[int, _Call] = {}
        self._cancelled: set[int] = set()
        self._ids = itertools.count(1)
        self._pending: list[str] = []
        self._wake = asyncio.Event()
        self._greeted = asyncio.Event()
        self._max_frame = 0
        self._task: asyncio.Task[None] | None = None
        self._connection_id: str | None = None
        self._resume_seconds = RESUME_SECONDS
        self._seen = 0
        self._acked = 0
        self._unacked_length = 0

    async def call(
        self, verb: str, arguments: Mapping[str, Any], outgoing: Outgoing, on_event: OnEvent | None
    ) -> Mapping[str, Any]:
        """Makes one call and waits for its answer; see `Lane.perform`."""
        left = outgoing.context.seconds_left()
        number = next(self._ids)
        request: dict[str, Any] = {
            "id": number,
            "verb": verb,
            "arguments": arguments,
            "context": inject(outgoing.context),
        }
        if outgoing.run is not None:
            request["run"] = encode_run(outgoing.run)
        if on_event is not None:
            request["stream"] = True
        try:
            call = _Call(encode_message(request))
        except (TypeError, ValueError, RecursionError) as error:
            raise InvalidArguments(f"the arguments of {verb} are no JSON: {error}") from error
        self._calls[number] = call
        self._pending.append(call.text)
        self._wake.set()
        if self._greeted.is_set():
            self._refuse_if_long(call)
        if self._task is None:
            self._task = asyncio.get_running_loop().create_task(self._live())
        limit = asyncio.timeout(left)
        try:
            async with limit:
                return await self._answer(number, call, on_event)
        except TimeoutError:
            if not limit.expired():
                raise
            raise DeadlineExceeded(f"{shown(self._url)} did not answer {verb} before the deadline") from None
        finally:
            del self._calls[number]
            if not call.over:
                self._cancel(number)

    async def _answer(self, number: int, call: _Call, on_event: OnEvent | None) -> Mapping[str, Any]:
        while True:
            await call.arrived.wait()
            call.arrived.clear()
            while call.messages:
                message = call.messages.popleft()
                if isinstance(message, AgentEnvError):
                    call.over = True
                    raise message
                if "event" in message:
                    if on_event is not None:
                        await on_event(decode_event(message["event"]))
                    call.taken += 1
                    if call.taken % (WINDOW // 2) == 0:
                        self._send({"taken": call.taken, "of": number})
                elif "result" in message:
                    call.over = True
                    result: Mapping[str, Any] = message["result"]
                    return result
                else:
                    call.over = True
                    raise from_wire(message["error"])

    def close(self) -> None:
        """Closes the socket; calls that still wait fail."""
        self.lost = True
        if self._task is not None:
            self._task.cancel()

    async def aclose(self) -> None:
        """Closes the socket and waits until it is closed."""
        self.close()
        if self._task is not None:
            await asyncio.wait({self._task}, timeout=1.0)

    # ── the socket ─────────────────────────────────────────────────────────────────────────────────────────────

    def _send(self, message: dict[str, Any]) -> None:
        self._pending.append(encode_message(message))
        self._wake.set()

    def _refuse_if_long(self, call: _Call) -> None:
        """Keeps a call back that the server would close the socket for, which others use too."""
        if len(call.text) + 2 > self._max_frame and call.text in self._pending:
            self._pending.remove(call.text)
            call.put(
                MessageTooLarge(
                    f"the call has {len(call.text)} characters; {shown(self._url)} takes {self._max_frame} at once",
                    limit=self._max_frame,
                )
            )

    def _cancel(self, number: int) -> None:
        self._cancelled.add(number)
        self._send({"cancel": number})

    async def _live(self) -> None:
        """Opens the socket, and opens it again when it breaks, until the peer is gone."""
        try:
            await self._converse(None)
            until = asyncio.get_running_loop().time() + self._resume_seconds
            while not self.lost and self._connection_id is not None and self._calls:
                if asyncio.get_running_loop().time() > until:
                    break
                if await self._converse(self._connection_id):
                    until = asyncio.get_running_loop().time() + self._resume_seconds
            self._fail(TransportError(f"the connection to {shown(self._url)} broke and could not be resumed"))
        except AgentEnvError as error:
            self._fail(error)
        finally:
            self.lost = True
            self._fail(TransportError(f"the connection to {shown(self._url)} was closed"))

    def _fail(self, error: AgentEnvError) -> None:
        self.lost = True
        for call in self._calls.values():
            if not call.messages:
                call.put(from_wire(error.to_wire()))

    async def _converse(self, resume: str | None) -> bool:
        """Speaks over one socket until it breaks; tells whether anything was received."""
        headers = {} if self._token is None else {"Authorization": f"Bearer {self._token}"}
        try:
            with transport_errors(self._url):
                socket = await shared_http().ws_connect(
                    self._url,
                    headers=headers,
                    protocols=(SUBPROTOCOL,),
                    heartbeat=HEARTBEAT_SECONDS,
                    max_msg_size=0,
                    timeout=aiohttp.ClientWSTimeout(ws_close=CONNECT_SECONDS),  # type: ignore[call-arg, unused-ignore]
                )
        except ProtocolError as error:
            raise await self._refusal(error) from error
        received = False
        async with socket:
            if resume is not None:
                # What was on its way when the socket broke may be lost, so everything that still counts is said again.
                taken = [{"taken": call.taken, "of": number} for number, call in self._calls.items() if call.taken]
                cancels = [{"cancel": number} for number in self._cancelled]
                self._pending = [call.text for call in self._calls.values()]
                self._pending += [encode_message(message) for message in (*taken, *cancels)]
                self._wake.set()
                await socket.send_str(encode_frame([{"resume": resume, "seen": self._seen}]))
                self._acked, self._unacked_length = self._seen, 0
            writer = asyncio.get_running_loop().create_task(self._write(socket))
            try:
                async for message in socket:
                    if message.type is not aiohttp.WSMsgType.TEXT:
                        continue
                    received = True
                    for item in decode_frame(message.data):
                        self._receive(item)
                    self._unacked_length += len(message.data)
                    if self._must_acknowledge():
                        self._wake.set()
            finally:
                writer.cancel()
            if socket.close_code is not None and socket.close_code in (1003, 1008, 1009):
                raise ProtocolError(f"{shown(self._url)} closed the connection with code {socket.close_code}")
        return received

    async def _refusal(self, error: ProtocolError) -> AgentEnvError:
        """The error of a refused handshake: the same request without the upgrade tells the reason."""
        handshake = error.__cause__
        if not isinstance(handshake, aiohttp.WSServerHandshakeError):
            return error
        url = "http" + self._url.removeprefix("ws")
        headers = {} if self._token is None else {"Authorization": f"Bearer {self._token}"}
        with transport_errors(url):
            async with shared_http().get(url, headers=headers, allow_redirects=False) as response:
                return await error_of(response)

    async def _write(self, socket: aiohttp.ClientWebSocketResponse) -> None:
        try:
            await self._greeted.wait()
            while True:
                await self._wake.wait()
                self._wake.clear()
                texts, self._pending = self._pending, []
                if self._must_acknowledge() or (self._seen > self._acked and not self._calls):
                    self._acked, self._unacked_length = self._seen, 0
                    texts.append(encode_message({"ack": self._seen}))
                for frame in pack(texts, self._max_frame):
                    await socket.send_str(frame)
        except (ConnectionError, RuntimeError):
            return  # the reading side sees the same break and decides what comes of it

    def _must_acknowledge(self) -> bool:
        return self._seen - self._acked >= ACK_EVERY or (
            self._seen > self._acked and self._unacked_length >= ACK_LENGTH
        )

    def _receive(self, message: dict[str, Any]) -> None:
        seq = message.get("seq")
        if seq is not None:
            if seq <= self._seen:
                return
            self._seen = seq
        if "hello" in message:
            digest = message["hello"].get("digest")
            if self._digest is not None and digest is not None and digest != self._digest:
                raise ProtocolError(
                    f"{shown(self._url)} serves another release ({digest}) than the one that was resolved "
                    f"({self._digest}); resolve the reference again"
                )
            self._connection_id = self._connection_id or message["hello"]["connection"]
            self._resume_seconds = float(message["hello"]["resume_seconds"])
            self._max_frame = int(message["hello"].get("max_frame", sys.maxsize))
            for waiting in self._calls.values():
                self._refuse_if_long(waiting)
            self._greeted.set()
        elif "resumed" in message:
            if not message["resumed"]:
                raise TransportError(f"{shown(self._url)} no longer has what was running; the calls are lost")
        else:
            if "event" not in message:
                self._cancelled.discard(message.get("id") or 0)
            call = self._calls.get(message.get("id") or 0)
            if call is not None:
                call.put(message)
