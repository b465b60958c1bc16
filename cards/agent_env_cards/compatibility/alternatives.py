"""What a schema allows, as alternatives of one JSON type each: how the left side of a comparison is seen.

A conjunction of schemas is spread over its combinators into alternatives; what an alternative keeps may allow more
than the schema does (a left `not` is only remembered), never less. So what holds for all alternatives holds for the
schema, and an alternative that is dropped allows nothing.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Final, TypeAlias

from agent_env_cards.compatibility.dialect import TYPES, Document, Schema
from agent_env_cards.compatibility.facts import Arrays, Numbers, Objects, Texts
from agent_env_cards.compatibility.values import admits, exactly, key, kind_of
from agent_env_cards.compatibility.work import spend

Piece: TypeAlias = dict[str, Any]
Pieces: TypeAlias = tuple[Piece, ...]

MAX_ALTERNATIVES = 128
_OPENING = frozenset(("additionalProperties", "unevaluatedProperties"))
_CLOSED: Final = {"additionalProperties": False}
_REFERENCE = re.compile(r'"\$ref": "#/\$defs/')
ABSENT: Final = object()


@dataclass(slots=True, eq=False)
class Alternative:
    """Values of one JSON type that satisfy all `pieces`, whose combinators are resolved already.

    `value` is the only value there is, `ABSENT` where there may be more; `void` tells whether its own negations
    leave nothing, None while nobody has asked.
    """

    kind: str
    pieces: Pieces
    value: Any = ABSENT
    void: bool | None = None
    _facts: Numbers | Texts | Arrays | Objects | None = field(default=None, repr=False)

    @property
    def numbers(self) -> Numbers:
        """The bounds of a number."""
        if not isinstance(self._facts, Numbers):
            self._facts = Numbers(self.pieces)
        return self._facts

    @property
    def texts(self) -> Texts:
        """The bounds of a string."""
        if not isinstance(self._facts, Texts):
            self._facts = Texts(self.pieces)
        return self._facts

    @property
    def arrays(self) -> Arrays:
        """The items of an array."""
        if not isinstance(self._facts, Arrays):
            self._facts = Arrays(self.pieces)
        return self._facts

    @property
    def objects(self) -> Objects:
        """The properties of an object."""
        if not isinstance(self._facts, Objects):
            self._facts = Objects(self.pieces)
        return self._facts


class Space:
    """The schemas of one comparison, and what was derived from them."""

    def __init__(self, *documents: Document) -> None:
        self._targets: dict[int, Schema | None] = {}
        self._documents: tuple[Document, ...] = ()
        self._speaking: set[int] = set()
        self._taken: set[int] = set()
        # Schemas are told apart by their ids, so whatever was seen is kept alive.
        self._kept: list[Any] = []
        self.take(*documents)
        self._spread: dict[int, list[Pieces]] = {}
        self._alternatives: dict[frozenset[int], list[Alternative]] = {}
        self._made: dict[tuple[object, ...], Schema] = {}
        self.proven: set[tuple[frozenset[int], int]] = set()
        """Pairs of left schemas and a right one that were proven, resting on no assumption."""
        self._open: set[frozenset[int]] = set()

    def take(self, *documents: Document) -> None:
        """Turns to other documents; what was derived from earlier ones stays known."""
        self._documents = documents or self._documents
        for document in documents:
            if id(document) not in self._taken:
                self._taken.add(id(document))
                self._targets.update(document.targets)
                self._speaking.update(document.speaking)
                self._kept.append(document)

    @property
    def size(self) -> int:
        """How much is kept."""
        return len(self._kept)

    def target(self, schema: Piece) -> Schema | None:
        """What the schema's `$ref` refers to, None if that is outside of the document."""
        return self._targets[id(schema)]

    def followed(self, schema: Schema) -> Schema:
        """What a schema that is nothing but a reference refers to, in the end; else the schema itself."""
        for _ in range(8):
            if isinstance(schema, bool) or len(schema) != 1 or "$ref" not in schema:
                break
            target = self.target(schema)
            if target is None:
                break
            schema = target
        return schema

    def made(self, tag: str, schema: Piece, make: Callable[[], Schema]) -> Schema:
        """A schema derived from another one: the same object each time, so that recursion is recognised."""
        name = (tag, id(schema))
        if name not in self._made:
            self._kept.append(schema)
            self._made[name] = make()
        return self._made[name]

    def union(self, schemas: tuple[Schema, ...]) -> Schema:
        """The schema that at least one of several allows: the same object each time."""
        if len(schemas) == 1:
            return schemas[0]
        name = ("anyOf", *map(id, schemas))
        if name not in self._made:
            self._kept.append(schemas)
            self._made[name] = {"anyOf": list(schemas)}
        return self._made[name]

    def alternatives(self, schemas: Iterable[Schema]) -> list[Alternative]:
        """What satisfies all schemas; empty if nothing does, as far as the structure tells."""
        parts = {id(schema): schema for schema in schemas if schema is not True}
        name = frozenset(parts)
        found = self._alternatives.get(name)
        if found is None:
            self._kept.append(tuple(parts.values()))
            options: list[Pieces] = [()]
            for part in parts.values():
                options = _product(options, self.spread(part))
            if self._speaking:
                options = [self._declared(pieces) for pieces in options]
            self._open.add(name)
            found = [alternative for pieces in options for alternative in self._typed(pieces, TYPES)]
            self._open.discard(name)
            self._alternatives[name] = found
        return found

    def narrowed(self, alternative: Alternative, schema: Schema) -> list[Alternative]:
        """What of an alternative satisfies a further schema."""
        return [
            narrower
            for option in self.spread(schema)
            for narrower in self._typed((*alternative.pieces, *option), (alternative.kind,))
        ]

    def inhabited(self, schemas: Iterable[Schema]) -> bool:
        """Tells whether the structure leaves any value that satisfies all schemas."""
        found = [schema for schema in schemas if schema is not True]
        return not found or frozenset(map(id, found)) in self._open or bool(self.alternatives(found))

    def stated(self, left: Alternative, schema: Piece, keywords: tuple[str, ...]) -> bool:
        """Tells whether a piece of an alternative says the same in these keywords, word for word."""
        wanted = key({name: schema[name] for name in keywords if name in schema})
        if '"$ref"' in wanted and not self._share_meaning(wanted):
            return False
        return any(
            keywords[0] in piece and key({name: piece[name] for name in keywords if name in piece}) == wanted
            for piece in left.pieces
        )

    def _share_meaning(self, text: str) -> bool:
        """Tells whether the references in a schema's text mean the same in all documents, all the way down."""
        definitions = {document.definitions for document in self._documents if isinstance(document.root, dict)}
        return len(definitions) == 1 and '"$ref"' not in _REFERENCE.sub("", text + definitions.pop())

    def _declared(self, pieces: Pieces) -> Pieces:
        """The pieces, and that no property comes which a speaking schema among them does not declare."""
        own = [piece for piece in pieces if id(piece) in self._speaking]
        patterns = {pattern: True for piece in own for pattern in piece.get("patternProperties", ())}
        names = {name for piece in own for name in piece.get("properties", ())}
        if not (names or patterns) or any(piece.keys() & _OPENING for piece in own):
            return pieces
        for piece in own:
            names.update(piece.get("required", ()))
            for cause, required in piece.get("dependentRequired", {}).items():
                names.update((cause, *required))
        return (*pieces, {"properties": dict.fromkeys(names, True), "patternProperties": patterns} | _CLOSED)

    def spread(self, schema: Schema) -> list[Pieces]:
        """Resolves combinators: lists of schemas, one list of which a valid value satisfies."""
        if isinstance(schema, bool):
            return [()] if schema else []
        found = self._spread.get(id(schema))
        if found is None:
            self._spread[id(schema)] = [(schema,)]  # a reference to itself adds nothing
            self._kept.append(schema)
            found = self._spread[id(schema)] = self._resolved(schema)
        return found

    def _resolved(self, schema: Piece) -> list[Pieces]:
        options: list[Pieces] = [(schema,)]
        for part in schema.get("allOf", ()):
            options = _product(options, self.spread(part))
        if "$ref" in schema and (target := self.target(schema)) is not None:
            options = _product(options, self.spread(target))
        for name in ("anyOf", "oneOf"):
            if name in schema:
                options = _product(options, [option for part in schema[name] for option in self.spread(part)])
        if "if" in schema:
            negated = self.made("not", schema, lambda: {"not": schema["if"]})
            yes = _product(self.spread(schema["if"]), self.spread(schema.get("then", True)))
            no = _product(self.spread(negated), self.spread(schema.get("else", True)))
            options = _product(options, yes + no)
        for name in schema.get("dependentSchemas", ()):
            absent = self.made(f"absent {name}", schema, partial(_absent, name))
            present = self.made(f"present {name}", schema, partial(_present, name))
            required = _product(self.spread(present), self.spread(schema["dependentSchemas"][name]))
            options = _product(options, self.spread(absent) + required)
        rest = self.rest(schema)
        return _product(options, [(rest,)]) if isinstance(rest, dict) else options

    def rest(self, schema: Piece) -> Schema | None:
        """`unevaluatedProperties` and `unevaluatedItems` in keywords that look at their own schema alone.

        True if there is nothing to add, None if what was evaluated depends on the value.
        """
        if "unevaluatedProperties" not in schema and "unevaluatedItems" not in schema:
            return True
        parts = self._joined(schema)
        if parts is None:
            return None
        return self.made("rest", schema, lambda: _rest(schema, parts))

    def _joined(self, schema: Piece, depth: int = 0) -> list[Piece] | None:
        if depth > 16 or schema.keys() & {"anyOf", "oneOf", "if", "not", "dependentSchemas", "contains"}:
            return None
        found = [schema]
        below: list[Schema | None] = [*schema.get("allOf", ())]
        if "$ref" in schema:
            below.append(self.target(schema))
        for part in below:
            if part is None:
                return None
            if isinstance(part, dict):
                inner = self._joined(part, depth + 1)
                if inner is None:
                    return None
                found += inner
        return found

    def _typed(self, pieces: Pieces, kinds: Iterable[str]) -> list[Alternative]:
        spend(5 + 4 * len(pieces))
        for piece in pieces:
            types = piece.get("type")
            if types is not None:
                kinds = [kind for kind in kinds if kind in types or (kind == "number" and "integer" in types)]
        enums = [piece["enum"] for piece in pieces if "enum" in piece]
        if enums:
            least = min(enums, key=len)
            spend(10 * len(least))
            values = {key(value): value for value in least}
            found = [
                Alternative(kind, (*pieces, exactly(value)), value)
                for value in values.values()
                if (kind := kind_of(value)) in kinds and all(admits(piece, kind, value) for piece in pieces)
            ]
        else:
            found = []
            for kind in kinds:
                if kind == "null":
                    found.append(Alternative(kind, pieces, None))
                elif kind == "boolean":
                    found += [Alternative(kind, pieces, value) for value in (False, True)]
                else:
                    found.append(Alternative(kind, pieces))
        return [alternative for alternative in found if not self._empty(alternative)]

    def _empty(self, alternative: Alternative) -> bool:
        if alternative.kind == "number":
            return alternative.numbers.empty
        if alternative.kind == "string":
            return alternative.texts.least > alternative.texts.most
        if alternative.kind == "array":
            arrays = alternative.arrays
            some = range(min(arrays.least, arrays.prefix + 1))
            return arrays.least > arrays.most or not all(self.inhabited(arrays.item(index)) for index in some)
        if alternative.kind == "object":
            objects = alternative.objects
            if objects.least > objects.most:
                return True
            return not all(self.inhabited(objects.value(name)) for name in objects.required)
        return False


def _product(left: list[Pieces], right: list[Pieces]) -> list[Pieces]:
    # Where there are too many combinations, what narrows further is left out: alternatives may say less.
    if len(left) * len(right) > MAX_ALTERNATIVES:
        return left
    spend(sum(len(one) for one in left) * len(right) + sum(len(other) for other in right) * len(left))
    return [one + other for one in left for other in right]


def _absent(name: str) -> Schema:
    return {"properties": {name: False}}


def _present(name: str) -> Schema:
    return {"required": [name]}


def _rest(schema: Piece, parts: list[Piece]) -> Schema:
    made: Piece = {}
    if "unevaluatedProperties" in schema and not (
        any("additionalProperties" in part for part in parts)
        or any("unevaluatedProperties" in part for part in parts[1:])
    ):
        made["properties"] = {name: True for part in parts for name in part.get("properties", ())}
        made["patternProperties"] = {name: True for part in parts for name in part.get("patternProperties", ())}
        made["additionalProperties"] = schema["unevaluatedProperties"]
    if "unevaluatedItems" in schema and not (
        any("items" in part for part in parts) or any("unevaluatedItems" in part for part in parts[1:])
    ):
        made["prefixItems"] = [True] * max(len(part.get("prefixItems", ())) for part in parts)
        made["items"] = schema["unevaluatedItems"]
    return made or True
