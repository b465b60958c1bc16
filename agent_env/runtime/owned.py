"""Plays what the owner added: a call of a declared function has its frame, deadline and record as a turn has."""

from __future__ import annotations

import copy
from collections.abc import Mapping
from typing import Any

from pydantic_core import PydanticSerializationError, to_jsonable_python

from agent_env.errors import AgentFailed
from agent_env.runtime.caller import Caller
from agent_env.runtime.calls import Call, Outcome
from agent_env.runtime.declared import Declared, Reward
from agent_env.runtime.definition import Definition, SessionView
from agent_env.runtime.parts import reply_parts
from agent_env.runtime.results import ToolResult
from agent_env.runtime.rewards import earn
from agent_env.runtime.sessions import Session
from agent_env.runtime.turns import attributed


class Owned:
    """Plays the functions of one environment's owner."""

    def __init__(self, definition: Definition) -> None:
        self._definition = definition

    async def call(
        self,
        declared: Declared,
        arguments: Mapping[str, Any],
        session: Session | None,
        caller: Caller,
        *,
        exact: bool = False,
    ) -> ToolResult:
        """Calls a tool or function; a text is the answer's text, or with `exact` its data, as every other value is."""
        keywords = declared.validate(arguments)
        call = Call(self._definition, session, caller, tool=declared.name, request=dict(arguments))

        async def work() -> Outcome:
            memory = {} if session is None else copied(session.memory, self._definition)
            view = None if session is None else SessionView.of(session, memory=memory)
            value = self._json(declared, await self._run(call, declared, keywords, view))
            text, data = (value, value if exact else None) if isinstance(value, str) else ("", value)

            def commit() -> None:
                if session is not None:
                    session.memory = memory

            return Outcome(
                ToolResult(
                    reply_parts(text, None if isinstance(value, str) else data),
                    text,
                    data,
                    session_id="" if session is None else session.id,
                    call_id=call.frame.call_id,
                ),
                commit,
            )

        return await call.play(work)

    async def observe(self, hook: Declared, view: SessionView, session: Session, caller: Caller) -> Any:
        """Asks the owner's `on_reset` for an episode's first observation."""
        request = {"seed": view.seed, "options": view.options}
        call = Call(self._definition, session, caller, tool="reset", request=request)

        async def work() -> Outcome:
            value = self._json(hook, await self._run(call, hook, {}, view))
            return Outcome(ToolResult(reply_parts("", value), data=value, call_id=call.frame.call_id), _nothing)

        return (await call.play(work)).data

    async def score(
        self, reward: Declared, arguments: Mapping[str, Any], view: SessionView, session: Session, caller: Caller
    ) -> Reward:
        """Asks a reward what a session is worth as it stands."""
        keywords = reward.validate(arguments)
        call = Call(self._definition, session, caller, tool=reward.name, request=dict(arguments))
        given: list[Reward] = []

        async def work() -> Outcome:
            given.append(earn(reward.name, await self._run(call, reward, keywords, view)))
            value = given[0].value
            return Outcome(ToolResult(reply_parts("", value), data=value, call_id=call.frame.call_id), _nothing)

        await call.play(work)
        return given[0]

    async def _run(self, call: Call, declared: Declared, keywords: Mapping[str, Any], view: SessionView | None) -> Any:
        who = f"{declared.name!r} of {self._definition.identity}"
        self._definition.abandoned.check(self._definition.identity)
        return await call.bounded(attributed(declared.run(keywords, {"session": view}), who))

    def _json(self, declared: Declared, value: Any) -> Any:
        """The value as JSON: dataclasses and models become objects, numbers that JSON has not become null."""
        try:
            return to_jsonable_python(value, inf_nan_mode="null")
        except (PydanticSerializationError, UnicodeDecodeError, ValueError, RecursionError) as error:
            raise AgentFailed(
                f"{declared.name!r} of {self._definition.identity} returned a {type(value).__name__} that is no JSON "
                "value; return JSON types, dataclasses or pydantic models",
                agent=self._definition.identity,
            ) from error


def copied(memory: dict[str, Any], definition: Definition) -> dict[str, Any]:
    """A copy of a session's memory for one call, so that a failed call changes nothing; raises `AgentFailed`."""
    try:
        return copy.deepcopy(memory)
    except BaseException as error:  # `__deepcopy__` is the owner's code
        raise AgentFailed(
            f"the memory of a session of {definition.identity} holds something that cannot be copied, so that a failed "
            "call could not be rolled back; keep plain values in it",
            agent=definition.identity,
        ) from error


def _nothing() -> None:
    """What `reset` and rewards commit is the runtime's."""
