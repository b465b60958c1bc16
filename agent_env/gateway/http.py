"""The few ASGI parts that the gateway needs, without a framework on its hot path (ASGI 3.0)."""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable, MutableMapping
from typing import Any, TypeAlias

from pydantic_core import from_json, to_json

from agent_env.errors import AgentEnvError, InvalidArguments, MessageTooLarge
from agent_env.net.refusals import error_headers

Scope: TypeAlias = MutableMapping[str, Any]
Message: TypeAlias = MutableMapping[str, Any]
Receive: TypeAlias = Callable[[], Awaitable[Message]]
Send: TypeAlias = Callable[[Message], Awaitable[None]]


class CallerGone(Exception):
    """The caller closed its connection before the request was whole."""


def header(scope: Scope, name: bytes) -> str | None:
    """The first header of this (lower-case) name."""
    for key, value in scope["headers"]:
        if key == name:
            return bytes(value).decode("latin-1")
    return None


async def read_body(scope: Scope, receive: Receive, limit: int) -> bytes:
    """The whole body; raises `MessageTooLarge` beyond the limit, before reading where its length is declared."""
    declared = header(scope, b"content-length")
    if declared is not None and declared.isdecimal() and int(declared) > limit:
        raise MessageTooLarge(f"the body has {declared} bytes; the gateway takes {limit}", limit=limit)
    body = bytearray()
    while True:
        message = await receive()
        if message["type"] == "http.disconnect":
            raise CallerGone
        body += message.get("body", b"")
        if len(body) > limit:
            raise MessageTooLarge(f"the body has more than {limit} bytes, which is what the gateway takes", limit=limit)
        if not message.get("more_body"):
            return bytes(body)


def parse(body: bytes, what: str = "the body must be JSON") -> Any:
    """The JSON value of a body; raises `InvalidArguments`, which says `what` is wanted."""
    try:
        return from_json(body)
    except ValueError:
        pass  # the quicker reader refuses a little that is JSON in Python's eyes: half surrogate pairs, deep nesting
    try:
        return json.loads(body)
    except (ValueError, RecursionError):
        raise InvalidArguments(what) from None


def parse_object(body: bytes, what: str) -> dict[str, Any]:
    """The JSON object of a body; raises `InvalidArguments`."""
    value = parse(body, what)
    if not isinstance(value, dict):
        raise InvalidArguments(what)
    return value


async def reply(
    send: Send,
    status: int,
    body: bytes,
    headers: list[tuple[bytes, bytes]] | None = None,
    kind: bytes = b"application/json",
) -> None:
    """Answers with a whole body, which is JSON if no other kind is said."""
    fields = [(b"content-type", kind), (b"content-length", str(len(body)).encode())]
    await send({"type": "http.response.start", "status": status, "headers": fields + (headers or [])})
    await send({"type": "http.response.body", "body": body})


async def reply_json(send: Send, status: int, value: Any) -> None:
    """Answers with a JSON value."""
    await reply(send, status, dump(value))


async def reply_error(send: Send, error: AgentEnvError, value: Any = None, *, status: int | None = None) -> None:
    """Answers with an error: `value`, or a form that both OpenAI clients and agent-env's own read; `status` stands in
    place of the error's own."""
    if value is None:
        wire = error.to_wire()
        value = {"error": {**wire, "type": wire["code"], "param": None}}
    headers = [(name.encode(), value.encode()) for name, value in error_headers(error).items()]
    await reply(send, status or error.http_status, dump(value), headers)


_DEEPEST = 500
"""How deep the JSON may be nested that is passed on: half of what Python reads at best, so that whoever reads it later,
from wherever in a program, can."""


def dump(value: Any) -> bytes:
    """Compact JSON; raises `InvalidArguments` for what is nested too deeply to be read again."""
    try:
        text = json.dumps(value, separators=(",", ":")).encode()
    except RecursionError:
        text = None
    if text is None or (text.count(b"[") + text.count(b"{") > _DEEPEST and _is_deep(value)):
        raise InvalidArguments(f"the JSON is nested more than {_DEEPEST} deep")
    return text


def dump_read(value: Any) -> bytes:
    """As `dump`, several times as fast, for a value that `parse` read: nothing else is checked for being JSON."""
    try:
        text = to_json(value)
    except ValueError:
        return dump(value)  # what the quicker writer refuses
    if text.count(b"[") + text.count(b"{") > _DEEPEST and _is_deep(value):
        raise InvalidArguments(f"the JSON is nested more than {_DEEPEST} deep")
    return text


def _is_deep(value: Any) -> bool:
    level, depth = [value], 0
    while level and depth <= _DEEPEST:
        inner = [child for node in level for child in (node.values() if isinstance(node, dict) else node)]
        level = [child for child in inner if isinstance(child, dict | list)]
        depth += 1
    return depth > _DEEPEST
