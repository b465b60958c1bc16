"""Refusals: that each one is told with its code and what to do, before anything is done."""

from __future__ import annotations

from agent_env.context import CallContext, Link
from agent_env.errors import AgentEnvError
from agent_env.testing.subject import Skip, Way, expect

TRACES = ("Traceback (most recent call last)", 'File "', "\n    at ")
"""What stack traces of common languages look like."""

MANY = 64
"""More environments in a chain than any owner would allow."""


async def refuses_a_tool_that_it_does_not_have(way: Way) -> None:
    """EC-58."""
    error = await way.refused("unknown_tool", verb="call_tool", name="no-such-tool", arguments={})
    missing = [tool.name for tool in way.subject.card.capabilities.tools if tool.name not in error.message]
    expect(not missing, f"the message does not list {', '.join(missing)}: {error.message!r}")


async def refuses_arguments_that_do_not_fit(way: Way) -> None:
    """EC-59."""
    for arguments in ({"message": 7}, {}, {"message": way.subject.message, "no-such-argument": 1}):
        await way.refused("invalid_arguments", verb="call_tool", name="chat", arguments=arguments)


async def tells_what_to_do_and_nothing_of_its_insides(way: Way) -> None:
    """EC-62."""
    errors = [
        await way.refused("unknown_tool", verb="call_tool", name="no-such-tool", arguments={}),
        await way.refused("invalid_arguments", verb="call_tool", name="chat", arguments={"message": [1]}),
        await way.refused("unknown_session", verb="state", session_id="s-" + "0" * 22),
        await way.refused("unknown_tool", verb="call_function", name="no-such-function", arguments={}),
    ]
    for error in errors:
        expect(type(error) is not AgentEnvError, f"{error.code!r} is no code of the protocol")
        expect(error.message.strip(), f"{error.code} has no message")
        text = f"{error.message} {error.data}"
        expect(not any(trace in text for trace in TRACES), f"{error.code} tells a stack trace: {error.message!r:.200}")


async def calls_what_is_declared_and_nothing_else(way: Way) -> None:
    """EC-68."""
    await way.refused("unknown_tool", verb="call_function", name="no-such-function", arguments={})
    session_id = str((await way.call("reset"))["session_id"])
    await way.refused("unknown_tool", verb="call_reward", name="no-such-reward", session_id=session_id)
    for reward in way.subject.card.rewards:
        answer = await way.call("call_reward", name=reward.name, session_id=session_id)
        value = answer.get("value")
        expect(value is None or isinstance(value, int | float), f"{reward.name!r} scored {value!r:.100}")


async def refuses_calls_that_must_not_begin(way: Way) -> None:
    """EC-73."""
    identity = way.subject.card.ref
    others = tuple(Link(f"other-{number}@1.0.0", "") for number in range(MANY))
    chat = {"name": "chat", "arguments": {"message": way.subject.message}}
    deep = CallContext(chain=others)
    await way.refused("too_deep", verb="call_tool", context=deep, **chat)
    again = CallContext(chain=tuple(Link(identity, "") for _ in range(MANY)))
    await way.refused("call_cycle", "too_deep", verb="call_tool", context=again, **chat)
    await way.refused("budget_exhausted", verb="call_tool", context=CallContext(calls=-1), **chat)
    await way.refused("deadline_exceeded", verb="call_tool", context=CallContext().within(0), **chat)


async def refuses_parts_that_it_cannot_read(way: Way) -> None:
    """EC-74."""
    caps = way.subject.card.caps
    if caps is None:
        raise Skip("its card does not say which parts it reads")
    if "file" in caps.parts:
        raise Skip("it reads every kind of part, and its card does not say how large a message may be")
    part = {"type": "file", "mediaType": "application/octet-stream", "data": "AA=="}
    # Where no part but text is read, chat has no argument for others.
    codes = ("unsupported_content",) if len(caps.parts) > 1 else ("invalid_arguments", "unsupported_content")
    arguments = {"message": way.subject.message, "parts": [part]}
    await way.refused(*codes, verb="call_tool", name="chat", arguments=arguments)
