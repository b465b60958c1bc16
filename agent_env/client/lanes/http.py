"""The HTTP lane: one POST a call, over the connections that all of this process share.

It is the lane for networks that let nothing but plain HTTP through; the WebSocket lane is faster.
"""

from __future__ import annotations

import json
from collections.abc import AsyncGenerator, Mapping
from contextlib import aclosing
from typing import Any, ClassVar, Final, cast

import aiohttp

from agent_env.client.lanes.contract import OnEvent, Outgoing
from agent_env.context import RUN_HEADER, encode_run, inject
from agent_env.errors import (
    DeadlineExceeded,
    InvalidArguments,
    MessageTooLarge,
    ProtocolError,
    TransportError,
    from_wire,
)
from agent_env.net.credentials import bearer_headers
from agent_env.net.http import CONNECT_SECONDS, MAX_REPLY_BYTES, error_of, shared_http, shown, transport_errors
from agent_env.runtime.parts import decode_event

_JSON: Final = "application/json"
_NDJSON: Final = "application/x-ndjson"


class HttpLane:
    """Calls an environment over plain HTTP; `url` is where its verbs are, such as `https://host/v1`."""

    name: ClassVar[str] = "http"

    def __init__(self, url: str, token: str | None = None) -> None:
        self._url = url.rstrip("/")
        self._headers = {"Content-Type": _JSON, **bearer_headers(token)}

    async def perform(
        self, verb: str, arguments: Mapping[str, Any], outgoing: Outgoing, on_event: OnEvent | None = None
    ) -> Mapping[str, Any]:
        """Performs a verb; see `Lane.perform`. Cancelling it closes the connection, which cancels the call."""
        left = outgoing.context.seconds_left()
        where = f"{self._url}/{verb}"
        if left == 0:
            raise DeadlineExceeded(f"the deadline was over before {verb} could be sent to {shown(self._url)}")
        headers = self._headers | inject(outgoing.context)
        headers["Accept"] = _JSON if on_event is None else _NDJSON
        if outgoing.run is not None:
            headers[RUN_HEADER] = encode_run(outgoing.run)
        session_id = arguments.get("session_id")
        if isinstance(session_id, str) and session_id.isascii() and session_id.isprintable():
            headers["Session-Id"] = session_id  # for routers; what counts is the argument
        try:
            return await self._exchange(where, arguments, headers, left, on_event)
        except _ListenerFailed as failed:
            raise failed.error from None

    async def _exchange(
        self,
        where: str,
        arguments: Mapping[str, Any],
        headers: Mapping[str, str],
        left: float | None,
        on_event: OnEvent | None,
    ) -> Mapping[str, Any]:
        try:
            content = json.dumps(arguments, separators=(",", ":")).encode()
        except (TypeError, ValueError, RecursionError) as error:
            raise InvalidArguments(f"the arguments for {shown(where)} are no JSON: {error}") from error
        with transport_errors(where):
            async with shared_http().post(
                where,
                data=content,
                headers=headers,
                allow_redirects=False,
                timeout=aiohttp.ClientTimeout(total=left, sock_connect=CONNECT_SECONDS),
            ) as response:
                if response.status >= 300:
                    raise await error_of(response)
                async with aclosing(_values(response, where)) as values:
                    return await _result(values, where, on_event, lines=response.content_type == _NDJSON)

    async def aclose(self) -> None:
        """Does nothing: the connections belong to the process."""


class _ListenerFailed(Exception):
    """Whoever listens to the events raised; that is no failure of the connection, whatever its class."""

    def __init__(self, error: Exception) -> None:
        super().__init__()
        self.error = error


async def _result(
    values: AsyncGenerator[Any, None], where: str, on_event: OnEvent | None, *, lines: bool
) -> Mapping[str, Any]:
    async for value in values:
        match value:
            case {"type": "keep_alive"} if lines:
                pass
            case {"type": str()} if lines:
                event = decode_event(cast("Mapping[str, Any]", value))
                if on_event is not None:
                    try:
                        await on_event(event)
                    except Exception as error:
                        raise _ListenerFailed(error) from error
            case {"result": dict()} if lines:
                return cast("Mapping[str, Any]", value["result"])
            case {"error": dict()} if lines:
                raise from_wire(value["error"])
            case dict() if not lines:
                return cast("Mapping[str, Any]", value)
            case _:
                raise ProtocolError(f"{shown(where)} answered {value!r:.200}, which is no answer to a call")
    raise TransportError(f"the connection to {shown(where)} broke before the answer was complete")


async def _values(response: aiohttp.ClientResponse, where: str) -> AsyncGenerator[Any, None]:
    """The JSON values of an answer, one a line."""
    rest = bytearray()
    try:
        async for chunk in response.content.iter_any():
            *lines, last = chunk.split(b"\n")
            for line in lines:
                rest += line
                if rest.strip():
                    yield _value(rest, where)
                rest.clear()
            rest += last
            if len(rest) > MAX_REPLY_BYTES:
                raise MessageTooLarge(f"{shown(where)} answered with more than {MAX_REPLY_BYTES} bytes")
    except aiohttp.ClientPayloadError as error:
        raise TransportError(f"the connection to {shown(where)} broke before the answer was complete") from error
    if rest.strip():
        yield _value(rest, where)


def _value(line: bytearray, where: str) -> Any:
    try:
        return json.loads(line)
    except ValueError as error:
        raise ProtocolError(f"{shown(where)} answered with what is not JSON") from error
