"""The mutants of the clauses about bounds, refusals, access and releases: EC-71 to EC-78."""

from __future__ import annotations

from mutants import Mutant

SESSIONS = "agent_env.runtime.sessions:SessionStore"
CONTEXT = "agent_env.context.call:CallContext"
CHAT = "agent_env.runtime.chat"
FACES = "agent_env.serving.faces"
RELEASES = "agent_env.hub.releases"
PAIRING = "agent_env.matchmaking.pairing"

MUTANTS = (
    # ── bounds ─────────────────────────────────────────────────────────────────────────────────────────────────────
    Mutant(
        "EC-71",
        "takes whoever comes",
        f"{SESSIONS}._reserve",
        "if len(self._sessions) + self._reserved < self._limits.max_sessions:",
        "if True:",
    ),
    Mutant("EC-71", "says no time", f"{SESSIONS}._reserve", "retry_after=max(1.0, longest),", ""),
    Mutant("EC-71", "has another code", f"{SESSIONS}._reserve", "raise AtCapacity(", "raise TransportError("),
    Mutant(
        "EC-71",
        "hands out another's",
        f"{SESSIONS}.open",
        "await self._reserve(seconds)",
        "if len(self) >= self._limits.max_sessions: return next(iter(self))\n    await self._reserve(seconds)",
    ),
    Mutant(
        "EC-71",
        "drops another's",
        f"{SESSIONS}._reserve",
        "self.sweep()",
        "self._forget(next(iter(self)))",
    ),
    Mutant(
        "EC-72",
        "reaps what is in use",
        f"{SESSIONS}.sweep",
        "if not s.using and s.used_at <= oldest",
        "if s.used_at <= oldest",
    ),
    Mutant("EC-73", "goes to any depth", f"{CONTEXT}.check", "if self.depth >= max_depth:", "if False:"),
    Mutant("EC-73", "goes round in circles", f"{CONTEXT}.check", "if visits >= max_visits:", "if False:"),
    Mutant("EC-73", "waits for itself", f"{CONTEXT}.check", "self.check_reentry(environment, session)", "pass"),
    Mutant(
        "EC-73",
        "goes on without calls",
        f"{CONTEXT}.check",
        "if self.calls is not None and self.calls < 0:",
        "if False:",
    ),
    Mutant(
        "EC-73",
        "goes on without time",
        f"{CONTEXT}.check",
        "if self.deadline is not None and self.deadline <= time.monotonic():",
        "if False:",
    ),
    Mutant(
        "EC-73",
        "looks when the agent has run",
        "agent_env.runtime.environment:Runtime._session",
        "self._check(caller, session.hash)\n"
        "    try:\n"
        "        async with self.sessions.hold(session, context.seconds_left()):\n"
        "            yield session\n",
        "pass\n"
        "    try:\n"
        "        async with self.sessions.hold(session, context.seconds_left()):\n"
        "            yield session\n"
        "            self._check(caller, session.hash)\n",
    ),
    Mutant("EC-74", "takes any size", f"{CHAT}:read_message", "if size > limits.max_message_bytes:", "if False:"),
    Mutant("EC-74", "counts characters", f"{CHAT}:_size", "len(text.encode())", "len(text)"),
    Mutant("EC-74", "takes any part", f"{CHAT}:read_message", "if kind not in caps.parts:", "if False:"),
    Mutant("EC-74", "has an argument for no parts", f"{CHAT}:parameters", 'if caps.parts - {"text"}:', "if True:"),
    Mutant(
        "EC-74",
        "has another code for size",
        f"{CHAT}:read_message",
        "raise MessageTooLarge(",
        "raise InvalidArguments(",
    ),
    Mutant(
        "EC-74",
        "has another code for parts",
        f"{CHAT}:read_message",
        "raise UnsupportedContent(",
        "raise InvalidArguments(",
    ),
    # ── access ─────────────────────────────────────────────────────────────────────────────────────────────────────
    Mutant("EC-75", "asks nobody", "agent_env.serving.access:Access.principal", "if self.tokens is None:", "if True:"),
    Mutant(
        "EC-75",
        "asks nobody on WebSocket",
        f"{FACES}.websocket:WebSocketFace.serve",
        "principal = self.access.admit(websocket.scope, websocket.headers, self.address)",
        "principal = Principal()",
    ),
    Mutant(
        "EC-75", "asks nobody on HTTP", f"{FACES}.http_messages:Post.read", "admit(site, scope, headers)", "Principal()"
    ),
    Mutant(
        "EC-75",
        "asks nobody on MCP",
        f"{FACES}.mcp_gate:Gate.__call__",
        "admit(self._site, scope, read_headers(scope))",
        "Principal()",
    ),
    Mutant(
        "EC-75",
        "asks nobody on A2A",
        f"{FACES}.a2a_gate:Gate.__call__",
        "self._site.access.admit(scope, headers, self._site.address)",
        "Principal()",
    ),
    Mutant(
        "EC-75",
        "takes any token",
        "agent_env.net.credentials:Tokens.authenticate",
        "if principal is None:\n        raise",
        "if principal is None:\n        return Principal()\n    if False:\n        raise",
    ),
    Mutant(
        "EC-75",
        "takes any scope",
        "agent_env.runtime.caller:Caller.need",
        "if scope not in self.principal.scopes:",
        "if False:",
    ),
    Mutant(
        "EC-75",
        "says nothing on the card",
        "agent_env.serving.environment:AgentEnvironment.card",
        'None if self._tokens is None else Auth.bearer(["chat"])',
        "None",
    ),
    # ── with a hub ─────────────────────────────────────────────────────────────────────────────────────────────────
    Mutant(
        "EC-76", "plays the turn alone", "agent_env.runtime.talk:Talk._open_peers", "await self._peers.open()", "()"
    ),
    Mutant(
        "EC-76",
        "asks for peers before a turn",
        "agent_env.runtime.environment:Runtime.reset",
        'caller.need("orchestrate", "reset")',
        "self._talk._peers and await self._talk._peers.open()",
    ),
    Mutant(
        "EC-76",
        "has another code",
        f"{PAIRING}:choose",
        "raise _unmet(card, wanted, matchmaker, auth, error) from error",
        "raise",
    ),
    Mutant(
        "EC-76", "lists nobody", f"{PAIRING}:_unmet", "for explanation in rejected[:MOST_TOLD]", "for explanation in ()"
    ),
    Mutant(
        "EC-76", "lists no rules", f"{PAIRING}:_unmet", "[finding.to_json() for finding in explanation.failed]", "[]"
    ),
    Mutant("EC-76", "says no rules", f"{PAIRING}:_line", "explanation.failed)", "())"),
    Mutant(
        "EC-77",
        "is not healthy",
        f"{FACES}.http:_Health.__call__",
        "encode_json(HEALTHY)",
        'encode_json({"status": "healthy"})',
    ),
    Mutant(
        "EC-77",
        "answers another status",
        f"{FACES}.http:_Health.__call__",
        "encode_json(HEALTHY)",
        "encode_json(HEALTHY), 503",
    ),
    Mutant("EC-77", "answers elsewhere", f"{FACES}.http:HttpFace.routes", '"/health"', '"/healthz"'),
    Mutant(
        "EC-78", "takes another digest", f"{RELEASES}:_check_same", "if known.digest != offered.digest:", "if False:"
    ),
    Mutant(
        "EC-78", "refuses the same digest", f"{RELEASES}:_check_same", "if known.digest != offered.digest:", "if True:"
    ),
    Mutant("EC-78", "tells no differences", f"{RELEASES}:_check_same", "diff=places,", ""),
    Mutant(
        "EC-78",
        "changes what is published",
        f"{RELEASES}:publish",
        "if launch in (None, known.launch):\n            return known\n        offered = replace(known, launch=launch, sequence=sequence)\n",
        "pass\n",
    ),
)


def every_mutant() -> tuple[Mutant, ...]:
    """The mutants above."""
    return MUTANTS
