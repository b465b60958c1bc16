"""An environment that can do everything that the protocol speaks of, served, with its verbs as they are on the wire."""

from __future__ import annotations

import asyncio
import json
import random
from collections.abc import AsyncGenerator, AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from typing import Any

import anyio
import pytest

from agent_env import AgentEnvironment, Reward, SessionView
from agent_env.client.lanes.contract import Outgoing
from agent_env.client.lanes.websocket import close_sockets
from agent_env.client.resolution import LaneName, reach
from agent_env.context import CallContext, Principal
from agent_env.errors import AgentEnvError
from agent_env.serving.server import Server
from agent_env_wrappers.contract import AgentInfo, Caps, Done, Interrupt, Message, Turn

LANES: Sequence[LaneName] = ("websocket", "http", "mcp", "a2a")
TOKENS = {"alice": Principal("alice"), "bob": Principal("bob"), "carol": Principal("carol", frozenset({"chat"}))}
on_every_lane = pytest.mark.parametrize("lane", LANES)


class Agent:
    """Counts the turns of its conversation; some messages make it do something else."""

    def __init__(self) -> None:
        self.started = asyncio.Semaphore(0)
        self.cancelled = asyncio.Semaphore(0)
        self.go_on = asyncio.Semaphore(0)
        self.heard: list[str] = []

    async def __call__(
        self, message: Message, history: list[dict[str, str]], answers: dict[str, Any]
    ) -> AsyncIterator[Any]:
        self.heard.append(message.text)
        if answers:
            yield f"answered {json.dumps(answers)}"
            return
        match message.text:
            case "wait":
                self.started.release()
                try:
                    await self.go_on.acquire()
                except asyncio.CancelledError:
                    self.cancelled.release()
                    raise
                yield "waited"
            case "fail":
                raise ValueError("a secret of the agent")
            case "ask":
                yield Interrupt("q1", "approval", "Really?", {"type": "boolean"})
            case "data":
                yield Done("", data={"n": [1, 2.5, None, "é"]})
            case text:
                yield f"{len(history) // 2 + 1}: {text}"


def shout(text: str, times: int = 1) -> dict[str, str]:
    """Says it louder."""
    return {"said": text.upper() * times}


def remember(session: SessionView, word: str) -> str:
    """Remembers a word."""
    session.memory.setdefault("words", []).append(word)
    if word == "fail":
        raise ValueError("a secret of the tool")
    return " ".join(session.memory["words"])


def count(session: SessionView) -> int:
    """The turns so far."""
    return session.turns


def worth(session: SessionView) -> Reward | None:
    """The value of a turn."""
    match session.message:
        case "good":
            return Reward(1.0)
        case "last":
            return Reward(0.5, done=True)
        case _:
            return None


def start(session: SessionView) -> dict[str, Any]:
    return {"goal": random.Random(session.seed).randrange(10**9)}


def make(agent: Any, **options: Any) -> AgentEnvironment:
    own = {"tools": [shout, remember], "functions": [count], "rewards": [worth]}
    env = AgentEnvironment(agent, name="agent", version="1.0.0", hub=False, **{**own, **options})
    env.on_reset(start)
    return env


class Place:
    """A served environment, and the verbs of it on any lane, as they are on the wire."""

    def __init__(self, server: Server, agent: Agent) -> None:
        self.server, self.agent, self.url = server, agent, server.url

    async def call(
        self, lane: LaneName, verb: str, *, token: str | None = None, context: CallContext | None = None, **fields: Any
    ) -> Mapping[str, Any]:
        reached = await reach(self.url, lane=lane, token=token, hub=None, seconds=10)
        try:
            with anyio.fail_after(20):
                return await reached.lane.perform(verb, fields, Outgoing((context or CallContext()).within(10)))
        finally:
            await reached.aclose()

    async def say(self, lane: LaneName, message: str, session_id: str | None = None, **more: Any) -> Mapping[str, Any]:
        fields = more if session_id is None else {**more, "session_id": session_id}
        return await self.call(lane, "call_tool", name="chat", arguments={"message": message}, **fields)

    async def refused(self, lane: LaneName, code: str, verb: str, **fields: Any) -> AgentEnvError:
        with pytest.raises(AgentEnvError) as refused:
            await self.call(lane, verb, **fields)
        assert refused.value.code == code, refused.value.to_wire()
        return refused.value

    def session(self, session_id: str, principal: str = "local") -> Any:
        return self.server.runtime.sessions.find(principal, session_id)


@asynccontextmanager
async def serving(**options: Any) -> AsyncGenerator[Place]:
    agent = Agent()
    async with make(agent, **options).serving(register=False) as server:
        yield Place(server, agent)
        await close_sockets()


class Once:
    """A wrapper of its own, with its own caps, that says one thing."""

    framework = "once"

    def __init__(self, **caps: Any) -> None:
        self._caps = Caps(**caps)

    @classmethod
    def match(cls, agent: object) -> int:
        return 0

    async def describe(self) -> AgentInfo:
        return AgentInfo(self.framework, self._caps, name="once")

    async def run(self, turn: Turn) -> AsyncIterator[Any]:
        yield Done("once")

    async def aclose(self) -> None: ...
