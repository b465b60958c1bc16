"""The `chat` tool: what it takes, and how one message becomes one turn."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from agent_env.errors import InvalidArguments, MessageTooLarge, UnsupportedContent
from agent_env.net.limits import Limits
from agent_env.runtime.parts import decode_parts
from agent_env_wrappers.contract import Answer, Caps, DataPart, FilePart, Interrupt, Message, TextPart

NAME = "chat"


def parameters(caps: Caps) -> dict[str, Any]:
    """The JSON Schema of chat's arguments, by what the agent can read."""
    properties: dict[str, Any] = {"message": {"type": "string", "description": "What you say to the agent."}}
    if caps.parts - {"text"}:
        properties["parts"] = {
            "type": "array",
            "description": f"More parts of the message, after its text; kinds: {', '.join(sorted(caps.parts))}.",
            "items": {"type": "object"},
            "minItems": 1,
        }
    if caps.interrupts:
        properties["answer"] = {
            "description": "The answer to the question of the last reply, by its schema; without it, `message` answers."
        }
    return {"type": "object", "properties": properties, "required": ["message"], "additionalProperties": False}


def read_message(arguments: Mapping[str, Any], caps: Caps, limits: Limits) -> Message:
    """Reads chat's arguments into a message.

    Raises `InvalidArguments`, `MessageTooLarge` or `UnsupportedContent`.
    """
    known = parameters(caps)["properties"]
    unknown = sorted(set(arguments) - set(known))
    if unknown:
        raise InvalidArguments(f"chat takes no {', '.join(map(repr, unknown))}; its arguments are {sorted(known)}")
    text, parts = arguments.get("message"), arguments.get("parts")
    # Whoever answers a question, or says all in parts, need not say it again in words.
    spoken = parts is not None or "answer" in arguments
    if not isinstance(text, str) and not (text is None and spoken):
        got = f"{text!r:.100} ({type(text).__name__})" if text is not None else "nothing"
        raise InvalidArguments(
            f"chat needs a 'message' that is a string; it got {got}",
            problems=[{"pointer": "/message", "message": "a string is required"}],
        )
    said = (TextPart(text or ""),) if text or parts is None else ()
    message = Message((*said, *(decode_parts(parts) if parts is not None else ())))
    size = sum(_size(part) for part in message.parts)
    if size > limits.max_message_bytes:
        raise MessageTooLarge(
            f"the message has {size} bytes; this environment takes {limits.max_message_bytes}",
            limit=limits.max_message_bytes,
        )
    for part in message.parts:
        kind = {TextPart: "text", DataPart: "data", FilePart: "file"}[type(part)]
        if kind not in caps.parts:
            raise UnsupportedContent(f"this agent reads {', '.join(sorted(caps.parts))}, not {kind} parts")
    return message


def _size(part: TextPart | DataPart | FilePart) -> int:
    try:
        match part:
            case TextPart(text):
                return len(text) if text.isascii() else len(text.encode())
            case DataPart(data):
                return len(json.dumps(data, ensure_ascii=False).encode())
            case FilePart(data=data):
                return len(data or b"")
    except UnicodeEncodeError:
        raise InvalidArguments(
            "the message has half of a surrogate pair, which is no character; send whole ones"
        ) from None


def read_answer(arguments: Mapping[str, Any], message: Message, interrupt: Interrupt | None) -> tuple[Answer, ...]:
    """Reads the answer to a pending interrupt; nothing is pending is no answer.

    Raises `InvalidArguments` for an answer without a question.
    """
    if interrupt is None:
        if "answer" in arguments:
            raise InvalidArguments("the agent asked nothing in this session; send a 'message'")
        return ()
    if "answer" in arguments:
        return (Answer(interrupt.id, arguments["answer"]),)
    value: Any = message.text
    if interrupt.schema is not None and interrupt.schema.get("type") != "string":
        try:
            value = json.loads(message.text)
        except ValueError:
            value = message.text
    return (Answer(interrupt.id, value),)
