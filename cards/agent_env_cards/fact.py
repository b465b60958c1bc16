"""The model that every part of a card is made of."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, TypeAlias, cast

from pydantic import BaseModel, ConfigDict, StrictBool, StrictFloat, StrictInt, model_validator
from pydantic.alias_generators import to_camel

JsonObject: TypeAlias = dict[str, Any]
"""A JSON object whose members this package does not interpret, such as a JSON Schema."""

Flag: TypeAlias = StrictBool
Count: TypeAlias = StrictInt
Number: TypeAlias = StrictFloat


class Fact(BaseModel):
    """A part of a card: camelCase on the wire, snake_case in Python, frozen.

    A member that it does not know is kept and written again. A known member that is null counts as absent, and one
    that has its default is not written, so that the three spellings of "nothing said" are one.
    """

    model_config = ConfigDict(
        extra="allow",
        frozen=True,
        alias_generator=to_camel,
        populate_by_name=True,
        serialize_by_alias=True,
    )

    @model_validator(mode="before")
    @classmethod
    def _null_is_absent(cls, value: Any) -> Any:
        if not isinstance(value, Mapping):
            return value
        members = cast("Mapping[str, Any]", value)
        if None not in members.values():
            return members
        known = {field.serialization_alias for field in cls.model_fields.values()} | set(cls.model_fields)
        return {name: member for name, member in members.items() if member is not None or name not in known}

    def to_dict(self) -> JsonObject:
        """The part as JSON, without the members that have their default."""
        return self.model_dump(mode="json", exclude_defaults=True)
