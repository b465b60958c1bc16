"""How a scenario is shown to learners of classic reinforcement learning."""

from __future__ import annotations

import string
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal, TypeAlias, TypedDict

from agent_env.training.scenario import Tasks

Encoding: TypeAlias = Literal["text", "bytes"]
Choices: TypeAlias = Sequence[str] | Mapping[str, Sequence[str]] | None

CHARACTERS = string.printable
"""What a text space holds unless other characters are given."""


@dataclass(frozen=True, slots=True)
class Rules:
    """How a scenario is shown.

    | field | meaning |
    |---|---|
    | `tasks` | in place of the scenario's own; a seed picks one |
    | `max_turns` | steps after which an episode is truncated |
    | `seconds` | how long the scenario and the frozen agents may take from one step to the next |
    | `may_call` | seats that a seat may call in its own turn, by the action "@seat words" |
    | `actions` | texts to choose from, for all seats or by seat: the action is a number; None: it is a text |
    | `encoding` | "text", or "bytes": texts as UTF-8 bytes of fixed length, padded with zeros |
    | `max_text`, `max_action` | characters (or bytes) of a message, and of an action that is sampled |
    | `characters` | those of text spaces; others in a message are replaced |
    """

    tasks: Tasks | None = None
    max_turns: int = 64
    seconds: float = 120.0
    may_call: Mapping[str, Sequence[str]] | None = None
    actions: Choices = None
    encoding: Encoding = "text"
    max_text: int = 4096
    max_action: int = 256
    characters: str = CHARACTERS


class RuleOptions(TypedDict, total=False):
    """The fields of `Rules` as keyword arguments."""

    tasks: Tasks | None
    max_turns: int
    seconds: float
    may_call: Mapping[str, Sequence[str]] | None
    actions: Choices
    encoding: Encoding
    max_text: int
    max_action: int
    characters: str
