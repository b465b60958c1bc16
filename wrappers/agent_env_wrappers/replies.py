"""What an agent gave back, as the `Done` or `Interrupt` that ends the turn."""

from __future__ import annotations

import dataclasses
import json
from typing import Any

from agent_env_wrappers.contract import AgentError, DataPart, Done, Interrupt, Json, Message, TextPart


def ending(value: Any) -> Done | Interrupt:
    """Makes the last event of a turn.

    A `str` is the text; a JSON value, dataclass or pydantic model is the data, with its JSON as the text; a
    `Message`, `Done` or `Interrupt` is what it says. Raises `AgentError` for anything else, `None` included: an
    object's `str()` is no reply.
    """
    if isinstance(value, Done | Interrupt):
        return value
    if isinstance(value, str):
        return Done(value)
    if isinstance(value, Message):
        if not all(isinstance(part, TextPart | DataPart) for part in value.parts):
            raise AgentError("the agent replied with a file; reply with text and data")
        return Done(value.prompt, data=value.data)
    try:
        data = to_json(value)
    except (TypeError, ValueError) as error:
        kind = type(value).__name__
        raise AgentError(f"the agent replied with {kind}; reply with str, a JSON value, Message or Done") from error
    if data is None:
        raise AgentError("the agent replied with None; reply with str, a JSON value, Message or Done")
    return Done(json.dumps(data, ensure_ascii=False), data=data)


def to_json(value: Any) -> Json:
    """The JSON value of a JSON value, dataclass or pydantic model; raises `TypeError` or `ValueError` for others."""
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        value = dataclasses.asdict(value)
    elif callable(dump := getattr(value, "model_dump", None)):
        value = dump(mode="json")
    return json.loads(json.dumps(value, default=to_json_or_raise))


def to_json_or_raise(value: Any) -> Json:
    """`to_json` for a value inside another one, which must not recur on what it cannot change."""
    if dataclasses.is_dataclass(value) or hasattr(value, "model_dump"):
        return to_json(value)
    raise TypeError(f"{type(value).__name__} is no JSON value")
