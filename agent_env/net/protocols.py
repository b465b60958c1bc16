"""The connections of our servers, with a bound on how long a client may leave a thing half said."""

from __future__ import annotations

import asyncio
import json
from typing import Any

from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol
from uvicorn.protocols.websockets.websockets_sansio_impl import WebSocketsSansIOProtocol
from websockets.frames import CloseCode, Frame

from agent_env.errors import RequestTimeout

HEAD_SECONDS = 20.0
"""How long the head of a request may take, and what is left of a body whose request was answered already."""

MESSAGE_SECONDS = 60.0
"""How long a WebSocket message in several frames may take."""


class HttpConnection(HttpToolsProtocol):
    """One HTTP connection; how long a body may take while its request is served is the app's (see `TimelyBodies`)."""

    _timer: asyncio.TimerHandle | None = None
    _begun = False
    _whole = True

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self._expect()

    def connection_lost(self, exc: Exception | None) -> None:
        self._got()
        super().connection_lost(exc)

    def on_message_begin(self) -> None:
        super().on_message_begin()
        self._begun, self._whole = True, False
        self._expect()

    def on_headers_complete(self) -> None:
        self._begun = False
        self._got()
        super().on_headers_complete()

    def on_message_complete(self) -> None:
        self._whole = True
        self._got()
        super().on_message_complete()

    def on_response_complete(self) -> None:
        super().on_response_complete()
        if not self._whole and not self._begun and self.cycle.response_complete:
            self._expect()

    def _expect(self) -> None:
        if self._timer is None:
            self._timer = self.loop.call_later(HEAD_SECONDS, self._give_up)

    def _got(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _give_up(self) -> None:
        self._timer = None
        if self.transport.is_closing():
            return
        if self._begun:
            late = RequestTimeout(f"the head of the request was not whole after {HEAD_SECONDS:g} s; send it in one go")
            body = json.dumps({"error": late.to_wire()}).encode()
            self.transport.write(
                b"HTTP/1.1 408 Request Timeout\r\ncontent-type: application/json\r\nconnection: close\r\n"
                b"content-length: %d\r\n\r\n%b" % (len(body), body)
            )
        self.transport.close()


class SocketConnection(WebSocketsSansIOProtocol):
    """One WebSocket.

    A client in the midst of a frame cannot answer a ping, so the pings bound that; here is the bound on a message
    whose last frame does not come. What goes over the wire is nothing for a log: it begins with a token.
    """

    def __init__(self, *args: Any, **keywords: Any) -> None:
        super().__init__(*args, **keywords)
        self.conn.debug = False
        self._rest: asyncio.TimerHandle | None = None

    def connection_lost(self, exc: Exception | None) -> None:
        self._expect_rest(fin=True)
        super().connection_lost(exc)

    async def send(self, message: Any) -> None:
        await super().send(message)
        if self.initial_response is not None and self.close_sent:
            # A refusal in full answers the handshake; uvicorn logs an error where it thinks that nothing did.
            self.handshake_complete = True

    def handle_text(self, event: Frame) -> None:
        super().handle_text(event)
        self._expect_rest(fin=event.fin)

    def handle_bytes(self, event: Frame) -> None:
        super().handle_bytes(event)
        self._expect_rest(fin=event.fin)

    def handle_cont(self, event: Frame) -> None:
        super().handle_cont(event)
        self._expect_rest(fin=event.fin)

    def _expect_rest(self, *, fin: bool) -> None:
        if self._rest is None and not fin:
            self._rest = self.loop.call_later(MESSAGE_SECONDS, self._give_up)
        elif self._rest is not None and fin:
            self._rest.cancel()
            self._rest = None

    def _give_up(self) -> None:
        self._rest = None
        if self.close_sent or self.transport.is_closing():
            return
        self.conn.fail(CloseCode.POLICY_VIOLATION, f"a message was not whole after {MESSAGE_SECONDS:g} s")
        self.transport.write(b"".join(self.conn.data_to_send()))
        self.close_sent = True
        self.transport.close()
