"""a2a-sdk 0.3, both ways: its stock client with our server, and our client with its stock server."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from subprocess import PIPE
from typing import Any, ClassVar

import anyio
import pytest
from anyio.streams.text import TextReceiveStream

from agent_env.client.environment import Environment
from agent_env.errors import NotSupported
from agent_env.serving.environment import AgentEnvironment
from agent_env_wrappers.contract import AgentInfo, Caps, Done, Event, Interrupt, TextDelta, Turn

HERE = Path(__file__).parent

pytestmark = [pytest.mark.anyio, pytest.mark.peers, pytest.mark.timeout(600)]


class Agent:
    """Remembers, waits, and asks; a wrapper of its own."""

    framework: ClassVar[str] = "own"

    @classmethod
    def match(cls, agent: object) -> int:
        return 0

    async def describe(self) -> AgentInfo:
        return AgentInfo("own", Caps(streaming=True, interrupts=True, state="value"), name="recall")

    async def run(self, turn: Turn) -> AsyncIterator[Event]:
        said = [*(turn.state or []), turn.message.text]
        if turn.message.text == "wait":
            await anyio.sleep_forever()
        if turn.message.text == "ask":
            yield Interrupt("q1", "question", "whom?", state=said)
            return
        reply = f"hello {turn.answers[0].value}" if turn.answers else f"{len(said)}: {' | '.join(said)}"
        for word in reply.split():
            yield TextDelta(word + " ")
        yield Done(reply + " ", state=said)

    async def aclose(self) -> None:
        pass


@asynccontextmanager
async def old_server(python: Path) -> AsyncIterator[str]:
    command = [str(python), str(HERE / "a2a03_server.py")]
    async with await anyio.open_process(command, stdout=PIPE, stderr=None) as process:
        try:
            assert process.stdout is not None
            port = (await TextReceiveStream(process.stdout).receive()).strip()
            yield f"http://127.0.0.1:{port}"
        finally:
            process.terminate()


async def test_the_stock_client_of_a2a_03_talks_for_three_turns_and_reads_the_cards(
    peer_python: Callable[[str], Path],
) -> None:
    python = peer_python("a2a03")
    env = AgentEnvironment(Agent(), name="recall", version="1.2.3", hub=False)

    @env.tool
    def add(a: int, b: int) -> int:
        """Adds two numbers."""
        return a + b

    async with env.serving() as server:
        with anyio.fail_after(60):
            command = [str(python), str(HERE / "a2a03_client.py"), server.url]
            seen: dict[str, Any] = json.loads((await anyio.run_process(command, stderr=None)).stdout)
        assert seen["card"] == ["recall", "1.2.3", "0.3.0", f"{server.url}/a2a", "JSONRPC"]
        assert seen["same card"]
        assert seen["environment card"] == f"{server.url}/.well-known/agent-env.json"
        for binding in ("JSONRPC", "HTTP+JSON"):
            talk = seen[binding]
            assert [text.strip() for text in talk["turns"]] == [
                "1: my name is Ada",
                "2: my name is Ada | what is my name?",
                "3: my name is Ada | what is my name? | bye",
            ]
            assert talk["stream"][0] == ["submitted", "NoneType"]
            assert talk["stream"][1] == ["working", "TaskStatusUpdateEvent"]
            assert talk["stream"][-1] == ["completed", "TaskStatusUpdateEvent"]
            assert talk["streamed"].strip().endswith("| one two")
            assert talk["polled"] in ("submitted", "working")
            assert talk["cancelled"] == "canceled"
            assert talk["asked"] == ["input-required", "whom?"]
            assert [talk["answered"][0], talk["answered"][1].strip(), talk["answered"][2]] == [
                "completed",
                "hello Ada",
                True,
            ]
            assert talk["verb"] == [3, ["urn:agent-env:environment-card:v1"]]
        unknown = [-32602, "unknown_session"]
        assert seen["JSONRPC"]["errors"] == [[-32602, "unknown_tool"], unknown, unknown]
        assert seen["HTTP+JSON"]["errors"] == [[404], [404], [404]]
        assert seen["pushed"][0] == ["task", "submitted", True]
        assert seen["pushed"][-1] == ["task", "completed", True]


async def test_the_stock_server_of_a2a_03_is_called_as_an_environment(peer_python: Callable[[str], Path]) -> None:
    python = peer_python("a2a03")
    events: list[Event] = []

    async def on_event(event: Event) -> None:
        events.append(event)

    with anyio.fail_after(60):
        async with old_server(python) as url, Environment(url, lane="a2a") as env:
            assert [(await env.chat(text)).text for text in ("a", "b", "c")] == ["1: a", "2: b", "3: c"]
            answer = await env.call_tool("chat", {"message": "task in pieces"}, on_event=on_event)
            assert answer.text == "task in pieces "
            assert [event.text for event in events if isinstance(event, TextDelta)] == ["task ", "in ", "pieces "]
            question = await env.chat("task ask")
            assert (question.stop, question.text) == ("input_required", "whom?")
            assert (await env.chat("task done")).stop == "end_turn"
            with pytest.raises(NotSupported):
                await env.reset()
