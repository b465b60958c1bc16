"""A chat completion as a Responses answer, whole or event by event."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from typing import Any

from agent_env.errors import ProtocolError
from agent_env.gateway.dialects.responses import new_id
from agent_env.gateway.dialects.responses_request import as_chat
from agent_env.gateway.dialects.translation import Translation, as_text

_ECHOED = (
    *("instructions", "max_output_tokens", "metadata", "parallel_tool_calls", "reasoning", "temperature", "text"),
    *("tool_choice", "tools", "top_p", "truncation", "user"),
)
_DEFAULTS: Mapping[str, Any] = {"parallel_tool_calls": True, "tool_choice": "auto", "tools": [], "metadata": {}}


class ResponsesAsChat(Translation):
    """A Responses call that a chat completion answers.

    What the model said in one message becomes items in this order: its reasoning, its words, its calls of functions.
    """

    def __init__(self, request: Mapping[str, Any]) -> None:
        super().__init__()
        self.chat = as_chat(request)
        self._logprobs = bool(self.chat.get("logprobs"))
        echoed = {name: request.get(name, _DEFAULTS.get(name)) for name in _ECHOED}
        self._response: dict[str, Any] = {
            "id": new_id("resp"),
            "object": "response",
            "created_at": int(time.time()),
            "status": "in_progress",
            "model": request.get("model"),
            "output": [],
            "error": None,
            "incomplete_details": None,
            "usage": None,
            "previous_response_id": None,
            "store": False,
            **echoed,
        }
        self._number = 0
        self._begun = False
        self._finish_reason: str | None = None
        self._item: dict[str, Any] | None = None
        self._open: str | tuple[str, int] | None = None
        self._texts: list[str] = []
        self._entries: list[Any] = []

    def take(self, chunk: Mapping[str, Any]) -> None:
        if not self._begun:
            self._begun = True
            self._response["model"] = as_text(chunk.get("model")) or self._response["model"]
            for kind in ("response.created", "response.in_progress"):
                self._tell(kind, response=dict(self._response))
        if usage := chunk.get("usage"):
            self._response["usage"] = _usage(usage)
        for choice in chunk.get("choices") or ():
            if choice.get("index", 0) != 0:
                continue
            self._finish_reason = as_text(choice.get("finish_reason")) or self._finish_reason
            delta = choice.get("delta") or {}
            if said := as_text(delta.get("reasoning_content") or delta.get("reasoning")):
                self._say("reasoning", said, ())
            logprobs = (choice.get("logprobs") or {}).get("content") or () if self._logprobs else ()
            if said := as_text(delta.get("content") or delta.get("refusal")):
                self._say("message", said, logprobs)
            elif logprobs and self._open == "message":
                self._entries += logprobs  # a token without letters, such as the one that ends the answer
            for call in delta.get("tool_calls") or ():
                self._call(call)

    def end(self) -> dict[str, Any]:
        self._close(cut=self._finish_reason == "length")
        response = self._response
        reason = {"length": "max_output_tokens", "content_filter": "content_filter"}.get(self._finish_reason or "")
        response["status"] = "completed" if reason is None else "incomplete"
        if reason is not None:
            response["incomplete_details"] = {"reason": reason}
        else:
            response["completed_at"] = int(time.time())
        self._tell(f"response.{response['status']}", response=response)
        return response

    def _say(self, kind: str, said: str, logprobs: Sequence[Any]) -> None:
        if self._open != kind:
            self._begin(kind, _new_item(kind))
            part = _part(kind, "", [])
            self._tell_part("response.content_part.added", part=part)
        self._texts.append(said)
        self._entries += logprobs
        extra = {"logprobs": list(logprobs)} if kind == "message" else {}
        self._tell_part(f"response.{_part_name(kind)}.delta", delta=said, **extra)

    def _call(self, call: Mapping[str, Any]) -> None:
        place = "function_call", call.get("index", len(self._response["output"]))
        function = call.get("function") or {}
        if self._open != place:
            call_id, name = as_text(call.get("id")) or new_id("call"), as_text(function.get("name"))
            item = {"type": "function_call", "id": new_id("fc"), "call_id": call_id, "name": name}
            self._begin(place, {**item, "arguments": "", "status": "in_progress"})
        if arguments := as_text(function.get("arguments")):
            self._texts.append(arguments)
            self._tell_item("response.function_call_arguments.delta", delta=arguments)

    def _begin(self, place: str | tuple[str, int], item: dict[str, Any]) -> None:
        self._close()
        self._item, self._open = item, place
        output = self._response["output"]
        output.append(item)
        self._tell("response.output_item.added", output_index=len(output) - 1, item=dict(item))

    def _close(self, *, cut: bool = False) -> None:
        item = self._item
        if item is None:
            return
        text, entries = "".join(self._texts), self._entries
        self._texts, self._entries = [], []
        if item["type"] == "function_call":
            item["arguments"] = text
            self._tell_item("response.function_call_arguments.done", arguments=text, name=item["name"])
        else:
            kind = item["type"]
            extra = {"logprobs": entries} if kind == "message" else {}
            self._tell_part(f"response.{_part_name(kind)}.done", text=text, **extra)
            part = _part(kind, text, entries)
            self._tell_part("response.content_part.done", part=part)
            item["content"] = [part]
        item["status"] = "incomplete" if cut else "completed"
        self._tell("response.output_item.done", output_index=len(self._response["output"]) - 1, item=item)
        self._item = self._open = None

    def _tell_part(self, kind: str, **fields: Any) -> None:
        self._tell_item(kind, content_index=0, **fields)

    def _tell_item(self, kind: str, **fields: Any) -> None:
        if self._item is None:
            raise ProtocolError("an event of an item was told outside of one")
        self._tell(kind, item_id=self._item["id"], output_index=len(self._response["output"]) - 1, **fields)

    def _tell(self, kind: str, **fields: Any) -> None:
        self.write(kind, {"sequence_number": self._number, **fields})
        self._number += 1


def _new_item(kind: str) -> dict[str, Any]:
    if kind == "reasoning":
        return {"type": kind, "id": new_id("rs"), "summary": [], "content": [], "status": "in_progress"}
    return {"type": kind, "id": new_id("msg"), "role": "assistant", "content": [], "status": "in_progress"}


def _part_name(kind: str) -> str:
    return "reasoning_text" if kind == "reasoning" else "output_text"


def _part(kind: str, text: str, logprobs: list[Any]) -> dict[str, Any]:
    if kind == "reasoning":
        return {"type": "reasoning_text", "text": text}
    return {"type": "output_text", "text": text, "annotations": [], "logprobs": logprobs}


def _usage(usage: Mapping[str, Any]) -> dict[str, Any]:
    prompt, sampled = usage.get("prompt_tokens") or 0, usage.get("completion_tokens") or 0
    cached = (usage.get("prompt_tokens_details") or {}).get("cached_tokens") or 0
    reasoned = (usage.get("completion_tokens_details") or {}).get("reasoning_tokens") or 0
    return {
        "input_tokens": prompt,
        "input_tokens_details": {"cached_tokens": cached},
        "output_tokens": sampled,
        "output_tokens_details": {"reasoning_tokens": reasoned},
        "total_tokens": prompt + sampled,
    }
