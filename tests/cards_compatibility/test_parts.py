"""Schemas that are taken apart, so that what is known of a part is known of every schema that has it."""

from __future__ import annotations

import random
from typing import Any

import pytest

from agent_env_cards.compatibility import NO_WITNESS, Pool, Prepared, answer, compare, is_subschema
from agent_env_cards.compatibility.dialect import Document, read
from agent_env_cards.compatibility.parts import MAX_LENGTH, MAX_PARTS, parts_of

TEXT: Any = {"type": "string"}
DEFINED: Any = {"$ref": "#/$defs/name"}
KINDS: list[Any] = [
    *(TEXT, {"type": "integer"}, {"type": ["string", "null"]}, {"enum": ["a", 1]}, True, False, DEFINED),
    *({"type": "string", "format": "uri"}, {"type": "string", "maxLength": 900}, {"type": "number", "minimum": 0}),
    *({"type": "array", "items": DEFINED}, {"type": "object", "properties": {"a": TEXT}, "required": ["a"]}),
]


def parts(schema: Any) -> list[Document]:
    return list(parts_of(read(schema), Pool()).values())


def test_a_value_satisfies_a_schema_exactly_if_it_satisfies_each_of_its_parts(schemas: Any) -> None:
    rng = random.Random(5)
    values, apart = schemas(random.Random(1)).values(60), 0
    for _ in range(200):
        schema = schemas(rng).object(0)
        document, found = read(schema), parts(schema)
        apart += bool(found)
        for value in values if found else ():
            holds = [part.holds(value) for part in found]
            if None not in holds and document.holds(value) is not None:
                assert document.holds(value) is all(holds), (schema, value)
    assert apart > 80


def test_a_part_is_a_property_a_required_name_or_all_the_rest() -> None:
    schema = {
        "type": "object",
        "title": "T",
        "properties": {"a": TEXT, "b": TEXT},
        "required": ["a"],
        "minProperties": 2,
    }
    roots = [part.root for part in parts(schema)]
    text = {"type": ["string"]}
    rest = {"type": ["object"], "minProperties": 2}
    assert roots == [rest, {"required": ["a"]}, {"properties": {"a": text}}, {"properties": {"b": text}}]
    closed = parts({"properties": {"a": TEXT}, "additionalProperties": False})
    assert closed[0].root == {"additionalProperties": False, "properties": {"a": True}}
    odd = parts({"properties": {"$ref": TEXT, "a": {"enum": ["$ref"]}}})
    assert [part.holds({"$ref": 1, "a": "$ref"}) for part in odd] == [False, True]


@pytest.mark.parametrize(
    "schema",
    [
        True,
        {"type": "string"},
        {"properties": {"a": TEXT}, "required": ["a"], "unevaluatedProperties": False},
        {"properties": {"a": {"$ref": "#"}}, "required": ["a"]},
        {"properties": {"a": {"$ref": "https://example.com/x"}}, "required": ["a"]},
        {"$ref": "#/$defs/a", "properties": {"a": TEXT}, "required": ["a"], "$defs": {"a": TEXT}},
        {"properties": {f"p{at}": TEXT for at in range(MAX_PARTS + 1)}},
        {"type": "object", "properties": {"a": {"enum": ["a" * MAX_LENGTH]}}},
        {"type": "object", "properties": {"a": DEFINED}, "$defs": {"name": {"enum": ["a" * MAX_LENGTH]}}},
    ],
)
def test_a_schema_that_is_one_whole_or_large_is_not_taken_apart(schema: Any) -> None:
    assert parts(schema) == []


def test_a_reference_with_the_same_text_is_another_part_where_it_leads_elsewhere() -> None:
    left = Prepared({"type": "object", "properties": {"a": TEXT}}, declared_only=True)
    pool = Pool()
    for kind, expected in (("string", "yes"), ("integer", "no"), ("string", "yes")):
        right = {"type": "object", "properties": {"a": DEFINED}, "$defs": {"name": {"type": kind}}}
        assert answer(left, Prepared(right, pool=pool)) == compare(left, Prepared(right)).answer == expected


def test_many_schemas_made_of_the_same_parts_get_the_answers_that_each_gets_alone() -> None:
    rng = random.Random(6)
    pool, answers = Pool(), []

    def made() -> dict[str, Any]:
        names = rng.sample(["a", "b", "c", "d"], rng.randint(1, 4))
        schema: dict[str, Any] = {"type": "object", "properties": {name: rng.choice(KINDS) for name in names}}
        schema["required"] = rng.sample(names, rng.randint(0, 1))
        schema["$defs"] = {"name": rng.choice([TEXT, {"type": "integer"}])}
        return schema | ({"additionalProperties": False} if rng.random() < 0.2 else {})

    takers = [(schema, Prepared(schema, pool=pool)) for schema in (made() for _ in range(120))]
    for _ in range(12):
        sent = made()
        left = Prepared(sent, declared_only=True, pool=pool)
        for schema, right in takers:
            alone = is_subschema(sent, schema, declared_only=True)
            assert answer(left, right) == alone.answer == compare(left, right).answer, (sent, schema)
            if alone.answer == "no":
                assert alone.witness is not NO_WITNESS and read(schema).holds(alone.witness) is False
            answers.append(alone.answer)
        assert left.proofs < 3 * len(takers)
    assert min(map(answers.count, ("yes", "no", "unknown"))) > 10


def test_what_a_document_remembers_by_id_is_a_part_of_it(schemas: Any) -> None:
    def inside(schema: Any) -> set[int]:
        below = schema.values() if isinstance(schema, dict) else schema if isinstance(schema, list) else ()
        return {id(schema)}.union(*map(inside, below))

    rng, pool = random.Random(7), Pool()
    for _ in range(200):
        schema = schemas(rng).any()
        document = read({"properties": {"a": schema, "b": schema}}, declared_only=True, pool=pool)
        assert document.speaking and document.speaking | document.targets.keys() <= inside(document.root)
