"""A card that anybody may publish costs whoever looks for a peer little time."""

from __future__ import annotations

import time
from typing import Any

import pytest

from agent_env.matchmaking import Matchmaker
from agent_env_cards import EnvironmentCard, Need, ToolUse

TEXT: Any = {"type": "string"}


def card(name: str, message: Any, definitions: Any = None) -> EnvironmentCard:
    schema = {"type": "object", "properties": {"message": message}, "required": ["message"], "$defs": definitions or {}}
    tool = {"name": "chat", "description": "Talks.", "inputSchema": schema}
    offers = {"skills": ["math"]}
    made = {"name": name, "version": "1.0.0", "description": "d", "offers": offers, "capabilities": {"tools": [tool]}}
    return EnvironmentCard.parse(made)


def branching(count: int) -> dict[str, Any]:
    made: dict[str, Any] = {f"d{count}": TEXT}
    for at in range(count):
        below = {"$ref": f"#/$defs/d{at + 1}"}
        made[f"d{at}"] = {"anyOf": [below, below, {"type": "object", "properties": {"a": below, "b": below}}]}
    return made


@pytest.mark.timeout(30)
@pytest.mark.parametrize(
    ("message", "definitions"),
    [
        ({"type": "string", "pattern": "^" + "a?" * 28 + "a" * 28 + "$"}, None),
        ({"type": "string", "pattern": "(((a{200}){200}){200}){200}"}, None),
        ({"enum": [f"w{at}" for at in range(20_000)]}, None),
        ({"$ref": "#/$defs/d0"}, branching(40)),
    ],
    ids=["pattern", "repeats", "enum", "references"],
)
@pytest.mark.parametrize(
    "sent",
    [TEXT, {"enum": [f"w{at}" for at in range(20_001)]}, {"enum": ["a" * 27, "a" * 60 + "b"]}, {"minLength": 27}],
)
def test_a_hostile_card_is_passed_over_in_little_time(message: Any, definitions: Any, sent: Any) -> None:
    started = time.process_time()
    matchmaker = Matchmaker([card("hostile", message, definitions), card("kind", TEXT)])
    sends = {"type": "object", "properties": {"message": sent}, "required": ["message"]}
    report = matchmaker.pair(Need("solver", skills=["math"], tool=ToolUse(name="chat", arguments=sends)))
    assert time.process_time() - started < 5
    if sent == TEXT:
        assert report.ranked[0].candidate.card.name == "kind"
