"""Messages, events and usage as JSON: the forms that every face sends and every lane reads."""

from __future__ import annotations

import base64
import binascii
from collections.abc import Mapping, Sequence
from typing import Any

from agent_env.errors import InvalidArguments, ProtocolError
from agent_env_wrappers.contract import (
    DataPart,
    Done,
    Event,
    FilePart,
    Interrupt,
    Message,
    ModelCall,
    Part,
    Status,
    TextDelta,
    TextPart,
    ToolCall,
    ToolReturn,
    Usage,
)


def encode_part(part: Part) -> dict[str, Any]:
    """One part of a message as JSON; `type` tells the kind, file contents are base64."""
    match part:
        case TextPart(text):
            return {"type": "text", "text": text}
        case DataPart(data):
            return {"type": "data", "data": data}
        case FilePart(media_type, data, uri, name):
            content = None if data is None else base64.b64encode(data).decode()
            fields = {"type": "file", "mediaType": media_type, "data": content, "uri": uri, "name": name}
            return {key: value for key, value in fields.items() if value is not None}


def decode_part(wire: Any) -> Part:
    """Reads one part; raises `InvalidArguments` for what is none."""
    if isinstance(wire, Mapping):
        match wire.get("type"):
            case "text" if isinstance(wire.get("text"), str):
                return TextPart(wire["text"])
            case "data" if "data" in wire:
                return DataPart(wire["data"])
            case "file" if isinstance(wire.get("mediaType"), str) and ("data" in wire) != ("uri" in wire):
                return FilePart(wire["mediaType"], _content(wire.get("data")), wire.get("uri"), wire.get("name"))
            case _:
                pass
    raise InvalidArguments(
        f"{wire!r:.200} is not a message part; send {{'type': 'text', 'text': …}}, {{'type': 'data', 'data': …}} "
        "or {'type': 'file', 'mediaType': …, and 'data' (base64) or 'uri'}"
    )


def _content(text: Any) -> bytes | None:
    if text is None:
        return None
    try:
        return base64.b64decode(text, validate=True)
    except (binascii.Error, TypeError, ValueError):
        raise InvalidArguments("the 'data' of a file part must be base64") from None


def decode_parts(wire: Any) -> tuple[Part, ...]:
    """Reads the parts of a message; raises `InvalidArguments` for an empty or malformed list."""
    if not isinstance(wire, Sequence) or isinstance(wire, str | bytes) or not wire:
        raise InvalidArguments(f"'parts' must be a list of one or more message parts, not {wire!r:.200}")
    return tuple(decode_part(part) for part in wire)


def reply_parts(text: str, data: Any) -> list[dict[str, Any]]:
    """The content of a reply: its text, then its data; a reply without either has one empty text part."""
    parts: list[Part] = []
    if text or data is None:
        parts.append(TextPart(text))
    if data is not None:
        parts.append(DataPart(data))
    return [encode_part(part) for part in parts]


def encode_message(message: Message) -> list[dict[str, Any]]:
    """A message as a list of parts."""
    return [encode_part(part) for part in message.parts]


def encode_usage(usage: Usage | None) -> dict[str, int] | None:
    """Usage as JSON, None where it is not known."""
    if usage is None:
        return None
    return {
        "input_tokens": usage.input_tokens,
        "output_tokens": usage.output_tokens,
        "requests": usage.requests,
    }


def decode_usage(wire: Mapping[str, Any] | None) -> Usage | None:
    """Reads what `encode_usage` wrote."""
    return None if wire is None else Usage(**{key: int(value) for key, value in wire.items()})


def encode_event(event: Event) -> dict[str, Any] | None:
    """One event of a running turn as JSON; None for the terminal ones, which become the result."""
    match event:
        case TextDelta(text, channel):
            return {"type": "text_delta", "text": text, "channel": channel}
        case ToolCall(id, name, arguments):
            return {"type": "tool_call", "id": id, "name": name, "arguments": arguments}
        case ToolReturn(id, output, is_error):
            return {"type": "tool_return", "id": id, "output": output, "is_error": is_error}
        case ModelCall(model, usage, finish_reason):
            return {
                "type": "model_call",
                "model": model,
                "usage": encode_usage(usage),
                "finish_reason": finish_reason,
            }
        case Status(text):
            return {"type": "status", "text": text}
        case Done() | Interrupt():
            return None


def decode_event(wire: Mapping[str, Any]) -> Event:
    """Reads what `encode_event` wrote; raises `ProtocolError` for an event that it does not know."""
    try:
        match wire["type"]:
            case "text_delta":
                return TextDelta(wire["text"], wire.get("channel", "answer"))
            case "tool_call":
                return ToolCall(wire["id"], wire["name"], wire["arguments"])
            case "tool_return":
                return ToolReturn(wire["id"], wire["output"], bool(wire.get("is_error")))
            case "model_call":
                return ModelCall(wire["model"], decode_usage(wire.get("usage")) or Usage(), wire.get("finish_reason"))
            case "status":
                return Status(wire["text"])
            case _:
                raise KeyError
    except KeyError:
        raise ProtocolError(f"the other side sent {wire!r:.200}, which is no event of this protocol") from None
