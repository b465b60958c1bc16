"""Messages of any dialect in the words of verifiers v1: `system`, `user`, `assistant` and `tool`."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from typing import Any, TypeAlias, cast

from agent_env.episodes import MessageNode
from agent_env.errors import ProtocolError

Message: TypeAlias = dict[str, Any]

_TEXTS = frozenset({"text", "input_text", "output_text"})


def messages_of(node: MessageNode) -> list[Message]:
    """What a node says, as one message or, where it holds several tool results, as one each; never none.

    Raises `ProtocolError` for what verifiers has no message for, such as audio or a tool that the server ran itself.
    """
    said = node.message
    kind = said.get("type", "message")
    translate = _ITEMS.get(str(kind))
    if translate is None or (kind == "message" and not isinstance(said.get("role"), str)):
        raise ProtocolError(f"verifiers has no message for one of the type {kind!r}: {said!r:.120}")
    return translate(said)


def _message(said: Message) -> list[Message]:
    role = "system" if said["role"] == "developer" else said["role"]
    blocks = said.get("content")
    if role == "tool":
        return [_result(str(said.get("tool_call_id") or ""), blocks)]
    if role == "assistant":
        return [_answer(said)]
    if role not in ("system", "user"):
        raise ProtocolError(f"verifiers has no message of the role {role!r}")
    if not isinstance(blocks, list):
        return [{"role": role, "content": _text(blocks)}]
    parts = cast(list[Message], blocks)
    told = [_result(part["tool_use_id"], part.get("content")) for part in parts if part.get("type") == "tool_result"]
    rest = [part for part in parts if part.get("type") != "tool_result"]
    return [*told, {"role": role, "content": _content(rest)}] if rest or not told else told


def _answer(said: Message) -> Message:
    blocks = cast(list[Message], said["content"]) if isinstance(said.get("content"), list) else []
    plain = _text(said.get("content")) if not blocks else _joined(blocks, _TEXTS | {"refusal"})
    calls = [_called(call) for call in said.get("tool_calls") or ()]
    calls += [_used(block) for block in blocks if block.get("type") == "tool_use"]
    thought = said.get("reasoning_content") or said.get("reasoning") or _joined(blocks, {"thinking"})
    unknown = [block.get("type") for block in blocks if block.get("type") not in _ANSWERED]
    if unknown:
        raise ProtocolError(f"verifiers has no part of an answer for {unknown[0]!r}")
    return {
        "role": "assistant",
        "content": plain or None,
        **({"reasoning_content": thought} if thought else {}),
        **({"tool_calls": calls} if calls else {}),
    }


_ANSWERED = _TEXTS | {"refusal", "thinking", "redacted_thinking", "tool_use"}


def _called(call: Message) -> Message:
    """A tool call of chat completions."""
    if call.get("type", "function") == "custom":
        custom = call["custom"]
        return {"id": call["id"], "type": "custom", "name": custom["name"], "arguments": custom["input"]}
    return {"id": call["id"], "name": call["function"]["name"], "arguments": call["function"]["arguments"]}


def _used(block: Message) -> Message:
    """A tool call of Anthropic's messages."""
    return {"id": block["id"], "name": block["name"], "arguments": json.dumps(block["input"])}


def _function_call(said: Message) -> list[Message]:
    call = {"id": said["call_id"], "name": said["name"], "arguments": said["arguments"]}
    return [{"role": "assistant", "content": None, "tool_calls": [call]}]


def _function_result(said: Message) -> list[Message]:
    return [_result(said["call_id"], said.get("output"))]


def _reasoning(said: Message) -> list[Message]:
    parts = [*(said.get("summary") or ()), *(said.get("content") or ())]
    thought = "\n".join(str(part.get("text", "")) for part in parts)
    return [{"role": "assistant", "content": None, "reasoning_content": thought}]


_ITEMS: Mapping[str, Callable[[Message], list[Message]]] = {
    "message": _message,
    "function_call": _function_call,
    "function_call_output": _function_result,
    "reasoning": _reasoning,
}


def _result(call: str, content: Any) -> Message:
    parts: Any = content
    return {
        "role": "tool",
        "tool_call_id": call,
        "content": _content(parts) if isinstance(parts, list) else _text(parts),
    }


def _content(parts: list[Message]) -> str | list[Message]:
    """Parts as text and images; parts of text alone are one text."""
    told = [_part(part) for part in parts]
    if all(part["type"] == "text" for part in told):
        return "\n".join(part["text"] for part in told)
    return told


def _part(part: Message) -> Message:
    kind = part.get("type")
    if kind in _TEXTS:
        return {"type": "text", "text": part["text"]}
    if kind == "image_url":
        return {"type": "image_url", "image_url": {"url": part["image_url"]["url"]}}
    if kind == "input_image" and isinstance(part.get("image_url"), str):
        return {"type": "image_url", "image_url": {"url": part["image_url"]}}
    if kind == "image" and isinstance(part.get("source"), dict):
        source = part["source"]
        url = source["url"] if source["type"] == "url" else f"data:{source['media_type']};base64,{source['data']}"
        return {"type": "image_url", "image_url": {"url": url}}
    raise ProtocolError(f"verifiers has no part of a message for {kind!r}")


def _joined(blocks: list[Message], kinds: frozenset[str] | set[str]) -> str:
    names = {"thinking": "thinking", "refusal": "refusal"}
    found = [str(block.get(names.get(block["type"], "text"), "")) for block in blocks if block.get("type") in kinds]
    return "\n".join(found)


def _text(content: Any) -> str:
    return "" if content is None else str(content)
