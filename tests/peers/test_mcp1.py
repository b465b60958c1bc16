"""mcp 1.x, both ways: its stock client with our server, and our client with its stock server."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from subprocess import PIPE
from typing import Any

import anyio
import pytest
from anyio.streams.text import TextReceiveStream

from agent_env.client.environment import Environment
from agent_env.errors import NotSupported
from agent_env.serving.environment import AgentEnvironment
from agent_env_wrappers.contract import Event, Status

HERE = Path(__file__).parent

pytestmark = [pytest.mark.anyio, pytest.mark.peers, pytest.mark.timeout(600)]


async def recall(message: str, history: list[dict[str, str]]) -> AsyncIterator[str]:
    """Remembers what it was told."""
    for (
        word
    ) in f"{len(history) // 2 + 1}: {' | '.join([said['content'] for said in history[::2]] + [message])}".split():
        yield word + " "


@asynccontextmanager
async def old_server(python: Path) -> AsyncIterator[str]:
    async with await anyio.open_process(
        [str(python), str(HERE / "mcp1_server.py")], stdout=PIPE, stderr=None
    ) as process:
        try:
            assert process.stdout is not None
            port = (await TextReceiveStream(process.stdout).receive()).strip()
            yield f"http://127.0.0.1:{port}/mcp"
        finally:
            process.terminate()


async def test_the_stock_client_of_mcp_1_talks_for_three_turns_and_reads_the_cards(
    peer_python: Callable[[str], Path],
) -> None:
    python = peer_python("mcp1")
    env = AgentEnvironment(recall, name="recall", version="1.2.3", hub=False)
    async with env.serving() as server:
        with anyio.fail_after(60):
            command = [str(python), str(HERE / "mcp1_client.py"), f"{server.url}/mcp"]
            seen: dict[str, Any] = json.loads((await anyio.run_process(command, stderr=None)).stdout)
        assert seen["protocol"] == "2025-11-25"
        assert seen["server"] == ["recall", "1.2.3"]
        assert seen["tools"][0] == "chat"
        assert [text.strip() for text, _ in seen["turns"]] == [
            "1: my name is Ada",
            "2: my name is Ada | what is my name?",
            "3: my name is Ada | what is my name? | bye",
        ]
        assert all(text == structured for text, structured in seen["turns"])
        assert seen["session_id"] == f"mcp-{seen['mcp_session']}"
        assert "".join(seen["progress"]) == "".join(text for text, _ in seen["turns"])
        assert seen["cards"]["environment-card"]["version"] == "1.2.3"
        assert seen["cards"]["environment-card"]["digest"] == server.card.digest()
        assert seen["cards"]["agent-card"]["name"] == "recall"
        assert seen["errors"] == [[-32602, "unknown_tool"], [-32602, "invalid_arguments"], [404, "unknown_session"]]
        # The client ended its MCP session, and the conversation with it.
        assert len(server.runtime.sessions) == 0


async def test_the_stock_server_of_mcp_1_is_called_as_an_environment(peer_python: Callable[[str], Path]) -> None:
    python = peer_python("mcp1")
    async with old_server(python) as url:
        with anyio.fail_after(60):
            async with Environment(url, lane="mcp") as first, Environment(url, lane="mcp") as second:
                events: list[Event] = []

                async def on_event(event: Event) -> None:
                    events.append(event)

                answer = await first.call_tool("chat", {"message": "hello"}, on_event=on_event)
                assert (answer.text, answer.data, answer.is_error) == ("[1] hello", None, False)
                assert events == [Status("thinking")]
                # The server remembers by connection, so two conversations do not share one.
                assert (await second.chat("hi")).text == "[1] hi"
                assert (await first.chat("again")).text == "[2] again"
                assert (await first.call_tool("add", {"a": 2, "b": 3})).data == {"result": 5}
                failed = await first.call_tool("fail")
                assert failed.is_error
                assert "the tool has failed" in failed.text
                with pytest.raises(NotSupported, match="no 'reset'"):
                    await first.reset()
