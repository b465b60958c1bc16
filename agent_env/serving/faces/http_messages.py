"""What comes in and goes out over HTTP: JSON posts, JSON answers, errors, and answers in lines."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Mapping
from dataclasses import dataclass
from types import TracebackType
from typing import Any, Final, NoReturn, Protocol, Self

from starlette.types import Receive, Scope, Send

from agent_env.context import RUN_HEADER, Principal
from agent_env.errors import (
    AgentEnvError,
    MessageTooLarge,
    RequestError,
    UnsupportedContent,
)
from agent_env.net.refusals import error_headers
from agent_env.runtime.caller import Caller
from agent_env.runtime.parts import encode_event
from agent_env.runtime.turns import OnEvent
from agent_env.serving.faces.contract import Site
from agent_env.serving.faces.http_presence import ClientGone
from agent_env_wrappers.contract import Event

JSON: Final = b"application/json"
NDJSON: Final = b"application/x-ndjson"

KEEP_ALIVE_SECONDS: Final = 15.0
"""How long a stream of lines may be silent."""

FORMS: Final = frozenset({"application/x-www-form-urlencoded", "multipart/form-data", "text/plain"})
"""What a page may post to any address without asking first (Fetch standard, CORS-safelisted request-header)."""

_RUN = RUN_HEADER.lower()
_encode = json.JSONEncoder(ensure_ascii=False, separators=(",", ":")).encode


@dataclass(frozen=True, slots=True)
class Post:
    """A POST whose sender may speak to this server, with its body as it came."""

    principal: Principal
    headers: Mapping[str, str]
    client: str | None
    content: bytearray

    @classmethod
    async def read(cls, site: Site, scope: Scope, receive: Receive) -> Post:
        """Reads a request and checks who sends it, before its body is taken in.

        Raises `Forbidden` for a page of another origin, `Unauthenticated`, `UnsupportedContent` for a body that is not
        declared as JSON, and `MessageTooLarge`.
        """
        headers = read_headers(scope)
        principal = admit(site, scope, headers)
        limit = site.runtime.definition.limits.max_request_bytes
        content = await _body(receive, headers, limit)
        declared = headers.get("content-type", "")
        kind = declared.partition(";")[0].strip().lower()
        if kind in FORMS or (content and not _is_json(kind)):
            raise UnsupportedContent(
                f"the body must be JSON, with the header `Content-Type: application/json`, not {declared!r}"
            )
        client = scope.get("client")
        return cls(principal, headers, client[0] if client else None, content)

    def json(self) -> Any:
        """The body as JSON, an empty object where there is none; raises `RequestError`."""
        if not self.content:
            return {}
        try:
            return json.loads(self.content, parse_constant=_refuse_constant)
        except (ValueError, RecursionError) as error:
            raise RequestError(f"the body is not JSON: {error}") from None

    def caller(self, site: Site) -> Caller:
        """Who calls, from which tree of calls, and for which run."""
        return site.access.caller(self.principal, self.headers, self.headers.get(_RUN), self.client)


def read_headers(scope: Scope) -> dict[str, str]:
    """The headers by name in lower case; those that came several times are joined as RFC 9110 §5.3 has it."""
    headers: dict[str, str] = {}
    for raw_name, raw_value in scope["headers"]:
        name, value = raw_name.decode("latin-1"), raw_value.decode("latin-1")
        headers[name] = value if name not in headers else f"{headers[name]}, {value}"
    return headers


def admit(site: Site, scope: Scope, headers: Mapping[str, str]) -> Principal:
    """The principal of a request; raises `Forbidden` or `Unauthenticated`."""
    return site.access.admit(scope, headers, site.address)


async def _body(receive: Receive, headers: Mapping[str, str], limit: int) -> bytearray:
    announced = headers.get("content-length", "")
    if announced.isdecimal() and int(announced) > limit:
        raise MessageTooLarge(f"the body has {announced} bytes; this server takes {limit}", limit=limit)
    content = bytearray()
    more = True
    while more:
        message = await receive()
        if message["type"] == "http.disconnect":
            raise ClientGone
        content += message.get("body", b"")
        more = message.get("more_body", False)
        if len(content) > limit:
            raise MessageTooLarge(f"the body has more than the {limit} bytes that this server takes", limit=limit)
    return content


def _is_json(kind: str) -> bool:
    return kind == "application/json" or (kind.startswith("application/") and kind.endswith("+json"))


def _refuse_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is not a JSON value")


def encode_json(value: Any) -> bytes:
    """JSON as bytes of UTF-8; what UTF-8 cannot hold (a lone surrogate) is escaped."""
    try:
        return _encode(value).encode()
    except UnicodeEncodeError:
        return json.dumps(value, separators=(",", ":")).encode()


async def answer(
    send: Send, content: bytes, status: int = 200, headers: Mapping[str, str] | None = None, kind: bytes = JSON
) -> None:
    """Answers a request."""
    lines = [(b"content-type", kind), (b"content-length", b"%d" % len(content))]
    for name, value in (headers or {}).items():
        lines.append((name.encode("latin-1"), value.encode("latin-1")))
    await send({"type": "http.response.start", "status": status, "headers": lines})
    await send({"type": "http.response.body", "body": content})


async def answer_error(send: Send, error: AgentEnvError) -> None:
    """Answers with an error: its status, `{"error": ...}`, and the headers that HTTP has for it."""
    await answer(send, encode_json({"error": error.to_wire()}), error.http_status, error_headers(error))


class Reply(Protocol):
    """How a call is answered; inside `async with` while it runs."""

    on_event: OnEvent | None

    async def __aenter__(self) -> Self: ...

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None: ...

    async def end(self, result: Mapping[str, Any]) -> None:
        """Sends the result."""
        ...

    async def fail(self, error: AgentEnvError) -> None:
        """Sends the error; after the block, too."""
        ...


class Whole:
    """An answer in one piece."""

    def __init__(self, send: Send) -> None:
        self._send = send
        self.on_event: OnEvent | None = None

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        pass

    async def end(self, result: Mapping[str, Any]) -> None:
        """Sends the result."""
        await answer(self._send, encode_json(result))

    async def fail(self, error: AgentEnvError) -> None:
        """Sends the error."""
        await answer_error(self._send, error)


class Lines:
    """An answer in lines of JSON: the events of a turn, then its result or error.

    The head goes out with the first line, so that a call which fails before it has said anything keeps the status of
    its error. A stream that is silent for long gets a line `{"type": "keep_alive"}`.
    """

    def __init__(self, send: Send, *, keep_alive_seconds: float = KEEP_ALIVE_SECONDS) -> None:
        self._send = send
        self._keep_alive_seconds = keep_alive_seconds
        self._begun = False
        self._spoken = False
        self._writing = asyncio.Lock()
        self.on_event: OnEvent | None = self._say

    async def __aenter__(self) -> Self:
        self._keeper = asyncio.get_running_loop().create_task(self._keep_alive())
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._keeper.cancel()

    async def end(self, result: Mapping[str, Any]) -> None:
        """Sends the result, and ends the answer."""
        self._keeper.cancel()
        await self._line({"result": result}, more=False)

    async def fail(self, error: AgentEnvError) -> None:
        """Sends the error, as an answer of its own where nothing was sent before it."""
        self._keeper.cancel()
        if self._begun:
            await self._line({"error": error.to_wire()}, more=False)
        else:
            await answer_error(self._send, error)

    async def _say(self, event: Event) -> None:
        wire = encode_event(event)
        if wire is not None:
            await self._line(wire)

    async def _line(self, value: Mapping[str, Any], *, more: bool = True) -> None:
        line = encode_json(value) + b"\n"
        async with self._writing:
            self._spoken = True
            if not self._begun:
                self._begun = True
                # Proxies that collect an answer before they pass it on would make a stream of it no stream.
                headers = [(b"content-type", NDJSON), (b"cache-control", b"no-store"), (b"x-accel-buffering", b"no")]
                await self._send({"type": "http.response.start", "status": 200, "headers": headers})
            await self._send({"type": "http.response.body", "body": line, "more_body": more})

    async def _keep_alive(self) -> None:
        while True:
            self._spoken = False
            await asyncio.sleep(self._keep_alive_seconds)
            if not self._spoken:
                await self._line({"type": "keep_alive"})
