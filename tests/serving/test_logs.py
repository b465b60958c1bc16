"""What reaches the logs: no token and no session id, at whatever level and of whatever library."""

from __future__ import annotations

import logging
from typing import Any

import anyio
import pytest

from agent_env import AgentEnvironment, Environment
from agent_env.client.lanes.websocket import close_sockets
from agent_env.errors import AgentEnvError
from agent_env.hub import Hub
from agent_env.runtime.local import withdraw

pytestmark = pytest.mark.anyio

TOKEN = "s3cret-that-nobody-may-read"
WRONG = "wr0ng-that-nobody-may-read"


async def fails(message: str, history: list[dict[str, str]]) -> str:
    """Answers, or fails."""
    if message == "fail":
        raise ValueError("no")
    return f"{len(history)}"


LIBRARIES = ("a2a", "mcp", "sse_starlette", "uvicorn", "websockets", "aiohttp", "httpx", "httpcore")


@pytest.mark.parametrize("asked", [False, True])
@pytest.mark.parametrize("lane", ["websocket", "http", "mcp", "a2a"])
async def test_no_log_holds_a_token_or_a_session_id(lane: Any, asked: bool, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG)
    for library in LIBRARIES:
        caplog.set_level(logging.DEBUG if asked else logging.NOTSET, logger=library)
    logging.getLogger("tests").debug("everything is heard")
    secrets = [TOKEN, WRONG]
    env = AgentEnvironment(fails, name="agent-b", version="1.0.0", auth={TOKEN: ["chat", "orchestrate"]})
    with anyio.fail_after(30):
        async with env.serving() as server:
            withdraw(server.url)
            async with Environment(server.url, lane=lane, auth=TOKEN) as client:
                await client.chat("hello")
                assert client.session_id is not None
                secrets.append(client.session_id)
                async for _ in client.stream("again"):
                    pass
                with pytest.raises(AgentEnvError):
                    await client.chat("fail")
                await client.state()
                async with await client.fork() as copy:
                    assert copy.session_id is not None
                    secrets.append(copy.session_id)
                    await copy.chat("on")
                await client.reset(seed=1)
            lost = Environment(server.url, lane=lane, auth=TOKEN, session_id="s-of-nobody-that-is-known")
            with pytest.raises(AgentEnvError):
                await lost.chat("hello")
            secrets.append("s-of-nobody-that-is-known")
            with pytest.raises(AgentEnvError):
                await Environment(server.url, lane=lane, auth=WRONG).chat("hello")
            await close_sockets()
    if asked:
        # Whoever has the SDKs tell everything is told of the messages, and still of no token.
        secrets = [TOKEN, WRONG]
    assert "everything is heard" in caplog.text
    leaks = {
        (record.name, record.levelname, record.funcName)
        for record in caplog.records
        for secret in secrets
        if secret in record.getMessage() or secret in repr(record.args) or secret in (record.exc_text or "")
    }
    assert not leaks


async def test_no_log_holds_a_lease(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG)
    card = await AgentEnvironment(fails, name="agent-b", version="1.0.0").card()
    async with Hub.open() as hub:
        lease = await hub.register(card, "http://127.0.0.1:9")
        await hub.renew(lease.id, 0)
        await hub.release(lease.id)
    assert not [record for record in caplog.records if lease.id in record.getMessage()]
