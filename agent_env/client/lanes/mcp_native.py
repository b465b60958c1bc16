"""The verbs over MCP, with a server that serves environments."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any, cast

import mcp_types as types

from agent_env.client.lanes.contract import OnEvent, Outgoing
from agent_env.client.lanes.mcp_connection import Connection, OnMessage
from agent_env.client.lanes.mcp_transport import call_headers
from agent_env.context import RUN_HEADER, encode_run, inject
from agent_env.errors import NotSupported, ProtocolError
from agent_env.net.mcp_verbs import (
    CONTEXT_KEY,
    EVENTS_KEY,
    OUTPUT_KEY,
    SESSION_ARGUMENT,
    SESSION_HEADER,
    TOOL_OF,
    VERB_KEY,
)
from agent_env.runtime.parts import decode_event


async def perform(
    connection: Connection, verb: str, arguments: Mapping[str, Any], outgoing: Outgoing, on_event: OnEvent | None
) -> Mapping[str, Any]:
    """Performs a verb; see `Lane.perform`."""
    carrier = inject(outgoing.context)
    meta: dict[str, Any] = {**carrier, CONTEXT_KEY: carrier}
    with call_headers(_headers(arguments, outgoing)):
        if verb == "list_tools":
            tools = await connection.list_tools(meta)
            return {"tools": [_tool(tool) for tool in tools if (tool.meta or {}).get(VERB_KEY) == "call_tool"]}
        name, fields = _call(verb, arguments)
        on_message: OnMessage | None = None
        if on_event is not None:
            meta[EVENTS_KEY] = True
            on_message = decoder(on_event, connection.where)
        params = types.CallToolRequestParams(name=name, arguments=fields, _meta=cast(Any, meta))
        # Not `call_tool`, which checks every answer against its schema once more: this side reads it with care anyway.
        result = await connection.ask(
            lambda progress: connection.client.session.send_request(
                types.CallToolRequest(params=params), types.CallToolResult, progress_callback=progress
            ),
            on_message,
        )
    answer = result.structured_content
    if not isinstance(answer, Mapping):
        raise ProtocolError(f"{connection.where} answered {verb} without structured content")
    return cast("Mapping[str, Any]", answer)


def _call(verb: str, arguments: Mapping[str, Any]) -> tuple[str, dict[str, Any]]:
    """The tool that performs a verb, and its arguments."""
    if verb in TOOL_OF:
        return TOOL_OF[verb], dict(arguments)
    if verb != "call_tool":
        raise NotSupported(f"the MCP lane has no verb {verb!r}")
    fields = dict(arguments.get("arguments") or {})
    if arguments.get(SESSION_ARGUMENT):
        fields[SESSION_ARGUMENT] = arguments[SESSION_ARGUMENT]
    return str(arguments["name"]), fields


def _headers(arguments: Mapping[str, Any], outgoing: Outgoing) -> dict[str, str]:
    headers = {} if outgoing.run is None else {RUN_HEADER: encode_run(outgoing.run)}
    session_id = arguments.get(SESSION_ARGUMENT)
    if isinstance(session_id, str) and session_id.isascii() and session_id.isprintable():
        headers[SESSION_HEADER] = session_id
    return headers


def decoder(on_event: OnEvent, where: str) -> OnMessage:
    async def on_message(message: str) -> None:
        try:
            wire = json.loads(message)
        except ValueError:
            wire = None
        if not isinstance(wire, dict):
            raise ProtocolError(f"{where} sent the progress {message!r:.100}, which is no event")
        await on_event(decode_event(wire))

    return on_message


def _tool(tool: types.Tool) -> dict[str, Any]:
    """A listed tool as the verb `list_tools` has it: the session is no argument there."""
    schema = dict(tool.input_schema)
    schema["properties"] = {
        name: value for name, value in schema.get("properties", {}).items() if name != SESSION_ARGUMENT
    }
    listed: dict[str, Any] = {"name": tool.name, "description": tool.description or "", "inputSchema": schema}
    output = (tool.meta or {}).get(OUTPUT_KEY)
    return listed if output is None else {**listed, "outputSchema": output}
