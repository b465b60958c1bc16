"""The gate before the A2A SDK's routes: who asks, how much they send, whether they are still there.

The SDK's routes know no principal, take bodies of any size and do not notice that a client has left. The gate reads
the body, puts an `Exchange` into the scope, and hands the request on.
"""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Final

from starlette.datastructures import Headers, MutableHeaders
from starlette.requests import Request
from starlette.responses import Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from agent_env.context import Principal
from agent_env.errors import AgentEnvError, InvalidArguments, MessageTooLarge
from agent_env.net.a2a_wire import EXTENSION, EXTENSION_HEADERS
from agent_env.serving.faces.a2a_errors import failed_inside, rest_response
from agent_env.serving.faces.contract import Site

log = logging.getLogger("agent_env.serving")

_KEY: Final = "agent_env.a2a"

MAX_DEPTH: Final = 100
"""How deep a body may be nested: as deep as protobuf reads; the SDK tells what Python says about one level too many."""

MAX_DIGITS = 300
"""How many digits a whole number in a body may have."""


@dataclass(slots=True)
class Exchange:
    """One HTTP request: whose it is, and what becomes of it.

    `gone` is set when the client leaves before it has its whole answer. `error` is what the request is answered with
    in place of a message or a task; `activated` tells that our extension is in use, which the response says.
    """

    principal: Principal
    headers: Headers = field(repr=False)
    client_host: str | None
    gone: asyncio.Event = field(default_factory=asyncio.Event)
    answered: bool = False
    activated: bool = False
    error: AgentEnvError | None = None

    @classmethod
    def of(cls, request: Request) -> Exchange:
        """The exchange that a request belongs to."""
        exchange: Exchange = request.scope[_KEY]
        return exchange


class Gate:
    """An ASGI app around one route of the SDK; `refuse` makes the answer to a request that goes no further."""

    def __init__(
        self,
        app: ASGIApp,
        site: Site,
        *,
        max_bytes: int,
        refuse: Callable[[AgentEnvError], Response],
    ) -> None:
        self._app = app
        self._site = site
        # In JSON, contents of files are base64, and other text is escaped.
        self._max_bytes = max_bytes
        self._refuse = refuse

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serves one request."""
        request = Request(scope)
        headers = request.headers
        try:
            principal = self._site.access.admit(scope, headers, self._site.address)
            body = await self._read(headers, receive)
        except AgentEnvError as error:
            await self._refuse(error)(scope, receive, send)
            return
        if body is None:
            return
        exchange = Exchange(principal, headers, request.client.host if request.client else None)
        scope[_KEY] = exchange
        watch = asyncio.get_running_loop().create_task(_watch(exchange, receive))
        answer = _Answer(exchange, self._refuse, scope, send)
        try:
            await self._app(scope, _replay(exchange, body), answer.send)
        except Exception:
            # The SDK's streams of 0.3 raise what others answer with; anything else is a failure of ours.
            if exchange.error is None:
                log.exception("an A2A request failed inside the server")
            await answer.end()
        finally:
            watch.cancel()

    async def _read(self, headers: Headers, receive: Receive) -> bytes | None:
        """The whole body; None if the client leaves while it sends."""
        declared = headers.get("content-length", "")
        if declared.isdecimal() and int(declared) > self._max_bytes:
            raise self._too_large()
        body = bytearray()
        while True:
            message = await receive()
            if message["type"] == "http.disconnect":
                return None
            body += message.get("body", b"")
            if len(body) > self._max_bytes:
                raise self._too_large()
            if not message.get("more_body"):
                if body:
                    _check(bytes(body))
                return bytes(body)

    def _too_large(self) -> MessageTooLarge:
        return MessageTooLarge(f"the request has more than {self._max_bytes} bytes; send less", limit=self._max_bytes)


def _check(body: bytes) -> None:
    """Refuses the bodies for which the SDK would answer with what Python or protobuf says about them.

    A body that is no JSON at all passes: each binding has an error of its own for that.
    """
    try:
        text = body.decode()
    except UnicodeDecodeError:
        raise InvalidArguments("the body is not UTF-8, as JSON must be (RFC 8259 §8.1)") from None
    too_deep = InvalidArguments(f"the body is nested deeper than {MAX_DEPTH} levels; send flatter values")
    try:
        value = json.loads(text, parse_constant=_no_number, parse_int=_whole_number)
    except RecursionError:
        raise too_deep from None
    except ValueError:
        return
    if text.count("[") + text.count("{") > MAX_DEPTH and _is_deep(value):
        raise too_deep
    if "\\ud" in text.lower() and not _is_text(value):
        raise InvalidArguments("the body has half of a surrogate pair (RFC 8259 §8.2); send whole characters")


def _no_number(word: str) -> Any:
    raise InvalidArguments(f"{word} is no JSON value (RFC 8259 §6); send a number or null")


def _whole_number(digits: str) -> int:
    if len(digits) > MAX_DIGITS:
        raise InvalidArguments(f"the body has a number of {len(digits)} digits; at most {MAX_DIGITS} are taken")
    return int(digits)


def _is_text(value: Any) -> bool:
    try:
        json.dumps(value, ensure_ascii=False).encode()
    except UnicodeEncodeError:
        return False
    return True


def _is_deep(value: Any) -> bool:
    level = [value]
    for _ in range(MAX_DEPTH):
        nested = [value for value in level if isinstance(value, dict | list)]
        level = [item for value in nested for item in (value.values() if isinstance(value, dict) else value)]
        if not level:
            return False
    return True


async def _watch(exchange: Exchange, receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass
    if not exchange.answered:
        exchange.gone.set()


def _replay(exchange: Exchange, body: bytes) -> Receive:
    """Gives the body once, and after it that the client has left when it has."""
    messages: list[Message] = [{"type": "http.request", "body": body, "more_body": False}]

    async def receive() -> Message:
        if messages:
            return messages.pop()
        await exchange.gone.wait()
        return {"type": "http.disconnect"}

    return receive


class _Answer:
    """What goes back to the client: the SDK's answer, with our error in its place where there is one.

    The head waits for the first piece of the body: until then the SDK may still find that the request is at fault.
    """

    def __init__(
        self, exchange: Exchange, refuse: Callable[[AgentEnvError], Response], scope: Scope, send: Send
    ) -> None:
        self._exchange = exchange
        self._refuse = refuse
        self._scope = scope
        self._send = send
        self._head: Message | None = None
        self._started = False
        self._replaced = False

    async def send(self, message: Message) -> None:
        """Passes on one ASGI message of the SDK's answer."""
        if message["type"] == "http.response.start":
            self._head = message
            return
        if not self._started:
            # A JSON-RPC error is an answer like others, with status 200; on HTTP+JSON the status is the answer.
            if self._exchange.error is not None and self._refuse is rest_response:
                await self._replace(self._exchange.error)
            else:
                await self._start()
        if not self._replaced:
            self._exchange.answered = not message.get("more_body")
            await self._send(message)

    async def end(self) -> None:
        """Ends an answer that broke; what breaks after its first piece cannot be told any more."""
        if not self._started:
            await self._replace(self._exchange.error or failed_inside())
        elif not self._exchange.answered and not self._exchange.gone.is_set():
            self._exchange.answered = True
            await self._send({"type": "http.response.body", "body": b""})

    async def _start(self) -> None:
        assert self._head is not None
        self._started = True
        if self._exchange.activated:
            headers = MutableHeaders(scope=self._head)
            for name in EXTENSION_HEADERS:
                if name in self._exchange.headers:
                    headers[name] = EXTENSION
        await self._send(self._head)

    async def _replace(self, error: AgentEnvError) -> None:
        self._started = self._replaced = self._exchange.answered = True
        await self._refuse(error)(self._scope, _nothing, self._send)


async def _nothing() -> Message:
    return {"type": "http.disconnect"}
