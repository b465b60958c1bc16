"""The keywords of one schema, each proven from the facts of an alternative."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from itertools import chain
from typing import TYPE_CHECKING, Any

from agent_env_cards.compatibility.alternatives import ABSENT, Alternative, Piece
from agent_env_cards.compatibility.dialect import FORMATS, Schema
from agent_env_cards.compatibility.facts import UNBOUNDED, Schemas
from agent_env_cards.compatibility.failure import Failure, Values, nothing
from agent_env_cards.compatibility.patterns import Undecidable, matches, matching
from agent_env_cards.compatibility.values import admits, divides

if TYPE_CHECKING:
    from agent_env_cards.compatibility.entailment import Prover

_SCALAR = frozenset(
    (
        "type",
        "enum",
        "minimum",
        "exclusiveMinimum",
        "maximum",
        "exclusiveMaximum",
        "multipleOf",
        "minLength",
        "maxLength",
        "pattern",
    )
)
# Formats of OpenAPI for numbers; all others speak of strings.
_NUMERIC = frozenset(("int32", "int64", "uint32", "uint64", "float", "double", "decimal"))


def typed(prover: Prover, left: Alternative, right: Piece, values: Values) -> Failure | None:
    """Proves the keywords of an alternative's own type, its type itself, and `enum`."""
    types = right.get("type")
    if types is not None and left.kind not in types:
        whole = left.kind == "number" and "integer" in types
        if not whole:
            return Failure((), f"a {left.kind} may come, and only {_or(types)} is allowed", values)
        if left.numbers.step is None or not divides(1, left.numbers.step):
            return Failure((), "a number that is not whole may come, and only integer is allowed", values)
    if "enum" in right and not (left.value is not ABSENT and admits({"enum": right["enum"]}, "", left.value)):
        return Failure((), f"a value other than {_or(right['enum'])} may come", values)
    why: str | None = None
    if left.kind == "number":
        why = _number(left, right)
    elif left.kind == "string":
        why = _text(left, right)
    elif left.kind == "array":
        return _array(prover, left, right, values)
    elif left.kind == "object":
        return _object(prover, left, right, values)
    return Failure((), why, values) if why else None


def formatted(left: Alternative, name: str) -> bool:
    """An unmet format is neither a yes nor a no: validators are free to ignore formats."""
    if left.kind in ("null", "boolean") or (left.kind == "number") != (name in _NUMERIC):
        return True
    if left.kind in ("array", "object") or any(piece.get("format") == name for piece in left.pieces):
        return True
    return isinstance(left.value, str) and name in FORMATS.checkers and FORMATS.conforms(left.value, name)


def _array(prover: Prover, left: Alternative, right: Piece, values: Values) -> Failure | None:
    arrays = left.arrays
    if arrays.least < right.get("minItems", 0):
        return Failure((), f"fewer than {right['minItems']} items may come", values)
    if arrays.most > right.get("maxItems", UNBOUNDED):
        return Failure((), f"more than {right['maxItems']} items may come", values)
    if right.get("uniqueItems") and not arrays.unique and arrays.most > 1:
        return Failure((), "an item may come twice", values)
    if "prefixItems" in right or "items" in right:
        prefix = right.get("prefixItems", ())
        last = max(arrays.prefix, len(prefix))
        for index in range(last + 1 if arrays.most > last else int(arrays.most)):
            wanted = prefix[index] if index < len(prefix) else right.get("items", True)
            failure = prover.subset(arrays.item(index), wanted)
            if failure is not None:
                return failure.inside(str(index), partial(prover.samples.holding, left, index))
    if "contains" in right and not prover.space.stated(left, right, ("contains", "minContains", "maxContains")):
        return _contains(prover, left, right, values)
    return None


def _contains(prover: Prover, left: Alternative, right: Piece, values: Values) -> Failure | None:
    arrays, wanted = left.arrays, right["contains"]
    least, most = right.get("minContains", 1), right.get("maxContains", UNBOUNDED)
    around = () if arrays.prefix else arrays.item(0)
    known = [schema for schema, count, _ in arrays.contains if count >= least]
    if least and not any(prover.subset((*around, schema), wanted) is None for schema in known):
        sure = range(min(arrays.least, arrays.prefix + least))
        if sum(prover.subset(arrays.item(index), wanted) is None for index in sure) < least:
            return Failure((), f"fewer than {least} items of the kind in `contains` may come", values)
    if most < arrays.most and not any(
        count <= most and prover.subset((wanted,), schema) is None for schema, _, count in arrays.contains
    ):
        return Failure((), f"more than {most} items of the kind in `contains` may come", values)
    return None


def _object(prover: Prover, left: Alternative, right: Piece, values: Values) -> Failure | None:
    objects = left.objects
    for name in right.get("required", ()):
        if name not in objects.required:
            return Failure((name,), f"the property {name!r} is required and may be absent", values)
    if objects.least < right.get("minProperties", 0):
        return Failure((), f"fewer than {right['minProperties']} properties may come", values)
    if objects.most > right.get("maxProperties", UNBOUNDED):
        return Failure((), f"more than {right['maxProperties']} properties may come", values)
    for cause, names in right.get("dependentRequired", {}).items():
        for narrower in prover.space.narrowed(left, {"required": [cause]}):
            if missing := [name for name in names if name not in narrower.objects.required]:
                return Failure((missing[0],), f"{missing[0]!r} is required beside {cause!r} and may be absent", values)
    if "properties" in right or "additionalProperties" in right or "patternProperties" in right:
        failure = _properties(prover, left, right)
        if failure is not None:
            return failure
    return _names(prover, left, right["propertyNames"], values) if "propertyNames" in right else None


def _properties(prover: Prover, left: Alternative, right: Piece) -> Failure | None:
    objects = left.objects
    properties, patterns = right.get("properties", {}), right.get("patternProperties", {})
    rest: Schema = right.get("additionalProperties", True)
    names = objects.listed
    if objects.finite is None:
        names = sorted(objects.named.union(properties, objects.required))
    for name in names:
        if not patterns:
            failure = _property(prover, left, [name], objects.value(name), properties.get(name, rest))
            if failure is not None:
                return failure
            continue
        wanted = [properties[name]] if name in properties else []
        for pattern, schema in patterns.items():
            try:
                if matches(pattern, name):
                    wanted.append(schema)
            except Undecidable:
                return Failure((name,), f"whether {name!r} matches {pattern!r} is not known", nothing)
        for schema in wanted or [rest]:
            if (failure := _property(prover, left, [name], objects.value(name), schema)) is not None:
                return failure
    if objects.finite is not None:
        return None
    for pattern, schema in patterns.items():
        value = tuple(map(prover.space.union, objects.other(pattern, set())))
        if (failure := _property(prover, left, matching(pattern) or [pattern], value, schema)) is not None:
            return failure
    if rest is True:
        return None
    value = tuple(map(prover.space.union, objects.other(None, set(patterns))))
    return _property(prover, left, prover.samples.fresh(left, names), value, rest)


def _property(prover: Prover, left: Alternative, names: list[str], value: Schemas, wanted: Schema) -> Failure | None:
    failure = prover.subset(value, wanted)
    if failure is None:
        return None
    if wanted is False:
        failure = Failure((), "the property is not allowed and may come", failure.values)
    return failure.inside(
        names[0], lambda item: chain.from_iterable(prover.samples.objects(left, {name: item}) for name in names)
    )


def _names(prover: Prover, left: Alternative, wanted: Schema, values: Values) -> Failure | None:
    objects = left.objects
    text: Schema = {"type": ["string"]}
    if objects.finite is not None:
        text = {"enum": sorted(objects.finite)}
    failure = prover.subset((text, *objects.names), wanted)
    if failure is None:
        return None
    names = failure.values
    return Failure(
        (),
        f"the name of a property: {failure.why}",
        lambda: chain.from_iterable(prover.samples.named(left, name) for name in names()),
    )


def _number(left: Alternative, right: Piece) -> str | None:
    facts = left.numbers
    if "minimum" in right and facts.low < right["minimum"]:
        return f"a number below the minimum {right['minimum']} may come"
    if "exclusiveMinimum" in right and not (
        facts.low > right["exclusiveMinimum"] or (facts.low == right["exclusiveMinimum"] and facts.low_open)
    ):
        return f"a number not above {right['exclusiveMinimum']} may come"
    if "maximum" in right and facts.high > right["maximum"]:
        return f"a number above the maximum {right['maximum']} may come"
    if "exclusiveMaximum" in right and not (
        facts.high < right["exclusiveMaximum"] or (facts.high == right["exclusiveMaximum"] and facts.high_open)
    ):
        return f"a number not below {right['exclusiveMaximum']} may come"
    if "multipleOf" in right and (facts.step is None or not divides(right["multipleOf"], facts.step)):
        return f"a number that is no multiple of {right['multipleOf']} may come"
    return None


def _text(left: Alternative, right: Piece) -> str | None:
    facts = left.texts
    if facts.least < right.get("minLength", 0):
        return f"a text shorter than {right['minLength']} may come"
    if facts.most > right.get("maxLength", UNBOUNDED):
        return f"a text longer than {right['maxLength']} may come"
    if "pattern" in right and right["pattern"] not in facts.patterns and right["pattern"] not in ("", ".*"):
        return f"a text without the pattern {right['pattern']!r} may come"
    return None


def _or(names: Sequence[Any]) -> str:
    shown = [str(name) if isinstance(name, str) else repr(name) for name in names[:5]]
    return " or ".join(shown) + (" …" if len(names) > 5 else "")


def brief(schema: Piece) -> str:
    """The keywords of a schema that speak of single values, for people."""
    shown = {name: value for name, value in schema.items() if name in _SCALAR}
    return ", ".join(f"{name} {_or(value) if isinstance(value, list) else value}" for name, value in shown.items())
