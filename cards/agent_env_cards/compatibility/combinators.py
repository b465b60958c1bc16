"""The keywords that combine or refer to other schemas."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import TYPE_CHECKING, TypeAlias

from agent_env_cards.compatibility.alternatives import Alternative, Piece
from agent_env_cards.compatibility.dialect import Schema
from agent_env_cards.compatibility.failure import Failure, Values, nearest_of

if TYPE_CHECKING:
    from agent_env_cards.compatibility.entailment import Prover

# What these say depends on the keywords around them.
_CONTEXTUAL = frozenset(("unevaluatedProperties", "unevaluatedItems"))


def combined(prover: Prover, left: Alternative, right: Piece, values: Values) -> Failure | None:
    """Proves the keywords of a schema that combine or refer to other schemas."""
    for keyword in right:
        prove = _RULES.get(keyword)
        if prove is not None and (failure := prove(prover, left, right, values)) is not None:
            beside = ("if", "then", "else") if keyword == "if" else (keyword,)
            if keyword in _CONTEXTUAL or not prover.space.stated(left, right, beside):
                return failure
    return None


def _reference(prover: Prover, left: Alternative, right: Piece, values: Values) -> Failure | None:
    target = prover.space.target(right)
    if target is None:
        address = right["$ref"]
        if "://" in address and any(piece.get("$ref") == address for piece in left.pieces):
            return None
        return Failure((), f"{address.lstrip('?')!r} is not in this document", values)
    return prover.entails(left, target)


def _every(prover: Prover, left: Alternative, right: Piece, values: Values) -> Failure | None:
    return next((failure for part in right["allOf"] if (failure := prover.entails(left, part)) is not None), None)


def _any(prover: Prover, left: Alternative, right: Piece, values: Values) -> Failure | None:
    failures: list[Failure] = []
    for part in right["anyOf"]:
        failure = prover.entails(left, part)
        if failure is None:
            return None
        failures.append(failure)
    return nearest_of(failures, values)


def _one(prover: Prover, left: Alternative, right: Piece, values: Values) -> Failure | None:
    failures: list[Failure] = []
    parts: list[Schema] = right["oneOf"]
    for index, part in enumerate(parts):
        failure = prover.entails(left, part)
        if failure is None:
            both = [other for at, other in enumerate(parts) if at != index and not prover.disjoint(left, other)]
            if not both:
                return None
            why = "more than one alternative of `oneOf` may be met"
            failure = Failure((), why, partial(prover.samples.meeting, left, both))
        failures.append(failure)
    return nearest_of(failures, values)


def _not(prover: Prover, left: Alternative, right: Piece, values: Values) -> Failure | None:
    unwanted = right["not"]
    if prover.disjoint(left, unwanted):
        return None
    excluded = [piece["not"] for piece in left.pieces if "not" in piece]
    if excluded and any(prover.every(prover.space.alternatives((unwanted,)), schema) is None for schema in excluded):
        return None
    return Failure((), "what `not` excludes may come", lambda: prover.samples.meeting(left, [unwanted]))


def _conditional(prover: Prover, left: Alternative, right: Piece, values: Values) -> Failure | None:
    failure = prover.every(prover.space.narrowed(left, right["if"]), right.get("then", True))
    if failure is None and "else" in right and prover.entails(left, right["if"]) is not None:
        negated = prover.space.made("not", right, lambda: {"not": right["if"]})
        failure = prover.every(prover.space.narrowed(left, negated), right["else"])
    return failure


def _dependent(prover: Prover, left: Alternative, right: Piece, values: Values) -> Failure | None:
    if left.kind != "object":
        return None
    for name, schema in right["dependentSchemas"].items():
        failure = prover.every(prover.space.narrowed(left, {"required": [name]}), schema)
        if failure is not None:
            return failure
    return None


def _unevaluated(prover: Prover, left: Alternative, right: Piece, values: Values) -> Failure | None:
    rest = prover.space.rest(right)
    if rest is not None:
        return prover.entails(left, rest)
    if prover.space.stated(left, right, tuple(right)):
        return None
    return Failure((), "what is unevaluated depends on the value", values)


_Rule: TypeAlias = Callable[["Prover", Alternative, Piece, Values], Failure | None]

_RULES: Mapping[str, _Rule] = {
    "$ref": _reference,
    "allOf": _every,
    "anyOf": _any,
    "oneOf": _one,
    "not": _not,
    "if": _conditional,
    "dependentSchemas": _dependent,
    "unevaluatedProperties": _unevaluated,
    "unevaluatedItems": _unevaluated,
}
