"""The data plane at the card's `url`: JSON-RPC 2.0 with `data/reset`, as clients of agent-env.json know it."""

from __future__ import annotations

import logging
from typing import Any, Final

from starlette.types import Receive, Scope, Send

from agent_env.errors import AgentEnvError, RequestError, UnknownSession
from agent_env.net.refusals import error_headers
from agent_env.serving.faces.contract import Site
from agent_env.serving.faces.http_messages import Post, answer, encode_json
from agent_env.serving.faces.http_presence import ClientGone, Presence

log = logging.getLogger("agent_env.serving")

PATH: Final = "/agentenv"

PARSE_ERROR: Final = -32700
INVALID_REQUEST: Final = -32600
METHOD_NOT_FOUND: Final = -32601
INVALID_PARAMS: Final = -32602
SERVER_ERROR: Final = -32000


class DataPlane:
    """Answers `data/reset`: every session of the caller starts anew, as one environment would for its only caller."""

    def __init__(self, site: Site) -> None:
        self._site = site

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        id: Any = None
        try:
            post = await Post.read(self._site, scope, receive)
        except ClientGone:
            return
        except AgentEnvError as error:
            # What HTTP itself has a status for is told by it, in the error form of JSON-RPC.
            await _answer(send, _error(None, SERVER_ERROR, error.message, error.to_wire()), error)
            return
        try:
            message = post.json()
        except RequestError as error:
            await _answer(send, _error(None, PARSE_ERROR, error.message))
            return
        if (
            not isinstance(message, dict)
            or message.get("jsonrpc") != "2.0"
            or not isinstance(message.get("method"), str)
        ):
            await _answer(send, _error(None, INVALID_REQUEST, "send one JSON-RPC 2.0 request object"))
            return
        id = message.get("id")
        try:
            async with Presence(receive):
                reply = await self._perform(post, message["method"], message.get("params"), id)
        except ClientGone:
            return
        if "id" in message:
            await _answer(send, reply)
        else:
            await send({"type": "http.response.start", "status": 204, "headers": []})
            await send({"type": "http.response.body", "body": b""})

    async def _perform(self, post: Post, method: str, params: Any, id: Any) -> dict[str, Any]:
        if method != "data/reset":
            return _error(id, METHOD_NOT_FOUND, f"method not found: {method}; this environment has data/reset")
        if not isinstance(params if params is not None else {}, dict):
            return _error(id, INVALID_PARAMS, "the params of data/reset must be an object")
        try:
            await self._reset(post)
        except AgentEnvError as error:
            return _error(
                id, SERVER_ERROR, error.message, {**error.to_wire(), "code": "reset_failed", "error": error.code}
            )
        except Exception:
            log.exception("data/reset failed inside the server")
            return _error(id, SERVER_ERROR, "the server failed; its log has the details", {"code": "reset_failed"})
        return {"jsonrpc": "2.0", "id": id, "result": {}}

    async def _reset(self, post: Post) -> None:
        runtime = self._site.runtime
        caller = post.caller(self._site)
        caller.need("orchestrate", "data/reset")
        for session in [session for session in runtime.sessions if session.principal == caller.principal.id]:
            try:
                await runtime.reset(session_id=session.id, caller=caller)
            except UnknownSession:
                continue  # it ended while those before it were reset


def _error(id: Any, code: int, message: str, data: Any = None) -> dict[str, Any]:
    error: dict[str, Any] = {"code": code, "message": message}
    if data is not None:
        error["data"] = data
    return {"jsonrpc": "2.0", "id": id, "error": error}


async def _answer(send: Send, reply: dict[str, Any], error: AgentEnvError | None = None) -> None:
    if error is None:
        await answer(send, encode_json(reply))
    else:
        await answer(send, encode_json(reply), error.http_status, error_headers(error))
