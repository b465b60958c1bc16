"""A Responses request as a chat completions request."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from agent_env.errors import InvalidArguments
from agent_env.gateway.dialects.responses import LOGPROBS
from agent_env.gateway.dialects.translation import refuse, renamed

_NAMES = {"max_output_tokens": "max_completion_tokens"}
_SAID_OTHERWISE = (
    *("input", "instructions", "tools", "tool_choice", "text", "reasoning", "include", "stream", "stream_options"),
    *("truncation", "background"),
)
_STATEFUL = ("previous_response_id", "conversation", "prompt")


def as_chat(request: Mapping[str, Any]) -> dict[str, Any]:
    """The chat request; raises `NotSupported` for what it cannot express and `InvalidArguments` for what is none."""
    for name in _STATEFUL:
        if request.get(name) is not None:
            raise refuse(f"{name!r}: nothing of earlier calls is kept", "send the whole `input` with each call")
    if request.get("background"):
        raise refuse("`background` calls", "wait for the answer")
    if request.get("truncation") not in (None, "disabled"):
        raise refuse(f"truncation {request['truncation']!r}", "send what the model can read")
    chat = renamed(request, _NAMES, _SAID_OTHERWISE)
    chat["messages"] = _messages(request)
    if request.get("tools"):
        chat["tools"] = [_tool(tool) for tool in _list(request["tools"], "tools")]
        if (choice := request.get("tool_choice")) is not None:
            chat["tool_choice"] = _tool_choice(choice)
    if LOGPROBS in _list(request.get("include") or [], "include"):
        chat["logprobs"] = True
    if (effort := _object(request.get("reasoning") or {}, "reasoning").get("effort")) is not None:
        chat["reasoning_effort"] = effort
    text = _object(request.get("text") or {}, "text")
    if (verbosity := text.get("verbosity")) is not None:
        chat["verbosity"] = verbosity
    if (form := text.get("format")) is not None and _object(form, "text.format").get("type") != "text":
        chat["response_format"] = _format(form)
    if request.get("stream"):
        chat["stream"], chat["stream_options"] = True, {"include_usage": True}
    return chat


def _messages(request: Mapping[str, Any]) -> list[dict[str, Any]]:
    messages: list[dict[str, Any]] = []
    if request.get("instructions"):
        messages.append({"role": "system", "content": request["instructions"]})
    given = request.get("input")
    if isinstance(given, str):
        return [*messages, {"role": "user", "content": given}]
    for item in _list(given, "input"):
        match _object(item, "input").get("type", "message"):
            case "message":
                _add_message(messages, item)
            case "function_call":
                call = {"name": item.get("name"), "arguments": item.get("arguments")}
                entry = {"id": item.get("call_id"), "type": "function", "function": call}
                _answer(messages, "tool_calls").setdefault("tool_calls", []).append(entry)
            case "function_call_output":
                content = _content(item.get("output"))
                messages.append({"role": "tool", "tool_call_id": item.get("call_id"), "content": content})
            case "reasoning":
                parts = _list(item.get("content") or item.get("summary") or [], "content")
                if said := "".join(_text(_object(part, "content").get("text"), "text") for part in parts):
                    _answer(messages, "reasoning_content")["reasoning_content"] = said
            case kind:
                raise refuse(f"input items of type {kind!r}", "leave them out, or give the seat another policy")
    return messages


def _add_message(messages: list[dict[str, Any]], item: Mapping[str, Any]) -> None:
    role = item.get("role")
    content = _content(item.get("content"))
    if role == "assistant":
        _answer(messages, "content")["content"] = content
    else:
        # Chat templates know the older name alone.
        messages.append({"role": "system" if role == "developer" else role, "content": content})


def _answer(messages: list[dict[str, Any]], begins: str) -> dict[str, Any]:
    """The assistant's message that an item belongs to. What the model said in one answer is several items here and one
    message there: reasoning, then words, then calls."""
    order = ("reasoning_content", "content", "tool_calls")
    last = messages[-1] if messages else None
    if last is not None and last["role"] == "assistant":
        said = [name for name in order if last.get(name) is not None]
        if not said or order.index(said[-1]) < order.index(begins) or (said[-1] == begins == "tool_calls"):
            return last
    messages.append({"role": "assistant", "content": None})
    return messages[-1]


def _content(content: Any) -> Any:
    """Texts that stand alone are told as such, since not every server takes parts."""
    if isinstance(content, str):
        return content
    parts = [_part(_object(part, "content")) for part in _list(content, "content")]
    if all(part["type"] == "text" for part in parts):
        return "".join(part["text"] for part in parts)
    return parts


def _part(part: Mapping[str, Any]) -> dict[str, Any]:
    match part.get("type"):
        case "input_text" | "output_text" | "text":
            return {"type": "text", "text": _text(part.get("text"), "text")}
        case "refusal":
            return {"type": "text", "text": _text(part.get("refusal"), "refusal")}
        case "input_image" if part.get("image_url"):
            image = {"url": part["image_url"]} | ({"detail": part["detail"]} if part.get("detail") else {})
            return {"type": "image_url", "image_url": image}
        case "input_audio":
            return dict(part)
        case kind:
            raise refuse(f"content of type {kind!r} in this form", "send texts and images by URL")


def _tool(tool: Any) -> dict[str, Any]:
    if _object(tool, "tools").get("type") != "function":
        raise refuse(f"tools of type {tool.get('type')!r}", "offer functions, which the agent calls itself")
    return {"type": "function", "function": {name: tool[name] for name in _FUNCTION if tool.get(name) is not None}}


_FUNCTION = ("name", "description", "parameters", "strict")


def _tool_choice(choice: Any) -> Any:
    if isinstance(choice, str):
        return choice
    if _object(choice, "tool_choice").get("type") != "function":
        raise refuse(f"tool_choice of type {choice.get('type')!r}", "name a function, or say auto, none or required")
    return {"type": "function", "function": {"name": choice.get("name")}}


def _format(form: Mapping[str, Any]) -> dict[str, Any]:
    if form.get("type") != "json_schema":
        return dict(form)
    return {"type": "json_schema", "json_schema": {name: value for name, value in form.items() if name != "type"}}


def _list(value: Any, name: str) -> list[Any]:
    if not isinstance(value, list):
        raise InvalidArguments(f"`{name}` of a response must be a list, not {value!r:.80}")
    return value


def _object(value: Any, name: str) -> dict[str, Any]:
    if not isinstance(value, dict):
        raise InvalidArguments(f"`{name}` of a response must hold objects, not {value!r:.80}")
    return value


def _text(value: Any, name: str) -> str:
    if value is not None and not isinstance(value, str):
        raise InvalidArguments(f"`{name}` of a response must be a text, not {value!r:.80}")
    return value or ""
