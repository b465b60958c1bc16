"""Asking a server that speaks chat completions alone on behalf of an agent that speaks another dialect."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping
from typing import Any

from agent_env.errors import NotSupported
from agent_env.gateway.dialects.contract import event_of


class Translation(ABC):
    """One call, translated: `chat` is its request; what comes back is told to `take` chunk by chunk, or to `whole`.

    A request that chat completions cannot express is refused with `NotSupported` or `InvalidArguments`, never cut.
    Fields that nobody knows go upstream as they are.
    """

    chat: dict[str, Any]

    def __init__(self) -> None:
        self._events: list[bytes] = []

    @abstractmethod
    def take(self, chunk: Mapping[str, Any]) -> None:
        """Adds a chunk of a streamed chat completion and writes the events that it makes."""

    @abstractmethod
    def end(self) -> dict[str, Any]:
        """Writes the last events and returns the whole answer."""

    def whole(self, completion: Mapping[str, Any]) -> dict[str, Any]:
        """The answer that an unstreamed chat completion makes."""
        choices = [
            {**choice, "delta": choice.get("message") or {}} for choice in completion.get("choices") or () if choice
        ]
        # An unstreamed answer is a stream of one chunk, so both forms come out of one piece of code.
        self.take({**completion, "choices": choices})
        return self.end()

    def flush(self) -> bytes:
        """The events that were written since the last time."""
        events, self._events = self._events, []
        return b"".join(events)

    def write(self, kind: str, event: Mapping[str, Any]) -> None:
        """Writes one event."""
        self._events.append(event_of({"type": kind, **event}, kind))


def renamed(request: Mapping[str, Any], names: Mapping[str, str], without: Iterable[str]) -> dict[str, Any]:
    """The fields of a request under the names that chat completions have for them, without those that are said
    otherwise; what is None is left out."""
    left_out = frozenset(without)
    return {
        names.get(name, name): value for name, value in request.items() if name not in left_out and value is not None
    }


def as_text(value: Any) -> str | None:
    """What a server told where its dialect has a text or nothing; raises `TypeError` for anything else, which the
    caller's client could not take either."""
    if value is None or isinstance(value, str):
        return value
    raise TypeError(f"{type(value).__name__} in place of a text")


def refuse(what: str, instead: str) -> NotSupported:
    """The error for what chat completions have no word for."""
    return NotSupported(f"this seat's policy is asked by chat completions, which have no {what}; {instead}")
