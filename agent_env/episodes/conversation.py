"""The messages of a model call, whatever dialect it was made in.

| `api` | the prompt | the answer |
|---|---|---|
| `chat` | `messages` | the message of the first choice |
| `completions` | `prompt`, as one user message | the text of the first choice |
| `responses` | `instructions` as a system message, `input` | the items of `output` |
| `messages` | `system` as a system message, `messages` | the message |

Sources: the OpenAI API reference (Chat Completions, Completions, Responses), the Anthropic API reference (Messages).
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from collections.abc import Set as AbstractSet
from typing import Any, TypeAlias, cast

from agent_env.episodes.records import CallRecord, Json
from agent_env.errors import ProtocolError

Message: TypeAlias = dict[str, Json]
"""A message in the words of its dialect: `role` and `content`, or an item with a `type`."""

Conversation: TypeAlias = tuple[list[Message], list[Message]]

# What a server adds to its answer, and what clients leave out when they send the answer back.
_PASSING = frozenset({"id", "status", "annotations", "refusal", "audio", "reasoning", "reasoning_content"})
_PASSING_IN_PARTS = frozenset({"annotations", "logprobs", "cache_control"})
_TEXTS = frozenset({"text", "input_text", "output_text"})


def conversation(call: CallRecord) -> Conversation:
    """The messages that the model was told, and those that it answered; none of the latter for a call that failed.

    Raises `ProtocolError` for a call of an unknown dialect, and for one whose bodies are not of its dialect.
    """
    dialect = _DIALECTS.get(call.api)
    if dialect is None:
        raise ProtocolError(
            f"the model call {call.call_id!r} is of the dialect {call.api!r}; known: {', '.join(_DIALECTS)}"
        )
    told, answered = dialect
    try:
        return told(call.request), [] if call.response is None else answered(call.response)
    except (KeyError, IndexError, TypeError, AttributeError) as error:
        raise ProtocolError(
            f"the model call {call.call_id!r} is no conversation of the dialect {call.api!r}: "
            f"{type(error).__name__} {error}"
        ) from error


def likeness(message: Message) -> str:
    """A text that two messages share when they say the same, one as it was answered and one as it was sent back."""
    plain: dict[str, Json] = {}
    for name, value in message.items():
        if name not in _PASSING and value not in (None, "", []) and (name, value) != ("type", "message"):
            plain[name] = value
    if isinstance(plain.get("content"), list):
        plain["content"] = _content(plain["content"])
    if isinstance(plain.get("tool_calls"), list):
        plain["tool_calls"] = [_without(call, {"index"}) for call in plain["tool_calls"]]
    return json.dumps(plain, sort_keys=True, separators=(",", ":"))


def _content(parts: list[Json]) -> Json:
    """The parts of a message; one part of text is its text."""
    plain = [_without(part, _PASSING_IN_PARTS) for part in parts]
    if len(plain) == 1 and isinstance(plain[0], dict):
        part = cast(dict[str, Json], plain[0])
        if part.get("type") in _TEXTS and part.keys() == {"type", "text"}:
            return part["text"]
    return plain


def _without(value: Json, names: AbstractSet[str]) -> Json:
    if not isinstance(value, dict):
        return value
    return {name: field for name, field in cast(dict[str, Json], value).items() if name not in names}


def _messages(value: Any) -> list[Message]:
    if not isinstance(value, list):
        raise TypeError(f"messages are a list, not {value!r:.60}")
    messages: list[Any] = value
    for message in messages:
        if not isinstance(message, dict):
            raise TypeError(f"a message is an object, not {message!r:.60}")
    return messages


def _system(text: Any) -> list[Message]:
    return [{"role": "system", "content": text}] if text else []


def _told_chat(body: Mapping[str, Any]) -> list[Message]:
    return _messages(body["messages"])


def _answered_chat(body: Mapping[str, Any]) -> list[Message]:
    return _messages([body["choices"][0]["message"]])


def _told_completions(body: Mapping[str, Any]) -> list[Message]:
    return [{"role": "user", "content": body["prompt"]}]


def _answered_completions(body: Mapping[str, Any]) -> list[Message]:
    return [{"role": "assistant", "content": body["choices"][0]["text"]}]


def _told_responses(body: Mapping[str, Any]) -> list[Message]:
    given = body["input"]
    told: list[Message] = [{"role": "user", "content": given}] if isinstance(given, str) else _messages(given)
    return _system(body.get("instructions")) + told


def _answered_responses(body: Mapping[str, Any]) -> list[Message]:
    return _messages(body["output"])


def _told_messages(body: Mapping[str, Any]) -> list[Message]:
    return _system(body.get("system")) + _messages(body["messages"])


def _answered_messages(body: Mapping[str, Any]) -> list[Message]:
    return [{"role": body["role"], "content": body["content"]}]


_Read: TypeAlias = Callable[[Any], list[Message]]

_DIALECTS: Mapping[str, tuple[_Read, _Read]] = {
    "chat": (_told_chat, _answered_chat),
    "completions": (_told_completions, _answered_completions),
    "responses": (_told_responses, _answered_responses),
    "messages": (_told_messages, _answered_messages),
}
