"""JSON Schemas (2020-12) of what this package reads and writes, made from the models and kept beside this module.

    python -m agent_env_cards.schema --check     # exits 1 if a file is not what the models say
    python -m agent_env_cards.schema --write

The schemas are of the form alone (clause EC-03); the other clauses are rules that `validate_card` holds cards against.
"""

from __future__ import annotations

import inspect
import json
from collections.abc import Mapping
from importlib.resources import files
from typing import Any, Final, cast

from pydantic.json_schema import GenerateJsonSchema, JsonSchemaValue
from pydantic_core import CoreSchema

from agent_env_cards.environment_card import EnvironmentCard
from agent_env_cards.fact import Fact, JsonObject
from agent_env_cards.needs import Need

MODELS: Final[Mapping[str, type[Fact]]] = {"environment-card": EnvironmentCard, "need": Need}


class _Plain(GenerateJsonSchema):
    """Leaves out what pydantic adds of its own: titles, and docstrings beyond their first paragraph."""

    def generate(self, schema: CoreSchema, mode: str = "validation") -> JsonSchemaValue:
        made = super().generate(schema, "validation")
        return cast("JsonSchemaValue", _plain(made))


def _plain(value: object) -> object:
    if isinstance(value, Mapping):
        members = cast("Mapping[str, object]", value)
        kept = {name: _plain(member) for name, member in members.items() if not _is_title(name, member)}
        if isinstance(text := kept.get("description"), str):
            kept["description"] = " ".join(inspect.cleandoc(text).partition("\n\n")[0].split())
        return kept
    return [_plain(element) for element in cast("list[object]", value)] if isinstance(value, list) else value


def _is_title(name: str, member: object) -> bool:
    return name == "title" and isinstance(member, str)


def make_schema(name: str) -> JsonObject:
    """Makes the schema of one of `MODELS` from the model."""
    made = MODELS[name].model_json_schema(schema_generator=_Plain)
    dialect = "https://json-schema.org/draft/2020-12/schema"
    return {"$schema": dialect, "$id": f"urn:agent-env:schema:{name}:v1", **made}


def read_schema(name: str) -> JsonObject:
    """Reads the schema of one of `MODELS` from its file."""
    return cast("dict[str, Any]", json.loads(schema_text(name)))


def schema_text(name: str) -> str:
    """The text of a schema's file."""
    return (files(__name__) / f"{name}.schema.json").read_text(encoding="utf-8")


def made_text(name: str) -> str:
    """The text that a schema's file must have."""
    return json.dumps(make_schema(name), indent=2, ensure_ascii=False, sort_keys=True) + "\n"
