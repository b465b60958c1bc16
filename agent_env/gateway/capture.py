"""What a model call leaves behind: the fields that rows are cut from, whatever dialect it was made in."""

from __future__ import annotations

import json
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from typing import Any, ClassVar, Literal, TypeAlias

from pydantic_core import from_json

from agent_env.episodes import CallRecord
from agent_env.episodes.records import are_floats
from agent_env.episodes.tokens import are_token_ids
from agent_env.errors import ProtocolError

Missing: TypeAlias = Literal["not_asked", "no_field", "not_given", "incomplete", "malformed", "asked_apart"]
"""Why a record lacks token ids or logprobs, or where else it has them from.

`not_asked`: the seat's policy has `tokens=False`. `no_field`: the dialect that the server was asked in has no way to
tell them. `not_given`: the server was asked and told none. `incomplete`: it told them for a part of the sampled tokens
alone, as the others or its own count show, and half of the truth is not recorded. `malformed`: it told what is none, if
only in one chunk of a stream: ids that are no list of whole numbers from 0 to 2**31 - 1, or logprobs that are no list of
numbers. `asked_apart`: the answer did not tell the prompt's, so the server was asked for them by themselves, and they
are as many as it had counted.
"""

NO_ANSWER = (LookupError, TypeError, AttributeError, ValueError, OverflowError, RecursionError)
"""What taking an answer apart raises where it is not of its dialect's form."""

_FIELDS: Mapping[str, Callable[[Any], bool]] = {
    "prompt_token_ids": are_token_ids,
    "token_ids": are_token_ids,
    "logprobs": are_floats,
}
"""The token fields of a record, and what tells whether a value is one."""


def keep_tokens(record: CallRecord, name: str, told: Any, read: Callable[[Any], Any] | None = None) -> None:
    """Puts what a server told, as `read` takes it apart, into a token field of the record.

    What is none is left out, and `missing` says so: a trainer must not learn from it, and the agent, which did not ask
    for it, has its answer all the same.
    """
    if told is None:
        return
    try:
        values = told if read is None else read(told)
        fits = values is None or _FIELDS[name](values)
    except NO_ANSWER:
        values, fits = None, False
    setattr(record, name, values if fits else None)
    if not fits:
        malformed: Missing = "malformed"
        record.missing = {**(record.missing or {}), name: malformed}


def note_missing(record: CallRecord, *, asked: bool, tellable: Sequence[str], alone: bool = True) -> None:
    """Says of each of the three token fields that the record lacks why it does; `tellable` are those of the dialect,
    and `alone` tells that the usage is of this record's choice only."""
    missing: dict[str, Any] = dict(record.missing or {})
    incomplete: Missing = "incomplete"
    if alone and record.token_ids is not None and _counted(record) > len(record.token_ids):
        # Chunks of a stream may have none of theirs, and then only the server's own count shows it.
        record.token_ids = record.logprobs = None
        missing |= dict.fromkeys(("token_ids", "logprobs"), incomplete)
    for name in _FIELDS:
        if getattr(record, name) is None and name not in missing:
            reason: Missing = "not_asked" if not asked else "not_given" if name in tellable else "no_field"
            missing[name] = reason
    told, sampled = record.logprobs, record.token_ids
    if told is not None and sampled is not None and len(told) != len(sampled):
        record.logprobs = None
        missing["logprobs"] = incomplete
    record.missing = missing or None


def _counted(record: CallRecord) -> int:
    """How many tokens the server says it sampled for this answer; 0 where that is not said."""
    request = record.request if isinstance(record.request, Mapping) else {}
    count = (record.usage or {}).get("completion_tokens")
    # Of the best of several, those of all are counted.
    return count if type(count) is int and request.get("best_of") in (None, 1) else 0


def told_failure(told: Mapping[str, Any]) -> str | None:
    """What a server says of its own failure where the status is 200 all the same: in an event of a stream, or in a whole
    answer (`error`, or a response of status "failed"); None where it tells none."""
    response = told.get("response")
    if isinstance(response, Mapping) and response.get("status") == "failed":
        told = response
    error = told.get("error")
    if not (error or told.get("type") == "error" or told.get("status") == "failed"):
        return None
    words = (error.get("message") if isinstance(error, Mapping) else error) or told.get("message") or "it says no more"
    return f"the model's server told an error in its answer: {words!s:.200}"


class StreamCapture(ABC):
    """Puts the events of a streamed answer together to what the same call would have answered unstreamed.

    `feed` takes the bytes of a `text/event-stream` as they come (WHATWG HTML §9.2); `done` tells whether its last event
    was seen, `failure` what an event told of an error of the server's. `watch` is given each event's JSON before it is
    taken apart.
    """

    what: ClassVar[str]
    """What an event is called in messages."""

    def __init__(self, watch: Callable[[dict[str, Any]], None] | None = None) -> None:
        self.done = False
        self.failure: str | None = None
        self._watch = watch
        self._rest = bytearray()

    def feed(self, piece: bytes) -> None:
        """Takes the next bytes; raises `ProtocolError` for an event that is none. What follows the end is passed over."""
        self._rest += piece
        if b"\n" not in piece:
            return
        lines = bytes(self._rest).split(b"\n")
        self._rest = bytearray(lines.pop())
        for line in lines:
            # Each event's JSON has its type as well, so the field `event` tells nothing new.
            if line[:5] != b"data:" or self.done:
                continue
            data = line[5:].strip()
            if data == b"[DONE]":
                self.done = True
            elif data:
                self._event(data)

    def _event(self, data: bytes) -> None:
        try:
            event = _json(data)
            self.failure = self.failure or told_failure(event)
            if self._watch is not None:
                self._watch(_json(data))  # one of its own: what it keeps of an event must not grow with the answer
            self.take(event)
        except (ValueError, TypeError, KeyError, AttributeError, RecursionError):
            raise ProtocolError(self.failure or f"the model's server streamed what is no {self.what}") from None

    @abstractmethod
    def take(self, event: dict[str, Any]) -> None:
        """Adds an event, which may be taken apart; any `ValueError`, `TypeError`, `KeyError` or `AttributeError` says
        that it is none."""

    @abstractmethod
    def finish(self) -> dict[str, Any]:
        """The whole answer, as far as it came."""


def _json(data: bytes) -> Any:
    try:
        return from_json(data)
    except ValueError:
        return json.loads(data)  # as `http.parse` does
