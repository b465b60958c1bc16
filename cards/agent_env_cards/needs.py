"""What an environment asks of a peer."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from pydantic import Field

from agent_env_cards.fact import Fact, Flag, JsonObject
from agent_env_cards.offers import SampleRequest


class ToolUse(Fact):
    """How a peer will be called: the tool, the arguments that will be sent to it and the result that is expected.

    Both are JSON Schemas, None where nothing is promised or asked. A peer fits when its tool takes everything that
    `arguments` allows and returns nothing that `result` forbids.
    """

    name: str = "chat"
    arguments: JsonObject | None = None
    result: JsonObject | None = None


class Criteria(Fact):
    """Facts that a peer's card is held against; an empty one asks for nothing.

    | field | the peer's card fits when |
    |---|---|
    | `skills` | it offers each of these skill ids, a part or the whole of it, or a taxonomy id that is equal |
    | `tags` | it offers all of these tags |
    | `name` | this is its name |
    | `version` | its version is in this range (npm's grammar, as in references) |
    | `input_modes` | it reads at least one of these media types |
    | `output_modes` | it writes at least one of these media types |
    | `tool` | its tool fits this use |
    | `examples` | its text is near to these requests (ranks, never refuses) |
    """

    skills: list[str] = Field(default=[])
    tags: list[str] = Field(default=[])
    name: str | None = None
    version: str | None = None
    input_modes: list[str] = Field(default=[])
    output_modes: list[str] = Field(default=[])
    tool: ToolUse | None = None
    examples: list[SampleRequest] = Field(default=[])


class Need(Fact):
    """A seat that an environment wants filled by a peer.

    `requires` vetoes, `prefers` ranks. With `allow_partial` a peer is taken although some calls may not fit its
    schemas; with `strict` a fact that the peer's card does not tell counts as a refusal. The keyword arguments that
    name criteria are written into `requires`.

    Example:
        >>> from agent_env_cards import Need
        >>> need = Need("solver", skills=["math"], version="^1")
        >>> need.requires.skills, need.requires.version
        (['math'], '^1')
    """

    seat: str
    description: str = ""
    requires: Criteria = Criteria()
    prefers: Criteria = Criteria()
    allow_partial: Flag = False
    strict: Flag = False

    # Positional-only, so that validation can pass the member "seat" among the others.
    def __init__(
        self,
        seat: str | None = None,
        /,
        *,
        skills: Sequence[str] | None = None,
        tags: Sequence[str] | None = None,
        name: str | None = None,
        version: str | None = None,
        input_modes: Sequence[str] | None = None,
        output_modes: Sequence[str] | None = None,
        tool: ToolUse | None = None,
        examples: Sequence[str | SampleRequest] | None = None,
        **members: Any,
    ) -> None:
        criteria = {
            "skills": skills,
            "tags": tags,
            "name": name,
            "version": version,
            "inputModes": input_modes,
            "outputModes": output_modes,
            "tool": tool,
            "examples": examples,
        }
        given = {key: value for key, value in criteria.items() if value is not None}
        if given:
            requires = members.get("requires")
            stated = requires.to_dict() if isinstance(requires, Criteria) else dict(requires or {})
            members["requires"] = {**stated, **given}
        if seat is not None:
            members["seat"] = seat
        super().__init__(**members)
