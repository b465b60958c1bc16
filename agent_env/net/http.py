"""The HTTP client that everything in one process shares, and JSON over it with our errors."""

from __future__ import annotations

import asyncio
import io
import json
from collections.abc import Generator, Mapping
from contextlib import contextmanager
from typing import Any
from urllib.parse import urlsplit, urlunsplit

import aiohttp

from agent_env.errors import (
    AgentEnvError,
    AtCapacity,
    DeadlineExceeded,
    Forbidden,
    MessageTooLarge,
    ProtocolError,
    TransportError,
    Unauthenticated,
    from_wire,
)
from agent_env.net.guard import GuardedResolver, OutwardGuard, RefusedAddress
from agent_env.net.loops import PerLoop

CONNECT_SECONDS = 10.0
"""How long a connection may take to open."""

MAX_REPLY_BYTES = 64 * 1024 * 1024
"""How much of a reply is read before it is refused."""

MODEL_CALL_HEADER = "Agent-Env-Model-Call"
"""Tells of an error that it is that of a model, and which call of it failed: `data["model_call"]`."""

_SENT = {"Content-Type": "application/json"}

# Servers close idle connections (uvicorn after 5 s); keeping one longer than they do loses requests that cannot be
# repeated, so ours go first.
_KEEP_ALIVE_SECONDS = 4.0


def shared_http(guard: OutwardGuard | None = None) -> aiohttp.ClientSession:
    """The HTTP client of this process and running event loop: pooled, without cookies, without a total timeout.

    It closes itself when the loop shuts down; `close_shared_http` closes it sooner. With a guard, names are resolved
    through the guard, which needs a pool of its own.
    """
    return _sessions.get(guard)


async def close_shared_http() -> None:
    """Closes the shared clients of the running loop; the next `shared_http` opens a new one."""
    await _sessions.aclose()


def _open(guard: OutwardGuard | None) -> aiohttp.ClientSession:
    return aiohttp.ClientSession(
        connector=aiohttp.TCPConnector(
            limit=0,
            keepalive_timeout=_KEEP_ALIVE_SECONDS,
            resolver=None if guard is None else GuardedResolver(guard),
            # A cached name would be connected to without asking the guard again.
            use_dns_cache=guard is None,
        ),
        # One client serves many callers: what one peer sets must not be shown to another.
        cookie_jar=aiohttp.DummyCookieJar(),
        timeout=aiohttp.ClientTimeout(total=None, sock_connect=CONNECT_SECONDS),
        json_serialize=_dump,
    )


async def _close(session: aiohttp.ClientSession) -> None:
    await session.close()
    # The transports are told to close in the next step of the loop; the loop may have only this one left.
    await asyncio.sleep(0)


_sessions = PerLoop(_open, _close)


def _payload(value: Any) -> bytes | io.BytesIO:
    content = _dump(value).encode()
    # aiohttp writes bytes at once and files piece by piece, which does not hold up the loop.
    return content if len(content) < 2**16 else io.BytesIO(content)


def _dump(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False, separators=(",", ":"))


def shown(url: str) -> str:
    """A URL as it may stand in a message: without user, password, query and fragment."""
    try:
        parts = urlsplit(url)
        host = parts.netloc.rpartition("@")[2]
    except ValueError:
        return "<not a URL>"
    return urlunsplit((parts.scheme, host, parts.path, "", ""))


@contextmanager
def transport_errors(url: str) -> Generator[None, None, None]:
    """Turns what aiohttp raises about a connection into `TransportError`, and a timeout into `DeadlineExceeded`."""
    try:
        yield
    except (aiohttp.ServerTimeoutError, aiohttp.ClientConnectionError) as error:
        if isinstance(error, aiohttp.ClientConnectorError) and isinstance(error.os_error, RefusedAddress):
            raise Forbidden(str(error.os_error)) from error
        raise TransportError(f"{shown(url)} cannot be reached: {_reason(error)}") from error
    except aiohttp.InvalidURL as error:
        raise TransportError(f"{shown(url)} is not a URL that can be called") from error
    except (aiohttp.ClientPayloadError, aiohttp.ClientResponseError) as error:
        raise ProtocolError(f"{shown(url)} sent a broken HTTP response: {_reason(error)}") from error
    except TimeoutError as error:
        raise DeadlineExceeded(f"{shown(url)} did not answer within the time allowed") from error


def _reason(error: Exception) -> str:
    if isinstance(error, aiohttp.ClientConnectorError):
        return error.os_error.strerror or str(error.os_error) or "the connection failed"
    return str(error) or type(error).__name__


async def request_json(
    method: str,
    url: str,
    body: Any = None,
    *,
    headers: Mapping[str, str] | None = None,
    timeout: float | None = None,
    params: Mapping[str, str] | None = None,
    guard: OutwardGuard | None = None,
    max_bytes: int = MAX_REPLY_BYTES,
) -> Any:
    """Sends JSON and returns the JSON of the answer; None for an answer without content.

    `timeout` is in seconds, for the whole exchange. Redirects are not followed: they would carry the caller's token
    to an address that nobody chose. Raises the error that the answer describes (`{"error": {code, message, ...}}`,
    with `retry_after` taken from `Retry-After`), `TransportError`, `DeadlineExceeded`, `MessageTooLarge`, or
    `ProtocolError` for an answer that is not JSON.
    """
    if guard is not None:
        await guard.check(url)
    with transport_errors(url):
        async with shared_http(guard).request(
            method,
            url,
            data=None if body is None else _payload(body),
            headers={**_SENT, **(headers or {})},
            params=params,
            allow_redirects=False,
            timeout=aiohttp.ClientTimeout(total=timeout, sock_connect=CONNECT_SECONDS),
        ) as response:
            if response.status >= 300:
                raise await error_of(response, max_bytes=max_bytes)
            content = await read_body(response, max_bytes)
            if not content:
                return None
            try:
                return json.loads(content)
            except ValueError as error:
                raise ProtocolError(f"{shown(url)} answered {response.status} with what is not JSON") from error


async def get_json(
    url: str,
    *,
    headers: Mapping[str, str] | None = None,
    timeout: float | None = None,
    params: Mapping[str, str] | None = None,
    guard: OutwardGuard | None = None,
    max_bytes: int = MAX_REPLY_BYTES,
) -> Any:
    """GETs JSON; raises as `request_json` does."""
    return await request_json(
        "GET", url, headers=headers, timeout=timeout, params=params, guard=guard, max_bytes=max_bytes
    )


async def post_json(
    url: str,
    body: Any,
    *,
    headers: Mapping[str, str] | None = None,
    timeout: float | None = None,
    guard: OutwardGuard | None = None,
    max_bytes: int = MAX_REPLY_BYTES,
) -> Any:
    """POSTs JSON and returns the JSON of the answer; raises as `request_json` does."""
    return await request_json("POST", url, body, headers=headers, timeout=timeout, guard=guard, max_bytes=max_bytes)


async def error_of(response: aiohttp.ClientResponse, *, max_bytes: int = MAX_REPLY_BYTES) -> AgentEnvError:
    """The error that a response of status 300 or above stands for."""
    where = shown(str(response.url))
    content = await read_body(response, max_bytes)
    retry_after = _retry_after(response.headers.get("Retry-After"))
    try:
        wire = json.loads(content)["error"]
        error = from_wire({"code": wire["code"], "message": wire["message"], "data": wire.get("data")})
    except (ValueError, TypeError, KeyError, AttributeError):
        error = _by_status(response.status, where)
    if retry_after is not None:
        error.data.setdefault("retry_after", retry_after)
    if (model_call := response.headers.get(MODEL_CALL_HEADER)) is not None:
        error.data["model_call"] = model_call
    return error


def _by_status(status: int, where: str) -> AgentEnvError:
    if status == 401:
        return Unauthenticated(f"{where} wants a valid bearer token")
    if status == 403:
        return Forbidden(f"{where} does not allow this to the caller")
    if status == 413:
        return MessageTooLarge(f"{where} takes no message of this size")
    if status == 429:
        return AtCapacity(f"{where} takes no more requests now")
    if status in (502, 503, 504):
        return TransportError(f"{where} answered {status}: the server behind it cannot be reached now")
    return ProtocolError(f"{where} answered {status} without saying why in a form that is known", status=status)


def _retry_after(value: str | None) -> float | None:
    """Seconds of a `Retry-After` header (RFC 9110 §10.2.3); its form as a date is not used by our servers."""
    return float(value) if value is not None and value.strip().isdecimal() else None


async def read_body(response: aiohttp.ClientResponse, most: int, *, who: str | None = None) -> bytes:
    """The whole body of a response; raises `MessageTooLarge`, which names `who` answered (its URL if not given)."""
    if response.content_length is not None and response.content_length <= most:
        content = await response.read()
        if len(content) <= most:  # a compressed body may be longer than it was declared
            return content
    elif response.content_length is None:
        chunks = bytearray()
        async for chunk in response.content.iter_any():
            chunks += chunk
            if len(chunks) > most:
                break
        else:
            return bytes(chunks)
    response.close()
    raise MessageTooLarge(f"{who or shown(str(response.url))} answered with more than {most} bytes")
