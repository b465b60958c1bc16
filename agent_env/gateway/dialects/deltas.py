"""Growing an answer out of the deltas of its stream, as the chat and completions dialects tell them."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from agent_env.errors import ProtocolError

_WHOLE = frozenset({"id", "role", "type", "finish_reason"})
"""Texts that come whole, though perhaps more than once."""

_OF_TOKENS = frozenset({"token_ids", "logprobs"})
"""What a choice tells of its tokens, chunk by chunk."""

PROMPT = "prompt_token_ids"
"""What comes whole, once: two that differ are none."""

_NO_TOKENS = False
"""What is known of tokens once a chunk told what they cannot be: the others' alone would be half of the truth."""


class Text:
    """A text in the pieces that it came in: joined once, so that a long answer costs no copy per delta."""

    __slots__ = ("pieces",)

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
            elif (same := self._places.get(checked_index(index))) is not None:
                merge(same, value)
            else:
                self._places[index] = value
                self.append(value)


def merge(whole: dict[str, Any], piece: dict[str, Any]) -> None:
    """Adds a delta: texts and lists grow, objects are merged, entries with an `index` meet their like, the rest is
    replaced. What is told of tokens is never replaced: where their form changes there are none, for good."""
    for name, value in piece.items():
        known = whole.get(name)
        if value is None:
            whole.setdefault(name, None)
        elif name in _OF_TOKENS:
            whole[name] = _with_tokens(known, value)
        elif name == PROMPT:
            whole[name] = same_prompt(known, value)
        elif isinstance(value, list) and (known is None or isinstance(known, list)):
            if isinstance(known, _Grown):
                known.take(value)
            else:
                whole[name] = _Grown([*(known or ()), *value])
        elif known is None:
            whole[name] = value
        elif isinstance(value, str) and isinstance(known, str | Text) and name not in _WHOLE:
            if isinstance(known, str):
                whole[name] = known = Text(known)
            known.pieces.append(value)
        elif isinstance(value, dict) and isinstance(known, dict):
            merge(known, value)
        else:
            whole[name] = value


def _with_tokens(known: Any, value: Any) -> Any:
    """What is known of tokens, with what a chunk adds."""
    if known is None:
        return value
    if isinstance(known, list) and isinstance(value, list):
        known.extend(value)  # no entry of these has a place of its own, whatever it holds
        return known
    if isinstance(known, dict) and isinstance(value, dict):
        for name, part in value.items():
            known[name] = known.get(name) if part is None else _with_tokens(known.get(name), part)
        return known
    return _NO_TOKENS if isinstance(known, list | dict) or isinstance(value, list | dict) else value


def same_prompt(known: Any, value: Any) -> Any:
    """The prompt's tokens, told once more."""
    # True is equal to 1, and no token.
    return value if known is None or repr(known) == repr(value) else _NO_TOKENS


def settled(value: Any) -> Any:
    """The value with every text in one piece."""
    if isinstance(value, Text):
        return "".join(value.pieces)
    if isinstance(value, dict):
        return {name: settled(part) for name, part in value.items()}
    if isinstance(value, list):
        # Lists of tokens are long, and there is nothing to settle in a number.
        return list(value) if set(map(type, value)) <= _PLAIN else [settled(part) for part in value]
    return value


_PLAIN = frozenset({int, float, bool})


def checked_index(index: Any) -> int:
    """An index of a stream; raises `ProtocolError` for what is no whole number."""
    if type(index) is not int:
        raise ProtocolError(f"the model's server streamed the index {index!r:.40}, which is no whole number")
    return index
