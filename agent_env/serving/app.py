"""One app: both cards and every face on one port."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from typing import cast

from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route
from starlette.types import ASGIApp

from agent_env.errors import AgentEnvError, UnknownTool
from agent_env.net.refusals import error_headers
from agent_env.net.uploads import TimelyBodies
from agent_env.runtime.environment import Runtime
from agent_env.serving.access import Access
from agent_env.serving.address import PublicAddress
from agent_env.serving.documents import answer_document, entity_tag
from agent_env.serving.faces.a2a import A2aFace
from agent_env.serving.faces.contract import Face, Site
from agent_env.serving.faces.http import HttpFace
from agent_env.serving.faces.mcp import McpFace
from agent_env.serving.faces.websocket import WebSocketFace
from agent_env_cards import CARD_PATH, EnvironmentCard


def build_app(runtime: Runtime, card: EnvironmentCard, access: Access, address: PublicAddress) -> ASGIApp:
    """Builds the app of a started environment."""
    site = Site(runtime, card, access, address)
    faces: Sequence[Face] = (WebSocketFace(site), HttpFace(site), McpFace(site), A2aFace(site))

    @asynccontextmanager
    async def lifespan(_: Starlette) -> AsyncGenerator[None]:
        async with AsyncExitStack() as stack:
            for face in faces:
                await stack.enter_async_context(face.running())
            yield

    # The OpenAPI document comes from the HTTP face; FastAPI's own layers would cost each call a third more.
    app = Starlette(
        lifespan=lifespan,
        exception_handlers={AgentEnvError: _refused, 404: _nowhere, 405: _not_so, Exception: _crashed},
    )
    app.router.redirect_slashes = False
    written = card.to_json().encode()
    tag = entity_tag(written)

    async def environment_card(request: Request) -> Response:
        return answer_document(request, written, tag)

    app.router.routes.append(Route(CARD_PATH, environment_card, methods=["GET", "HEAD"]))
    for face in faces:
        app.router.routes.extend(face.routes())
    return TimelyBodies(app, seconds=runtime.definition.limits.body_seconds)


async def _refused(request: Request, error: Exception) -> Response:
    error = cast(AgentEnvError, error)
    return JSONResponse({"error": error.to_wire()}, error.http_status, error_headers(error))


async def _nowhere(request: Request, error: Exception) -> Response:
    return await _refused(
        request,
        UnknownTool(f"there is nothing at {request.url.path}; {CARD_PATH} lists what is here, /docs explains it"),
    )


async def _not_so(request: Request, error: Exception) -> Response:
    allowed = (getattr(error, "headers", None) or {}).get("Allow", "another method")
    wire = UnknownTool(f"{request.url.path} does not take {request.method}; it takes {allowed}").to_wire()
    return JSONResponse({"error": wire}, 405, {"Allow": allowed})


async def _crashed(request: Request, error: Exception) -> Response:
    # The server logs the exception; the caller gets none of it.
    return await _refused(request, AgentEnvError("the server failed; its log has the details"))
