"""OpenAI Responses, with vLLM's raw messages, which hold the token ids."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from typing import Any

from agent_env.context import new_call_id
from agent_env.episodes import CallRecord
from agent_env.errors import AgentEnvError
from agent_env.gateway.capture import StreamCapture, keep_tokens
from agent_env.gateway.dialects.contract import Dialect, event_of
from agent_env.gateway.http import dump

LOGPROBS = "message.output_text.logprobs"
"""The member of `include` that asks for logprobs."""

_ENDS = ("response.completed", "response.incomplete", "response.failed")


class Responses(Dialect):
    """`POST …/v1/responses`."""

    name = "responses"
    path = "responses"
    what = "response"
    passed_on = (b"openai-beta",)

    def ask_for_tokens(self, body: dict[str, Any]) -> None:
        include = body.get("include")
        asked = list(include) if isinstance(include, list) else []
        body["include"] = asked if LOGPROBS in asked else [*asked, LOGPROBS]
        body["enable_response_messages"] = True

    def wants_logprobs(self, body: Mapping[str, Any]) -> bool:
        include = body.get("include")
        return isinstance(include, list) and LOGPROBS in include

    def capture(self, record: CallRecord, response: dict[str, Any], *, keep_logprobs: bool) -> None:
        record.response = response
        record.policy_version = response.pop("policy_version", None)
        record.usage = chat_usage(response.get("usage"))
        record.finish_reason = _finish_reason(response)
        prompt, sampled = response.pop("input_messages", None), response.pop("output_messages", None)
        count = (record.usage or {}).get("completion_tokens")
        keep_tokens(record, "prompt_token_ids", prompt, _raw_tokens)
        keep_tokens(record, "token_ids", sampled, lambda told: _raw_tokens(told, count))
        entries: list[Any] = []
        for item in response["output"]:
            for part in item.get("content") or () if item["type"] == "message" else ():
                entries.append(part.get("logprobs"))
                if not keep_logprobs:
                    part.pop("logprobs", None)
        keep_tokens(record, "logprobs", entries, _logprobs)

    def stream(self, watch: Callable[[dict[str, Any]], None] | None = None) -> StreamCapture:
        return ResponsesStream(watch)

    def events(self, response: Mapping[str, Any], request: Mapping[str, Any]) -> bytes:
        begun = {**response, "status": "in_progress", "output": [], "usage": None, "incomplete_details": None}
        begun = {name: value for name, value in begun.items() if name not in _RAW}
        told: list[dict[str, Any]] = [
            {"type": kind, "response": begun} for kind in ("response.created", "response.in_progress")
        ]
        for index, item in enumerate(response["output"]):
            told += [{"output_index": index, **event} for event in _item_events(item)]
        last = f"response.{response.get('status')}"
        told.append({"type": last if last in _ENDS else _ENDS[0], "response": response})
        return b"".join(event_of({"sequence_number": n, **event}, event["type"]) for n, event in enumerate(told))

    def broken(self, error: AgentEnvError) -> bytes:
        wire = error.to_wire()
        event = {"type": "error", "code": wire["code"], "message": wire["message"], "param": None, "error": wire}
        return b"event: error\ndata: " + dump({**event, "sequence_number": -1}) + b"\n\n"


_RAW = frozenset({"input_messages", "output_messages"})

_TEXTS: Mapping[str, tuple[str, str]] = {
    "output_text": ("response.output_text", "text"),
    "refusal": ("response.refusal", "refusal"),
    "reasoning_text": ("response.reasoning_text", "text"),
}
"""The parts of items whose text comes in deltas: how these events begin, and where the text is."""


def _item_events(item: Mapping[str, Any]) -> list[dict[str, Any]]:
    """The events of one item of an answer; an item that clients know no deltas of comes whole."""
    begun, told, place = {**item}, list[dict[str, Any]](), {"item_id": item.get("id", "")}
    if isinstance(arguments := item.get("arguments"), str) and item["type"] == "function_call":
        begun |= {"arguments": "", "status": "in_progress"}
        kind = "response.function_call_arguments"
        told += [
            {"type": f"{kind}.delta", **place, "delta": arguments},
            {"type": f"{kind}.done", **place, "arguments": arguments, "name": item.get("name")},
        ]
    elif isinstance(parts := item.get("content"), list) and item["type"] in ("message", "reasoning"):
        begun |= {"content": [], "status": "in_progress"}
        for index, part in enumerate(parts):
            told += [{**place, "content_index": index, **event} for event in _part_events(part)]
    first, last = ({"type": f"response.output_item.{kind}"} for kind in ("added", "done"))
    return [{**first, "item": begun}, *told, {**last, "item": item}]


def _part_events(part: Mapping[str, Any]) -> list[dict[str, Any]]:
    begun, told = {**part}, list[dict[str, Any]]()
    if part["type"] in _TEXTS:
        kind, name = _TEXTS[part["type"]]
        text, logprobs = part[name], {}
        begun[name] = ""
        if kind == "response.output_text":
            begun["logprobs"] = []
            logprobs = {"logprobs": part.get("logprobs") or []}
        told = [
            {"type": f"{kind}.delta", "delta": text, **logprobs},
            {"type": f"{kind}.done", name: text, **logprobs},
        ]
    first, last = ({"type": f"response.content_part.{kind}"} for kind in ("added", "done"))
    return [{**first, "part": begun}, *told, {**last, "part": part}]


class ResponsesStream(StreamCapture):
    """The events of a streamed response: the last one has the whole of it."""

    what = "event of a streamed response"

    def __init__(self, watch: Callable[[dict[str, Any]], None] | None = None) -> None:
        super().__init__(watch)
        self._response: dict[str, Any] = {}
        self._items: dict[int, Any] = {}
        self._texts: dict[int, list[str]] = {}

    def take(self, event: dict[str, Any]) -> None:
        kind = event["type"]
        if isinstance(response := event.get("response"), dict):
            self._response = response
        if kind in ("response.output_item.added", "response.output_item.done"):
            self._items[event["output_index"]] = event["item"]
        elif kind == "response.output_text.delta":
            self._texts.setdefault(event["output_index"], []).append(event["delta"])
        elif kind in _ENDS:
            self.done = True

    def finish(self) -> dict[str, Any]:
        """The whole response; of one that broke, the items as far as they came."""
        if not self.done:
            self._response["output"] = [self._item(index) for index in sorted(self._items)]
        return self._response

    def _item(self, index: int) -> Any:
        item, texts = self._items[index], self._texts.get(index)
        if texts is None or not isinstance(item, dict) or item.get("content"):
            return item
        return {**item, "content": [{"type": "output_text", "text": "".join(texts), "annotations": []}]}


def new_id(kind: str) -> str:
    """A new id as OpenAI's are: `resp_…`, `msg_…`."""
    return f"{kind}_{new_call_id()}{new_call_id()}"


def chat_usage(usage: Any) -> dict[str, Any] | None:
    """Usage as responses and messages tell it, in the words of chat completions."""
    if not isinstance(usage, dict):
        return None
    counts = [usage.get(name) or 0 for name in ("input_tokens", *_CACHED)]
    prompt, sampled = sum(counts), usage.get("output_tokens") or 0
    return {"prompt_tokens": prompt, "completion_tokens": sampled, "total_tokens": prompt + sampled}


_CACHED = ("cache_read_input_tokens", "cache_creation_input_tokens")
"""Parts of the prompt that messages count apart."""


def _finish_reason(response: Mapping[str, Any]) -> str | None:
    if response.get("status") == "completed":
        calls = any(item["type"] == "function_call" for item in response["output"])
        return "tool_calls" if calls else "stop"
    details = response.get("incomplete_details") or {}
    reason = details.get("reason")
    return "length" if reason == "max_output_tokens" else reason


def _logprobs(told: list[Any]) -> list[Any] | None:
    """The logprobs of all parts; a server that leaves them out tells an empty list."""
    return [entry["logprob"] for entries in told if entries is not None for entry in entries] or None


def _raw_tokens(messages: Any, count: int | None = None) -> list[int] | None:
    """The tokens of vLLM's raw messages. At the end of a stream each is a text of JSON, and the sampled ones are there
    chunk by chunk. With tools that the server calls itself it puts what the tools said between: then there are more
    tokens than the `count` that it sampled, which cannot be told apart."""
    if not isinstance(messages, list) or not messages:
        return None
    told = [json.loads(message) if isinstance(message, str) else message for message in messages]
    if any(message.get("type") != "raw_message_tokens" for message in told):
        return None
    tokens = [token for message in told for token in message["tokens"]]
    return tokens if len(told) == 1 or len(tokens) == count else None
