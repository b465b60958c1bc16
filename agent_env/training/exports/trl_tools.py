"""Tools of environments as Python functions that carry their schema in signature and docstring, as TRL reads them."""

from __future__ import annotations

import inspect
import json
import keyword
import re
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from types import GenericAlias
from typing import Any, Literal, Union, cast

from agent_env.errors import ConfigurationError

_SCALARS: Mapping[str, Any] = {"string": str, "integer": int, "number": float, "boolean": bool, "null": type(None)}
_SECTIONS = re.compile(r"\b(Args|Returns|Raises|choices):")


@dataclass(frozen=True, slots=True)
class Parameter:
    """One argument of a tool: its name in Python and on the wire, its type, and what is said of it."""

    name: str
    wire: str
    hint: Any
    text: str
    required: bool
    default: Any = None


@dataclass(frozen=True, slots=True)
class Tool:
    """A tool: the name that it is called by on the wire, the name of the function, and its parameters."""

    name: str
    function: str
    description: str
    parameters: Sequence[Parameter]

    def arguments(self, given: Mapping[str, Any]) -> dict[str, Any]:
        """The arguments as the tool takes them; what it does not know goes along, for the tool to refuse."""
        wire = {parameter.name: parameter.wire for parameter in self.parameters}
        return {wire.get(name, name): value for name, value in given.items()}


def tool_of(peer: str, told: Mapping[str, Any], about: str) -> Tool:
    """Reads a tool of a peer as `list_tools` tells it; `about` describes the peer.

    Of `chat` the message alone is a parameter. Raises `ConfigurationError` for names that no Python name can stand for.
    """
    name, schema = str(told["name"]), cast(Mapping[str, Any], told.get("inputSchema") or {})
    properties: Mapping[str, Mapping[str, Any]] = schema.get("properties") or {}
    if name == "chat" and "message" in properties:
        properties = {"message": properties["message"]}
    required: set[str] = set(schema.get("required") or ())
    parameters: dict[str, Parameter] = {}
    for wire, one in properties.items():
        own = identifier(wire)
        if own in parameters or own == "self":
            raise ConfigurationError(f"the tool {name!r} of {peer!r} has arguments that cannot be told apart: {wire!r}")
        hint = hint_of(one)
        said = _plain(one.get("description"), f"The {wire.replace('_', ' ')}.")
        if one.get("properties") or (isinstance(one.get("items"), Mapping) and one["items"].get("properties")):
            # A type hint tells nothing of what an object holds.
            said = _plain(f"{said} JSON Schema: {json.dumps(one, sort_keys=True)}")
        parameters[own] = Parameter(own, wire, hint, said, wire in required, one.get("default"))
    function = identifier(peer if name == "chat" else f"{peer}_{name}")
    if function.startswith("_"):
        raise ConfigurationError(
            f"the tool {name!r} of {peer!r} would be private as {function!r}; name the peer otherwise"
        )
    description = _plain(told.get("description"), about, f"Talk to {peer}.")
    return Tool(name, function, description, list(parameters.values()))


def method_of(tool: Tool, ask: Callable[[Any, Mapping[str, Any]], Awaitable[str]]) -> Any:
    """An async method that awaits `ask(self, arguments)`, with the tool's name, signature, type hints and docstring."""

    async def method(self: Any, **given: Any) -> str:
        return await ask(self, given)

    receiver = inspect.Parameter("self", inspect.Parameter.POSITIONAL_OR_KEYWORD)
    parameters = [
        inspect.Parameter(
            one.name,
            inspect.Parameter.KEYWORD_ONLY,
            annotation=one.hint,
            default=inspect.Parameter.empty if one.required else one.default,
        )
        for one in tool.parameters
    ]
    made: Any = method
    made.__name__ = made.__qualname__ = tool.function
    made.__signature__ = inspect.Signature([receiver, *parameters], return_annotation=str)
    made.__annotations__ = {**{one.name: one.hint for one in tool.parameters}, "return": str}
    made.__doc__ = docstring(tool)
    return made


def docstring(tool: Tool) -> str:
    """A docstring in Google's style."""
    lines = [tool.description, ""]
    if tool.parameters:
        lines += ["Args:", *(f"    {one.name}: {one.text}" for one in tool.parameters), ""]
    return "\n".join([*lines, "Returns:", "    The reply."])


def hint_of(schema: Mapping[str, Any]) -> Any:
    """The type hint of a JSON Schema, as far as hints go; Any for what they cannot say."""
    if "const" in schema:
        return _literal([schema["const"]])
    if isinstance(schema.get("enum"), list):
        return _literal(schema["enum"])
    for choice in ("anyOf", "oneOf"):
        if isinstance(schema.get(choice), list):
            return _union([hint_of(one) for one in schema[choice]])
    kind = schema.get("type")
    if isinstance(kind, list):
        return _union([hint_of({**schema, "type": one}) for one in kind])
    if kind == "array":
        items = schema.get("items")
        return GenericAlias(list, (hint_of(cast(Mapping[str, Any], items)),)) if isinstance(items, Mapping) else list
    if kind == "object":
        values = schema.get("additionalProperties")
        if isinstance(values, Mapping) and values and not schema.get("properties"):
            return GenericAlias(dict, (str, hint_of(cast(Mapping[str, Any], values))))
        return dict
    return _SCALARS.get(str(kind), Any)


def identifier(name: str) -> str:
    """A Python name for any name: what no such name may hold becomes an underscore."""
    made = re.sub(r"\W", "_", name, flags=re.ASCII)
    if not made or made[0].isdigit():
        made = f"n{made}"
    return f"{made}_" if keyword.iskeyword(made) else made


def _literal(values: Sequence[Any]) -> Any:
    plain = all(value is None or isinstance(value, str | int | float | bool) for value in values)
    return Literal[tuple(values)] if plain and values else Any


def _union(hints: Sequence[Any]) -> Any:
    if not hints or Any in hints:
        return Any
    return Union[tuple(hints)]  # noqa: UP007 - its members are known when it runs


def _plain(*texts: Any) -> str:
    """The first of the texts that says something, on one line that no reader takes for a section of the docstring."""
    said = next(filter(None, (" ".join(str(text or "").split()) for text in texts)), "")
    return _SECTIONS.sub(r"\1 -", said)
