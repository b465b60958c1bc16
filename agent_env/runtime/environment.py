"""The runtime: one agent as an environment, with no transport in it.

Every face and the in-process lane come in through `Runtime.perform`, so a verb gives the same result, the same reward
and the same error on every protocol.
"""

from __future__ import annotations

import asyncio
import copy
import logging
from collections.abc import AsyncGenerator, Mapping, Sequence
from contextlib import asynccontextmanager
from typing import Any, cast

from agent_env.context import Peer, PeerSource
from agent_env.errors import AgentEnvError, InvalidArguments, NotSupported, TransportError, UnknownTool
from agent_env.runtime import chat
from agent_env.runtime.activity import Activity
from agent_env.runtime.caller import Caller
from agent_env.runtime.declared import Declared
from agent_env.runtime.definition import Definition, SessionView
from agent_env.runtime.forking import forked
from agent_env.runtime.owned import Owned, copied
from agent_env.runtime.results import ResetResult, StepResult, ToolResult
from agent_env.runtime.sessions import Session, SessionStore
from agent_env.runtime.talk import Talk
from agent_env.runtime.turns import OnEvent, attributed
from agent_env_wrappers.contract import AgentInfo

log = logging.getLogger("agent_env.runtime")


class Runtime:
    """Runs one environment: its sessions, its turns, its verbs."""

    def __init__(self, definition: Definition, info: AgentInfo, *, peers: PeerSource | None = None) -> None:
        self.definition = definition
        self.info = info
        self.activity = Activity()
        self.sessions = SessionStore(definition.limits, dispose=self._dispose)
        self._turns = asyncio.Lock() if info.caps.concurrency == "lock" else None
        self._talk = Talk(definition, info, peers, self._turns)
        self._owned = Owned(definition)
        self.closing = False

    @property
    def in_flight(self) -> int:
        """How many calls hold or wait for a session right now."""
        return sum(session.using for session in self.sessions)

    # ── the verbs ──────────────────────────────────────────────────────────────────────────────────────────────

    def list_tools(self) -> list[dict[str, Any]]:
        """The tools that agents may call: `chat`, and those that the owner declared."""
        first: dict[str, Any] = {
            "name": chat.NAME,
            "description": self.definition.description or f"Talk to {self.definition.name}.",
            "inputSchema": chat.parameters(self.info.caps),
        }
        if self.info.output_schema is not None:
            first["outputSchema"] = self.info.output_schema
        return [first, *(_tool(tool) for tool in self.definition.tools.values())]

    async def call_tool(
        self,
        name: str,
        arguments: Mapping[str, Any],
        *,
        session_id: str | None = None,
        caller: Caller,
        on_event: OnEvent | None = None,
        open_as: str | None = None,
    ) -> ToolResult:
        """Calls a tool, in an open session or, without an id, in a new one.

        `open_as` names the session to open where a protocol lets clients choose the id: it is found if it exists.
        Raises the errors of `agent_env.errors`; the session is then as it was before the call.
        """
        caller.need("chat", "call_tool")
        if name == chat.NAME:
            message = chat.read_message(arguments, self.info.caps, self.definition.limits)
            async with self._session(caller, session_id, open_as) as session:
                return await self._talk.say(session, message, arguments, caller, on_event)
        tool = _find("tool", self.definition.tools, name, also=(chat.NAME,))
        return await self._call_declared(tool, arguments, session_id, caller, open_as)

    async def reset(
        self,
        *,
        session_id: str | None = None,
        seed: int | None = None,
        options: Any = None,
        caller: Caller,
        open_as: str | None = None,
    ) -> ResetResult:
        """Starts an episode: the conversation is forgotten, the observation is what `on_reset` returns."""
        caller.need("orchestrate", "reset")
        if seed is not None and type(seed) is not int:
            raise InvalidArguments(f"'seed' must be a whole number or null, not {seed!r:.100}")
        async with self._session(caller, session_id, open_as) as session:
            memory: dict[str, Any] = {}
            observation: Any = None
            hook = self.definition.on_reset
            if hook is not None:
                view = SessionView(session.hash, (), 0, memory, seed, options)
                observation = await self._owned.observe(hook, view, session, caller)
            peers, state = session.peers, session.state
            session.clear()
            session.seed, session.options, session.memory = seed, options, memory
            await self._let_go(peers, state)
            return ResetResult(session.id, observation, {"environment": self.definition.identity})

    async def step(
        self,
        action: Any,
        *,
        session_id: str | None = None,
        caller: Caller,
        on_event: OnEvent | None = None,
        open_as: str | None = None,
    ) -> StepResult:
        """Takes one step: a string is one chat turn, `{"tool": …, "arguments": …}` a call of that tool."""
        caller.need("orchestrate", "step")
        tool, arguments = _read_action(action)
        result = await self.call_tool(
            tool, arguments, session_id=session_id, caller=caller, on_event=on_event, open_as=open_as
        )
        # A tool that takes no session has none, and ends nothing.
        session = self.sessions.find(caller.principal.id, result.session_id) if result.session_id else None
        turns = 0 if session is None else session.turns
        observation = result.data if result.data is not None else result.text
        return StepResult(
            observation,
            result.reward,
            session is not None and session.terminated,
            self._at_limit(turns),
            {
                "stop": result.stop,
                "is_error": result.is_error,
                "interrupt": result.interrupt,
                "call_id": result.call_id,
                "turn": turns,
                "calls_left": result.calls_left,
            },
            result.session_id,
        )

    async def state(self, *, session_id: str, caller: Caller) -> dict[str, Any]:
        """Tells where a session stands: its turns, its messages, and what it waits for."""
        caller.need("chat", "state")
        session = self.sessions.find(caller.principal.id, session_id)
        return {
            "session_id": session.id,
            "turns": session.turns,
            "messages": [dict(message) for message in session.messages],
            "terminated": session.terminated,
            "truncated": self._at_limit(session.turns),
            "interrupt": None if session.interrupt is None else describe_interrupt(session),
            "busy": session.lock.locked(),
            "seed": session.seed,
        }

    async def call_function(
        self, name: str, arguments: Mapping[str, Any], *, session_id: str | None = None, caller: Caller
    ) -> dict[str, Any]:
        """Calls a function that the owner offers to orchestrators."""
        caller.need("orchestrate", "call_function")
        function = _find("function", self.definition.functions, name)
        result = await self._call_declared(function, arguments, session_id, caller, None, exact=True)
        return {"result": result.data, "session_id": result.session_id}

    async def call_reward(
        self, name: str, arguments: Mapping[str, Any] | None = None, *, session_id: str, caller: Caller
    ) -> dict[str, Any]:
        """Scores a session as it stands; the value is None where the reward gives none."""
        caller.need("orchestrate", "call_reward")
        reward = _find("reward", self.definition.rewards, name)
        async with self._holding(caller, session_id) as session:
            last = session.messages[-2:]
            turn = {"message": last[0]["content"], "reply": last[1]["content"]} if len(last) == 2 else {}
            view = SessionView.of(session, memory=copied(session.memory, self.definition), **turn)
            given = await self._owned.score(reward, arguments or {}, view, session, caller)
        return {"name": name, "value": given.value, "done": given.done}

    async def fork(self, *, session_id: str, caller: Caller) -> dict[str, Any]:
        """Copies a session: both go on from the same conversation, apart, each with peers of its own.

        Peers remember too: `afresh` has the seats of those that could not copy what they remember, each with why.
        """
        caller.need("orchestrate", "fork")
        caps = self.info.caps
        if not caps.fork:
            raise NotSupported(
                f"a {self.info.framework} agent cannot be forked through its wrapper; open a session and play the "
                "messages of `state` again"
            )
        async with self._holding(caller, session_id) as source:
            state = await self._copy_state(source)
            copies = copy.deepcopy(source.messages), copied(source.memory, self.definition)
            facts = source.turns, source.terminated, source.interrupt, source.seed, source.options
            try:
                peers, afresh = await forked(source.peers, self.definition.identity, caller.context.seconds_left())
            except BaseException:
                await self._let_go((), state)
                raise
        # Waiting for a place with the lock held would keep the place of whoever waits to release this session.
        try:
            session = await self.sessions.open(caller.principal.id, seconds=caller.context.seconds_left())
        except BaseException:
            await self._let_go(peers, state)
            raise
        session.kept = True
        session.state, session.peers = state, peers
        session.messages, session.memory = copies
        session.turns, session.terminated, session.interrupt, session.seed, session.options = facts
        return {"session_id": session.id, "afresh": afresh}

    async def release(self, *, session_id: str, caller: Caller) -> dict[str, Any]:
        """Ends a session after the turns that wait for it, and frees its place."""
        caller.need("chat", "release")
        async with self._holding(caller, session_id) as session:
            await self.sessions.remove(session)
        return {"released": True, "session_id": session_id}

    async def aclose(self) -> None:
        """Ends all sessions and closes the wrapper; the agent itself stays as it is."""
        self.closing = True
        await self.sessions.aclose()
        await self.definition.wrapper.aclose()

    # ── inside ─────────────────────────────────────────────────────────────────────────────────────────────────

    @asynccontextmanager
    async def _session(self, caller: Caller, session_id: str | None, open_as: str | None) -> AsyncGenerator[Session]:
        """Holds the session of a call; one in which no call has succeeded yet is gone again if this one fails."""
        principal, context = caller.principal.id, caller.context
        if session_id is None and not (open_as and self.sessions.knows(principal, open_as)):
            self._check(caller, "")
            session = await self.sessions.open(principal, open_as, seconds=context.seconds_left())
        else:
            session = self.sessions.find(principal, session_id or open_as or "")
            self._check(caller, session.hash)
        try:
            async with self.sessions.hold(session, context.seconds_left()):
                yield session
                session.kept = True
        except BaseException:
            if not session.kept and not session.using:
                await self.sessions.remove(session)
            raise

    @asynccontextmanager
    async def _holding(self, caller: Caller, session_id: str) -> AsyncGenerator[Session]:
        """Holds an open session for a verb that plays no turn."""
        session = self.sessions.find(caller.principal.id, session_id)
        caller.context.check_reentry(self.definition.identity, session.hash)
        async with self.sessions.hold(session, caller.context.seconds_left()):
            yield session

    def _at_limit(self, turns: int) -> bool:
        limit = self.definition.limits.turn_limit
        return limit is not None and turns >= limit

    def _check(self, caller: Caller, session: str) -> None:
        limits = self.definition.limits
        caller.context.check(
            self.definition.identity, session, max_depth=limits.max_depth, max_visits=limits.max_visits
        )

    async def _call_declared(
        self,
        declared: Declared,
        arguments: Mapping[str, Any],
        session_id: str | None,
        caller: Caller,
        open_as: str | None,
        *,
        exact: bool = False,
    ) -> ToolResult:
        declared.validate(arguments)  # before a session is opened for it
        if not declared.injects and session_id is None and open_as is None:
            self._check(caller, "")
            return await self._owned.call(declared, arguments, None, caller, exact=exact)
        async with self._session(caller, session_id, open_as) as session:
            return await self._owned.call(declared, arguments, session, caller, exact=exact)

    async def _copy_state(self, session: Session) -> Any:
        agent = self.definition.identity
        if session.state is not None and self.info.caps.state == "handle":
            return await attributed(cast(Any, self.definition.wrapper).fork(session.state), agent)
        try:
            return copy.deepcopy(session.state)
        except BaseException as error:  # `__deepcopy__` is the agent's code
            raise NotSupported(
                f"this conversation of {agent} cannot be copied: its state holds something that no copy can be made of",
                agent=agent,
            ) from error

    async def _dispose(self, session: Session) -> None:
        await self._let_go(session.peers, session.state)

    async def _let_go(self, peers: Sequence[Peer] | None, state: Any) -> None:
        """Frees what a conversation held. It is over in any case: what goes wrong here is the log's."""
        agent = self.definition.identity
        for peer in peers or ():
            try:
                await peer.aclose()
            except TransportError as error:
                log.warning("the session of %s with its peer %s was not released: %s", agent, peer.name, error)
            except Exception:
                log.warning("the session of %s with its peer %s was not released", agent, peer.name, exc_info=True)
        release = getattr(self.definition.wrapper, "release", None)
        if release is not None and state is not None:
            try:
                await attributed(release(state), agent)
            except AgentEnvError:
                log.warning("%s did not release the state of a conversation", agent)


def describe_interrupt(session: Session) -> dict[str, Any]:
    """A session's pending question as JSON."""
    assert session.interrupt is not None
    interrupt = session.interrupt
    return {"id": interrupt.id, "kind": interrupt.kind, "prompt": interrupt.prompt, "schema": interrupt.schema}


def _tool(declared: Declared) -> dict[str, Any]:
    tool: dict[str, Any] = {
        "name": declared.name,
        "description": declared.description,
        "inputSchema": declared.parameters,
    }
    output = declared.output
    if output is not None and "$ref" in output:
        # A recursive model's schema is a reference; MCP wants to read at the root that it is an object.
        target = output.get("$defs", {}).get(str(output["$ref"]).rpartition("/")[2], {})
        output = {"type": target.get("type"), **output}
    if output is not None and output.get("type") == "object":
        tool["outputSchema"] = output
    return tool


def _find(kind: str, known: Mapping[str, Declared], name: str, also: Sequence[str] = ()) -> Declared:
    found = known.get(name)
    if found is None:
        names = sorted([*also, *known])
        listed = f"it has {', '.join(names)}" if names else f"it has no {kind}s"
        raise UnknownTool(f"there is no {kind} {name!r} here; {listed}", known=names)
    return found


def _read_action(action: Any) -> tuple[str, Mapping[str, Any]]:
    if isinstance(action, str):
        return chat.NAME, {"message": action}
    if isinstance(action, Mapping):
        fields = cast("Mapping[str, Any]", action)
        arguments = fields.get("arguments")
        if isinstance(fields.get("tool"), str) and isinstance(arguments, Mapping):
            return fields["tool"], cast("Mapping[str, Any]", arguments)
        if "tool" not in fields:
            return chat.NAME, fields
    raise InvalidArguments(
        f"'action' must be a message (a string), chat's arguments, or {{'tool': …, 'arguments': {{…}}}}, "
        f"not {action!r:.200}"
    )
