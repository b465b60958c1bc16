"""The environment's verbs as MCP tools: the names, keys and codes that the MCP face and the MCP lane agree on.

| verb | tool |
|---|---|
| `call_tool` | the tools of the environment, `chat` first, each with a `session_id` where it takes a session |
| `reset`, `step`, `state`, `call_function`, `call_reward`, `fork`, `release` | `env_reset`, `env_step`, … |
| `list_tools` | the method `tools/list` |

A call's `structuredContent` is the verb's answer; a failed one is a JSON-RPC error whose `data` is `to_wire` of the
error. Keys in `_meta` have this project's prefix, so that other clients and servers pass them by.
"""

from __future__ import annotations

from typing import Final

from agent_env.errors import AgentEnvError, InvalidArguments, UnknownTool

EXTENSION: Final = "dev.agent-env/env"
"""The extension that the server advertises; its settings have the Environment Card's URL as `card`."""

VERB_KEY: Final = "dev.agent-env/verb"
"""On a listed tool: the verb that calling it performs."""

OUTPUT_KEY: Final = "dev.agent-env/output"
"""On a listed tool: the schema of the `data` that it answers with; `outputSchema` has that of the whole answer."""

EVENTS_KEY: Final = "dev.agent-env/events"
"""On a call with a progress token: send every event as JSON, in place of the reply's text as it is made."""

CONTEXT_KEY: Final = "dev.agent-env/context"
"""On a call: `traceparent` and `baggage` once more, where no tracer between caller and callee puts its own span."""

SESSION_HEADER: Final = "Session-Id"
"""The HTTP header in which our client repeats the session id, for routers that read no bodies."""

SESSION_ARGUMENT: Final = "session_id"

TOOL_OF: Final = {
    verb: f"env_{verb}" for verb in ("reset", "step", "state", "call_function", "call_reward", "fork", "release")
}
"""The tool of each verb that has one of its own."""

VERB_OF: Final = {tool: verb for verb, tool in TOOL_OF.items()}

INVALID_PARAMS: Final = -32602
INTERNAL_ERROR: Final = -32603


def rpc_code(error: AgentEnvError) -> int:
    """The JSON-RPC code of an error: -32602 where the protocol asks for it, else the error's HTTP status.

    Codes outside -32768..-32000 are the application's own (JSON-RPC 2.0 §5.1); `data["code"]` tells errors with the
    same status apart.
    """
    return INVALID_PARAMS if isinstance(error, InvalidArguments | UnknownTool) else error.http_status
