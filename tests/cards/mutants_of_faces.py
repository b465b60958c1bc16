"""The mutants of the clauses about behaviour in the own forms of HTTP, MCP and A2A, as their own clients see them."""

from __future__ import annotations

from mutants import Mutant

HTTP = "agent_env.serving.faces.http"
MCP = "agent_env.serving.faces.mcp"
A2A = "agent_env.serving.faces.a2a"

MUTANTS = (
    # ── HTTP ───────────────────────────────────────────────────────────────────────────────────────────────────────
    Mutant(
        "EC-55",
        "passes the header of routers over",
        f"{HTTP}:_arguments",
        'arguments["session_id"] = session_id',
        "pass",
    ),
    Mutant("EC-62", "says on HTTP that all is well", f"{HTTP}_messages:answer_error", "error.http_status", "200"),
    Mutant(
        "EC-71",
        "says no time in a header",
        "agent_env.net.refusals:error_headers",
        "if error.retry_after is not None:",
        "if False:",
    ),
    # ── MCP ────────────────────────────────────────────────────────────────────────────────────────────────────────
    Mutant(
        "EC-54",
        "tells no id on MCP",
        f"{MCP}:McpFace._call_tool",
        "structured_content=answer, is_error",
        'structured_content={**answer, "session_id": ""}, is_error',
    ),
    Mutant(
        "EC-55",
        "begins anew in an MCP session",
        f"{MCP}:McpFace._enter_session",
        "arguments[SESSION_ARGUMENT] = session_id",
        "pass",
    ),
    Mutant(
        "EC-57",
        "goes on in a fresh one in an MCP session",
        f"{MCP}:McpFace._enter_session",
        "if session_id in self._opened:",
        "if False:",
    ),
    Mutant(
        "EC-57",
        "forgets what an MCP session opened",
        f"{MCP}:McpFace._remember",
        "self._opened.add(session_id)",
        "pass",
    ),
    Mutant(
        "EC-57", "lets others into an MCP session", f"{MCP}_gate:_user", "client_id=principal.id", 'client_id="all"'
    ),
    Mutant(
        "EC-67",
        "keeps what an MCP session leaves",
        f"{MCP}:McpFace._release",
        "if session_id is not None:",
        "if False:",
    ),
    Mutant("EC-71", "says no time on MCP", f"{MCP}_gate:_refusal", "if status == 503:", "if False:"),
    Mutant("EC-74", "has another code for size on MCP", f"{MCP}_gate:_refusal", "if status == 413:", "if False:"),
    Mutant(
        "EC-75",
        "lists tools to everybody on MCP",
        f"{MCP}:McpFace._list_tools",
        'Caller(principal).need("chat", "list_tools")',
        "pass",
    ),
    # ── A2A ────────────────────────────────────────────────────────────────────────────────────────────────────────
    Mutant("EC-51", "has no old members", f"{A2A}:_merged", "if name not in merged:", "if False:"),
    Mutant("EC-54", "tells no context", f"{A2A}_reply:Reply.say", "message.context_id = self._call.context_id", "pass"),
    Mutant(
        "EC-55",
        "begins anew in a context",
        f"{A2A}_handler:MessageHandler._read",
        "open_as = context_id if opens else None",
        "open_as = None",
    ),
    Mutant(
        "EC-57",
        "opens a context that is gone",
        f"{A2A}_conversations:Conversations.check",
        "if context_id in self._owners or _MINTED.fullmatch(context_id):",
        "if False:",
    ),
    Mutant(
        "EC-57",
        "forgets whose a context is",
        f"{A2A}_conversations:Conversations.keep",
        "self._owners.setdefault(context_id, principal)\n    self._owners.move_to_end(context_id)",
        "pass",
    ),
    Mutant(
        "EC-60",
        "lets a cancelled task leave a trace",
        "agent_env.runtime.calls:Call.play",
        "if self.frame.recorder is not None:\n            await self._keep_while_cancelled(",
        "self._session.state = None\n        if self.frame.recorder is not None:\n            await self._keep_while_cancelled(",
    ),
    Mutant(
        "EC-62",
        "tells the insides on A2A",
        f"{A2A}_handler:_untold",
        "raise a2a_error(failed_inside()) from None",
        "raise a2a_error(AgentEnvError(repr(__import__('sys').exception())))",
    ),
    Mutant(
        "EC-70", "parks no task", f"{A2A}_executor:TurnExecutor._say", 'work.result()["interrupt"] is not None', "False"
    ),
    Mutant(
        "EC-70",
        "completes what waits",
        f"{A2A}_reply:Reply.ask",
        "else TaskState.TASK_STATE_INPUT_REQUIRED",
        "else TaskState.TASK_STATE_COMPLETED",
    ),
    Mutant(
        "EC-70",
        "goes on with no task",
        f"{A2A}_handler:MessageHandler._find_task",
        "self._conversations.waiting(principal, message.context_id) if plain else None",
        "None",
    ),
    Mutant(
        "EC-70",
        "reads a lone value as a part",
        f"{A2A}_handler:MessageHandler._read",
        "question = self._conversations.question(principal, context_id)",
        "question = None",
    ),
    Mutant("EC-71", "says no time on A2A", f"{A2A}_errors:rest_response", "error_headers(error)", "{}"),
    Mutant(
        "EC-73",
        "hears no chain on A2A",
        f"{A2A}_calls:read_caller",
        "context = said if any(key in said for key in CONTEXT_KEYS) else headers",
        "context = {}",
    ),
    Mutant(
        "EC-75",
        "says on A2A that all is well",
        f"{A2A}_errors:rest_response",
        "error.http_status, error_headers",
        "200, error_headers",
    ),
)


def every_mutant() -> tuple[Mutant, ...]:
    """The mutants above."""
    return MUTANTS
