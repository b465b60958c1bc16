"""Agents and wrappers that the tests of the runtime play with."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from typing import Any, ClassVar

from agent_env.context import CallContext
from agent_env.runtime.caller import Caller
from agent_env.runtime.definition import SessionView
from agent_env_wrappers.contract import AgentInfo, Caps, Done, Event, Turn

ANYBODY = Caller()


def within(seconds: float) -> Caller:
    """Anybody, with so much time."""
    return Caller(context=CallContext().within(seconds))


async def counting(message: str, history: list[dict[str, str]]) -> str:
    """Tells which turn it is."""
    return f"{len(history) // 2 + 1}: {message}"


def add(a: int, b: int = 1) -> int:
    """Adds two numbers.

    Args:
        a: The first.
        b: The second.
    """
    return a + b


async def remember(session: SessionView, word: str) -> str:
    """Remembers a word."""
    session.memory.setdefault("words", []).append(word)
    if word == "fail":
        raise RuntimeError("secret")
    return " ".join(session.memory["words"])


class Scripted:
    """A wrapper that plays what the test wrote."""

    framework: ClassVar[str] = "scripted"

    def __init__(self, play: Callable[[Turn], AsyncIterator[Event]], **caps: Any) -> None:
        self._play = play
        self.caps = Caps(**{"state": "value", "fork": True, **caps})
        self.closed = False

    @classmethod
    def match(cls, agent: object) -> int:
        return 0

    async def describe(self) -> AgentInfo:
        return AgentInfo(self.framework, self.caps, name="scripted")

    def run(self, turn: Turn) -> AsyncIterator[Event]:
        return self._play(turn)

    async def aclose(self) -> None:
        self.closed = True


class Handles:
    """A wrapper whose state is a handle to what it keeps itself."""

    framework: ClassVar[str] = "handles"

    def __init__(self) -> None:
        self.kept: dict[str, list[str]] = {}
        self.fails = ""

    @classmethod
    def match(cls, agent: object) -> int:
        return 0

    async def describe(self) -> AgentInfo:
        return AgentInfo(self.framework, Caps(state="handle", fork=True))

    async def run(self, turn: Turn) -> AsyncIterator[Event]:
        handle = turn.state or f"h{len(self.kept)}"
        kept = self.kept.setdefault(handle, [])
        kept.append(turn.message.text)
        yield Done(" ".join(kept), state=handle)

    async def fork(self, state: str) -> str:
        if self.fails == "fork":
            raise RuntimeError("secret")
        copy = f"h{len(self.kept)}"
        self.kept[copy] = [*self.kept[state]]
        return copy

    async def release(self, state: str) -> None:
        if self.fails == "release":
            raise RuntimeError("secret")
        del self.kept[state]

    async def aclose(self) -> None:
        pass
