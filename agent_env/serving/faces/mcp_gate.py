"""The gate before the MCP face: who may pass, what the SDK refuses in words of its own, and who has gone away."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, TypeVar

import anyio
from mcp.server.auth.middleware.bearer_auth import AuthenticatedUser
from mcp.server.auth.provider import AccessToken
from starlette.requests import Request
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from agent_env.context import Principal
from agent_env.errors import AgentEnvError, AtCapacity, MessageTooLarge, TransportError
from agent_env.net.mcp_verbs import rpc_code
from agent_env.net.refusals import error_headers
from agent_env.serving.faces.contract import Site
from agent_env.serving.faces.http_messages import admit, answer, encode_json, read_headers

T = TypeVar("T")

_VISIT: Final = "agent_env.visit"


@dataclass(slots=True)
class Visit:
    """One HTTP request that was let in: its principal, and the calls that end when its client goes away."""

    principal: Principal
    calls: set[asyncio.Task[Any]] = field(default_factory=set[asyncio.Task[Any]])

    @classmethod
    def of(cls, request: Request) -> Visit:
        """The visit that a request belongs to."""
        visit: Visit = request.scope[_VISIT]
        return visit

    async def play(self, work: Coroutine[Any, Any, T]) -> T:
        """Does the work in a task of its own, which is cancelled once, and ends, before the caller goes on.

        The SDK cancels a scope, which interrupts every wait inside it again and again; the runtime is told once, and
        has the time that it needs to roll back and to record.
        """
        task = asyncio.get_running_loop().create_task(work)
        self.calls.add(task)
        try:
            await asyncio.wait({task})
        except asyncio.CancelledError:
            task.cancel()
            with anyio.CancelScope(shield=True):
                await asyncio.wait({task})
            if not task.cancelled():
                task.exception()
            raise
        finally:
            self.calls.discard(task)
        if task.cancelled():
            raise TransportError("the client went away before the call had ended")
        return task.result()


class Gate:
    """Lets requests through to the MCP app, with their `Visit`."""

    def __init__(self, site: Site, app: ASGIApp, *, max_body_bytes: int) -> None:
        self._site = site
        self._app = app
        self._max_body_bytes = max_body_bytes

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            principal = admit(self._site, scope, read_headers(scope))
        except AgentEnvError as error:
            await _refuse(send, error)
            return
        if scope["method"] not in ("POST", "DELETE"):
            # A GET would open a stream for what the server says unasked. This one never does, so a client without
            # such a stream costs no socket.
            await answer(send, b"", 405, {"allow": "POST, DELETE"}, kind=b"text/plain")
            return
        visit = Visit(principal)
        refusals: list[AgentEnvError] = []

        async def receive_until_gone() -> Message:
            try:
                message = await receive()
            except AgentEnvError as error:
                refusals.append(error)
                raise
            if message["type"] == "http.disconnect":
                for task in visit.calls:
                    task.cancel()
            return message

        scope = {**scope, _VISIT: visit, "user": _user(principal)}
        try:
            await self._app(scope, receive_until_gone, _in_our_words(send, self._max_body_bytes, refusals))
        except AgentEnvError as error:
            await _refuse(send, error)


def _user(principal: Principal) -> AuthenticatedUser:
    """The principal as the SDK knows one, by which it keeps handshake-era sessions apart."""
    return AuthenticatedUser(AccessToken(token="", client_id=principal.id, scopes=sorted(principal.scopes)))


def _in_our_words(send: Send, max_body_bytes: int, refusals: Sequence[AgentEnvError]) -> Send:
    """Says what the SDK says by a bare status, or of one of our refusals, in our own form."""
    refused = False

    async def send_refusal(message: Message) -> None:
        nonlocal refused
        if message["type"] == "http.response.start":
            error = refusals[0] if refusals else _refusal(message["status"], max_body_bytes)
            if error is not None:
                refused = True
                await _refuse(send, error)
        if not refused:
            await send(message)

    return send_refusal


def _refusal(status: int, max_body_bytes: int) -> AgentEnvError | None:
    if status == 413:
        return MessageTooLarge(
            f"the request has more than the {max_body_bytes} bytes that this server takes; send less",
            limit=max_body_bytes,
        )
    if status == 503:
        return AtCapacity("this server has as many MCP sessions open as it takes; try again later", retry_after=5.0)
    return None


async def _refuse(send: Send, error: AgentEnvError) -> None:
    failure = {"code": rpc_code(error), "message": error.message, "data": error.to_wire()}
    body = {"jsonrpc": "2.0", "id": None, "error": failure}
    await answer(send, encode_json(body), error.http_status, error_headers(error))
