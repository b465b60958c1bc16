"""The verbs over MCP, with a server that knows nothing of environments: its tools, and a chat if one of them is like it.

A tool is like `chat` when it takes a text under one of `MESSAGE_NAMES` and needs nothing else. `chat` is the tool of
that name, else the only one like it.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final, cast

import mcp_types as types

from agent_env.client.lanes.contract import OnEvent, Outgoing
from agent_env.client.lanes.mcp_connection import Connection, OnMessage
from agent_env.context import inject
from agent_env.errors import InvalidArguments, NotSupported, UnknownTool
from agent_env.net.mcp_verbs import SESSION_ARGUMENT
from agent_env.runtime.results import ToolResult
from agent_env_wrappers.contract import Status

CHAT: Final = "chat"

MESSAGE_NAMES: Final = ("message", "prompt", "query", "input", "text", "task")
"""What a tool may call the message that it takes."""


async def perform(
    connection: Connection, verb: str, arguments: Mapping[str, Any], outgoing: Outgoing, on_event: OnEvent | None
) -> Mapping[str, Any]:
    """Performs a verb; see `Lane.perform`. Raises `NotSupported` for one that such a server does not have."""
    if verb == "list_tools":
        await connection.refresh()
        return {"tools": [_listed(tool) for tool in connection.tools.values()]}
    if verb != "call_tool":
        raise NotSupported(
            f"{connection.where} is an MCP server with tools, not an environment, and has no {verb!r}; call its tools, "
            "or serve the agent behind it with agent_env to have every verb"
        )
    tool, fields = await _chosen(connection, arguments)
    meta = cast(Any, inject(outgoing.context))
    result = await connection.ask(
        lambda progress: connection.client.call_tool(tool.name, fields, progress_callback=progress, meta=meta),
        None if on_event is None else _teller(on_event),
    )
    answer = _result(tool, result)
    # A server that is in no tree of calls spends nothing of the caller's budget.
    return {**answer.to_json(), "calls_left": outgoing.context.calls}


async def _chosen(connection: Connection, arguments: Mapping[str, Any]) -> tuple[types.Tool, dict[str, Any]]:
    """The tool that a call means, and the arguments under that tool's names."""
    name = str(arguments["name"])
    fields = dict(arguments.get("arguments") or {})
    tool = connection.tools.get(name)
    if tool is None:
        await connection.refresh()
        tool = connection.tools.get(name)
    if name == CHAT and (tool is None or message_name(tool) != "message"):
        tool = tool or _like_chat(connection)
        fields = _renamed(tool, fields)
    if tool is None:
        known = sorted(connection.tools)
        raise UnknownTool(f"{connection.where} has no tool {name!r}; it has {', '.join(known) or 'none'}", known=known)
    session_id = arguments.get(SESSION_ARGUMENT)
    if session_id:
        if SESSION_ARGUMENT not in _properties(tool):
            raise NotSupported(
                f"the tool {tool.name!r} of {connection.where} takes no session id, so {session_id!r:.60} means nothing "
                "there; open the Environment without one"
            )
        fields[SESSION_ARGUMENT] = session_id
    return tool, fields


def message_name(tool: types.Tool) -> str | None:
    """Under which name a tool takes a message, if it takes one and needs nothing else."""
    properties = _properties(tool)
    names = [name for name in MESSAGE_NAMES if name in properties and _is_text(properties[name])]
    if len(names) != 1 or set(tool.input_schema.get("required", ())) - set(names):
        return None
    return names[0]


def _like_chat(connection: Connection) -> types.Tool:
    found = [tool for tool in connection.tools.values() if message_name(tool) is not None]
    if len(found) == 1:
        return found[0]
    names = ", ".join(sorted(tool.name for tool in found or connection.tools.values())) or "none"
    told = f"several tools take a message ({names})" if found else f"no tool takes just a message (it has {names})"
    raise UnknownTool(
        f"{connection.where} has no tool {CHAT!r}, and {told}; name the one that you mean",
        known=sorted(connection.tools),
    )


def _renamed(tool: types.Tool, fields: dict[str, Any]) -> dict[str, Any]:
    name = message_name(tool)
    if name is None or "message" not in fields or name in fields:
        return fields
    if not isinstance(fields["message"], str):
        raise InvalidArguments(f"chat needs a 'message' that is a string; it got {fields['message']!r:.100}")
    return {name if key == "message" else key: value for key, value in fields.items()}


def _properties(tool: types.Tool) -> Mapping[str, Any]:
    properties = tool.input_schema.get("properties")
    return cast("Mapping[str, Any]", properties) if isinstance(properties, Mapping) else {}


def _is_text(schema: Any) -> bool:
    if not isinstance(schema, Mapping):
        return False
    kinds = [schema, *schema.get("anyOf", ())]
    return any(kind.get("type") == "string" for kind in kinds if isinstance(kind, Mapping))


def _teller(on_event: OnEvent) -> OnMessage:
    async def on_message(message: str) -> None:
        await on_event(Status(message))

    return on_message


def _listed(tool: types.Tool) -> dict[str, Any]:
    listed = {"name": tool.name, "description": tool.description or "", "inputSchema": dict(tool.input_schema)}
    return listed if tool.output_schema is None else {**listed, "outputSchema": tool.output_schema}


def _result(tool: types.Tool, result: types.CallToolResult) -> ToolResult:
    parts = [_part(block) for block in result.content]
    text = "\n".join(part["text"] for part in parts if part["type"] == "text")
    data = result.structured_content
    if data == {"result": text}:
        # Servers wrap a plain text so to have an object; it says nothing that the text does not.
        data = None
    session_id = ""
    if isinstance(data, Mapping) and SESSION_ARGUMENT in _properties(tool):
        session_id = str(data.get(SESSION_ARGUMENT) or "")
    return ToolResult(
        parts or [{"type": "text", "text": ""}], text, data, is_error=result.is_error, session_id=session_id
    )


def _part(block: types.ContentBlock) -> dict[str, Any]:
    match block:
        case types.TextContent():
            return {"type": "text", "text": block.text}
        case types.ImageContent() | types.AudioContent():
            return {"type": "file", "mediaType": block.mime_type, "data": block.data}
        case types.ResourceLink():
            kind = block.mime_type or "application/octet-stream"
            return {"type": "file", "mediaType": kind, "uri": block.uri, "name": block.name}
        case types.EmbeddedResource():
            inner = block.resource
            if isinstance(inner, types.TextResourceContents):
                return {"type": "text", "text": inner.text}
            return {"type": "file", "mediaType": inner.mime_type or "application/octet-stream", "data": inner.blob}
