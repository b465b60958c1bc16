"""The MCP face: the environment as an MCP server, for clients of the handshake era and of 2026-07-28 at once."""

from __future__ import annotations

import itertools
import logging
import math
import weakref
from collections.abc import AsyncGenerator, Generator, Mapping, Sequence
from contextlib import asynccontextmanager, contextmanager, suppress
from typing import Any, Final, TypeAlias, cast

import mcp_types as types
from mcp.server.context import ServerRequestContext
from mcp.server.lowlevel import Server
from mcp.server.streamable_http_manager import StreamableHTTPSessionManager
from mcp.shared.exceptions import MCPError
from mcp_types.version import MODERN_PROTOCOL_VERSIONS
from starlette.requests import Request
from starlette.routing import BaseRoute, Route
from starlette.types import Receive, Scope, Send

from agent_env.context import RUN_HEADER, CallContext
from agent_env.errors import AgentEnvError, InvalidArguments, UnknownSession
from agent_env.net.mcp_verbs import (
    CONTEXT_KEY,
    EVENTS_KEY,
    EXTENSION,
    INTERNAL_ERROR,
    SESSION_ARGUMENT,
    VERB_OF,
    rpc_code,
)
from agent_env.net.wire_logs import keep_from_logs
from agent_env.runtime.caller import Caller
from agent_env.runtime.turns import OnEvent
from agent_env.runtime.verbs import perform
from agent_env.serving.faces.contract import Site
from agent_env.serving.faces.mcp_content import as_json, blocks, message, written
from agent_env.serving.faces.mcp_gate import Gate, Visit
from agent_env.serving.faces.mcp_tools import Catalogue
from agent_env_cards import AGENT_CARD_PATH, CARD_PATH, agent_card
from agent_env_wrappers.contract import Event

log = logging.getLogger("agent_env.serving")

Context: TypeAlias = ServerRequestContext[Any, Request]

PATH: Final = "/mcp"

RELEASE_SECONDS: Final = 5.0
"""How long a session that its client ends may take to end."""


class McpFace:
    """Serves `/mcp`.

    A call goes on in the session that its argument `session_id` names; else, for a client of the handshake era, in the
    one of its MCP session; else in a new one, whose id is in the result. `mirror_session_id` is for servers behind
    routers that read headers alone (see `Catalogue`).
    """

    def __init__(self, site: Site, *, mirror_session_id: bool = False) -> None:
        keep_from_logs("mcp", "sse_starlette")
        definition = site.runtime.definition
        self._site = site
        self._catalogue = Catalogue(site.runtime, mirror_session_id=mirror_session_id)
        self._max_body_bytes = definition.limits.max_request_bytes
        self._manager: StreamableHTTPSessionManager | None = None
        # The sessions that MCP sessions have opened. One that ends (idle, released) while its MCP session lives must
        # not be opened again unasked.
        self._opened: set[str] = set()
        self._server: Server[Any] = Server(
            definition.name,
            version=definition.version,
            description=definition.description or None,
            instructions=(
                f"Talk to {definition.name} with the tool `chat`. Each result has a `session_id`; pass it with the next "
                "call to go on with the same conversation."
            ),
            get_tool_input_schema=self._catalogue.mirrored_schema,
            on_list_tools=self._list_tools,
            on_call_tool=self._call_tool,
            on_list_resources=self._list_resources,
            on_list_resource_templates=self._list_resource_templates,
            on_read_resource=self._read_resource,
        )
        self._server.add_request_handler("server/discover", types.RequestParams, self._discover)

    def routes(self) -> Sequence[BaseRoute]:
        """The route of the endpoint."""
        return [Route(PATH, Gate(self._site, self._serve, max_body_bytes=self._max_body_bytes))]

    @asynccontextmanager
    async def running(self) -> AsyncGenerator[None]:
        """Entered while the app serves; leaving it ends every MCP session and what runs in it."""
        limits = self._site.runtime.definition.limits
        manager = StreamableHTTPSessionManager(
            self._server,
            session_idle_timeout=limits.idle_seconds if math.isfinite(limits.idle_seconds) else None,
            max_request_body_size=self._max_body_bytes,
            max_sessions=limits.max_sessions,
        )
        async with manager.run():
            self._manager = manager
            try:
                yield
            finally:
                self._manager = None

    async def _serve(self, scope: Scope, receive: Receive, send: Send) -> None:
        if self._manager is None:
            raise RuntimeError("the MCP face serves only inside running(), which the app's lifespan enters")
        await self._manager.handle_request(scope, receive, send)
        if scope["method"] == "DELETE":
            await self._release(Request(scope))

    async def _release(self, request: Request) -> None:
        """Frees the place of the conversation whose MCP session has ended."""
        session_id = _session_of(request)
        if session_id is not None:
            self._opened.discard(session_id)
            caller = Caller(Visit.of(request).principal, CallContext().within(RELEASE_SECONDS))
            with suppress(AgentEnvError):  # it was never opened, or is reaped when it is idle
                await perform(self._site.runtime, "release", {SESSION_ARGUMENT: session_id}, caller)

    # ── what clients ask ───────────────────────────────────────────────────────────────────────────────────────

    async def _discover(self, context: Context, _: types.RequestParams) -> types.DiscoverResult:
        card = self._site.address.base(_request(context)) + CARD_PATH
        return types.DiscoverResult(
            supported_versions=list(MODERN_PROTOCOL_VERSIONS),
            capabilities=self._server.get_capabilities(
                extensions={EXTENSION: {"card": card}}, protocol_version=context.protocol_version
            ),
            instructions=self._server.instructions,
        )

    async def _list_tools(self, context: Context, _: types.PaginatedRequestParams | None) -> types.ListToolsResult:
        principal = Visit.of(_request(context)).principal
        with _rpc_errors():
            Caller(principal).need("chat", "list_tools")
            return types.ListToolsResult(tools=self._catalogue.listed(principal))

    async def _call_tool(self, context: Context, params: types.CallToolRequestParams) -> types.CallToolResult:
        with _rpc_errors():
            request = _request(context)
            visit = Visit.of(request)
            verb, arguments = _read(params)
            caller = self._caller(context, visit)
            open_as = self._enter_session(context, visit, verb, arguments)
            answer = await visit.play(
                perform(self._site.runtime, verb, arguments, caller, _listener(context), open_as=open_as)
            )
            if open_as is not None and answer.get("session_id") == open_as:
                self._remember(context, open_as)
            if verb == "call_tool":
                return types.CallToolResult(
                    content=blocks(answer["content"]), structured_content=answer, is_error=answer["is_error"]
                )
            return types.CallToolResult(content=written(answer), structured_content=answer)

    async def _list_resources(
        self, context: Context, _: types.PaginatedRequestParams | None
    ) -> types.ListResourcesResult:
        base = self._site.address.base(_request(context))
        cards = ((CARD_PATH, "environment-card", "Environment Card"), (AGENT_CARD_PATH, "agent-card", "A2A Agent Card"))
        return types.ListResourcesResult(
            resources=[
                types.Resource(uri=base + path, name=name, title=title, mime_type="application/json")
                for path, name, title in cards
            ]
        )

    async def _list_resource_templates(
        self, _: Context, __: types.PaginatedRequestParams | None
    ) -> types.ListResourceTemplatesResult:
        return types.ListResourceTemplatesResult(resource_templates=[])

    async def _read_resource(
        self, context: Context, params: types.ReadResourceRequestParams
    ) -> types.ReadResourceResult:
        with _rpc_errors():
            base = self._site.address.base(_request(context))
            uri = str(params.uri)
            if uri == base + CARD_PATH:
                text = self._site.card.to_json()
            elif uri == base + AGENT_CARD_PATH:
                text = as_json(agent_card(self._site.card, base_url=base))
            else:
                raise InvalidArguments(
                    f"there is no resource {uri!r:.200} here; there are {base + CARD_PATH} and {base + AGENT_CARD_PATH}"
                )
            return types.ReadResourceResult(
                contents=[types.TextResourceContents(uri=uri, mime_type="application/json", text=text)]
            )

    # ── what a call says about itself ──────────────────────────────────────────────────────────────────────────

    def _caller(self, context: Context, visit: Visit) -> Caller:
        meta = _meta(context)
        own = meta.get(CONTEXT_KEY)
        carrier = cast("Mapping[str, Any]", own) if isinstance(own, Mapping) else meta
        request = _request(context)
        client = request.client.host if request.client else None
        return self._site.access.caller(visit.principal, carrier, request.headers.get(RUN_HEADER), client)

    def _enter_session(self, context: Context, visit: Visit, verb: str, arguments: dict[str, Any]) -> str | None:
        """Puts the session of the client's MCP session in, where the call names none; returns it if it is to be opened.

        MCP 2026-07-28 has no sessions of its own: what such a client sends in their header is not looked at.
        """
        session_id = _session_of(_request(context))
        if (
            arguments.get(SESSION_ARGUMENT)
            or session_id is None
            or context.protocol_version in MODERN_PROTOCOL_VERSIONS
        ):
            return None
        if verb == "call_tool" and not self._catalogue.takes_session(arguments["name"]):
            return None
        if self._site.runtime.sessions.knows(visit.principal.id, session_id):
            arguments[SESSION_ARGUMENT] = session_id
            return None
        if verb == "reset" or (verb in ("call_tool", "step") and session_id not in self._opened):
            return session_id
        if session_id in self._opened:
            raise UnknownSession(
                "the conversation of this MCP session has ended: it was released, or was idle for too long. Open another "
                "MCP session to start a new one"
            )
        return None

    def _remember(self, context: Context, session_id: str) -> None:
        self._opened.add(session_id)
        # What an MCP session said when it was opened lives as long as it does.
        weakref.finalize(context.session.client_params, self._opened.discard, session_id).atexit = False


def _read(params: types.CallToolRequestParams) -> tuple[str, dict[str, Any]]:
    """The verb that a call performs, and its arguments."""
    arguments = dict(params.arguments or {})
    verb = VERB_OF.get(params.name)
    if verb is not None:
        return verb, arguments
    session_id = arguments.pop(SESSION_ARGUMENT, None)
    return "call_tool", {"name": params.name, "arguments": arguments, SESSION_ARGUMENT: session_id}


def _listener(context: Context) -> OnEvent | None:
    """What streams the events of a turn, if the client asked for progress."""
    meta = _meta(context)
    if meta.get("progress_token") is None:
        return None
    everything = meta.get(EVENTS_KEY) is True
    numbers = itertools.count(1)

    async def on_event(event: Event) -> None:
        text = message(event, everything=everything)
        if text is not None:
            await context.session.report_progress(next(numbers), message=text)

    return on_event


def _session_of(request: Request) -> str | None:
    """The session that belongs to a request's MCP session."""
    mcp_session = request.headers.get("mcp-session-id")
    return None if mcp_session is None else f"mcp-{mcp_session}"


def _request(context: Context) -> Request:
    assert context.request is not None
    return context.request


def _meta(context: Context) -> Mapping[str, Any]:
    return cast("Mapping[str, Any]", context.meta or {})


@contextmanager
def _rpc_errors() -> Generator[None]:
    """Turns every failure into a JSON-RPC error; nothing of what goes wrong inside crosses the wire."""
    try:
        yield
    except AgentEnvError as error:
        raise MCPError(rpc_code(error), error.message, error.to_wire()) from None
    except Exception:
        log.exception("an MCP request failed inside the server")
        hidden = AgentEnvError("the server failed; its log has the details")
        raise MCPError(INTERNAL_ERROR, hidden.message, hidden.to_wire()) from None
