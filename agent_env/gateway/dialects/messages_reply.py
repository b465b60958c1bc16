"""A chat completion as a Messages answer, whole or event by event."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from agent_env.gateway.dialects.messages_request import as_chat
from agent_env.gateway.dialects.responses import new_id
from agent_env.gateway.dialects.translation import Translation, as_text

_STOP_REASONS = {"stop": "end_turn", "length": "max_tokens", "tool_calls": "tool_use", "content_filter": "refusal"}


class MessagesAsChat(Translation):
    """A Messages call that a chat completion answers.

    The arguments of a tool are told in one delta at their end. Models may sample what is no JSON object, which this
    dialect cannot say: such a text is told as `{"INVALID_JSON": text}`.
    """

    def __init__(self, request: Mapping[str, Any]) -> None:
        super().__init__()
        self.chat = as_chat(request)
        self._message: dict[str, Any] = {
            "id": new_id("msg"),
            "type": "message",
            "role": "assistant",
            "model": request.get("model"),
            "content": [],
            "stop_reason": None,
            "stop_sequence": None,
            "usage": {"input_tokens": 0, "output_tokens": 0},
        }
        self._begun = False
        self._finish_reason: str | None = None
        self._open: str | tuple[str, int] | None = None
        self._texts: list[str] = []

    def take(self, chunk: Mapping[str, Any]) -> None:
        usage = self._message["usage"]
        if not self._begun:
            self._begun = True
            self._message["model"] = as_text(chunk.get("model")) or self._message["model"]
            usage["input_tokens"] = len(chunk.get("prompt_token_ids") or ())
            self.write("message_start", {"message": {**self._message, "usage": dict(usage)}})
        if told := chunk.get("usage"):
            usage.update(_usage(told))
        for choice in chunk.get("choices") or ():
            if choice.get("index", 0) != 0:
                continue
            self._finish_reason = as_text(choice.get("finish_reason")) or self._finish_reason
            if isinstance(stopped := choice.get("stop_reason"), str):
                self._message["stop_sequence"] = stopped  # vLLM tells which one it was
            delta = choice.get("delta") or {}
            if said := as_text(delta.get("reasoning_content") or delta.get("reasoning")):
                self._say("thinking", "thinking_delta", said)
            if said := as_text(delta.get("content") or delta.get("refusal")):
                self._say("text", "text_delta", said)
            for call in delta.get("tool_calls") or ():
                self._call(call)

    def end(self) -> dict[str, Any]:
        self._close()
        message = self._message
        reason = _STOP_REASONS.get(self._finish_reason or "", self._finish_reason)
        message["stop_reason"] = "stop_sequence" if message["stop_sequence"] is not None else reason
        delta = {"stop_reason": message["stop_reason"], "stop_sequence": message["stop_sequence"]}
        self.write("message_delta", {"delta": delta, "usage": message["usage"]})
        self.write("message_stop", {})
        return message

    def _say(self, kind: str, delta: str, said: str) -> None:
        if self._open != kind:
            signed = {"signature": ""} if kind == "thinking" else {}
            self._begin(kind, {"type": kind, kind: "", **signed})
        self._texts.append(said)
        self._tell("content_block_delta", delta={"type": delta, kind: said})

    def _call(self, call: Mapping[str, Any]) -> None:
        place = "tool_use", call.get("index", len(self._message["content"]))
        function = call.get("function") or {}
        if self._open != place:
            call_id, name = as_text(call.get("id")) or new_id("toolu"), as_text(function.get("name"))
            self._begin(place, {"type": "tool_use", "id": call_id, "name": name, "input": {}})
        self._texts.append(as_text(function.get("arguments")) or "")

    def _begin(self, place: str | tuple[str, int], block: dict[str, Any]) -> None:
        self._close()
        self._open = place
        self._message["content"].append(block)
        self._tell("content_block_start", content_block=dict(block))

    def _close(self) -> None:
        if self._open is None:
            return
        text = "".join(self._texts)
        self._texts.clear()
        block = self._message["content"][-1]
        if block["type"] == "tool_use":
            block["input"] = _arguments(text)
            partial = json.dumps(block["input"], ensure_ascii=False)
            self._tell("content_block_delta", delta={"type": "input_json_delta", "partial_json": partial})
        else:
            block[block["type"]] = text
        self._tell("content_block_stop")
        self._open = None

    def _tell(self, kind: str, **fields: Any) -> None:
        self.write(kind, {"index": len(self._message["content"]) - 1, **fields})


def _arguments(text: str) -> dict[str, Any]:
    try:
        arguments = json.loads(text or "{}")
    except (ValueError, RecursionError):
        arguments = None
    return arguments if isinstance(arguments, dict) else {"INVALID_JSON": text}


def _usage(usage: Mapping[str, Any]) -> dict[str, Any]:
    cached = (usage.get("prompt_tokens_details") or {}).get("cached_tokens") or 0
    return {
        # What was read from the cache is counted apart in this dialect.
        "input_tokens": (usage.get("prompt_tokens") or 0) - cached,
        "cache_read_input_tokens": cached,
        "cache_creation_input_tokens": 0,
        "output_tokens": usage.get("completion_tokens") or 0,
    }
