"""Likeness: that a verb gives the same on every lane."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from agent_env.errors import AgentEnvError
from agent_env.testing.subject import Skip, Subject, Way, expect


async def gives_the_same_on_every_lane(subject: Subject) -> None:
    """EC-69."""
    if len(subject.lanes) < 2:
        raise Skip("it has one lane")
    first: tuple[str, Mapping[str, Any]] | None = None
    for lane in subject.lanes:
        async with subject.way(lane) as way:
            seen = await _seen(way)
        if first is None:
            first = lane, seen
            continue
        name, expected = first
        for what, value in expected.items():
            expect(seen[what] == value, f"{what} is {value!r:.200} over {name}, and {seen[what]!r:.200} over {lane}")


async def _seen(way: Way) -> Mapping[str, Any]:
    """What a caller sees that may not depend on the lane; what an agent says may differ from turn to turn."""
    chat: dict[str, Any] = {"name": "chat", "arguments": {"message": way.subject.message}}
    missing = "s-" + "0" * 22
    refused: list[tuple[str, dict[str, Any]]] = [
        ("call_tool", {"name": "no-such-tool", "arguments": {}}),
        ("call_tool", {"name": "chat", "arguments": {"message": 7}}),
        ("call_tool", {**chat, "session_id": missing}),
        ("step", {"action": 7}),
        ("reset", {"seed": "seven"}),
        ("call_function", {"name": "no-such-function", "arguments": {}}),
        ("call_reward", {"name": "no-such-reward", "session_id": missing}),
        ("fork", {"session_id": missing}),
        ("release", {"session_id": missing}),
        ("state", {"session_id": missing}),
        ("state", {}),
    ]
    seen: dict[str, Any] = {}
    for verb, arguments in refused:
        seen[f"the error of {verb} {arguments!r:.80}"] = await _error(way, verb, arguments)
    seen["list_tools"] = (await way.call("list_tools"))["tools"]
    answer = await way.call("call_tool", **chat)
    session_id = str(answer["session_id"])
    seen["the form of an answer"] = _form(answer)
    step = await way.call(
        "step", action=way.subject.message, session_id=(await way.call("reset", seed=7))["session_id"]
    )
    seen["the form of a step"] = _form(step)
    seen["the form of a state"] = _form(await way.state(session_id))
    reset = await way.call("reset", session_id=session_id, seed=7)
    seen["the form of a reset"] = _form(reset)
    if way.subject.card.episode.seedable:
        seen["the observation of a seeded reset"] = reset["observation"]
    return seen


async def _error(way: Way, verb: str, arguments: Mapping[str, Any]) -> tuple[str, str]:
    try:
        answer = await way.call(verb, **arguments)
    except AgentEnvError as error:
        return error.code, error.message
    return "", f"no error: {dict(answer)!r:.100}"


def _form(answer: Mapping[str, Any]) -> dict[str, str]:
    return {
        name: "number" if isinstance(value, int | float) and not isinstance(value, bool) else type(value).__name__
        for name, value in sorted(answer.items())
        if name not in _FREE
    }


_FREE = frozenset({"data", "observation", "usage", "reward", "interrupt"})
"""Members whose type is the agent's to choose, turn by turn."""
