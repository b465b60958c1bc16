"""The graph of real conversations: SDKs of others, through a gateway, send back what they were answered."""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import anyio
import pytest
from anthropic import AsyncAnthropic
from openai import AsyncOpenAI

from agent_env.context import Run
from agent_env.episodes import Episode, MessageNode, message_graph, paths
from agent_env.gateway import Gateway, RunHandle, SeatPolicy, running

pytestmark = pytest.mark.anyio

Json = Any
OPEN, CLOSE = 1, 2
SCHEMA: Json = {"type": "object", "properties": {"word": {"type": "string"}}}
CALL = {"id": "call_1", "type": "function", "function": {"name": "look_up", "arguments": '{"word": "boat"}'}}


def render(message: Json) -> list[int]:
    """The tokens of a message: its role, its text, and the functions that it calls."""
    content = message.get("content") or ""
    text = content if isinstance(content, str) else "".join(part["text"] for part in content)
    calls = [
        (call["function"]["name"], json.loads(call["function"]["arguments"]))
        for call in message.get("tool_calls") or ()
    ]
    return [OPEN, *map(ord, message["role"]), 3, *map(ord, text + (json.dumps(calls) if calls else "")), CLOSE]


async def model(scope: Json, receive: Json, send: Json) -> None:
    """A model server that looks a word up, and says what it was told once it has been told."""
    body = b""
    while True:
        event = await receive()
        body += event["body"]
        if not event.get("more_body"):
            break
    asked = json.loads(body)["messages"]
    said: Json = {"role": "assistant", "content": None, "tool_calls": [CALL]}
    if asked[-1]["role"] == "tool":
        said = {"role": "assistant", "content": "a ship", "refusal": None, "annotations": []}
    elif len(asked) > 3:
        said = {"role": "assistant", "content": "bye"}
    opening = [OPEN, *map(ord, "assistant"), 3]
    sampled = render(said)[len(opening) :]
    choice = {"index": 0, "message": said, "finish_reason": "stop", "token_ids": sampled}
    answer = {
        "id": f"chatcmpl-{len(asked)}",
        "object": "chat.completion",
        "created": 1,
        "model": "m",
        "prompt_token_ids": [token for message in asked for token in render(message)] + opening,
        "choices": [choice | {"logprobs": {"content": [{"token": "x", "logprob": -0.5} for _ in sampled]}}],
        "usage": {"prompt_tokens": 1, "completion_tokens": 1, "total_tokens": 2},
    }
    head = [(b"content-type", b"application/json")]
    await send({"type": "http.response.start", "status": 200, "headers": head})
    await send({"type": "http.response.body", "body": json.dumps(answer).encode()})


async def talk_chat(seen: Run, key: str) -> None:
    tools: Json = [{"type": "function", "function": {"name": "look_up", "parameters": SCHEMA}}]
    messages: Json = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "boat?"}]
    async with AsyncOpenAI(base_url=seen.model_url("t1"), api_key=key, max_retries=0) as client:

        async def ask() -> None:
            answer = await client.chat.completions.create(model="x", messages=messages, tools=tools)
            messages.append(answer.choices[0].message)

        await ask()
        messages.append({"role": "tool", "tool_call_id": "call_1", "content": "a ship"})
        await ask()
        messages.append({"role": "user", "content": "bye"})
        await ask()


async def talk_responses(seen: Run, key: str) -> None:
    tools: Json = [{"type": "function", "name": "look_up", "parameters": SCHEMA, "strict": False}]
    items: Json = [{"role": "user", "content": "boat?"}]
    async with AsyncOpenAI(base_url=seen.model_url("t1"), api_key=key, max_retries=0) as client:

        async def ask() -> None:
            answer = await client.responses.create(model="x", input=items, tools=tools, instructions="Be brief.")
            items.extend(answer.output)

        await ask()
        items.append({"type": "function_call_output", "call_id": items[-1].call_id, "output": "a ship"})
        await ask()
        items.append({"role": "user", "content": "bye"})
        await ask()


async def talk_messages(seen: Run, key: str) -> None:
    tools: Json = [{"name": "look_up", "input_schema": SCHEMA}]
    messages: Json = [{"role": "user", "content": "boat?"}]
    base = seen.model_url("t1").removesuffix("/v1")
    async with AsyncAnthropic(base_url=base, api_key=key, max_retries=0) as client:

        async def ask() -> Json:
            answer = await client.messages.create(
                model="x", max_tokens=99, messages=messages, tools=tools, system="Be brief."
            )
            messages.append({"role": "assistant", "content": answer.content})
            return answer

        asked = await ask()
        result = {"type": "tool_result", "tool_use_id": asked.content[-1].id, "content": "a ship"}
        messages.append({"role": "user", "content": [result]})
        await ask()
        messages.append({"role": "user", "content": "bye"})
        await ask()


async def recorded(folder: Path, talk: Callable[[Run, str], Awaitable[None]]) -> list[MessageNode]:
    app = Gateway(folder, admin_token="admin")
    async with running(model) as upstream, running(app) as gateway:
        seats = {"a": SeatPolicy("A", (f"{upstream}/v1",))}
        async with await RunHandle.open(gateway, "admin", seats, keep_journal=False) as run:
            seen = run.episode("e1", "a")
            assert seen.route is not None
            await talk(seen, seen.route.token)
            episode = Episode("e1")
            episode.add((await run.collect(["e1"]))["e1"])
    app.close()
    (trace,) = episode.traces
    assert len(trace.calls) == 3
    return message_graph(trace)


@pytest.mark.parametrize("talk", [talk_chat, talk_responses, talk_messages])
async def test_a_conversation_in_any_dialect_is_one_path_with_the_tokens_of_the_model(
    tmp_path: Path, talk: Callable[[Run, str], Awaitable[None]]
) -> None:
    with anyio.fail_after(60):
        (path,) = paths(await recorded(tmp_path, talk))
    assert [node.sampled for node in path] == [False, False, True, False, True, False, True]
    words = [
        *({"role": "system", "content": "Be brief."}, {"role": "user", "content": "boat?"}),
        *({"role": "assistant", "tool_calls": [CALL]}, {"role": "tool", "content": "a ship"}),
        *({"role": "assistant", "content": "a ship"}, {"role": "user", "content": "bye"}),
        {"role": "assistant", "content": "bye"},
    ]
    assert [token for node in path for token in node.token_ids] == [token for word in words for token in render(word)]
    for node in path:
        assert len(node.mask) == len(node.token_ids) and len(node.logprobs) == sum(node.mask)
        assert bool(node.logprobs) == node.sampled
