"""The HTTP face: one POST a verb under `/v1`, plain JSON or lines of events, and what goes with it.

| path | what it answers |
|---|---|
| `POST /v1/{verb}` | the verb's answer; its arguments are the body |
| `GET /v1/list_tools` | the tools |
| `POST /v1/call_tool`, `/v1/step` with `Accept: application/x-ndjson` | events, one a line, then `{"result"}` or `{"error"}` |
| `GET /health` | that the server is up |
| `POST /agentenv` | JSON-RPC 2.0: `data/reset` |
| `GET /docs`, `/openapi.json` | the documentation of all these |

The endpoints are plain ASGI apps, since reading a request through a framework costs more than the call; the OpenAPI
document is made from their models beside them.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncGenerator, Mapping, Sequence
from contextlib import asynccontextmanager
from typing import Any, Final

from starlette.requests import Request
from starlette.responses import HTMLResponse, JSONResponse, Response
from starlette.routing import BaseRoute, Route
from starlette.types import Receive, Scope, Send

from agent_env.errors import AgentEnvError, InvalidArguments, TransportError
from agent_env.runtime.verbs import VERBS, perform
from agent_env.serving.faces.contract import Site
from agent_env.serving.faces.http_dataplane import PATH as DATA_PLANE_PATH
from agent_env.serving.faces.http_dataplane import DataPlane
from agent_env.serving.faces.http_docs import docs_page, document
from agent_env.serving.faces.http_messages import (
    KEEP_ALIVE_SECONDS,
    Lines,
    Post,
    Reply,
    Whole,
    admit,
    answer,
    answer_error,
    encode_json,
    read_headers,
)
from agent_env.serving.faces.http_presence import ClientGone, Presence

log = logging.getLogger("agent_env.serving")

PREFIX: Final = "/v1"
STREAMED: Final = frozenset({"call_tool", "step"})
"""The verbs that answer in lines to whoever accepts them."""

HEALTHY: Final = {"status": "healthy", "success": True, "data": {"status": "healthy"}}


class HttpFace:
    """Serves the verbs over plain HTTP."""

    def __init__(self, site: Site, *, keep_alive_seconds: float = KEEP_ALIVE_SECONDS) -> None:
        self.site = site
        self.keep_alive_seconds = keep_alive_seconds
        self._running: set[asyncio.Task[Any]] = set()

    def routes(self) -> Sequence[BaseRoute]:
        """The routes of the face; `/docs` finds its document by a relative address, so any prefix will do."""
        return (
            Route(f"{PREFIX}/list_tools", _ListTools(self), methods=["GET", "POST"]),
            Route(f"{PREFIX}/{{verb}}", _Verb(self), methods=["POST"]),
            Route("/health", _Health(), methods=["GET"]),
            Route(DATA_PLANE_PATH, DataPlane(self.site), methods=["POST"]),
            Route("/openapi.json", self._openapi, methods=["GET"]),
            Route("/docs", self._docs, methods=["GET"]),
        )

    @asynccontextmanager
    async def running(self) -> AsyncGenerator[None, None]:
        """Ends what still runs when the app stops: its callers are told that the server closes."""
        yield
        for task in self._running:
            task.cancel()
        if self._running:
            await asyncio.wait(self._running)

    async def _openapi(self, request: Request) -> Response:
        return JSONResponse(document(self.site, self.site.address.base(request)))

    async def _docs(self, request: Request) -> Response:
        return HTMLResponse(docs_page(self.site.card))

    async def serve(self, verb: str, scope: Scope, receive: Receive, send: Send) -> None:
        """Performs a verb and answers it, with an error if it failed and not at all if the client is gone."""
        task = asyncio.current_task()
        assert task is not None
        self._running.add(task)
        reply: Reply = Whole(send)
        try:
            post = await Post.read(self.site, scope, receive)
            arguments = _arguments(verb, post)
            caller = post.caller(self.site)
            if verb in STREAMED and "application/x-ndjson" in post.headers.get("accept", ""):
                reply = Lines(send, keep_alive_seconds=self.keep_alive_seconds)
            async with Presence(receive), reply:
                await reply.end(await perform(self.site.runtime, verb, arguments, caller, reply.on_event))
        except ClientGone:
            return
        except AgentEnvError as error:
            await reply.fail(error)
        except asyncio.CancelledError:
            await reply.fail(TransportError("the server stopped while it worked on this call; nothing was changed"))
            raise
        except Exception:
            log.exception("a call of %r failed inside the server", verb)
            await reply.fail(AgentEnvError("the server failed; its log has the details"))
        finally:
            self._running.discard(task)


class _Verb:
    def __init__(self, face: HttpFace) -> None:
        self._face = face

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        await self._face.serve(scope["path_params"]["verb"], scope, receive, send)


class _ListTools:
    def __init__(self, face: HttpFace) -> None:
        self._face = face

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["method"] == "POST":
            await self._face.serve("list_tools", scope, receive, send)
            return
        site = self._face.site
        try:
            principal = admit(site, scope, read_headers(scope))
            caller = site.access.caller(principal, {}, None, None)
            await answer(send, encode_json(await perform(site.runtime, "list_tools", {}, caller)))
        except AgentEnvError as error:
            await answer_error(send, error)


class _Health:
    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        await answer(send, encode_json(HEALTHY))


def _arguments(verb: str, post: Post) -> Mapping[str, Any]:
    arguments = post.json()
    if not isinstance(arguments, dict):
        raise InvalidArguments(f"the body must be an object with the arguments of {verb}, not {arguments!r:.100}")
    # Routers read the session from a header; it must not say anything else than the call itself.
    session_id = post.headers.get("session-id")
    if session_id and "session_id" in VERBS.get(verb, ()):
        if (arguments.get("session_id") or session_id) != session_id:
            raise InvalidArguments("the header Session-Id and the argument 'session_id' name different sessions")
        arguments["session_id"] = session_id
    return arguments
