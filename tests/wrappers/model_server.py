"""An OpenAI-compatible model server whose replies prove what it was sent.

It speaks chat completions over a real socket, streamed or whole. What it says is a rule of the request:

| the last user message | reply |
|---|---|
| anything | `seen=<n>`, with the number of user messages in the request |
| has `call <tool>` and the tool is offered | a call of it; after its result: `<tool> said [<result>] seen=<n>` |
| has `twice <tool>` | two calls of it at once |
| has `hang` | never; `hanging` is set once the request is there |
| has `boom <status>` | that status |
| has `break` | the connection breaks in the middle of the stream |
| has `cut` | a reply with finish_reason `length` |
| has `garbage` | what is no chat completion |
| has `think` | a reply after some reasoning |
| begins with `say ` | the rest of it, word for word |

Under `/words/<word>/v1` each reply begins with the word.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any, Self

from aiohttp import web
from openai import AsyncOpenAI

from agent_env_wrappers.contract import ModelRoute


@dataclass
class Asked:
    """One request as it came."""

    word: str
    headers: dict[str, str]
    body: dict[str, Any]

    @property
    def key(self) -> str:
        return self.headers.get("Authorization", "").removeprefix("Bearer ")


@dataclass
class ModelServer:
    """The server; `asked` has the requests in their order."""

    asked: list[Asked] = field(default_factory=list)
    hanging: asyncio.Event = field(default_factory=asyncio.Event)
    url: str = ""
    _runner: web.AppRunner | None = None
    _clients: list[AsyncOpenAI] = field(default_factory=list)

    async def __aenter__(self) -> Self:
        app = web.Application()
        app.router.add_post("/v1/chat/completions", self._answer)
        app.router.add_post("/words/{word}/v1/chat/completions", self._answer)
        self._runner = web.AppRunner(app, handler_cancellation=True, shutdown_timeout=0.2)
        await self._runner.setup()
        site = web.TCPSite(self._runner, "127.0.0.1", 0)
        await site.start()
        host, port = self._runner.addresses[0]
        self.url = f"http://{host}:{port}/v1"
        return self

    async def __aexit__(self, *_: object) -> None:
        for client in self._clients:
            await client.close()
        assert self._runner is not None
        await self._runner.cleanup()

    def client(self, route: ModelRoute | None = None) -> AsyncOpenAI:
        """An agent's own client of this server, closed with it."""
        there = route or ModelRoute(self.url, "own-model", "own-key")
        client = AsyncOpenAI(base_url=there.base_url, api_key=there.api_key, max_retries=0)
        self._clients.append(client)
        return client

    def route(self, word: str) -> ModelRoute:
        """A route to this server whose replies begin with the word."""
        return ModelRoute(f"{self.url.removesuffix('/v1')}/words/{word}/v1", f"{word}-model", f"key-of-{word}")

    async def _answer(self, request: web.Request) -> web.StreamResponse:
        body = await request.json()
        word = request.match_info.get("word", "")
        self.asked.append(Asked(word, dict(request.headers), body))
        said = [text(message["content"]) for message in body["messages"] if message["role"] == "user"]
        last = said[-1]
        if "hang" in last:
            self.hanging.set()
            await asyncio.Event().wait()
        if "boom" in last:
            status = int(last.split("boom ")[1].split()[0])
            return web.json_response({"error": {"message": "secret of the model", "type": "bad"}}, status=status)
        if "garbage" in last:
            return web.json_response(["no", "completion"])
        message, reason = reply(body, said, word)
        facts = {"id": "c", "created": 1, "model": body["model"]}
        usage = {"prompt_tokens": 10, "completion_tokens": 7, "total_tokens": 17}
        if not body.get("stream"):
            choice = {"index": 0, "message": message, "finish_reason": reason}
            return web.json_response({**facts, "object": "chat.completion", "choices": [choice], "usage": usage})
        response = web.StreamResponse(headers={"Content-Type": "text/event-stream"})
        await response.prepare(request)
        for delta in deltas(message, last):
            await send(response, facts, [{"index": 0, "delta": delta, "finish_reason": None}])
            if "break" in last:
                assert request.transport is not None
                request.transport.abort()
                return response
        await send(response, facts, [{"index": 0, "delta": {}, "finish_reason": reason}])
        if (body.get("stream_options") or {}).get("include_usage"):
            await send(response, facts, [], usage)
        await response.write(b"data: [DONE]\n\n")
        return response


def text(content: Any) -> str:
    """A message's text, which may be made of parts."""
    return content if isinstance(content, str) else " ".join(part.get("text", "") for part in content or ())


def reply(body: dict[str, Any], said: list[str], word: str) -> tuple[dict[str, Any], str]:
    """The assistant's message and why it ends."""
    count = f"{word} seen={len(said)}".strip()
    offered = {tool["function"]["name"]: tool["function"] for tool in body.get("tools") or ()}
    last_user = max(index for index, message in enumerate(body["messages"]) if message["role"] == "user")
    results = [text(message["content"]) for message in body["messages"][last_user:] if message["role"] == "tool"]
    words = said[-1].split()
    for verb, times in (("call", 1), ("twice", 2)):
        if verb not in words:
            continue
        name = words[words.index(verb) + 1]
        if results:
            return {"role": "assistant", "content": f"{name} said [{' | '.join(results)}] {count}"}, "stop"
        if name in offered:
            calls = [tool_call(offered[name], f"call_{len(body['messages'])}_{index}") for index in range(times)]
            return {"role": "assistant", "content": None, "tool_calls": calls}, "tool_calls"
    if said[-1].startswith("say "):
        return {"role": "assistant", "content": said[-1].removeprefix("say ")}, "stop"
    return {"role": "assistant", "content": count}, "length" if "cut" in said[-1] else "stop"


def tool_call(function: dict[str, Any], call_id: str) -> dict[str, Any]:
    """A call of a tool with "hi" for each text that it requires, and for handoffs nothing."""
    required = function.get("parameters", {}).get("required", ())
    arguments = json.dumps(dict.fromkeys(required, "hi"))
    return {"id": call_id, "type": "function", "function": {"name": function["name"], "arguments": arguments}}


def deltas(message: dict[str, Any], last: str) -> Iterator[dict[str, Any]]:
    """The message in pieces."""
    yield {"role": "assistant", "content": ""}
    if "think" in last:
        yield {"reasoning_content": "let me "}
        yield {"reasoning_content": "see"}
    for index, call in enumerate(message.get("tool_calls", ())):
        arguments = call["function"]["arguments"]
        yield {"tool_calls": [{"index": index, **call, "function": {**call["function"], "arguments": ""}}]}
        yield {"tool_calls": [{"index": index, "function": {"arguments": arguments}}]}
    content = message["content"] or ""
    for start in range(0, len(content), 4):
        yield {"content": content[start : start + 4]}


async def send(
    response: web.StreamResponse, facts: dict[str, Any], choices: list[Any], usage: dict[str, int] | None = None
) -> None:
    chunk = {**facts, "object": "chat.completion.chunk", "choices": choices, "usage": usage}
    await response.write(b"data: " + json.dumps(chunk).encode() + b"\n\n")
