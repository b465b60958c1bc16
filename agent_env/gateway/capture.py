"""What a model call leaves behind: the fields that rows are cut from, out of an answer in either form."""

from __future__ import annotations

import json
from collections.abc import Iterable
from typing import Any

from agent_env.episodes import CallRecord
from agent_env.errors import ProtocolError


def ask_for_tokens(body: dict[str, Any]) -> None:
    """Makes a chat request ask for the logprobs and ids of its tokens (vLLM's field names)."""
    body["logprobs"] = True
    body["return_token_ids"] = True


def capture(record: CallRecord, response: dict[str, Any], *, keep_logprobs: bool) -> None:
    """Fills a record from a chat completion, out of which it takes what the record has a field for.

    `keep_logprobs` leaves the logprobs in the answer as well: the agent asked for them itself.
    """
    record.response = response
    record.usage = response.pop("usage", None)
    record.policy_version = response.pop("policy_version", None)
    prompt = response.pop("prompt_token_ids", None)
    choices = response.get("choices")
    choice = choices[0] if isinstance(choices, list) and choices else None
    if isinstance(choice, dict):
        record.finish_reason = choice.get("finish_reason")
        record.token_ids = choice.pop("token_ids", None)
        prompt = prompt or choice.pop("prompt_token_ids", None)
        logprobs = choice.get("logprobs")
        content = logprobs.get("content") if isinstance(logprobs, dict) else None
        if content is not None:
            record.logprobs = [entry["logprob"] for entry in content]
        if not keep_logprobs:
            choice.pop("logprobs", None)
    record.prompt_token_ids = prompt


class StreamCapture:
    """Puts the chunks of a streamed chat completion together to what the same call would have answered unstreamed.

    `feed` takes the bytes of a `text/event-stream` as they come (WHATWG HTML §9.2); `done` tells whether its end,
    `data: [DONE]`, was seen.
    """

    def __init__(self) -> None:
        self.done = False
        self.response: dict[str, Any] = {}
        self._rest = bytearray()
        self._choices: dict[int, dict[str, Any]] = {}

    def feed(self, piece: bytes) -> None:
        """Takes the next bytes; raises `ProtocolError` for a chunk that is none. What follows the end is passed over."""
        self._rest += piece
        if b"\n" not in piece:
            return
        lines = self._rest.split(b"\n")
        self._rest = lines.pop()
        for line in lines:
            data = bytes(line[5:]).strip() if line.startswith(b"data:") else b""
            if self.done or not data:
                continue
            if data == b"[DONE]":
                self.done = True
                continue
            try:
                self._chunk(json.loads(data))
            except (ValueError, TypeError, AttributeError, RecursionError):
                raise ProtocolError("the model's server streamed what is no chat completion chunk") from None

    def finish(self) -> dict[str, Any]:
        """The whole answer."""
        self.response["object"] = "chat.completion"
        self.response["choices"] = [_settled(self._choices[index]) for index in sorted(self._choices)]
        return self.response

    def _chunk(self, chunk: dict[str, Any]) -> None:
        for choice in chunk.pop("choices", None) or ():
            index = _checked_index(choice.pop("index", 0))
            whole = self._choices.setdefault(index, {"index": index, "message": {}})
            _merge(whole["message"], choice.pop("delta", None) or {})
            _merge(whole, choice)
        for name, value in chunk.items():
            if value is not None:
                self.response[name] = value


class _Text:
    """A text in the pieces that it came in: joined once, so that a long answer costs no copy per delta."""

    def __init__(self, first: str) -> None:
        self.pieces = [first]


class _Grown(list[Any]):
    """A list that grows by deltas: an entry with an `index` is merged into the one that has it already."""

    def __init__(self, values: Iterable[Any]) -> None:
        super().__init__()
        self._places: dict[int, dict[str, Any]] = {}
        self.take(values)

    def take(self, values: Iterable[Any]) -> None:
        for value in values:
            index = value.get("index") if isinstance(value, dict) else None
            if index is None:
                self.append(value)
            elif (same := self._places.get(_checked_index(index))) is not None:
                _merge(same, value)
            else:
                self._places[index] = value
                self.append(value)


def _merge(whole: dict[str, Any], piece: dict[str, Any]) -> None:
    """Adds a delta: texts and lists grow, objects are merged, entries with an `index` meet their like, the rest is
    replaced."""
    for name, value in piece.items():
        known = whole.get(name)
        if value is None:
            whole.setdefault(name, None)
        elif isinstance(value, list) and (known is None or isinstance(known, list)):
            if isinstance(known, _Grown):
                known.take(value)
            else:
                whole[name] = _Grown([*(known or ()), *value])
        elif known is None:
            whole[name] = value
        elif isinstance(value, str) and isinstance(known, str | _Text) and name not in _NAMES:
            if isinstance(known, str):
                whole[name] = known = _Text(known)
            known.pieces.append(value)
        elif isinstance(value, dict) and isinstance(known, dict):
            _merge(known, value)
        else:
            whole[name] = value


def _settled(value: Any) -> Any:
    """The value with every text in one piece."""
    if isinstance(value, _Text):
        return "".join(value.pieces)
    if isinstance(value, dict):
        return {name: _settled(part) for name, part in value.items()}
    if isinstance(value, list):
        return [_settled(part) for part in value]
    return value


_NAMES = frozenset({"id", "role", "type", "finish_reason"})
"""Texts that come whole, though perhaps more than once."""


def _checked_index(index: Any) -> int:
    if type(index) is not int:
        raise ProtocolError(f"the model's server streamed the index {index!r:.40}, which is no whole number")
    return index
