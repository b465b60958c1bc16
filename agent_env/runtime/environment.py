"""The runtime: one agent as an environment, with no transport in it.

Every face and the in-process lane come in through `Runtime.perform`, so a verb gives the same result, the same reward
and the same error on every protocol.
"""

from __future__ import annotations

import asyncio
import copy
from collections.abc import AsyncGenerator, Mapping, Sequence
from contextlib import asynccontextmanager
from typing import Any, cast

from agent_env.context import PeerSource
from agent_env.errors import InvalidArguments, NotSupported, UnknownTool
from agent_env.runtime import chat
from agent_env.runtime.caller import Caller
from agent_env.runtime.calls import Call, Outcome
from agent_env.runtime.declared import Declared
from agent_env.runtime.definition import Definition, SessionView
from agent_env.runtime.parts import reply_parts
from agent_env.runtime.results import ResetResult, StepResult, ToolResult
from agent_env.runtime.rewards import earn
from agent_env.runtime.sessions import Session, SessionStore
from agent_env.runtime.talk import Talk
from agent_env.runtime.turns import OnEvent, attribute
from agent_env_wrappers.contract import AgentInfo


class Runtime:
    """Runs one environment: its sessions, its turns, its verbs."""

    def __init__(self, definition: Definition, info: AgentInfo, *, peers: PeerSource | None = None) -> None:
        self.definition = definition
        self.info = info
        self.sessions = SessionStore(definition.limits, dispose=self._dispose)
        self._turns = asyncio.Lock() if info.caps.concurrency == "lock" else None
        self._talk = Talk(definition, info, peers, self._turns)
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
                observation = await self._owners(hook, {}, view)
            await self._dispose(session)
            session.clear()
            session.seed, session.options, session.memory = seed, options, memory
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
        session = self.sessions.find(caller.principal.id, result.session_id)
        limit = self.definition.limits.turn_limit
        observation = result.data if result.data is not None else result.text
        return StepResult(
            observation,
            result.reward,
            session.terminated,
            limit is not None and session.turns >= limit,
            {
                "stop": result.stop,
                "is_error": result.is_error,
                "interrupt": result.interrupt,
                "call_id": result.call_id,
                "turn": session.turns,
            },
            result.session_id,
        )

    async def state(self, *, session_id: str, caller: Caller) -> dict[str, Any]:
        """Tells where a session stands: its turns, its messages, and what it waits for."""
        caller.need("chat", "state")
        session = self.sessions.find(caller.principal.id, session_id)
        limit = self.definition.limits.turn_limit
        return {
            "session_id": session.id,
            "turns": session.turns,
            "messages": list(session.messages),
            "terminated": session.terminated,
            "truncated": limit is not None and session.turns >= limit,
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
        result = await self._call_declared(function, arguments, session_id, caller, None)
        value: Any = result.data if result.data is not None else (result.text or None)
        return {"result": value, "session_id": result.session_id}

    async def call_reward(
        self, name: str, arguments: Mapping[str, Any] | None = None, *, session_id: str, caller: Caller
    ) -> dict[str, Any]:
        """Scores a session as it stands; the value is None where the reward gives none."""
        caller.need("orchestrate", "call_reward")
        reward = _find("reward", self.definition.rewards, name)
        session = self.sessions.find(caller.principal.id, session_id)
        async with self.sessions.hold(session, caller.context.seconds_left()):
            last = session.messages[-2:]
            turn = {"message": last[0]["content"], "reply": last[1]["content"]} if len(last) == 2 else {}
            view = SessionView.of(session, memory=copy.deepcopy(session.memory), **turn)
            given = earn(name, await self._owners(reward, arguments or {}, view))
        return {"name": name, "value": given.value, "done": given.done}

    async def fork(self, *, session_id: str, caller: Caller) -> dict[str, Any]:
        """Copies a session: both go on from the same conversation, apart."""
        caller.need("orchestrate", "fork")
        caps = self.info.caps
        if not caps.fork:
            raise NotSupported(
                f"a {self.info.framework} agent cannot be forked through its wrapper; open a session and play the "
                "messages of `state` again"
            )
        source = self.sessions.find(caller.principal.id, session_id)
        async with self.sessions.hold(source, caller.context.seconds_left()):
            if caps.state == "handle" and source.state is not None:
                state = await cast(Any, self.definition.wrapper).fork(source.state)
            else:
                state = copy.deepcopy(source.state)
            session = await self.sessions.open(caller.principal.id)
            session.state = state
            session.messages = copy.deepcopy(source.messages)
            session.memory = copy.deepcopy(source.memory)
            session.turns, session.terminated = source.turns, source.terminated
            session.interrupt, session.seed, session.options = source.interrupt, source.seed, source.options
        return {"session_id": session.id}

    async def release(self, *, session_id: str, caller: Caller) -> dict[str, Any]:
        """Ends a session after the turns that wait for it, and frees its place."""
        caller.need("chat", "release")
        session = self.sessions.find(caller.principal.id, session_id)
        async with self.sessions.hold(session, caller.context.seconds_left()):
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
        """Holds the session of a call; one that the call opened is gone again if the call fails."""
        principal, context = caller.principal.id, caller.context
        fresh = session_id is None and not (open_as and self.sessions.knows(principal, open_as))
        if fresh:
            self._check(caller, "")
            session = await self.sessions.open(principal, open_as)
        else:
            session = self.sessions.find(principal, session_id or open_as or "")
            self._check(caller, session.hash)
        try:
            async with self.sessions.hold(session, context.seconds_left()):
                yield session
        except BaseException:
            if fresh:
                await self.sessions.remove(session)
            raise

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
    ) -> ToolResult:
        checked = declared.validate(arguments)
        if not declared.injects and session_id is None and open_as is None:
            self._check(caller, "")
            return await self._record(declared, checked, None, caller)
        async with self._session(caller, session_id, open_as) as session:
            return await self._record(declared, checked, session, caller)

    async def _record(
        self, declared: Declared, arguments: Mapping[str, Any], session: Session | None, caller: Caller
    ) -> ToolResult:
        call = Call(self.definition, session, caller, tool=declared.name, request=dict(arguments))

        async def work() -> Outcome:
            memory = {} if session is None else copy.deepcopy(session.memory)
            view = None if session is None else SessionView.of(session, memory=memory)
            value = await call.bounded(self._owners(declared, arguments, view))
            text, data = (value, None) if isinstance(value, str) else ("", value)

            def commit() -> None:
                if session is not None:
                    session.memory = memory

            return Outcome(
                ToolResult(
                    reply_parts(text, data),
                    text,
                    data,
                    session_id="" if session is None else session.id,
                    call_id=call.frame.call_id,
                ),
                commit,
            )

        return await call.play(work)

    async def _owners(self, declared: Declared, arguments: Mapping[str, Any], view: SessionView | None) -> Any:
        try:
            return await declared.call(arguments, {"session": view})
        except InvalidArguments:
            raise
        except Exception as error:
            raise attribute(error, f"{declared.name!r} of {self.definition.identity}") from error

    async def _dispose(self, session: Session) -> None:
        peers, session.peers = session.peers, None
        for peer in peers or ():
            await peer.aclose()
        state, session.state = session.state, None
        release = getattr(self.definition.wrapper, "release", None)
        if release is not None and state is not None:
            await release(state)


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
    if declared.output is not None and declared.output.get("type") == "object":
        tool["outputSchema"] = declared.output
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
