"""The chat-completions dialect: one request, its reply streamed or whole, and nothing about agents."""

from __future__ import annotations

import json
from collections.abc import AsyncGenerator, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from agent_env_wrappers.contract import AgentError, Json, TextDelta, Usage
from agent_env_wrappers.retries import passes

if TYPE_CHECKING:
    from aiohttp import ClientResponse


@dataclass(slots=True)
class Completion:
    """A model's reply, filled while it is read; `calls` are tool calls `{id, name, arguments}` with JSON text."""

    text: str = ""
    calls: list[dict[str, str]] = field(default_factory=list[dict[str, str]])
    model: str = ""
    finish_reason: str | None = None
    usage: Usage | None = None

    @property
    def message(self) -> dict[str, Json]:
        """The reply as the assistant's message of the next request."""
        if not self.calls:
            return {"role": "assistant", "content": self.text}
        calls = [
            {
                "id": call["id"],
                "type": "function",
                "function": {"name": call["name"], "arguments": call["arguments"] or "{}"},
            }
            for call in self.calls
        ]
        return {"role": "assistant", "content": self.text or None, "tool_calls": calls}

    def add(self, chunk: Mapping[str, Json], part: str) -> TextDelta | None:
        """Takes a chunk's `delta` or a response's `message`; returns the new piece of text, if it has one."""
        if chunk.get("error"):
            raise AgentError("the agent's model broke off with an error", kind="model", retryable=True)
        self.model = chunk.get("model") or self.model
        used = chunk.get("usage")
        if used:
            self.usage = Usage(used.get("prompt_tokens") or 0, used.get("completion_tokens") or 0, 1)
        choices = chunk.get("choices") or ()
        if not choices:
            return None
        self.finish_reason = choices[0].get("finish_reason") or self.finish_reason
        said: Mapping[str, Any] = choices[0].get(part) or {}
        for position, call in enumerate(said.get("tool_calls") or ()):
            self._add_call(call.get("index", position), call)
        if thought := said.get("reasoning_content") or said.get("reasoning"):
            return TextDelta(thought, "thought")
        text = said.get("content") or said.get("refusal") or ""
        self.text += text
        return TextDelta(text) if text else None

    def _add_call(self, index: int, call: Mapping[str, Any]) -> None:
        while len(self.calls) <= index:
            self.calls.append({"id": f"call_{len(self.calls)}", "name": "", "arguments": ""})
        mine, function = self.calls[index], call.get("function") or {}
        mine["id"] = call.get("id") or mine["id"]
        mine["name"] += function.get("name") or ""
        mine["arguments"] += function.get("arguments") or ""


async def read(response: ClientResponse, completion: Completion) -> AsyncGenerator[TextDelta]:
    """Reads a response into `completion`, yielding its text as it comes; raises `AgentError` of kind "model"."""
    if response.status != 200:
        raise AgentError(
            f"the agent's model answered HTTP {response.status}",
            kind="model",
            retryable=passes(response.status),
        )
    try:
        if response.content_type != "text/event-stream":
            completion.add(await response.json(content_type=None), "message")
            if completion.text:
                yield TextDelta(completion.text)
            return
        async for line in response.content:
            data = line.strip().removeprefix(b"data:").strip() if line.startswith(b"data:") else b""
            if data == b"[DONE]":
                break
            if data and (delta := completion.add(json.loads(data), "delta")):
                yield delta
    except (ValueError, TypeError, AttributeError, LookupError) as error:
        raise AgentError("the agent's model answered what is no chat completion", kind="model") from error
    if completion.finish_reason is None:
        raise AgentError("the agent's model broke off in the middle of its reply", kind="model", retryable=True)
