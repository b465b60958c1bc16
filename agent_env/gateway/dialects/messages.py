"""Anthropic Messages."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from agent_env.episodes import CallRecord
from agent_env.errors import AgentEnvError
from agent_env.gateway.capture import StreamCapture
from agent_env.gateway.dialects.contract import Dialect, event_of
from agent_env.gateway.dialects.responses import chat_usage
from agent_env.gateway.http import dump, dump_read, parse

FINISH_REASONS = {
    "end_turn": "stop",
    "stop_sequence": "stop",
    "max_tokens": "length",
    "tool_use": "tool_calls",
    "refusal": "content_filter",
}
"""Why an answer ended, in the words of chat completions."""

_KINDS = {
    400: "invalid_request_error",
    401: "authentication_error",
    403: "permission_error",
    404: "not_found_error",
    413: "request_too_large",
    422: "invalid_request_error",
    429: "rate_limit_error",
    501: "invalid_request_error",
    504: "timeout_error",
}


class Messages(Dialect):
    """`POST …/v1/messages`."""

    name = "messages"
    path = "messages"
    what = "message"
    tells = ()
    passed_on = (b"anthropic-version", b"anthropic-beta")

    def ask_for_tokens(self, body: dict[str, Any]) -> None:
        """There is no field for it; the record says so."""

    def wants_logprobs(self, body: Mapping[str, Any]) -> bool:
        return False

    def capture(self, record: CallRecord, response: dict[str, Any], *, keep_logprobs: bool) -> None:
        record.response = response
        record.policy_version = response.pop("policy_version", None)
        record.usage = chat_usage(response.get("usage"))
        if not isinstance(response["content"], list):
            raise TypeError
        reason = response.get("stop_reason")
        record.finish_reason = FINISH_REASONS.get(str(reason), reason)

    def stream(self, watch: Callable[[dict[str, Any]], None] | None = None) -> StreamCapture:
        return MessagesStream(watch)

    def events(self, response: Mapping[str, Any], request: Mapping[str, Any]) -> bytes:
        usage = {"input_tokens": 0, "output_tokens": 0} | (response.get("usage") or {})
        start = {**response, "content": [], "stop_reason": None, "stop_sequence": None}
        told: list[dict[str, Any]] = [
            {"type": "message_start", "message": {**start, "usage": {**usage, "output_tokens": 0}}}
        ]
        for index, block in enumerate(response["content"]):
            begun, deltas = _told_in_deltas(block)
            told.append({"type": "content_block_start", "index": index, "content_block": begun})
            told += [{"type": "content_block_delta", "index": index, "delta": delta} for delta in deltas]
            told.append({"type": "content_block_stop", "index": index})
        last = {name: response.get(name) for name in ("stop_reason", "stop_sequence", *(_LAST & response.keys()))}
        told += [{"type": "message_delta", "delta": last, "usage": usage}, {"type": "message_stop"}]
        return b"".join(event_of(event, event["type"]) for event in told)

    def key_headers(self, api_key: str | None) -> dict[str, str]:
        return {} if api_key is None else {"x-api-key": api_key}

    def refusal(self, status: int, error: Mapping[str, Any]) -> dict[str, Any]:
        return {"type": "error", "error": {**error, "type": _KINDS.get(status, "api_error")}}

    def broken(self, error: AgentEnvError) -> bytes:
        return b"event: error\ndata: " + dump(self.refusal(error.http_status, error.to_wire())) + b"\n\n"


_LAST = frozenset({"stop_details", "container"})
"""Further fields of a message that its clients take from its last event."""

_IN_DELTAS: Mapping[str, Mapping[str, str]] = {
    "text": {"text": "text_delta"},
    "thinking": {"thinking": "thinking_delta", "signature": "signature_delta"},
}
"""The texts of a block that come in deltas, and the kinds of these. All else of a block comes as it begins."""


def _told_in_deltas(block: Mapping[str, Any]) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    """A block as it begins, and the deltas that make it whole."""
    begun, deltas = dict(block), list[dict[str, Any]]()
    if isinstance(given := block.get("input"), dict):
        begun["input"] = {}
        deltas.append({"type": "input_json_delta", "partial_json": dump_read(given).decode()})
    for name, kind in _IN_DELTAS.get(block["type"], {}).items():
        if isinstance(text := block.get(name), str):
            begun[name] = ""
            deltas.append({"type": kind, name: text})
    return begun, deltas


class MessagesStream(StreamCapture):
    """The events of a streamed message."""

    what = "event of a streamed message"

    def __init__(self, watch: Callable[[dict[str, Any]], None] | None = None) -> None:
        super().__init__(watch)
        self._message: dict[str, Any] = {}
        self._blocks: dict[int, dict[str, Any]] = {}
        self._pieces: dict[tuple[int, str], list[str]] = {}

    def take(self, event: dict[str, Any]) -> None:
        match event["type"]:
            case "message_start":
                self._message = dict(event["message"])
            case "content_block_start":
                self._blocks[event["index"]] = dict(event["content_block"])
            case "content_block_delta":
                for name, value in event["delta"].items():
                    if name != "type" and isinstance(value, str):
                        self._pieces.setdefault((event["index"], name), []).append(value)
            case "message_delta":
                self._message.update(event["delta"])
                if usage := event.get("usage"):
                    self._message["usage"] = {**(self._message.get("usage") or {}), **usage}
            case "message_stop":
                self.done = True
            case _:
                pass  # a ping, or what a newer version adds

    def finish(self) -> dict[str, Any]:
        """The whole message, as far as it came."""
        for (index, name), pieces in self._pieces.items():
            block, text = self._blocks.setdefault(index, {}), "".join(pieces)
            if name == "partial_json":
                block["input"] = _object(text)
            else:
                block[name] = (block.get(name) or "") + text
        self._pieces.clear()
        self._message["content"] = [self._blocks[index] for index in sorted(self._blocks)]
        return self._message


def _object(text: str) -> Any:
    try:
        return parse(text.encode())
    except AgentEnvError:
        return text  # half of it came
