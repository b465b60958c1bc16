"""What a proof may rest on, and what it may cost."""

from __future__ import annotations

import re
import socket
import time
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from agent_env_cards.compatibility import Verdict, is_subschema
from agent_env_cards.compatibility.patterns import Undecidable, matches, matching
from agent_env_cards.compatibility.work import TooLarge, limited, spend

TEXT: Any = {"type": "string"}
NODE: Any = {"type": "object", "properties": {"next": {"$ref": "#/$defs/node"}, "v": {"type": "integer"}}}


def test_an_assumption_is_dropped_when_its_proof_fails() -> None:
    # The first alternative fails at `one`, on node ⊆ narrow; the second meets the same pair further inside.
    inner = {"type": "object", "properties": {"deep": {"$ref": "#/$defs/node"}}, "required": ["deep"]}
    left = {
        "type": "object",
        "properties": {"one": {"$ref": "#/$defs/node"}, "two": inner},
        "required": ["one", "two"],
        "$defs": {"node": NODE},
    }
    narrow = {"type": "object", "properties": {"next": {"$ref": "#/$defs/narrow"}, "v": {"const": 1}}}
    right = {
        "anyOf": [
            {"properties": {"one": {"$ref": "#/$defs/narrow"}}},
            {"properties": {"two": {"properties": {"deep": {"$ref": "#/$defs/narrow"}}}}},
        ],
        "$defs": {"narrow": narrow},
    }
    assert is_subschema(left, right).answer != "yes"


PAIR: Any = {
    "type": "object",
    "properties": {"a": {"$ref": "#/$defs/list"}, "flag": {"type": "boolean"}, "z": {"$ref": "#/$defs/list"}},
    "required": ["flag", "z"],
}


def test_a_proof_that_used_an_assumption_is_not_kept_when_the_assumption_falls() -> None:
    # list ⊆ strict list is shown while pair ⊆ strict pair is assumed; that falls at `flag`, and with it the former.
    left = {
        "type": "object",
        "properties": {"top": {"$ref": "#/$defs/pair"}},
        "required": ["top"],
        "$defs": {"pair": PAIR, "list": {"type": "array", "items": {"$ref": "#/$defs/pair"}}},
    }
    strict = {"properties": {"a": {"$ref": "#/$defs/list"}, "flag": {"const": True}}}
    right = {
        "anyOf": [
            {"properties": {"top": {"$ref": "#/$defs/strict"}}},
            {"properties": {"top": {"properties": {"z": {"$ref": "#/$defs/list"}}}}},
        ],
        "$defs": {"strict": strict, "list": {"type": "array", "items": {"$ref": "#/$defs/strict"}}},
    }
    assert is_subschema(left, right).answer != "yes"


def test_a_contradiction_that_used_an_assumption_is_not_kept_either() -> None:
    # The list excludes lists of `odd` items; while pair ⊆ odd is assumed, that seems to leave no list at all.
    odd = {"properties": {"a": {"type": "string"}, "flag": {"const": True}}}
    left = {
        "type": "object",
        "properties": {"top": {"$ref": "#/$defs/pair"}},
        "required": ["top"],
        "not": {"properties": {"top": {"$ref": "#/$defs/odd"}}},
        "$defs": {
            "pair": {**PAIR, "required": ["flag"]},
            "list": {"type": "array", "not": {"items": {"$ref": "#/$defs/odd"}}, "items": {"$ref": "#/$defs/pair"}},
            "odd": odd,
        },
    }
    right = {"anyOf": [{"required": ["nothing"]}, {"properties": {"top": {"properties": {"z": TEXT}}}}]}
    assert is_subschema(left, right).answer == "no"


def test_keywords_that_narrow_the_left_side_turn_no_into_unknown_or_a_confirmed_no() -> None:
    impossible = {"type": "array", "items": {"type": "boolean"}, "contains": TEXT}
    assert is_subschema(impossible, {"type": "array", "maxItems": 3}).answer == "unknown"
    possible = {"type": "array", "items": {"type": ["boolean", "string"]}, "contains": TEXT}
    verdict = is_subschema(possible, {"type": "array", "maxItems": 3})
    assert verdict.answer == "no" and len(verdict.witness) > 3 and any(isinstance(i, str) for i in verdict.witness)


def test_a_reference_to_itself_proves_nothing() -> None:
    looping = {"anyOf": [{"$ref": "#"}, TEXT]}
    assert is_subschema({"type": "integer"}, looping).answer == "unknown"
    assert is_subschema({"type": "integer"}, {"$ref": "#"}).answer == "unknown"
    assert is_subschema({"allOf": [{"$ref": "#"}], "type": "integer"}, TEXT).answer != "yes"


def test_the_same_reference_means_another_schema_in_another_document() -> None:
    left = {"type": "object", "properties": {"a": {"oneOf": [{"$ref": "#/$defs/x"}]}}, "$defs": {"x": TEXT}}
    right = {**left, "$defs": {"x": {"type": "integer"}}}
    assert is_subschema(left, right).answer == "no"
    assert is_subschema(left, {**left, "title": "same"}).answer == "yes"


def test_a_schema_in_another_place_is_never_fetched() -> None:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        listener.listen()
        listener.setblocking(False)
        address = f"http://127.0.0.1:{listener.getsockname()[1]}/schema.json"
        for left, right in (
            (TEXT, {"$ref": address}),
            ({"$ref": address}, {"type": "integer"}),
            ({"type": "object", "properties": {"a": {"$ref": address}}}, {"type": "object", "required": ["a"]}),
        ):
            assert is_subschema(left, right).answer == "unknown"
        with pytest.raises(BlockingIOError):
            listener.accept()
    refers = {"type": "object", "properties": {"a": {"$ref": address}}}
    assert is_subschema(refers, {"properties": {"a": {"$ref": address}}}).answer == "yes"


def answered_within(seconds: float, left: Any, right: Any) -> Verdict:
    started = time.process_time()
    verdict = is_subschema(left, right)
    assert time.process_time() - started < seconds
    return verdict


@pytest.mark.parametrize("pattern", [r"^(a+)+$", r"^(a|a)*$", r"^(a|aa)+$", r"a*a*a*a*a*a*b", r"(.*)\1\1b"])
def test_a_strangers_pattern_cannot_stop_the_comparison(pattern: str) -> None:
    name = "a" * 400 + "!"
    closed = {"type": "object", "properties": {name: TEXT}, "required": [name], "additionalProperties": False}
    matched = {"type": "object", "patternProperties": {pattern: {"type": "integer"}}, "additionalProperties": False}
    assert answered_within(3, closed, matched).answer == "unknown"
    assert answered_within(3, closed, dict(reversed(matched.items()))).answer == "unknown"
    assert answered_within(3, matched, closed).answer != "yes"
    # What the linear engine reads is decided; a reference backwards is beyond it.
    alone = answered_within(3, {"enum": [name]}, {"type": "string", "pattern": pattern})
    assert alone.answer == ("unknown" if r"\1" in pattern else "no")
    assert (
        answered_within(3, {"type": "string", "minLength": 300, "pattern": pattern}, {"maxLength": 9}).answer != "yes"
    )


def test_schemas_that_would_take_too_long_are_unknown() -> None:
    choices = [{"anyOf": [{"required": [f"a{at}{option}"]} for option in range(8)]} for at in range(8)]
    assert answered_within(3, {"type": "object", "allOf": choices}, {"required": ["x"]}).answer == "unknown"
    assert answered_within(3, {"allOf": choices}, {"type": "object"}).witness is None
    sure = {"type": "object", "allOf": [{"required": ["x"]}, *choices]}
    assert answered_within(3, sure, {"required": ["x"]}).answer == "yes"
    deep: Any = TEXT
    for _ in range(400):
        deep = {"type": "array", "items": deep}
    assert answered_within(3, deep, {"type": "array", "items": deep}).answer == "unknown"
    wide = {"type": "object", "properties": {f"p{at}": {"anyOf": [{"type": "integer"}, TEXT]} for at in range(400)}}
    assert answered_within(3, wide, {**wide, "title": "same"}).answer == "yes"


@pytest.mark.parametrize(
    ("schema", "at"),
    [
        ([], ""),
        ({"type": "any"}, "/type"),
        ({"properties": {"a": 1}}, "/properties/a"),
        ({"properties": {"a": {"minimum": True}}}, "/properties/a/minimum"),
        ({"properties": {"exclusive": {"minimum": True}}}, "/properties/exclusive/minimum"),
        ({"minLength": -1}, "/minLength"),
        ({"maximum": float("inf")}, "/maximum"),
        ({"enum": [float("nan")]}, "/enum"),
        ({"enum": "a"}, "/enum"),
        ({"const": {1, 2}}, "/const"),
        ({"pattern": 1}, "/pattern"),
        ({"required": "a"}, "/required"),
        ({"uniqueItems": "yes"}, "/uniqueItems"),
        ({"multipleOf": 0}, "/multipleOf"),
        ({"anyOf": {}}, "/anyOf"),
        ({"dependentRequired": {"a": 1}}, "/dependentRequired/a"),
        ({"dependencies": {"a": ["b"]}, "dependentRequired": {}}, "/dependencies"),
    ],
)
def test_what_is_no_schema_is_unknown_and_says_where(schema: Any, at: str) -> None:
    for verdict, side in ((is_subschema(schema, TEXT), "left"), (is_subschema(TEXT, schema), "right")):
        assert (verdict.answer, verdict.pointer) == ("unknown", at)
        assert f"the {side} side is not a usable schema" in verdict.why


def test_a_verdict_is_not_a_truth_value() -> None:
    with pytest.raises(TypeError, match="three answers"):
        bool(is_subschema(TEXT, TEXT))


def test_a_verdict_is_data() -> None:
    assert is_subschema(TEXT, TEXT).to_json() == {"answer": "yes"}
    assert is_subschema({"type": "null"}, TEXT).to_json() == {
        "answer": "no",
        "why": "None is not allowed: type string",
        "witness": None,
    }
    assert repr(is_subschema(TEXT, TEXT).witness) == "NO_WITNESS"
    assert str(is_subschema({"const": "x" * 200}, {"type": "null"})).endswith("…)")


@settings(max_examples=150)
@given(
    st.lists(
        st.sampled_from(
            ["a", "b", r"\d", r"\w+", "[a-c]", "[^0-9]", "(x|y)", "(?:z)?", ".", "a{2}", "b{1,3}", "c*", r"\.", r"\S"]
        ),
        max_size=5,
    )
)
def test_texts_made_for_a_pattern_match_it(parts: list[str]) -> None:
    pattern = "^" + "".join(parts) + "$"
    found = matching(pattern)
    assert found and all(re.search(pattern, text) for text in found)


@pytest.mark.parametrize("pattern", ["(?<=a)b", "[", "a{999999}", "(?P<n>a)", r"\Z", "*", "(a"])
def test_patterns_that_are_not_understood_give_no_texts(pattern: str) -> None:
    assert matching(pattern) == []


@pytest.mark.timeout(20)
@pytest.mark.parametrize(
    "pattern",
    ["^" + "a?" * 28 + "a" * 28 + "$", "^" + "(a|b|ab)" * 30 + "$", "^([ab]|[ac]|[ad]|[ae]|[af]|[ag])*x$", "^(a?)*$"],
)
def test_a_pattern_with_many_ways_back_is_tried_without_going_back(pattern: str) -> None:
    for text in ("a" * 27, "a" * 40 + "!"):
        expected = pattern == "^(a?)*$" and "!" not in text
        with limited(2_000):
            assert matches(pattern, text) is expected
    with limited(2_000), pytest.raises(Undecidable):
        matches(pattern, "a" * 40 + "\n")
    left = {"type": "string", "pattern": pattern, "minLength": 20}
    assert answered_within(1, left, {"type": "string", "pattern": "^b$"}).answer in ("no", "unknown")
    keyed = {"type": "object", "patternProperties": {pattern: TEXT}, "properties": {"a" * 27: {"type": "integer"}}}
    assert answered_within(1, keyed, {"type": "object", "patternProperties": {pattern: TEXT}}).answer == "yes"


@pytest.mark.parametrize(
    "pattern", ["a?" * 40 + r"(?=b)", r"(?:a|b)*(?!c)", "x" * 513, "(?i)[a-\uffff]", r"[a&&b]*[c--d]*[e]*(a)*", "("]
)
def test_a_pattern_that_neither_engine_tries_safely_is_not_tried(pattern: str) -> None:
    with pytest.raises(Undecidable):
        matches(pattern, "a" * 60)


PARTS = [
    *("a", r"\d", r"\w+", "[a-c]*", "[^0-9]", "(x|y)", "(?:z|a)*", ".", "(a{2})+", "b{1,3}", "c*?", r"\.", r"\S?"),
    *(r"[\]b]", "[]a[b]]", r"[\w.-]+", r"[a-c&&b]", r"\s*", r"(\d|\w)*", "$", "^", r"a\b"),
]


@pytest.mark.filterwarnings("ignore::FutureWarning")
@settings(max_examples=300)
@given(
    st.lists(st.sampled_from(PARTS), max_size=5),
    st.text("abcxyz019 .[]&_-", max_size=8),
)
def test_both_engines_agree(parts: list[str], text: str) -> None:
    pattern = "".join(parts)
    try:
        # Long enough for the linear engine where it can take the pattern at all.
        found = matches(pattern, text * 8)
    except Undecidable:
        return
    assert found == (re.search(pattern, text * 8) is not None)


@pytest.mark.timeout(20)
def test_texts_for_a_pattern_stay_small() -> None:
    for pattern in ("(((a{200}){200}){200}){200}", "a{200}" * 80, "(" * 8 + "a{200}" + "){200}" * 8):
        assert all(len(text) <= 4_096 for text in matching(pattern))
        assert answered_within(1, {"type": "string", "pattern": pattern}, {"maxLength": 3}).answer in ("no", "unknown")


@pytest.mark.timeout(20)
def test_long_enums_are_compared_by_sets() -> None:
    some, more = list(range(800)), list(range(900))
    assert answered_within(2, {"enum": some}, {"enum": more}).answer == "yes"
    assert answered_within(2, {"enum": more}, {"enum": some}).answer == "no"
    assert answered_within(2, {"enum": list(range(40_000))}, {"enum": list(range(1, 40_001))}).answer != "yes"
    assert answered_within(2, {"enum": [[at] * 3 for at in range(9_000)]}, {"uniqueItems": True}).answer != "yes"


def branching(count: int, leaf: Any) -> Any:
    definitions: dict[str, Any] = {f"d{count}": leaf}
    for at in range(count):
        below = {"$ref": f"#/$defs/d{at + 1}"}
        definitions[f"d{at}"] = {"anyOf": [below, {"type": "object", "properties": {"a": below, "b": below}}]}
    return {"$ref": "#/$defs/d0", "$defs": definitions}


@pytest.mark.timeout(30)
@pytest.mark.parametrize("count", [10, 22, 40])
def test_references_that_branch_are_too_large_to_decide(count: int) -> None:
    verdict = answered_within(2, branching(count, TEXT), branching(count, {"type": "string", "maxLength": 3}))
    assert (verdict.answer, verdict.why) == ("unknown", "the schemas are too large to decide")
    twice = {f"d{at}": {"anyOf": [{"$ref": f"#/$defs/d{at + 1}"}] * 2} for at in range(40)}
    doubled = {"$ref": "#/$defs/d0", "$defs": {**twice, "d40": {"type": "string", "format": "date"}}}
    assert answered_within(2, {"enum": ["a", 1]}, doubled).answer != "yes"


def test_anchors_are_found_without_looking_at_all_for_each() -> None:
    definitions = {f"a{at}": {"$anchor": f"a{at}", "type": "string"} for at in range(2_000)}
    many = {"anyOf": [{"$ref": f"#a{at}"} for at in range(2_000)], "$defs": definitions}
    assert answered_within(4, many, TEXT).answer != "no"
    again = {"$ref": "#a", "$defs": {"x": [{"$anchor": "a", "type": "string"}], "y": {"$anchor": "a", "type": "null"}}}
    assert is_subschema(again, TEXT).answer == "yes"


def test_steps_are_counted_within_a_limit_only() -> None:
    spend(10**9)
    with limited(5):
        spend(5)
        with limited(1), pytest.raises(TooLarge):
            spend(2)
        with pytest.raises(TooLarge):
            spend()
