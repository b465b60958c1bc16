"""An environment that is there on every lane, for tests that run over all of them."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncGenerator, AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from typing import Any

import anyio

from agent_env import AgentEnvironment, Environment, Reward, SessionView
from agent_env.client.lanes.contract import Lane, Outgoing
from agent_env.client.lanes.inprocess import InProcessLane
from agent_env.client.lanes.websocket import close_sockets
from agent_env.client.resolution import LaneName, reach
from agent_env.context import CallContext, Principal, Record
from agent_env.serving.server import Server
from agent_env_wrappers.contract import (
    DataPart,
    Done,
    Event,
    Interrupt,
    Message,
    Status,
    TextDelta,
    ToolCall,
    ToolReturn,
)

NETWORK = {"websocket", "mcp", "a2a", "http"}
TOKENS = {"alice": Principal("alice"), "bob": Principal("bob"), "carol": Principal("carol", frozenset({"chat"}))}


class Agent:
    """Counts the turns of its conversation; some messages make it do something else."""

    def __init__(self) -> None:
        self.started = asyncio.Semaphore(0)
        self.cancelled = asyncio.Semaphore(0)

    async def __call__(
        self, message: Message, history: list[dict[str, str]], context: dict[str, Any], answers: dict[str, Any]
    ) -> AsyncIterator[Any]:
        """Counts turns."""
        if answers:
            yield Done(f"answered {json.dumps(answers)}")
            return
        match message.text:
            case "hang" | "speak and hang":
                if message.text != "hang":
                    yield "so"
                self.started.release()
                try:
                    await asyncio.Event().wait()
                finally:
                    self.cancelled.release()
            case "fail":
                raise ValueError("secret internals")
            case "stream":
                for event in EVENTS:
                    yield event
            case "context":
                yield json.dumps(context)
            case "data":
                yield Done("", data={"n": [1, 2.5, None, "é"]})
            case "parts":
                yield json.dumps([part.data for part in message.parts if isinstance(part, DataPart)])
            case "ask":
                yield Interrupt("q1", "approval", "Really?", {"type": "boolean"})
            case text:
                yield f"{len(history) // 2 + 1}: {text}"


EVENTS: Sequence[Event] = (
    Status("looking"),
    TextDelta("one "),
    TextDelta("hm", channel="thought"),
    ToolCall("t1", "look", {"up": ["it"]}),
    ToolReturn("t1", {"found": True}),
    TextDelta("two é"),
)


class Journal:
    """Keeps the records of calls that belong to no run."""

    def __init__(self) -> None:
        self.turns: list[Mapping[str, Any]] = []

    async def record(self, records: Sequence[Record]) -> None:
        self.turns += [record for record in records if record["kind"] == "turn"]


def shout(text: str, times: int = 1) -> dict[str, str]:
    """Says it louder."""
    return {"said": text.upper() * times}


def remember(session: SessionView, word: str) -> str:
    """Remembers a word."""
    session.memory.setdefault("words", []).append(word)
    return " ".join(session.memory["words"])


def count(session: SessionView) -> int:
    """The turns so far."""
    return session.turns


def worth(session: SessionView) -> Reward | None:
    """The value of a turn."""
    match session.message:
        case "good":
            return Reward(1.0)
        case "bad":
            return Reward(0.0)
        case "last":
            return Reward(0.5, done=True)
        case _:
            return None


def start(session: SessionView) -> dict[str, Any]:
    """The first observation."""
    return {"seed": session.seed, "options": session.options}


class Place:
    """An environment that is there on every lane."""

    def __init__(self, env: AgentEnvironment, server: Server, agent: Agent, lane: LaneName) -> None:
        self.env, self.server, self.agent, self.lane = env, server, agent, lane

    def environment(self, **options: Any) -> Environment:
        ref: object = self.env if self.lane == "inprocess" else self.server.url
        return Environment(ref, lane=self.lane, **options)

    @asynccontextmanager
    async def bare(self, token: str | None = None) -> AsyncGenerator[Lane]:
        """The lane itself, for what `Environment` never sends."""
        if self.lane == "inprocess":
            yield InProcessLane(await self.env.runtime(), TOKENS[token] if token else None)
            return
        reached = await reach(self.server.url, lane=self.lane, token=token, hub=None, seconds=10)
        try:
            yield reached.lane
        finally:
            await reached.aclose()

    async def call(self, verb: str, arguments: dict[str, Any], outgoing: Outgoing | None = None) -> Mapping[str, Any]:
        async with self.bare() as lane:
            return await lane.perform(verb, arguments, outgoing or Outgoing(CallContext().within(10)))


@asynccontextmanager
async def served(lane: LaneName, **options: Any) -> AsyncGenerator[Place]:
    agent = Agent()
    env = AgentEnvironment(
        agent,
        name="agent",
        version="1.0.0",
        hub=False,
        **{
            "tools": [shout, remember],
            "functions": [count],
            "rewards": [worth],
            **options,
        },
    )
    env.on_reset(start)
    with anyio.fail_after(30):
        async with env.serving(register=False) as server:
            yield Place(env, server, agent, lane)
            await close_sockets()


def chat(message: str, session_id: str | None = None) -> dict[str, Any]:
    arguments: dict[str, Any] = {"name": "chat", "arguments": {"message": message}}
    return arguments if session_id is None else arguments | {"session_id": session_id}
