"""What agents see and do as Gymnasium spaces."""

from __future__ import annotations

import unicodedata
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np
from gymnasium import spaces

from agent_env.errors import ConfigurationError, InvalidArguments
from agent_env.training.views.calls import Asked
from agent_env.training.views.rules import Choices, Encoding

Observation: TypeAlias = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Coder:
    """Writes messages as observations, and reads actions as replies.

    An observation is `Dict(asked, from, text, turn)`: whether the seat is to act, who speaks to it (0 the program, n
    the scenario's n-th seat), what they say, and how many turns have been. A `Dict` and never a bare text: PettingZoo
    compares the `dtype` of a bare observation with its space's, and a string has none.
    """

    seats: Sequence[str]
    max_turns: int
    max_text: int
    max_action: int
    characters: str
    encoding: Encoding
    actions: Choices

    def __post_init__(self) -> None:
        for name in ("max_turns", "max_text", "max_action"):
            if getattr(self, name) < 1:
                raise ConfigurationError(f"{name}={getattr(self, name)!r} must be at least 1")
        if self.encoding not in ("text", "bytes"):
            raise ConfigurationError(f"encoding={self.encoding!r} must be 'text' or 'bytes'")
        if not self.characters:
            raise ConfigurationError("characters='' leaves nothing that could be said")

    def observation_space(self) -> spaces.Dict:
        """The space of what a seat sees."""
        text: spaces.Space[Any]
        if self.encoding == "bytes":
            text = spaces.Box(0, 255, (self.max_text,), np.uint8)
        else:
            text = spaces.Text(self.max_text, min_length=0, charset=self.characters)
        return spaces.Dict(
            {
                "asked": spaces.Discrete(2),
                "from": spaces.Discrete(len(self.seats) + 1),
                "text": text,
                "turn": spaces.Discrete(self.max_turns + 1),
            }
        )

    def action_space(self, seat: str) -> spaces.Space[Any]:
        """The space of what a seat does; raises `ConfigurationError` for a choice of nothing."""
        choices = self.choices(seat)
        if choices is not None:
            if not choices:
                raise ConfigurationError(f"the seat {seat!r} has no action to choose from")
            return spaces.Discrete(len(choices))
        if self.encoding == "bytes":
            return spaces.Box(0, 255, (self.max_action,), np.uint8)
        return spaces.Text(self.max_action, min_length=1, charset=self.characters)

    def choices(self, seat: str) -> Sequence[str] | None:
        """The texts that the numbers of a discrete action mean, None where a seat says what it likes."""
        return self.actions.get(seat) if isinstance(self.actions, Mapping) else self.actions

    def encode(self, asked: Asked | None, turn: int) -> Observation:
        """What a seat sees; None is a seat that nobody has asked."""
        text = "" if asked is None else asked.text
        sender = 0 if asked is None or asked.sender not in self.seats else self.seats.index(asked.sender) + 1
        return {
            "asked": np.int64(asked is not None),
            "from": np.int64(sender),
            "text": self._bytes(text) if self.encoding == "bytes" else self._plain(text),
            "turn": np.int64(turn),
        }

    def decode(self, seat: str, action: Any) -> str:
        """What an action says. Raises `InvalidArguments` for what is neither in the space nor a text."""
        choices = self.choices(seat)
        if choices is not None:
            if not isinstance(action, int | np.integer) or not 0 <= int(action) < len(choices):
                raise InvalidArguments(f"the seat {seat!r} chooses one of 0 to {len(choices) - 1}, not {action!r:.100}")
            return choices[int(action)]
        if isinstance(action, str):
            # Half of a surrogate pair is no text that could be sent.
            return str(action).encode("utf-8", "replace").decode("utf-8")
        if self.encoding == "bytes":
            said = np.asarray(action)
            if said.dtype == np.uint8 and said.ndim == 1:
                return said.tobytes().rstrip(b"\0").decode("utf-8", "replace")
        raise InvalidArguments(f"the seat {seat!r} acts by a text, or by an element of its space, not {action!r:.100}")

    def _plain(self, text: str) -> str:
        """The text in the characters of the space: accents are dropped, and what is left over is a question mark."""
        allowed = set(self.characters)
        if not allowed.issuperset(text):
            split = unicodedata.normalize("NFKD", text)
            other = "?" if "?" in allowed else ""
            text = "".join(one if one in allowed else "" if unicodedata.combining(one) else other for one in split)
        return text[: self.max_text]

    def _bytes(self, text: str) -> np.ndarray[Any, np.dtype[np.uint8]]:
        """The text in UTF-8, cut between characters, and zeros."""
        said = text.encode("utf-8", "replace")
        if len(said) > self.max_text:
            said = said[: self.max_text].decode("utf-8", "ignore").encode()
        return np.frombuffer(said.ljust(self.max_text, b"\0"), np.uint8).copy()
