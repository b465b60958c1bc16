"""Cards and candidates to match."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from agent_env.matchmaking import Candidate
from agent_env_cards import (
    Accepts,
    Auth,
    Capabilities,
    EnvironmentCard,
    Interface,
    Need,
    Offer,
    SecurityScheme,
    ToolCard,
    ToolUse,
)

TEXT: dict[str, Any] = {"type": "string"}
CHAT: dict[str, Any] = {
    "type": "object",
    "properties": {
        "message": {"type": "string", "description": "What to say."},
        "session_id": {"type": ["string", "null"], "description": "Which conversation."},
    },
    "required": ["message"],
}
REPLY: dict[str, Any] = {"type": "object", "properties": {"text": TEXT}, "required": ["text"]}
SAYS: dict[str, Any] = {"type": "object", "properties": {"message": TEXT}, "required": ["message"]}


def make_card(
    name: str = "agent-b",
    version: str = "1.0.0",
    *,
    takes: Any = CHAT,
    gives: Any = REPLY,
    tool: str = "chat",
    accepts: Accepts | None = None,
    ways: dict[str, list[str]] | None = None,
    auth: Auth | None = None,
    needs: list[Need] | None = None,
    description: str = "An agent.",
    **offer: Any,
) -> EnvironmentCard:
    tools = [ToolCard(name=tool, description="Talks.", input_schema=takes, output_schema=gives)]
    return EnvironmentCard(
        name=name,
        version=version,
        description=description,
        offers=Offer(accepts=accepts or Accepts(), **offer),
        capabilities=Capabilities(tools=tools),
        interfaces=[
            Interface(transport=transport, url="/", protocol_versions=versions)
            for transport, versions in ({"websocket": ["1"]} if ways is None else ways).items()
        ],
        auth=auth,
        needs=needs or [],
    )


@pytest.fixture(scope="session")
def card() -> Callable[..., EnvironmentCard]:
    return make_card


SKILLS = ["math", "math.algebra", "math.algebra.linear", "code", "law", "oasf@1.0/reasoning/math", "oasf@1.0/reasoning"]
TAGS = ["math", "algebra", "fast", "cheap", "code"]
VERSIONS = ["1.0.0", "1.2.0", "2.0.0", "2.1.0-rc.1", "0.0.0-dev"]
SCHEMAS: list[Any] = [
    CHAT,
    SAYS,
    {"type": "object", "properties": {"message": {"type": "string", "maxLength": 5}}, "required": ["message"]},
    {"type": "object", "properties": {"message": TEXT, "id": TEXT}, "required": ["message", "id"]},
    {"type": "object", "properties": {"message": {"type": "string", "format": "uri"}}},
    {"type": "object", "properties": {"message": {"type": "integer"}}, "required": ["message"]},
    {},
    {"type": "nonsense"},
]
AUTHS = [
    None,
    Auth.bearer(["chat"]),
    Auth(
        schemes={"key": SecurityScheme(type="apiKey", name="k", location="header")}, security=[{"key": []}, {"x": []}]
    ),
    Auth(schemes={}, security=[{}]),
]


class Population:
    """Candidates and needs by chance, with every fact that a rule looks at."""

    def __init__(self, rng: random.Random) -> None:
        self.rng = rng

    def some(self, words: list[Any], most: int = 3) -> list[Any]:
        return self.rng.sample(words, self.rng.randint(0, min(most, len(words))))

    def candidate(self, number: int) -> Candidate:
        rng = self.rng
        own = [skill for skill in SKILLS if "@" not in skill]
        skills = [
            {"id": skill, "tags": self.some(TAGS, 1), "taxonomy": self.some([one for one in SKILLS if "@" in one], 1)}
            for skill in self.some(own)
        ]
        made = make_card(
            f"agent-{number % max(2, number // 2 + 1)}",
            rng.choice(VERSIONS),
            takes=rng.choice(SCHEMAS),
            gives=rng.choice([None, *SCHEMAS]),
            tool=rng.choice(["chat", "chat", "chat", "grade"]),
            accepts=rng.choice(
                [None, None, Accepts(names=["caller"]), Accepts(names=["team/*"]), Accepts(tags=["vip"])]
            ),
            ways=rng.choice([None, {}, {"mcp": ["2026-07-28"]}, {"a2a": ["9.9"]}, {"carrier-pigeon": []}]),
            auth=rng.choice(AUTHS),
            description=rng.choice(["", "Solves equations.", "Reviews contracts and code."]),
            skills=skills,
            tags=self.some(TAGS),
            input_modes=rng.choice([["text/plain"], ["text/*", "image/png"], ["application/json"]]),
            output_modes=rng.choice([["text/plain"], ["application/json; charset=utf-8"]]),
            examples=rng.choice([[], ["Solve x + 1 = 2", "What is 3 x 4?"], ["Review this contract", "Is this fair?"]]),
        )
        return Candidate(
            made,
            liveness=rng.choice([None, "up", "up", "suspect", "launchable", "unreachable"]),
            free=rng.choice([None, 0, 1, 5]),
            yanked=rng.choice([None, None, None, "broken"]),
        )

    def candidates(self, count: int) -> list[Candidate]:
        return [self.candidate(number) for number in range(count)]

    def criteria(self, chance: float) -> dict[str, Any]:
        rng = self.rng
        made: dict[str, Any] = {}
        if rng.random() < chance:
            made["skills"] = self.some([*SKILLS, "music"], 2)
        if rng.random() < chance / 2:
            made["tags"] = self.some(TAGS, 2)
        if rng.random() < chance / 5:
            made["name"] = rng.choice(["agent-0", "agent-1", "caller"])
        if rng.random() < chance / 3:
            made["version"] = rng.choice(["^1", ">=1.2,<3", "2.1.0-rc.1", "*", "0.0.0-dev"])
        if rng.random() < chance / 3:
            made["input_modes"] = self.some(["text/plain", "image/*", "application/json"], 2)
        if rng.random() < chance / 3:
            made["output_modes"] = self.some(["text/markdown", "application/json"], 2)
        if rng.random() < chance:
            made["tool"] = ToolUse(
                name=rng.choice(["chat", "chat", "grade"]),
                arguments=rng.choice([None, *SCHEMAS]),
                result=rng.choice([None, None, *SCHEMAS]),
            )
        if rng.random() < chance:
            made["examples"] = self.some(["Solve 2x = 4", "Review my contract"], 2)
        return made

    def easy(self, count: int) -> list[Candidate]:
        """Candidates that are within reach and fit many needs."""
        reach = {"yanked": None, "liveness": "up"}
        made = [replace(candidate, **reach, free=self.rng.choice([None, 1, 5])) for candidate in self.candidates(count)]
        plain = {"auth": None, "interfaces": []}
        return [replace(candidate, card=candidate.card.model_copy(update=plain)) for candidate in made]

    def need(self, seat: str = "peer", chance: float = 0.5) -> Need:
        rng = self.rng
        return Need(
            seat,
            requires=self.criteria(chance),
            prefers=self.criteria(0.7),
            allow_partial=rng.random() < 0.4,
            strict=rng.random() < chance * 0.4,
        )


@pytest.fixture(scope="session")
def population() -> type[Population]:
    return Population
