"""The mutants of the clauses about episodes, forks, questions and likeness: EC-63 to EC-70."""

from __future__ import annotations

from mutants import Mutant

RUNTIME = "agent_env.runtime.environment:Runtime"
SESSIONS = "agent_env.runtime.sessions"
TALK = "agent_env.runtime.talk:Talk"
FACES = "agent_env.serving.faces"

MUTANTS = (
    # ── episodes ───────────────────────────────────────────────────────────────────────────────────────────────────
    Mutant("EC-63", "forgets nothing", f"{RUNTIME}.reset", "session.clear()", "pass"),
    Mutant("EC-63", "goes on with the past", f"{SESSIONS}:Session.clear", "self.state = None", "pass"),
    Mutant("EC-63", "keeps the messages", f"{SESSIONS}:Session.clear", "self.messages = []", "pass"),
    Mutant("EC-63", "goes on counting", f"{SESSIONS}:Session.clear", "self.turns = 0", "pass"),
    Mutant("EC-63", "keeps the end", f"{SESSIONS}:Session.clear", "self.terminated = False", "pass"),
    Mutant("EC-63", "keeps the question", f"{SESSIONS}:Session.clear", "self.interrupt = None", "pass"),
    Mutant("EC-63", "keeps the memory", f"{RUNTIME}.reset", "memory: dict[str, Any] = {}", "memory = session.memory"),
    Mutant(
        "EC-63",
        "opens another",
        f"{RUNTIME}.reset",
        "_session(caller, session_id, open_as)",
        "_session(caller, None, None)",
    ),
    Mutant(
        "EC-63",
        "opens none",
        f"{RUNTIME}.reset",
        "async with self._session(caller, session_id, open_as) as session:",
        'async with self._holding(caller, session_id or "") as session:',
    ),
    *(
        Mutant(
            "EC-63",
            f"answers no {member}",
            "agent_env.runtime.results:ResetResult.to_json",
            f'"{member}":',
            f'"_{member}":',
        )
        for member in ("session_id", "observation", "info")
    ),
    Mutant("EC-63", "hides the seed", f"{RUNTIME}.reset", "0, memory, seed, options)", "0, memory, None, options)"),
    Mutant("EC-63", "has one seed", f"{RUNTIME}.reset", "0, memory, seed, options)", "0, memory, 7, options)"),
    Mutant(
        "EC-63",
        "says nothing of seeds",
        "agent_env.runtime.card:environment_card",
        "seedable=definition.on_reset is not None",
        "seedable=False",
    ),
    *(
        Mutant(
            "EC-64",
            f"answers no {member}",
            "agent_env.runtime.results:StepResult.to_json",
            f'"{member}":',
            f'"_{member}":',
        )
        for member in ("observation", "reward", "terminated", "truncated", "info")
    ),
    Mutant("EC-64", "never ends", f"{RUNTIME}._at_limit", "turns >= limit", "False"),
    Mutant("EC-64", "ends a turn late", f"{RUNTIME}._at_limit", "turns >= limit", "turns > limit"),
    Mutant("EC-64", "ends a turn early", f"{RUNTIME}._at_limit", "turns >= limit", "turns >= limit - 1"),
    Mutant("EC-64", "hides the end", f"{RUNTIME}.step", "session is not None and session.terminated", "False"),
    Mutant("EC-64", "gives 0 where nothing was given", f"{RUNTIME}.step", "result.reward,", "result.reward or 0.0,"),
    Mutant(
        "EC-64",
        "observes no data",
        f"{RUNTIME}.step",
        "result.data if result.data is not None else result.text",
        "result.text",
    ),
    Mutant(
        "EC-64",
        "says no limit on the card",
        "agent_env.runtime.card:environment_card",
        "turn_limit=limits.turn_limit",
        "turn_limit=None",
    ),
    Mutant("EC-65", "counts none", f"{RUNTIME}.state", '"turns": session.turns', '"turns": 0'),
    Mutant("EC-65", "tells no messages", f"{RUNTIME}.state", "[dict(message) for message in session.messages]", "[]"),
    Mutant(
        "EC-65",
        "changes what it looks at",
        f"{RUNTIME}.state",
        'caller.need("chat", "state")',
        "self.sessions.find(caller.principal.id, session_id).turns += 1",
    ),
    Mutant(
        "EC-65",
        "forgets what it looks at",
        f"{RUNTIME}.state",
        'caller.need("chat", "state")',
        "self.sessions.find(caller.principal.id, session_id).state = None",
    ),
    Mutant("EC-66", "answers the same id", f"{RUNTIME}.fork", '{"session_id": session.id', '{"session_id": session_id'),
    Mutant("EC-66", "forgets the past", f"{RUNTIME}.fork", "await self._copy_state(source)", "None"),
    Mutant("EC-66", "forgets the memory", f"{RUNTIME}.fork", "copied(source.memory, self.definition)", "{}"),
    Mutant("EC-66", "forgets the messages", f"{RUNTIME}.fork", "copy.deepcopy(source.messages)", "[]"),
    Mutant(
        "EC-66",
        "takes the past away",
        f"{RUNTIME}.fork",
        "session.kept = True",
        "session.kept = True; source.state = None",
    ),
    Mutant(
        "EC-66",
        "makes them one",
        f"{RUNTIME}.fork",
        "session.kept = True",
        "session.kept = True; self.sessions._sessions[source.key] = session",
    ),
    Mutant("EC-66", "forks against the card", f"{RUNTIME}.fork", "if not caps.fork:", "if False:"),
    Mutant(
        "EC-66",
        "says nothing of forks on the card",
        "agent_env.runtime.card:environment_card",
        "idle_timeout=limits.idle_seconds,\n            fork=info.caps.fork",
        "idle_timeout=limits.idle_seconds,\n            fork=False",
    ),
    Mutant("EC-66", "has another code", f"{RUNTIME}.fork", "raise NotSupported(", "raise InvalidArguments("),
    Mutant("EC-67", "releases nothing", f"{RUNTIME}.release", "await self.sessions.remove(session)", "pass"),
    Mutant(
        "EC-67", "finds what is released", f"{SESSIONS}:SessionStore._forget", "del self._sessions[session.key]", "pass"
    ),
    Mutant(
        "EC-68",
        "calls rewards as functions",
        f"{RUNTIME}.call_function",
        "self.definition.functions,",
        "{**self.definition.functions, **self.definition.rewards},",
    ),
    Mutant(
        "EC-68",
        "calls functions as rewards",
        f"{RUNTIME}.call_reward",
        "self.definition.rewards,",
        "{**self.definition.rewards, **self.definition.functions},",
    ),
    Mutant(
        "EC-68",
        "calls functions as tools",
        f"{RUNTIME}.call_tool",
        "self.definition.tools,",
        "{**self.definition.tools, **self.definition.functions},",
    ),
    Mutant("EC-68", "answers no result", f"{RUNTIME}.call_function", '"result": result.data', '"result": None'),
    Mutant(
        "EC-68", "gives 0 where nothing was given", f"{RUNTIME}.call_reward", '"value": given.value', '"value": 0.0'
    ),
    Mutant(
        "EC-68", "has another code", "agent_env.runtime.environment:_find", "raise UnknownTool(", "raise NotSupported("
    ),
    # ── the same everywhere ────────────────────────────────────────────────────────────────────────────────────────
    Mutant(
        "EC-69",
        "has other results on WebSocket",
        f"{FACES}.websocket:Connection._serve",
        'self._answer(id, "result", result)',
        'self._answer(id, "result", {**result, "lane": "websocket"})',
    ),
    Mutant(
        "EC-69",
        "has other rewards on HTTP",
        f"{FACES}.http_messages:Whole.end",
        "encode_json(result)",
        'encode_json({**result, "reward": result["reward"] or 0.0} if "reward" in result else result)',
    ),
    Mutant(
        "EC-69",
        "has other rewards on MCP",
        f"{FACES}.mcp:McpFace._call_tool",
        "structured_content=answer, is_error",
        'structured_content={**answer, "reward": None}, is_error',
    ),
    Mutant(
        "EC-69",
        "has other results of verbs on MCP",
        f"{FACES}.mcp:McpFace._call_tool",
        "content=written(answer), structured_content=answer",
        'content=written(answer), structured_content={**answer, "lane": "mcp"}',
    ),
    Mutant(
        "EC-69",
        "has other results on A2A",
        f"{FACES}.a2a_reply:Reply._content",
        '{"result": result}',
        '{"result": {**result, "lane": "a2a"}}',
    ),
    Mutant(
        "EC-69",
        "has other errors on WebSocket",
        f"{FACES}.websocket:Connection._serve",
        'self._answer(id, "error", error.to_wire())',
        'self._answer(id, "error", AgentEnvError(error.message).to_wire())',
    ),
    Mutant(
        "EC-69",
        "has other errors on HTTP",
        f"{FACES}.http_messages:answer_error",
        '{"error": error.to_wire()}',
        '{"error": {**error.to_wire(), "data": {}}}',
    ),
    Mutant(
        "EC-69",
        "has other errors on MCP",
        f"{FACES}.mcp:_rpc_errors",
        "raise MCPError(rpc_code(error), error.message, error.to_wire())",
        'raise MCPError(rpc_code(error), error.message, {**error.to_wire(), "data": {}})',
    ),
    Mutant(
        "EC-69",
        "has other errors on A2A",
        f"{FACES}.a2a_errors:a2a_error",
        "error.to_wire()",
        '{**error.to_wire(), "message": "it failed"}',
    ),
    Mutant("EC-70", "ends the turn", f"{TALK}._asked", 'stop="input_required"', 'stop="end_turn"'),
    Mutant("EC-70", "keeps the question to itself", f"{TALK}._asked", "interrupt=question,", ""),
    Mutant("EC-70", "forgets that it asked", f"{TALK}._asked", "session.interrupt = last", "pass"),
    Mutant(
        "EC-70",
        "takes no answer",
        "agent_env.runtime.chat:read_answer",
        'return (Answer(interrupt.id, arguments["answer"]),)',
        "return ()",
    ),
    Mutant(
        "EC-70",
        "takes no words for an answer",
        "agent_env.runtime.chat:read_answer",
        "return (Answer(interrupt.id, value),)",
        "return ()",
    ),
    Mutant(
        "EC-70",
        "reads words as they are",
        "agent_env.runtime.chat:read_answer",
        "value = json.loads(message.text)",
        "value = message.text",
    ),
    Mutant("EC-70", "asks for ever", f"{TALK}._answered", "session.interrupt = None", "pass"),
)


def every_mutant() -> tuple[Mutant, ...]:
    """The mutants above."""
    return MUTANTS
