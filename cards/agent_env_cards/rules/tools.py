"""Rules about tools, functions and JSON Schemas."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, cast

from agent_env_cards.names import tool_fault
from agent_env_cards.pointers import children, objects, pointer, select, strings

Found = Iterator[tuple[str, str]]

_CALLS = ("tools", "functions")
_SCHEMAS = (
    *(("capabilities", call, "*", member) for call in _CALLS for member in ("inputSchema", "outputSchema")),
    *(("episode", member) for member in ("observation", "action")),
    *(("needs", "*", wish, "tool", member) for wish in ("requires", "prefers") for member in ("arguments", "result")),
)
_APPLICATORS = ("contains", "else", "if", "items", "not", "propertyNames", "then")
_ONE_SCHEMA = {
    *_APPLICATORS,
    *(rest + kind for rest in ("additional", "unevaluated") for kind in ("Items", "Properties")),
}
_MAPS = ("$defs", "definitions", "dependentSchemas", "patternProperties", "properties")
_MANY_SCHEMAS = {*_MAPS, "allOf", "anyOf", "items", "oneOf", "prefixItems"}


def names_are_unique(card: Mapping[str, Any]) -> Found:
    """EC-15: a tool's or function's name is one that every protocol takes, and no two in a list are equal."""
    for call in _CALLS:
        seen: dict[str, str] = {}
        for at, name in strings(card, "capabilities", call, "*", "name"):
            if fault := tool_fault(name, call.removesuffix("s")):
                yield at, fault
            if name in seen:
                yield at, f"the name {name!r} is taken by {seen[name]}"
            seen.setdefault(name, at)


def parameters_are_described(card: Mapping[str, Any]) -> Found:
    """EC-16: every tool and function and each of its parameters has a description."""
    for call in _CALLS:
        for at, tool in objects(card, "capabilities", call, "*"):
            name = tool.get("name")
            if not _has_text(tool.get("description")):
                yield at + pointer("description"), f"{name!r} has no description; say what it does"
            schema = tool.get("inputSchema")
            for place, parameter in select(schema, "properties", "*"):
                if not _described(parameter, schema):
                    yield (
                        at + pointer("inputSchema") + place + pointer("description"),
                        f"a parameter of {name!r} has no description; say what to pass",
                    )


def schemas_are_closed(card: Mapping[str, Any]) -> Found:
    """EC-17: arguments are an object, and a schema refers to nothing outside of itself."""
    for call in _CALLS:
        for at, schema in objects(card, "capabilities", call, "*", "inputSchema"):
            if schema.get("type") != "object":
                yield at + pointer("type"), 'the schema of arguments must have "type": "object"'
    for path in _SCHEMAS:
        for at, schema in objects(card, *path):
            for place, subschema in _subschemas(schema):
                for keyword in ("$ref", "$dynamicRef"):
                    target = subschema.get(keyword)
                    if isinstance(target, str) and not _resolves(target, schema):
                        yield (
                            at + place + pointer(keyword),
                            f"{target!r} leads out of the schema or to nothing in it; put the target in its $defs",
                        )


def agents_chat(card: Mapping[str, Any]) -> Found:
    """EC-18: a card of kind "agent" has a tool `chat` whose argument `message`, a string, is required."""
    if card.get("kind") != "agent":
        return
    for at, tool in objects(card, "capabilities", "tools", "*"):
        if tool.get("name") == "chat":
            message = dict(objects(tool, "inputSchema", "properties", "message"))
            required = list(strings(tool, "inputSchema", "required", "*"))
            kinds = [schema.get("type") for schema in message.values()]
            if kinds != ["string"] or "message" not in [name for _, name in required]:
                yield at + pointer("inputSchema"), "`chat` must take a required argument `message` of type string"
            return
    yield pointer("capabilities", "tools"), 'an environment of kind "agent" has a tool named `chat`; add it'


def _has_text(value: object) -> bool:
    return isinstance(value, str) and bool(value.strip())


def _described(parameter: object, root: object) -> bool:
    if not isinstance(parameter, Mapping):
        # Of the schemas without a place for a description only `false` needs none: nothing can be passed.
        return parameter is False
    schema = cast("Mapping[str, Any]", parameter)
    if _has_text(schema.get("description")):
        return True
    reference = schema.get("$ref")
    target = _target(reference, root) if isinstance(reference, str) else None
    return isinstance(target, Mapping) and _has_text(cast("Mapping[str, Any]", target).get("description"))


def _resolves(target: str, root: object) -> bool:
    return (
        target == "#" or (target.startswith("#") and not target.startswith("#/")) or _target(target, root) is not None
    )


def _target(target: str, root: object) -> object | None:
    """What a local reference points to, None for a remote one or one that points nowhere."""
    if not target.startswith("#/"):
        return None
    found = root
    for part in target[2:].split("/"):
        token = part.replace("~1", "/").replace("~0", "~")
        if isinstance(found, Mapping):
            found = cast("Mapping[str, object]", found).get(token)
        elif isinstance(found, list) and part.isascii() and part.isdecimal() and len(part) < 10:
            found = next(iter(cast("list[object]", found)[int(part) :]), None)
        else:
            return None
    return found


def _subschemas(schema: Mapping[str, Any], at: str = "") -> Iterator[tuple[str, Mapping[str, Any]]]:
    """A schema and all schemas in it; values such as `default` and `enum` are not schemas and are passed over."""
    yield at, schema
    for keyword, value in schema.items():
        places: list[tuple[str, object]] = []
        if keyword in _ONE_SCHEMA and isinstance(value, Mapping):
            places = [(at + pointer(keyword), cast("object", value))]
        elif keyword in _MANY_SCHEMAS:
            places = [(at + pointer(keyword, token), member) for token, member in children(value)]
        for place, member in places:
            if isinstance(member, Mapping):
                yield from _subschemas(cast("Mapping[str, Any]", member), place)
