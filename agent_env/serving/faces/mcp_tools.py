"""What the MCP face lists: the environment's tools and verbs, with the schemas of what they take and answer."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

import mcp_types as types

from agent_env.context import Principal
from agent_env.errors import ConfigurationError
from agent_env.net.mcp_verbs import OUTPUT_KEY, SESSION_ARGUMENT, TOOL_OF, VERB_KEY, VERB_OF
from agent_env.runtime import chat
from agent_env.runtime.environment import Runtime

SESSION: Final = {
    "type": "string",
    "description": "The session_id of an earlier result, to go on with that conversation; empty opens a new one.",
    "default": "",
}
_OPEN_SESSION: Final = {"type": "string", "description": "The session_id of an earlier result."}
_ARGUMENTS: Final = {"type": "object", "description": "Its arguments.", "default": {}}
_ANYTHING: Final[dict[str, Any]] = {}


def _object(properties: Mapping[str, Any], required: Sequence[str] = (), **more: Any) -> dict[str, Any]:
    schema = {"type": "object", "properties": dict(properties), "additionalProperties": False, **more}
    return schema | ({"required": list(required)} if required else {})


def _answer(properties: Mapping[str, Any]) -> dict[str, Any]:
    """The schema of an answer; it leaves room for what later releases add."""
    return {"type": "object", "properties": dict(properties), "required": list(properties)}


_VERBS: Final[Mapping[str, tuple[str, dict[str, Any], dict[str, Any]]]] = {
    "reset": (
        "Start an episode: the conversation is forgotten, and its first observation returned.",
        _object(
            {
                SESSION_ARGUMENT: SESSION,
                "seed": {"type": ["integer", "null"], "description": "The seed of the episode.", "default": None},
                "options": {"description": "What the environment takes besides.", "default": None},
            }
        ),
        _answer({"session_id": {"type": "string"}, "observation": _ANYTHING, "info": {"type": "object"}}),
    ),
    "step": (
        "Take one step of the episode.",
        _object(
            {
                SESSION_ARGUMENT: SESSION,
                "action": {"description": 'A message (one chat turn), or {"tool": name, "arguments": {...}}.'},
            },
            ["action"],
        ),
        _answer(
            {
                "observation": _ANYTHING,
                "reward": {"type": ["number", "null"]},
                "terminated": {"type": "boolean"},
                "truncated": {"type": "boolean"},
                "info": {"type": "object"},
                "session_id": {"type": "string"},
            }
        ),
    ),
    "state": (
        "Tell where a session stands: its turns, its messages, whether it ended, and what it waits for.",
        _object({SESSION_ARGUMENT: _OPEN_SESSION}, [SESSION_ARGUMENT]),
        _answer({"session_id": {"type": "string"}, "turns": {"type": "integer"}, "messages": {"type": "array"}}),
    ),
    "call_function": (
        "Call a function that the environment offers to those who orchestrate.",
        _object(
            {
                "name": {"type": "string", "description": "The function."},
                "arguments": _ARGUMENTS,
                SESSION_ARGUMENT: SESSION,
            },
            ["name"],
        ),
        _answer({"result": _ANYTHING, "session_id": {"type": "string"}}),
    ),
    "call_reward": (
        "Score a session as it stands.",
        _object(
            {
                "name": {"type": "string", "description": "The reward."},
                "arguments": _ARGUMENTS,
                SESSION_ARGUMENT: _OPEN_SESSION,
            },
            ["name", SESSION_ARGUMENT],
        ),
        _answer({"name": {"type": "string"}, "value": {"type": ["number", "null"]}, "done": {"type": "boolean"}}),
    ),
    "fork": (
        "Copy a session: both go on from the same conversation, apart.",
        _object({SESSION_ARGUMENT: _OPEN_SESSION}, [SESSION_ARGUMENT]),
        _answer(
            {
                "session_id": {"type": "string"},
                "afresh": {
                    "type": "object",
                    "description": "Seats whose peers could not copy what they remember, each with why.",
                    "additionalProperties": {"type": "string"},
                },
            }
        ),
    ),
    "release": (
        "End a session and free its place.",
        _object({SESSION_ARGUMENT: _OPEN_SESSION}, [SESSION_ARGUMENT]),
        _answer({"released": {"type": "boolean"}, "session_id": {"type": "string"}}),
    ),
}


class Catalogue:
    """The tools of one environment, as MCP lists them.

    With `mirror_session_id`, the session id is annotated with `x-mcp-header`: clients repeat it in the header
    `Mcp-Param-Session-Id`, by which routers can route; clients that do not know the annotation are refused.
    """

    def __init__(self, runtime: Runtime, *, mirror_session_id: bool = False) -> None:
        session = SESSION | ({"x-mcp-header": "Session-Id"} if mirror_session_id else {})
        definition = runtime.definition
        declared = definition.tools.values()
        self._with_session = {chat.NAME, *(tool.name for tool in declared if "session" in tool.injects)}
        self._tools = [
            _tool(tool, session if tool["name"] in self._with_session else None) for tool in runtime.list_tools()
        ]
        self._verbs = [_verb(verb) for verb in TOOL_OF]
        self._schemas = {tool.name: tool.input_schema for tool in self._tools} if mirror_session_id else {}
        clashes = sorted(definition.tools.keys() & VERB_OF.keys())
        if clashes:
            raise ConfigurationError(
                f"the tool {clashes[0]!r} has the name of one of the environment's own verbs on MCP; pass name=… to "
                "give it another"
            )

    def listed(self, principal: Principal) -> list[types.Tool]:
        """The tools that a principal sees: those of the environment, and its verbs for orchestrators."""
        return [*self._tools, *(self._verbs if "orchestrate" in principal.scopes else ())]

    def takes_session(self, name: str) -> bool:
        """Tells whether calls of a tool belong to a session."""
        return name in self._with_session

    def mirrored_schema(self, name: str) -> Mapping[str, Any] | None:
        """The schema by which a call's headers are checked; None where no argument is mirrored."""
        return self._schemas.get(name)


def _tool(tool: Mapping[str, Any], session: Mapping[str, Any] | None) -> types.Tool:
    schema = dict(tool["inputSchema"])
    properties = dict(schema.get("properties", {}))
    if SESSION_ARGUMENT in properties:
        raise ConfigurationError(
            f"the tool {tool['name']!r} has a parameter {SESSION_ARGUMENT!r}, by which MCP clients name the "
            "conversation; give the parameter another name"
        )
    if session is not None:
        schema["properties"] = properties | {SESSION_ARGUMENT: session}
    output = tool.get("outputSchema")
    meta = {VERB_KEY: "call_tool"} | ({} if output is None else {OUTPUT_KEY: output})
    return types.Tool(
        name=tool["name"],
        description=tool["description"],
        input_schema=schema,
        output_schema=result_schema(output),
        _meta=meta,
    )


def _verb(verb: str) -> types.Tool:
    description, takes, answers = _VERBS[verb]
    return types.Tool(
        name=TOOL_OF[verb],
        description=description,
        input_schema=takes,
        output_schema=answers,
        _meta={VERB_KEY: verb},
    )


def result_schema(data: Mapping[str, Any] | None) -> dict[str, Any]:
    """The schema of `ToolResult.to_json`, with that of its data where references in it can be kept."""
    part, definitions = _embedded(data)
    schema = _answer(
        {
            "content": {"type": "array", "items": {"type": "object"}},
            "text": {"type": "string"},
            "data": part,
            "is_error": {"type": "boolean"},
            "session_id": {"type": "string", "description": "Pass it with the next call to go on."},
            "usage": {"type": ["object", "null"]},
            "reward": {"type": ["number", "null"]},
            "stop": {"type": "string"},
            "interrupt": {"type": ["object", "null"], "description": "The question that the next chat answers."},
            "call_id": {"type": "string"},
            "calls_left": {"type": ["integer", "null"]},
        }
    )
    return schema | ({"$defs": definitions} if definitions else {})


def _embedded(data: Mapping[str, Any] | None) -> tuple[dict[str, Any], dict[str, Any]]:
    """A schema as a part of another one, and its definitions, which move to the root with their references."""
    if data is None:
        return {}, {}
    schema = dict(data)
    definitions = dict(schema.pop("$defs", {}))
    if not all(reference.startswith("#/$defs/") for reference in _references(data)):
        return {}, {}
    return {"anyOf": [schema, {"type": "null"}]}, definitions


def _references(value: Any) -> list[str]:
    if isinstance(value, Mapping):
        own = value.get("$ref")
        return [
            *([own] if isinstance(own, str) else []),
            *(ref for part in value.values() for ref in _references(part)),
        ]
    if isinstance(value, list):
        return [reference for part in value for reference in _references(part)]
    return []
