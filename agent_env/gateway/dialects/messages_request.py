"""A Messages request as a chat completions request."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from agent_env.errors import InvalidArguments
from agent_env.gateway.dialects.translation import refuse, renamed

_NAMES = {"max_tokens": "max_completion_tokens", "stop_sequences": "stop"}
_SAID_OTHERWISE = (
    *("messages", "system", "tools", "tool_choice", "metadata", "stream", "output_config"),
    # How much a model reasons and what is cached is the policy's to decide; neither changes what is asked.
    *("thinking", "cache_control", "context_management", "service_tier", "betas"),
)
_STATEFUL = ("container", "mcp_servers")


def as_chat(request: Mapping[str, Any]) -> dict[str, Any]:
    """The chat request; raises `NotSupported` for what it cannot express and `InvalidArguments` for what is none."""
    for name in _STATEFUL:
        if request.get(name):
            raise refuse(f"{name!r}", "let the agent call its tools itself")
    chat = renamed(request, _NAMES, _SAID_OTHERWISE)
    chat["messages"] = _messages(request)
    if request.get("tools"):
        chat["tools"] = [_tool(tool) for tool in _list(request["tools"], "tools")]
    if choice := request.get("tool_choice"):
        _choose(chat, _object(choice, "tool_choice"))
    if user := _object(request.get("metadata") or {}, "metadata").get("user_id"):
        chat["user"] = user
    wanted = _object(request.get("output_config") or {}, "output_config")
    if effort := wanted.get("effort"):
        chat["reasoning_effort"] = effort
    if form := wanted.get("format"):
        schema = {"name": "answer", "schema": _object(form, "output_config").get("schema"), "strict": True}
        chat["response_format"] = {"type": "json_schema", "json_schema": schema}
    if request.get("stream"):
        chat["stream"], chat["stream_options"] = True, {"include_usage": True}
    return chat


def _messages(request: Mapping[str, Any]) -> list[dict[str, Any]]:
    messages: list[dict[str, Any]] = []
    if request.get("system"):
        messages.append({"role": "system", "content": _content(request["system"])})
    given = _list(request.get("messages"), "messages")
    for message in given:
        role = _object(message, "messages").get("role")
        blocks = message.get("content")
        if isinstance(blocks, str):
            messages.append({"role": role, "content": blocks})
        elif role == "assistant":
            messages.append(_answer(_list(blocks, "content")))
        else:
            messages += _asked(role, _list(blocks, "content"))
    if given and given[-1].get("role") == "assistant":
        raise refuse("way to go on with words of the assistant", "end `messages` with one of the user")
    return messages


def _answer(blocks: list[Any]) -> dict[str, Any]:
    """What the model said: its reasoning, its words, its calls of tools."""
    words: list[str] = []
    reasoning: list[str] = []
    calls: list[dict[str, Any]] = []
    for block in blocks:
        match _object(block, "content").get("type"):
            case "text":
                words.append(_text(block.get("text"), "text"))
            case "thinking":
                reasoning.append(_text(block.get("thinking"), "thinking"))
            case "redacted_thinking":
                pass  # nobody but its author can read it
            case "tool_use":
                # The spacing that models are trained on, so that the prompt continues what was sampled.
                arguments = json.dumps(block.get("input"), ensure_ascii=False)
                function = {"name": block.get("name"), "arguments": arguments}
                calls.append({"id": block.get("id"), "type": "function", "function": function})
            case kind:
                raise refuse(f"blocks of type {kind!r} in an answer", "leave them out")
    message: dict[str, Any] = {"role": "assistant", "content": "".join(words) if words else None}
    if reasoning:
        message["reasoning_content"] = "".join(reasoning)
    if calls:
        message["tool_calls"] = calls
    return message


def _asked(role: Any, blocks: list[Any]) -> list[dict[str, Any]]:
    """What the model was told: the results of its calls first, as they must follow them, then everything else."""
    results: list[dict[str, Any]] = []
    rest: list[Any] = []
    for block in blocks:
        if _object(block, "content").get("type") == "tool_result":
            content = _content(block.get("content") or "")
            results.append({"role": "tool", "tool_call_id": block.get("tool_use_id"), "content": content})
        else:
            rest.append(block)
    return [*results, {"role": role, "content": _content(rest)}] if rest else results


def _content(content: Any) -> Any:
    """Texts that stand alone are told as such, since not every server takes parts."""
    if isinstance(content, str):
        return content
    parts = [_part(_object(block, "content")) for block in _list(content, "content")]
    if all(part["type"] == "text" for part in parts):
        return "".join(part["text"] for part in parts)
    return parts


def _part(block: Mapping[str, Any]) -> dict[str, Any]:
    kind = block.get("type")
    if kind == "text":
        return {"type": "text", "text": _text(block.get("text"), "text")}
    source = block.get("source")
    if kind == "image" and isinstance(source, Mapping):
        match source.get("type"):
            case "url":
                return {"type": "image_url", "image_url": {"url": source.get("url")}}
            case "base64":
                url = f"data:{source.get('media_type')};base64,{source.get('data')}"
                return {"type": "image_url", "image_url": {"url": url}}
            case _:
                pass
    raise refuse(f"blocks of type {kind!r} in this form", "send texts and images by URL or base64")


def _tool(tool: Any) -> dict[str, Any]:
    if _object(tool, "tools").get("type") not in (None, "custom"):
        raise refuse(f"tools of type {tool['type']!r}", "offer tools that the agent calls itself")
    function = {"name": tool.get("name"), "description": tool.get("description"), "strict": tool.get("strict")}
    told = {name: value for name, value in function.items() if value is not None}
    return {"type": "function", "function": {**told, "parameters": tool.get("input_schema")}}


def _choose(chat: dict[str, Any], choice: Mapping[str, Any]) -> None:
    kinds = {"auto": "auto", "any": "required", "none": "none"}
    kind = choice.get("type")
    if kind == "tool":
        chat["tool_choice"] = {"type": "function", "function": {"name": choice.get("name")}}
    elif isinstance(kind, str) and kind in kinds:
        chat["tool_choice"] = kinds[kind]
    else:
        raise refuse(f"tool_choice of type {kind!r}", "say auto, any, none or tool")
    if choice.get("disable_parallel_tool_use"):
        chat["parallel_tool_calls"] = False


def _list(value: Any, name: str) -> list[Any]:
    if not isinstance(value, list):
        raise InvalidArguments(f"`{name}` of a message must be a list, not {value!r:.80}")
    return value


def _object(value: Any, name: str) -> dict[str, Any]:
    if not isinstance(value, dict):
        raise InvalidArguments(f"`{name}` of a message must hold objects, not {value!r:.80}")
    return value


def _text(value: Any, name: str) -> str:
    if value is not None and not isinstance(value, str):
        raise InvalidArguments(f"`{name}` of a message must be a text, not {value!r:.80}")
    return value or ""
