"""Run by an interpreter with mcp 1.x: serves tools with the stock server, which keeps a session for each connection."""

import socket
import sys
from collections import Counter

import anyio
import uvicorn
from mcp.server.fastmcp import Context, FastMCP

server = FastMCP("old", log_level="ERROR")
turns: Counter = Counter()


@server.tool()
async def ask(prompt: str, context: Context) -> str:
    """Answers a prompt, and counts the prompts of each session."""
    turns[id(context.session)] += 1
    await context.report_progress(1, None, "thinking")
    return f"[{turns[id(context.session)]}] {prompt}"


@server.tool()
async def add(a: int, b: int) -> int:
    """Adds two numbers."""
    return a + b


@server.tool()
async def fail() -> str:
    """Fails."""
    raise ValueError("the tool has failed")


with socket.socket() as listening:
    listening.bind(("127.0.0.1", 0))
    listening.listen()
    print(listening.getsockname()[1], flush=True)
    config = uvicorn.Config(server.streamable_http_app(), log_level="error")
    anyio.run(uvicorn.Server(config).serve, [listening])
    sys.exit()
