"""What an environment gives: skills, modes and sample requests, and whom it gives them to."""

from __future__ import annotations

from typing import Any

from pydantic import Field, model_validator

from agent_env_cards.fact import Fact

TEXT = "text/plain"
JSON = "application/json"


class Skill(Fact):
    """Something that an environment can do.

    `id` is the owner's own short name for it, lower-case labels with dots between them where one skill is a part of
    another ("math.algebra"). `taxonomy` has the ids of the same skill in public taxonomies, each with the version
    that it was taken from ("oasf@1.0/reasoning/math"). In JSON a bare string is a skill with that id.
    """

    id: str
    name: str | None = None
    description: str = ""
    tags: list[str] = Field(default=[])
    taxonomy: list[str] = Field(default=[])

    @model_validator(mode="before")
    @classmethod
    def _string_is_id(cls, value: Any) -> Any:
        return {"id": value} if isinstance(value, str) else value


class SampleRequest(Fact):
    """A request that the environment is good at answering, as a caller would word it.

    `reply` is a good answer, `skill` the id of the skill that it shows, None for all of them. In JSON a bare string is a sample request with no reply.
    """

    request: str
    reply: str | None = None
    skill: str | None = None

    @model_validator(mode="before")
    @classmethod
    def _string_is_request(cls, value: Any) -> Any:
        return {"request": value} if isinstance(value, str) else value


class Accepts(Fact):
    """Whom an environment takes as a caller in a pairing; an empty list asks for nothing.

    | field | the caller's card fits when |
    |---|---|
    | `names` | its name is one of these; `"team/*"` stands for every name in the namespace |
    | `tags` | it offers all of these tags |
    """

    names: list[str] = Field(default=[])
    tags: list[str] = Field(default=[])

    def admits(self, name: str, tags: list[str]) -> bool:
        """Tells whether a caller with this name and these tags is taken."""
        namespace = f"{name.rpartition('/')[0]}/*"
        named = not self.names or name in self.names or ("/" in name and namespace in self.names)
        return named and set(self.tags) <= set(tags)


class Offer(Fact):
    """What an environment gives to a peer.

    `input_modes` and `output_modes` are media types. `examples` holds none, or two to five sample requests: they tell
    a matchmaker more than any description does.
    """

    skills: list[Skill] = Field(default=[])
    tags: list[str] = Field(default=[])
    input_modes: list[str] = Field(default=[TEXT])
    output_modes: list[str] = Field(default=[TEXT])
    examples: list[SampleRequest] = Field(default=[])
    accepts: Accepts = Accepts()

    def skill(self, skill_id: str) -> Skill | None:
        """The skill with this id, or None."""
        return next((skill for skill in self.skills if skill.id == skill_id), None)
