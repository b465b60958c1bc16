"""One app: both cards and every face on one port."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Awaitable, Callable, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Any

from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route
from starlette.types import ASGIApp, Receive, Scope, Send

from agent_env.errors import AgentEnvError, ConfigurationError
from agent_env.runtime.environment import Runtime
from agent_env.serving.access import Access
from agent_env.serving.address import PublicAddress
from agent_env.serving.faces.a2a import A2aFace
from agent_env.serving.faces.contract import Face, Site
from agent_env.serving.faces.http import HttpFace
from agent_env.serving.faces.mcp import McpFace
from agent_env.serving.faces.websocket import WebSocketFace
from agent_env_cards import CARD_PATH, EnvironmentCard, Interface

__all__ = ["ASGIApp", "build_app", "interfaces", "lazily"]


def interfaces() -> list[Interface]:
    """The ways in that every served environment has, as its card lists them."""
    return [
        Interface(transport="websocket", url="/v1/ws", protocol_versions=["1"]),
        Interface(transport="http", url="/v1", protocol_versions=["1"]),
        Interface(transport="mcp", url="/mcp", protocol_versions=["2025-11-25", "2026-07-28"]),
        Interface(transport="a2a", url="/a2a", protocol_versions=["0.3", "1.0"]),
    ]


def build_app(runtime: Runtime, card: EnvironmentCard, access: Access, address: PublicAddress) -> ASGIApp:
    """Builds the app of a started environment."""
    site = Site(runtime, card, access, address)
    http = HttpFace(site)
    faces: Sequence[Face] = (WebSocketFace(site), http, McpFace(site), A2aFace(site))

    @asynccontextmanager
    async def lifespan(_: Starlette) -> AsyncGenerator[None]:
        async with AsyncExitStack() as stack:
            for face in faces:
                await stack.enter_async_context(face.running())
            yield

    # The OpenAPI document comes from the HTTP face; FastAPI's own layers would cost each call a third more.
    app = Starlette(lifespan=lifespan)
    app.router.redirect_slashes = False
    written = card.to_json().encode()
    etag = f'"{card.digest().removeprefix("sha256:")}"'

    async def environment_card(request: Request) -> Response:
        headers = {"ETag": etag, "Cache-Control": "no-cache"}
        if request.headers.get("if-none-match") == etag:
            return Response(status_code=304, headers=headers)
        return Response(written, media_type="application/json", headers=headers)

    app.router.routes.append(Route(CARD_PATH, environment_card, methods=["GET", "HEAD"]))
    for face in faces:
        app.router.routes.extend(face.routes())
    app.add_exception_handler(AgentEnvError, _answer_error)
    return app


async def _answer_error(request: Request, error: Exception) -> Response:
    assert isinstance(error, AgentEnvError)
    headers = {} if error.retry_after is None else {"Retry-After": str(max(1, round(error.retry_after)))}
    return JSONResponse({"error": error.to_wire()}, error.http_status, headers)


def lazily(build: Callable[[], Awaitable[ASGIApp]], close: Callable[[], Awaitable[None]]) -> ASGIApp:
    """An app that is built when its server's lifespan starts and closed when it ends."""
    built: list[Any] = []

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "lifespan":
            inner = await build()
            built.append(inner)
            try:
                await inner(scope, receive, send)
            finally:
                built.clear()
                await close()
        elif built:
            await built[0](scope, receive, send)
        else:
            raise ConfigurationError("the app of an AgentEnvironment needs a server that runs its lifespan")

    return app
