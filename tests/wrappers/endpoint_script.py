"""A model server that follows a script, byte by byte, and an endpoint as an agent that asks it."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

import anyio

from agent_env_wrappers.openai_endpoint import OpenAIEndpoint, OpenAIEndpointWrapper

SOON = "retry-after-ms: 1"


def answer(status: int, *headers: str, body: bytes = b"{}", length: int | None = None) -> bytes:
    """An HTTP answer; of a `length` that is more than its body has, the rest never comes."""
    known = (f"Content-Length: {len(body) if length is None else length}", *headers)
    kind = () if "Content-Type" in str(headers) else ("Content-Type: application/json",)
    return "\r\n".join((f"HTTP/1.1 {status} X", *known, *kind, "", "")).encode() + body


def said(text: str, **message: Any) -> bytes:
    """A chat completion."""
    choice = {"index": 0, "message": {"role": "assistant", "content": text, **message}, "finish_reason": "stop"}
    return answer(200, body=json.dumps({"choices": [choice]}).encode())


@dataclass
class Script:
    """A server that gives one answer after the other, whatever it is asked; an empty one hangs up.

    `answered` is set once it has answered, `left` once a caller closed a connection.
    """

    answers: list[bytes]
    asked: list[tuple[dict[str, str], bytes]] = field(default_factory=list)
    answered: asyncio.Event = field(default_factory=asyncio.Event)
    left: asyncio.Event = field(default_factory=asyncio.Event)
    url: str = ""

    @property
    def marks(self) -> list[str | None]:
        return [headers.get("agent-env-retry-count") for headers, _ in self.asked]

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while lines := (await reader.readuntil(b"\r\n\r\n")).decode().splitlines()[1:-1]:
                headers = {name.lower(): value for name, value in (line.split(": ", 1) for line in lines)}
                self.asked.append((headers, await reader.readexactly(int(headers["content-length"]))))
                assert self.answers, "asked once more than it has answers"
                given = self.answers.pop(0)
                writer.write(given)
                if not given:
                    break
                await writer.drain()
                self.answered.set()
        except asyncio.IncompleteReadError:
            self.left.set()
        finally:
            writer.close()


@asynccontextmanager
async def endpoint(*answers: bytes, **options: Any) -> AsyncIterator[tuple[Script, OpenAIEndpointWrapper]]:
    """A server with these answers, and an agent that asks it."""
    script = Script(list(answers))
    server = await asyncio.start_server(script.serve, "127.0.0.1", 0)
    async with server:
        script.url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}/v1"
        wrapper = OpenAIEndpointWrapper(OpenAIEndpoint(script.url, "m", "key", **options))
        try:
            with anyio.fail_after(20):
                yield script, wrapper
        finally:
            await wrapper.aclose()
