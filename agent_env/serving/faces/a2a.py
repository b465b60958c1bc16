"""The A2A face: JSON-RPC at `/a2a`, HTTP+JSON at `/a2a/rest`, for clients of A2A 1.0 and 0.3 at once.

A message is one turn of `chat` in the session that its context names. A call that ends within two seconds is answered
by a message; one that is streamed, polled or takes longer is a task. Under our extension a message performs any verb
(`agent_env.net.a2a_wire`). A request without the header A2A-Version speaks 0.3.
"""

from __future__ import annotations

import json
import os
from collections.abc import AsyncGenerator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from functools import lru_cache
from typing import Any, Final, cast

# The SDK decides when it is imported whether it traces, and traces unless told otherwise.
os.environ.setdefault("OTEL_INSTRUMENTATION_A2A_SDK_ENABLED", "false")

from a2a.server.routes import create_jsonrpc_routes, create_rest_routes
from a2a.types import AgentCard
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import BaseRoute, Route

from agent_env.errors import AgentEnvError
from agent_env.net.a2a_wire import parse
from agent_env.net.wire_logs import keep_from_logs
from agent_env.serving.address import ADDRESS_HEADERS
from agent_env.serving.documents import answer_document, entity_tag
from agent_env.serving.faces.a2a_errors import jsonrpc_response, rest_response
from agent_env.serving.faces.a2a_executor import MESSAGE_SECONDS
from agent_env.serving.faces.a2a_gate import Gate
from agent_env.serving.faces.a2a_handler import ExchangeContext, MessageHandler
from agent_env.serving.faces.contract import Site
from agent_env_cards import AGENT_CARD_PATH, AGENT_CARD_PATH_V03, CardError, agent_card, agent_card_v03

JSONRPC_PATH: Final = "/a2a"
REST_PATH: Final = "/a2a/rest"


class A2aFace:
    """Serves `/a2a`, `/a2a/rest` and both forms of the Agent Card.

    `message_seconds` is how long a call may take and still be answered by one message.
    """

    def __init__(self, site: Site, *, message_seconds: float = MESSAGE_SECONDS) -> None:
        keep_from_logs("a2a", "sse_starlette")
        self._site = site
        card = parse(agent_card(site.card, base_url=site.address.fallback), AgentCard())
        self._handler = MessageHandler(site, card, message_seconds=message_seconds)
        # Keyed by what clients send as Host, hence bounded.
        self._card = lru_cache(maxsize=64)(self._write_card)
        self._card_v03 = lru_cache(maxsize=64)(self._write_card_v03)

    def routes(self) -> Sequence[BaseRoute]:
        """Both bindings, and the Agent Card where 1.0 and where 0.3 look for it."""
        context = ExchangeContext()
        jsonrpc = create_jsonrpc_routes(self._handler, JSONRPC_PATH, context_builder=context, enable_v0_3_compat=True)
        rest = create_rest_routes(
            self._handler, context_builder=context, enable_v0_3_compat=True, path_prefix=REST_PATH
        )
        return (
            Route(AGENT_CARD_PATH, self._serve_card, methods=["GET"]),
            Route(AGENT_CARD_PATH_V03, self._serve_card_v03, methods=["GET"]),
            *self._gated(jsonrpc, jsonrpc_response),
            *self._gated(rest, rest_response),
        )

    @asynccontextmanager
    async def running(self) -> AsyncGenerator[None]:
        """Cancels what still runs when the app stops."""
        try:
            yield
        finally:
            await self._handler.aclose()

    def _gated(self, routes: Sequence[BaseRoute], refuse: Callable[[AgentEnvError], Response]) -> list[BaseRoute]:
        max_bytes = self._site.runtime.definition.limits.max_request_bytes
        # The SDK's mount for tenants in the path is left out: it would match every other path of the app.
        return [
            Route(
                route.path,
                Gate(route.app, self._site, max_bytes=max_bytes, refuse=refuse),
                methods=sorted(route.methods or ()),
            )
            for route in routes
            if isinstance(route, Route)
        ]

    # ── cards ──────────────────────────────────────────────────────────────────────────────────────────────────

    async def _serve_card(self, request: Request) -> Response:
        return self._answer(request, self._card)

    async def _serve_card_v03(self, request: Request) -> Response:
        return self._answer(request, self._card_v03)

    def _answer(self, request: Request, write: Callable[[str], tuple[bytes, str]]) -> Response:
        try:
            content, etag = write(self._site.address.base(request))
        except CardError:
            # A Host that no card may name.
            content, etag = write(self._site.address.fallback)
        # The addresses on the card are those that this client sees.
        return answer_document(request, content, etag, vary=", ".join(ADDRESS_HEADERS))

    def _write_card(self, base_url: str) -> tuple[bytes, str]:
        # Clients of 0.3 look here too, and pass by what they do not know, as those of 1.0 do.
        old = agent_card_v03(self._site.card, base_url=base_url)
        return _encode(_merged(agent_card(self._site.card, base_url=base_url), old))

    def _write_card_v03(self, base_url: str) -> tuple[bytes, str]:
        return _encode(agent_card_v03(self._site.card, base_url=base_url))


def _merged(card: Mapping[str, Any], more: Mapping[str, Any]) -> dict[str, Any]:
    """The card, with the members that only the other form has."""
    merged = dict(card)
    for name, value in more.items():
        mine = merged.get(name)
        if name not in merged:
            merged[name] = value
        elif isinstance(mine, Mapping) and isinstance(value, Mapping):
            merged[name] = _merged(cast("Mapping[str, Any]", mine), cast("Mapping[str, Any]", value))
    return merged


def _encode(card: Mapping[str, Any]) -> tuple[bytes, str]:
    content = json.dumps(card, ensure_ascii=False).encode()
    return content, entity_tag(content)
