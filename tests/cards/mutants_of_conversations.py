"""The mutants of the clauses about what is served and how it converses: EC-50 to EC-62."""

from __future__ import annotations

from mutants import Mutant

RUNTIME = "agent_env.runtime.environment:Runtime"
SESSIONS = "agent_env.runtime.sessions"
TALK = "agent_env.runtime.talk:Talk"
FACES = "agent_env.serving.faces"

MUTANTS = (
    # ── what is served ─────────────────────────────────────────────────────────────────────────────────────────────
    Mutant("EC-50", "serves no card", "agent_env.serving.app:build_app", "Route(CARD_PATH,", 'Route("/card",'),
    Mutant(
        "EC-50",
        "states another digest",
        "agent_env.serving.app:build_app",
        "card.to_json()",
        'card.to_json().replace(card.digest(), "sha256:" + "0" * 64)',
    ),
    Mutant("EC-50", "states no digest", "agent_env.serving.app:build_app", "card.to_json()", "card.name"),
    Mutant(
        "EC-51", "serves no Agent Card", f"{FACES}.a2a:A2aFace.routes", "Route(AGENT_CARD_PATH,", 'Route("/agent-card",'
    ),
    Mutant(
        "EC-51", "serves no old form", f"{FACES}.a2a:A2aFace.routes", "Route(AGENT_CARD_PATH_V03,", 'Route("/agent",'
    ),
    Mutant("EC-51", "serves one form", f"{FACES}.a2a:A2aFace.routes", "self._serve_card_v03", "self._serve_card"),
    Mutant(
        "EC-51",
        "serves the old form alone",
        f"{FACES}.a2a:A2aFace._write_card",
        "_merged(agent_card(self._site.card, base_url=base_url), old)",
        "old",
    ),
    Mutant(
        "EC-51",
        "leads elsewhere",
        f"{FACES}.a2a:A2aFace._write_card",
        "_merged(agent_card(self._site.card, base_url=base_url), old)",
        '_merged(agent_card(self._site.card, base_url=base_url + "/x"), old)',
    ),
    Mutant(
        "EC-51",
        "leads elsewhere in the old form",
        f"{FACES}.a2a:A2aFace._write_card_v03",
        "base_url=base_url",
        'base_url=base_url + "/x"',
    ),
    Mutant(
        "EC-51",
        "is led to nowhere",
        "agent_env.serving.environment:AgentEnvironment.card",
        "agent_card=AGENT_CARD_PATH",
        'agent_card=AGENT_CARD_PATH + "x"',
    ),
    *(
        Mutant("EC-52", f"says {url} wrongly", "agent_env.serving.interfaces:interfaces", f'"{url}"', '"/nowhere"')
        for url in ("/v1/ws", "/v1", "/mcp", "/a2a")
    ),
    Mutant("EC-52", "has no data plane", f"{FACES}.http:HttpFace.routes", "Route(DATA_PLANE_PATH,", 'Route("/plane",'),
    Mutant(
        "EC-52",
        "passes the prefix over",
        "agent_env.serving.address:PublicAddress.base",
        'return f"{scheme}://{host}{prefix}"',
        'return f"{scheme}://{host}"',
    ),
    Mutant(
        "EC-52",
        "passes a mount over",
        "agent_env.serving.address:PublicAddress.base",
        'prefix = _path(str(connection.scope.get("root_path", "")))',
        'prefix = ""',
    ),
    Mutant(
        "EC-52",
        "passes the proxy over",
        "agent_env.serving.address:PublicAddress.base",
        "if self._trusts(",
        "if False and self._trusts(",
    ),
    Mutant(
        "EC-53",
        "lists less",
        "agent_env.runtime.verbs:_perform",
        "runtime.list_tools()}",
        "runtime.list_tools()[:1]}",
    ),
    Mutant(
        "EC-53",
        "lists less on MCP",
        f"{FACES}.mcp_tools:Catalogue.__init__",
        "for tool in runtime.list_tools()",
        "for tool in runtime.list_tools()[:1]",
    ),
    Mutant(
        "EC-53",
        "lists other schemas on MCP",
        f"{FACES}.mcp_tools:_tool",
        'schema = dict(tool["inputSchema"])',
        'schema = {"type": "object"}',
    ),
    Mutant(
        "EC-53",
        "writes less on the card",
        "agent_env.runtime.card:environment_card",
        "for tool in runtime.list_tools()",
        "for tool in runtime.list_tools()[:1]",
    ),
    Mutant(
        "EC-53",
        "writes other schemas on the card",
        "agent_env.runtime.card:_tool",
        'input_schema=tool["inputSchema"]',
        'input_schema={**tool["inputSchema"], "additionalProperties": True}',
    ),
    Mutant(
        "EC-53",
        "writes no results on the card",
        "agent_env.runtime.card:_tool",
        'output_schema=tool.get("outputSchema")',
        "output_schema=None",
    ),
    # ── sessions ───────────────────────────────────────────────────────────────────────────────────────────────────
    Mutant("EC-54", "mints half the bits", f"{SESSIONS}:mint_session_id", "token_urlsafe(16)", "token_urlsafe(8)"),
    Mutant(
        "EC-54",
        "mints bits that are not random",
        f"{SESSIONS}:mint_session_id",
        "secrets.token_urlsafe(16)",
        '"A" * 11 + secrets.token_urlsafe(8)',
    ),
    Mutant("EC-54", "tells no id", f"{TALK}._answered", "session_id=session.id,", ""),
    Mutant(
        "EC-54",
        "opens one for all",
        f"{RUNTIME}._session",
        "open(principal, open_as,",
        'open(principal, open_as or "s-" + "A" * 22,',
    ),
    Mutant(
        "EC-54",
        "opens one for all on A2A",
        f"{FACES}.a2a_conversations:Conversations.mint",
        "mint_session_id()",
        '"s-" + "A" * 22',
    ),
    Mutant("EC-55", "begins anew", f"{TALK}.say", "state=session.state,", "state=None,"),
    Mutant("EC-55", "plays turns at once", f"{SESSIONS}:acquire", "await lock.acquire()", "lock._locked = True"),
    Mutant(
        "EC-55",
        "plays turns in another order",
        f"{SESSIONS}:acquire",
        "await lock.acquire()",
        "(lock._waiters or []) and lock._waiters.reverse(); await lock.acquire()",
    ),
    Mutant(
        "EC-56",
        "shows what others said",
        f"{RUNTIME}.state",
        "for message in session.messages]",
        "for one in self.sessions for message in one.messages]",
    ),
    Mutant(
        "EC-56",
        "goes on with another's past",
        f"{RUNTIME}._session",
        "self._check(caller, session.hash)",
        "self._check(caller, session.hash); session.state = next(iter(self.sessions)).state",
    ),
    Mutant(
        "EC-56",
        "has one memory for all",
        "agent_env.runtime.owned:copied",
        "return copy.deepcopy(memory)",
        "return copied.__dict__",
    ),
    Mutant(
        "EC-57",
        "opens what is unknown",
        f"{RUNTIME}._session",
        'session = self.sessions.find(principal, session_id or open_as or "")',
        "session = await self.sessions.open(principal, session_id or open_as)",
    ),
    Mutant(
        "EC-57",
        "opens a fresh one",
        f"{RUNTIME}._session",
        "if session_id is None and not (open_as and self.sessions.knows(principal, open_as)):",
        "if not self.sessions.knows(principal, session_id or open_as):",
    ),
    Mutant(
        "EC-57",
        "opens what is unknown for verbs that play no turn",
        f"{RUNTIME}._holding",
        "session = self.sessions.find(caller.principal.id, session_id)",
        "session = await self.sessions.open(caller.principal.id, session_id)",
    ),
    Mutant(
        "EC-57",
        "opens what is unknown for its state",
        f"{RUNTIME}.state",
        "session = self.sessions.find(caller.principal.id, session_id)",
        "session = await self.sessions.open(caller.principal.id, session_id)",
    ),
    Mutant(
        "EC-57",
        "finds another's",
        f"{SESSIONS}:SessionStore.find",
        "self._sessions.get((principal, session_id))",
        "next((one for one in self._sessions.values() if one.id == session_id), None)",
    ),
    Mutant(
        "EC-57",
        "tells whose it is",
        f"{SESSIONS}:SessionStore.find",
        "raise UnknownSession(",
        "raise (UnknownSession if all(one.id != session_id for one in self) else AtCapacity)(",
    ),
    # ── refusals, answers and errors ───────────────────────────────────────────────────────────────────────────────
    Mutant(
        "EC-58", "has another code", "agent_env.runtime.environment:_find", "raise UnknownTool(", "raise NotSupported("
    ),
    Mutant(
        "EC-58",
        "lists none",
        "agent_env.runtime.environment:_find",
        "listed = f\"it has {', '.join(names)}\" if names",
        'listed = "it has others" if names',
    ),
    Mutant("EC-58", "lists no chat", "agent_env.runtime.environment:_find", "sorted([*also, *known])", "sorted(known)"),
    Mutant("EC-59", "takes more than the schema", "agent_env.runtime.chat:read_message", "if unknown:", "if False:"),
    Mutant(
        "EC-59",
        "takes any message",
        "agent_env.runtime.chat:read_message",
        'arguments.get("message"),',
        'str(arguments.get("message", "")),',
    ),
    Mutant("EC-59", "takes more for a tool", "agent_env.runtime.declared:declare", 'extra="forbid"', 'extra="ignore"'),
    Mutant(
        "EC-59",
        "checks no types",
        "agent_env.runtime.declared:Declared.validate",
        "self.arguments.model_validate(dict(arguments))",
        "self.arguments.model_construct(**arguments)",
    ),
    Mutant(
        "EC-59",
        "has another code for tools",
        "agent_env.runtime.declared:Declared.validate",
        "raise InvalidArguments(",
        "raise ConfigurationError(",
    ),
    Mutant(
        "EC-60",
        "counts failed turns",
        f"{TALK}.say",
        "answers = chat.read_answer(",
        "session.turns += 1; answers = chat.read_answer(",
    ),
    Mutant(
        "EC-60",
        "keeps what a failed tool remembered",
        "agent_env.runtime.owned:copied",
        "copy.deepcopy(memory)",
        "memory",
    ),
    Mutant(
        "EC-60",
        "lets a cancelled turn leave a trace",
        "agent_env.runtime.calls:Call.play",
        "if self.frame.recorder is not None:\n            await self._keep_while_cancelled(",
        "self._session.turns += 1\n        if self.frame.recorder is not None:\n            await self._keep_while_cancelled(",
    ),
    Mutant(
        "EC-60",
        "lets a late turn leave a trace",
        "agent_env.runtime.calls:Call.play",
        "error = self._in_time(caught)",
        "error = self._in_time(caught); self._session.turns += error.code == 'deadline_exceeded'",
    ),
    Mutant(
        "EC-60",
        "lets a refusal leave a trace",
        f"{RUNTIME}.call_tool",
        'caller.need("chat", "call_tool")',
        "self.sessions.knows('local', session_id) and self.sessions.find('local', session_id).messages.append({})",
    ),
    *(
        Mutant(
            "EC-61",
            f"answers no {member}",
            "agent_env.runtime.results:ToolResult.to_json",
            f'"{member}":',
            f'"_{member}":',
        )
        for member in ("content", "text", "data", "is_error", "session_id", "usage", "reward", "stop", "call_id")
    ),
    Mutant(
        "EC-61",
        "gives 0 where nothing was given",
        "agent_env.runtime.rewards:total",
        "value: float | None = None",
        "value = 0.0",
    ),
    Mutant("EC-61", "gives no reward", f"{TALK}._answered", "reward=reward,", ""),
    Mutant("EC-61", "names all calls alike", "agent_env.context.call:new_call_id", "secrets.token_hex(8)", '"1" * 16'),
    Mutant("EC-61", "answers no data of a turn", f"{TALK}._answered", "last.data,\n", "None,\n"),
    *(
        Mutant("EC-62", f"tells no {member}", "agent_env.errors:AgentEnvError.to_wire", f'"{member}":', f'"_{member}":')
        for member in ("code", "message", "retryable", "data")
    ),
    Mutant(
        "EC-62",
        "says nothing to do",
        "agent_env.runtime.turns:attribute",
        'f"{agent} raised {type(error).__name__}; {_WHAT_NOW}"',
        'f"{agent} raised {type(error).__name__}"',
    ),
    Mutant(
        "EC-62",
        "tells what the agent raised",
        "agent_env.runtime.turns:attribute",
        'f"{agent} raised {type(error).__name__}; {_WHAT_NOW}"',
        'f"{agent} raised {error!r}; {_WHAT_NOW}"',
    ),
    Mutant(
        "EC-62",
        "tells a stack trace",
        "agent_env.runtime.turns:attribute",
        'f"{agent} raised {type(error).__name__}; {_WHAT_NOW}"',
        "f\"{agent} raised {type(error).__name__}; {_WHAT_NOW} {__import__('traceback').extract_tb(error.__traceback__)}\"",
    ),
    Mutant(
        "EC-62",
        "tells the server's insides on WebSocket",
        f"{FACES}.websocket:Connection._serve",
        'AgentEnvError("the server failed; its log has the details")',
        "AgentEnvError(repr(__import__('sys').exception()))",
    ),
    Mutant(
        "EC-62",
        "tells the server's insides on HTTP",
        f"{FACES}.http:HttpFace.serve",
        'AgentEnvError("the server failed; its log has the details")',
        "AgentEnvError(repr(__import__('sys').exception()))",
    ),
    Mutant(
        "EC-62",
        "tells the server's insides on MCP",
        f"{FACES}.mcp:_rpc_errors",
        'AgentEnvError("the server failed; its log has the details")',
        "AgentEnvError(repr(__import__('sys').exception()))",
    ),
    Mutant(
        "EC-62",
        "tells the server's insides on A2A",
        f"{FACES}.a2a_executor:TurnExecutor._perform",
        "raise failed_inside() from None",
        "raise AgentEnvError(repr(__import__('sys').exception()))",
    ),
)


def every_mutant() -> tuple[Mutant, ...]:
    """The mutants above."""
    return MUTANTS
