"""The verbs: the one vocabulary of every face and every lane, from JSON to JSON."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final, cast

from agent_env.errors import InvalidArguments, UnknownTool
from agent_env.runtime.caller import Caller
from agent_env.runtime.environment import Runtime
from agent_env.runtime.turns import OnEvent

VERBS: Final[Mapping[str, frozenset[str]]] = {
    "list_tools": frozenset(),
    "call_tool": frozenset({"name", "arguments", "session_id"}),
    "reset": frozenset({"session_id", "seed", "options"}),
    "step": frozenset({"session_id", "action"}),
    "state": frozenset({"session_id"}),
    "call_function": frozenset({"name", "arguments", "session_id"}),
    "call_reward": frozenset({"name", "arguments", "session_id"}),
    "fork": frozenset({"session_id"}),
    "release": frozenset({"session_id"}),
}
"""Each verb with the names of its arguments."""

ORCHESTRATION: Final = ("reset", "step", "call_function", "call_reward", "fork")
"""The verbs that need the scope "orchestrate"; the others need "chat"."""


async def perform(
    runtime: Runtime,
    verb: str,
    arguments: Mapping[str, Any],
    caller: Caller,
    on_event: OnEvent | None = None,
    *,
    open_as: str | None = None,
) -> dict[str, Any]:
    """Performs a verb and returns its answer as JSON.

    Raises the errors of `agent_env.errors`; `open_as` is the session id that the client's protocol chose.
    """
    runtime.activity.begin()
    try:
        return await _perform(runtime, verb, arguments, caller, on_event, open_as)
    finally:
        runtime.activity.end()


async def _perform(
    runtime: Runtime,
    verb: str,
    arguments: Mapping[str, Any],
    caller: Caller,
    on_event: OnEvent | None,
    open_as: str | None,
) -> dict[str, Any]:
    known = VERBS.get(verb)
    if known is None:
        raise UnknownTool(f"there is no verb {verb!r}; the verbs are {', '.join(VERBS)}", known=sorted(VERBS))
    unknown = sorted(arguments.keys() - known)
    if unknown:
        raise InvalidArguments(
            f"{verb} takes no {', '.join(map(repr, unknown))}; its arguments are {sorted(known) or 'none'}"
        )
    session_id = _session_id(arguments)
    match verb:
        case "list_tools":
            caller.need("chat", verb)
            return {"tools": runtime.list_tools()}
        case "call_tool":
            result = await runtime.call_tool(
                _string(arguments, "name"),
                _mapping(arguments, "arguments"),
                session_id=session_id,
                caller=caller,
                on_event=on_event,
                open_as=open_as,
            )
            return result.to_json()
        case "reset":
            reset = await runtime.reset(
                session_id=session_id,
                seed=arguments.get("seed"),
                options=arguments.get("options"),
                caller=caller,
                open_as=open_as,
            )
            return reset.to_json()
        case "step":
            if "action" not in arguments:
                raise InvalidArguments("step needs an 'action'")
            step = await runtime.step(
                arguments["action"], session_id=session_id, caller=caller, on_event=on_event, open_as=open_as
            )
            return step.to_json()
        case "call_function":
            return await runtime.call_function(
                _string(arguments, "name"), _mapping(arguments, "arguments"), session_id=session_id, caller=caller
            )
        case "call_reward":
            return await runtime.call_reward(
                _string(arguments, "name"),
                _mapping(arguments, "arguments"),
                session_id=_needed(session_id, verb),
                caller=caller,
            )
        case "state":
            return await runtime.state(session_id=_needed(session_id, verb), caller=caller)
        case "fork":
            return await runtime.fork(session_id=_needed(session_id, verb), caller=caller)
        case _:
            return await runtime.release(session_id=_needed(session_id, verb), caller=caller)


def _session_id(arguments: Mapping[str, Any]) -> str | None:
    value = arguments.get("session_id")
    if value is None or value == "":
        return None
    if not isinstance(value, str):
        raise InvalidArguments(f"'session_id' must be a string, not {value!r:.100}")
    return value


def _needed(session_id: str | None, verb: str) -> str:
    if session_id is None:
        raise InvalidArguments(f"{verb} needs the 'session_id' of an open session")
    return session_id


def _string(arguments: Mapping[str, Any], name: str) -> str:
    value = arguments.get(name)
    if not isinstance(value, str):
        raise InvalidArguments(f"'{name}' must be a string, not {value!r:.100}")
    return value


def _mapping(arguments: Mapping[str, Any], name: str) -> Mapping[str, Any]:
    value = arguments.get(name)
    if value is None:
        return {}
    if not isinstance(value, Mapping):
        raise InvalidArguments(f"'{name}' must be an object, not {value!r:.100}")
    return cast("Mapping[str, Any]", value)
