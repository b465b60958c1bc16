"""Tools, functions, rewards and hooks that an owner adds to an environment, made from plain functions.

The signature gives the JSON Schema, the docstring the descriptions. Synchronous functions run in a thread of their
own, so that a slow one holds up nobody.
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, cast, get_type_hints

from pydantic import BaseModel, ConfigDict, Field, TypeAdapter, ValidationError, create_model
from pydantic.errors import PydanticSchemaGenerationError, PydanticUserError
from pydantic.fields import FieldInfo

from agent_env.errors import ConfigurationError, InvalidArguments
from agent_env_wrappers.threads import Threads

INJECTED = frozenset({"session"})
"""Parameters that the runtime fills; they are no part of the schema."""


@dataclass(frozen=True, slots=True)
class Reward:
    """What a reward function may return in place of a number: a value, and whether the episode ends with it."""

    value: float | None
    done: bool = False


@dataclass(frozen=True, slots=True)
class Declared:
    """A function with a name, a description, and a schema of its arguments and of its result."""

    name: str
    description: str
    parameters: Mapping[str, Any]
    output: Mapping[str, Any] | None
    function: Callable[..., Any]
    arguments: type[BaseModel]
    injects: frozenset[str]
    weight: float = 1.0
    threads: Threads = field(default_factory=lambda: Threads(name="owner's function"), compare=False)

    def validate(self, arguments: Mapping[str, Any]) -> dict[str, Any]:
        """Checks and converts the arguments; raises `InvalidArguments` that names every problem."""
        try:
            model = self.arguments.model_validate(dict(arguments))
        except ValidationError as error:
            problems = [
                {"pointer": "".join(f"/{part}" for part in item["loc"]), "message": item["msg"]}
                for item in error.errors(include_url=False, include_context=False)
            ]
            listed = "; ".join(f"{problem['pointer'] or '/'}: {problem['message']}" for problem in problems)
            raise InvalidArguments(
                f"the arguments of {self.name!r} do not fit its schema: {listed}", problems=problems
            ) from None
        return {name: getattr(model, name) for name in type(model).model_fields}

    async def run(self, keywords: Mapping[str, Any], injected: Mapping[str, Any]) -> Any:
        """Calls the function with what `validate` returned, and what the runtime adds to it."""
        return await invoke(self.function, self.threads, **keywords, **{name: injected[name] for name in self.injects})

    async def call(self, arguments: Mapping[str, Any], injected: Mapping[str, Any]) -> Any:
        """Validates the arguments and calls the function."""
        return await self.run(self.validate(arguments), injected)


async def invoke(function: Callable[..., Any], threads: Threads, /, *args: Any, **kwargs: Any) -> Any:
    """Calls a function: a coroutine function here, a synchronous one in a thread of its own."""
    if inspect.iscoroutinefunction(function):
        return await function(*args, **kwargs)
    result = await threads.run(function, *args, **kwargs)
    if inspect.isawaitable(result):
        return await result
    return result


def declare(function: Callable[..., Any], *, name: str | None = None, weight: float = 1.0) -> Declared:
    """Reads a function's signature and docstring; raises `ConfigurationError` for one that has no JSON Schema."""
    shown = name or function.__name__
    docstring = inspect.getdoc(function) or ""
    described = _parameter_descriptions(docstring)
    signature = inspect.signature(function)
    hints = get_type_hints(function, include_extras=True)
    fields: dict[str, Any] = {}
    for parameter in signature.parameters.values():
        if parameter.name in INJECTED:
            continue
        if parameter.kind in (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD, parameter.POSITIONAL_ONLY):
            raise ConfigurationError(
                f"the parameter {parameter.name!r} of {shown!r} has no name that a caller could use; "
                "give the function plain named parameters"
            )
        default = ... if parameter.default is parameter.empty else parameter.default
        text = described.get(parameter.name, parameter.name.replace("_", " "))
        annotation = hints.get(parameter.name, Any)
        fields[parameter.name] = (annotation, _field(annotation, default, text))
    try:
        arguments = create_model(f"{shown}_arguments", __config__=ConfigDict(extra="forbid"), **fields)
        parameters = _untitled(arguments.model_json_schema())
        returns = hints.get("return")
        output = None if returns in (None, Any, Reward) else _untitled(TypeAdapter(returns).json_schema())
    except (PydanticSchemaGenerationError, PydanticUserError) as error:
        raise ConfigurationError(
            f"{shown!r} has a parameter or result without a JSON Schema: {error.message.splitlines()[0]}; "
            "annotate it with JSON types, dataclasses or pydantic models"
        ) from error
    injects = INJECTED & signature.parameters.keys()
    summary = docstring.split("\n\n")[0].strip() or shown.replace("_", " ")
    return Declared(shown, summary, parameters, output, function, arguments, frozenset(injects), weight)


def _field(annotation: Any, default: Any, description: str) -> FieldInfo:
    own = next((item for item in getattr(annotation, "__metadata__", ()) if isinstance(item, FieldInfo)), None)
    if own is not None and own.description:
        return cast(FieldInfo, Field(default))
    return cast(FieldInfo, Field(default, description=description))


def _parameter_descriptions(docstring: str) -> dict[str, str]:
    """Reads an `Args:` section or `:param name:` lines."""
    found = {
        match[1]: match[2].strip() for match in re.finditer(r"^\s*:param\s+(\w+):\s*(.+)$", docstring, re.MULTILINE)
    }
    _, section, rest = docstring.partition("Args:\n")
    if section:
        for line in rest.splitlines():
            if line and not line[0].isspace():
                break
            if match := re.match(r"\s+(\w+)(?:\s*\([^)]*\))?:\s*(.+)", line):
                found[match[1]] = match[2].strip()
    return found


def _untitled(schema: Any) -> Any:
    """Drops the titles that pydantic derives from names: they say nothing and change with the class."""
    if isinstance(schema, dict):
        items = cast("dict[str, Any]", schema).items()
        return {
            key: {name: _untitled(value) for name, value in part.items()}
            if key in ("properties", "$defs")
            else _untitled(part)
            for key, part in items
            if not (key == "title" and isinstance(part, str))
        }
    if isinstance(schema, list):
        return [_untitled(item) for item in schema]
    return schema
