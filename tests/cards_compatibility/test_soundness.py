"""A yes has no counter-example, a no has one, and few answers are neither."""

from __future__ import annotations

import copy
import random
from collections import Counter
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st
from jsonschema import Draft202012Validator

from agent_env_cards.compatibility import NO_WITNESS, Pool, Prepared, Verdict, answer, compare, disjoint, is_subschema
from agent_env_cards.compatibility.alternatives import Space
from agent_env_cards.compatibility.dialect import read
from agent_env_cards.compatibility.entailment import Prover

PAIRS = 1_600
SEEDS = st.integers(0, 2**32)


def validator(schema: Any) -> Any:
    return Draft202012Validator(schema)


def check(left: Any, right: Any, verdict: Verdict, values: list[Any]) -> None:
    sends, takes = validator(left), validator(right)
    if verdict.answer == "yes":
        refuted = [value for value in values if sends.is_valid(value) and not takes.is_valid(value)]
        assert not refuted, f"{left} is said to be inside {right}; refuted by {refuted[0]}"
    if verdict.answer == "no":
        assert verdict.witness is not NO_WITNESS
        assert sends.is_valid(verdict.witness) and not takes.is_valid(verdict.witness), f"{left} {right} {verdict}"
        assert verdict.why


def test_over_generated_pairs_a_yes_is_never_refuted_a_no_always_and_few_are_unknown(schemas: Any) -> None:
    values = schemas(random.Random(1)).values(50)
    answers: Counter[str] = Counter()
    for left, right in schemas(random.Random(20_240_229)).pairs(PAIRS):
        verdict = is_subschema(left, right)
        check(left, right, verdict, values)
        answers[verdict.answer] += 1
    assert answers["unknown"] < 0.02 * PAIRS
    assert answers["yes"] > 0.5 * PAIRS and answers["no"] > 0.15 * PAIRS


@settings(max_examples=150)
@given(SEEDS)
def test_answers_hold_for_any_seed(schemas: Any, seed: int) -> None:
    maker = schemas(random.Random(seed))
    values = maker.values(40)
    for left, right in maker.pairs(2):
        check(left, right, is_subschema(left, right), values)


@settings(max_examples=200)
@given(SEEDS)
def test_a_schema_is_inside_itself_and_the_proof_needs_no_short_cut(schemas: Any, seed: int) -> None:
    schema = schemas(random.Random(seed)).any()
    again = copy.deepcopy(schema)
    assert is_subschema(schema, again).answer == "yes"
    one, other = read(schema), read(again)
    assert Prover(Space(one, other)).subset((one.root,), other.root) is None


@settings(max_examples=150)
@given(SEEDS)
def test_a_schema_is_inside_what_is_joined_to_it(schemas: Any, seed: int) -> None:
    maker = schemas(random.Random(seed))
    schema, more = maker.any(), maker.any()
    assert is_subschema(schema, {"anyOf": [more, schema]}).answer == "yes"
    assert is_subschema({"allOf": [more, schema]}, schema).answer == "yes"


def spoken(schema: Any, place: bool = True) -> Any:
    """The same schema, saying that only declared properties come, in the words of JSON Schema."""
    if not isinstance(schema, dict):
        return schema
    made: dict[str, Any] = {}
    for keyword, value in schema.items():
        if keyword in ("items", "additionalProperties"):
            made[keyword] = spoken(value)
        elif keyword == "properties":
            made[keyword] = {name: spoken(item) for name, item in value.items()}
        elif keyword == "allOf":
            made[keyword] = [spoken(item, place=False) for item in value]
        else:
            made[keyword] = value
    if place and declares(schema):
        made["unevaluatedProperties"] = False
    return made


def declares(schema: Any) -> bool:
    return isinstance(schema, dict) and ("properties" in schema or any(map(declares, schema.get("allOf", ()))))


def plain(rng: random.Random, depth: int = 0) -> Any:
    roll = rng.random()
    if depth == 3 or roll < 0.4:
        return rng.choice(
            [{"type": kind} for kind in ("string", "integer", "number", "null")] + [{"enum": ["a", 1]}, True]
        )
    if roll < 0.5:
        return {"type": "array", "items": plain(rng, depth + 1)}
    if roll < 0.6:
        return {"allOf": [plain(rng, depth + 1), plain(rng, depth + 1)]}
    made: dict[str, Any] = {"type": "object"}
    if names := rng.sample(["a", "b", "c"], rng.randint(0, 3)):
        made["properties"] = {name: plain(rng, depth + 1) for name in names}
        made["required"] = rng.sample(names, rng.randint(0, len(names)))
    if rng.random() < 0.2:
        made["additionalProperties"] = plain(rng, depth + 1)
    return made


def test_callers_that_send_declared_properties_only_are_judged_as_if_they_said_so(schemas: Any) -> None:
    rng = random.Random(4)
    values = schemas(random.Random(1)).values(50)
    answers: Counter[str] = Counter()
    for _ in range(600):
        left = plain(rng)
        right = schemas(rng).looser(left) if rng.random() < 0.6 else plain(rng)
        if rng.random() < 0.5 and isinstance(right, dict) and "properties" in right:
            right["properties"]["d"] = {"type": "string"}
        verdict = is_subschema(left, right, declared_only=True)
        check(spoken(left), right, verdict, values)
        answers[verdict.answer] += 1
    assert answers["unknown"] < 30 and answers["yes"] > 250 and answers["no"] > 100, answers


def test_schemas_that_are_prepared_once_get_the_same_answers(schemas: Any) -> None:
    pool = Pool()
    pairs = list(schemas(random.Random(77)).pairs(300))
    senders = [Prepared(left, pool=pool) for left, _ in pairs]
    takers = [Prepared(right, pool=pool) for _, right in pairs]
    for at, (left, _) in enumerate(pairs):
        for shift in (0, 1, 2):
            other = (at + shift) % len(pairs)
            fresh = is_subschema(left, pairs[other][1])
            assert answer(senders[at], takers[other]) == fresh.answer
            assert compare(senders[at], takers[other]).answer == fresh.answer


def test_what_is_disjoint_has_no_value_in_common_and_what_is_not_has_one(schemas: Any) -> None:
    values = schemas(random.Random(1)).values(50)
    answers: Counter[str] = Counter()
    for left, right in schemas(random.Random(78)).pairs(500):
        verdict = disjoint(Prepared(left), Prepared(right))
        one, other = validator(left), validator(right)
        if verdict.answer == "yes":
            assert not [value for value in values if one.is_valid(value) and other.is_valid(value)]
        if verdict.answer == "no":
            assert one.is_valid(verdict.witness) and other.is_valid(verdict.witness)
        answers[verdict.answer] += 1
    assert answers["unknown"] < 25 and answers["yes"] > 50 and answers["no"] > 200, answers
    assert disjoint(Prepared({"type": "any"}), Prepared(True)).answer == "unknown"
