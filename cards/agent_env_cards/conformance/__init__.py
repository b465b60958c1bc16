"""Cards to try an implementation of the protocol on.

| folder | what a reader does | what a writer does |
|---|---|---|
| `valid` | takes the card | writes exactly these members |
| `foreign` | takes the card: it is another system's, or older | refuses it, for the problems given |
| `invalid` | refuses the card where `reader` is true | refuses it, for the problems given |

A valid case is a card. The others are `{"why", "reader", "card", "problems": [{"pointer", "clause"}]}`, where
`problems` are all those that the card has.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from importlib.resources import files
from typing import Literal, TypeAlias

from agent_env_cards.fact import JsonObject

Folder: TypeAlias = Literal["valid", "foreign", "invalid"]


@dataclass(frozen=True, slots=True)
class Case:
    """A card, and what must be said of it: `problems` as pairs of pointer and clause, in order."""

    name: str
    why: str
    card: object
    reader_refuses: bool
    problems: tuple[tuple[str, str], ...]


def cases(folder: Folder) -> list[Case]:
    """The cases of a folder, by name."""
    found: list[Case] = []
    for file in sorted((files(__name__) / folder).iterdir(), key=lambda file: file.name):
        name, content = file.name.removesuffix(".json"), json.loads(file.read_text(encoding="utf-8"))
        if folder == "valid":
            found.append(Case(name, "", content, False, ()))
        else:
            problems = tuple((problem["pointer"], problem["clause"]) for problem in content["problems"])
            found.append(Case(name, content["why"], content["card"], content["reader"], problems))
    return found


def example(name: str) -> JsonObject:
    """An example card by its name, such as "solver"."""
    text = (files("agent_env_cards") / "examples" / f"{name}.json").read_text(encoding="utf-8")
    card: JsonObject = json.loads(text)
    return card
