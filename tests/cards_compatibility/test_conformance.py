"""Pairs of schemas with the answer that is right for each."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from jsonschema import Draft202012Validator

from agent_env_cards.compatibility import NO_WITNESS, is_subschema

PAIRS: list[dict[str, Any]] = json.loads((Path(__file__).parent / "pairs.json").read_text())

TOOL: dict[str, Any] = {
    "type": "object",
    "properties": {
        "city": {"type": "string", "minLength": 1},
        "unit": {"enum": ["c", "f"]},
        "days": {"type": "integer", "minimum": 1, "maximum": 14},
        "where": {"type": "object", "properties": {"lat": {"type": "number"}}, "required": ["lat"]},
    },
    "required": ["city"],
}


@pytest.mark.parametrize("pair", PAIRS, ids=[pair["about"] for pair in PAIRS])
def test_pair(pair: dict[str, Any]) -> None:
    verdict = is_subschema(pair["left"], pair["right"], declared_only=pair.get("declared_only", False))
    assert verdict.answer == pair["expected"], str(verdict)
    if "pointer" in pair:
        assert verdict.pointer == pair["pointer"], str(verdict)
    if verdict.answer == "no":
        assert verdict.witness is not NO_WITNESS
    if verdict.answer == "unknown":
        assert verdict.why


def test_the_pointer_leads_to_the_place_in_the_witness() -> None:
    left = {"type": "object", "properties": {"a/b": {"type": "array", "items": {"type": "string"}}}}
    right = {"type": "object", "properties": {"a/b": {"type": "array", "items": {"type": "integer"}}}}
    verdict = is_subschema(left, right)
    assert verdict.pointer == "/a~1b/0"
    assert isinstance(verdict.witness["a/b"][0], str)
    assert str(verdict).startswith("no at /a~1b/0: a string may come, and only integer is allowed")


def widened(index: int) -> Any:
    schema = json.loads(json.dumps(TOOL))
    properties = schema["properties"]
    match index:
        case 0:
            properties["session_id"] = {"type": ["string", "null"]}
        case 1:
            properties["days"]["type"] = "number"
        case 2:
            properties["unit"]["enum"].append("k")
        case 3:
            del properties["city"]["minLength"]
        case 4:
            properties["where"]["properties"]["name"] = {"type": "string"}
        case 5:
            properties["unit"] = {"anyOf": [properties["unit"], {"type": "null"}]}
        case 6:
            schema["required"] = []
        case _:
            properties["days"] |= {"minimum": 0, "maximum": 30}
    return schema


@given(st.integers(0, 7))
def test_what_fits_a_tool_fits_it_after_it_was_widened(index: int) -> None:
    assert is_subschema(TOOL, widened(index), declared_only=True).answer == "yes"
    # An open schema takes properties that it does not name; whatever else was widened does not fit any more.
    back = is_subschema(widened(index), TOOL, declared_only=True)
    assert back.answer == ("yes" if index in (0, 4) else "no")


@pytest.mark.parametrize("index", [1, 2, 3, 5, 6, 7])
def test_widening_that_adds_no_property_needs_no_promise_of_the_caller(index: int) -> None:
    assert is_subschema(TOOL, widened(index)).answer == "yes"


def test_an_optional_property_of_the_callee_is_an_undeclared_one_of_an_open_caller() -> None:
    verdict = is_subschema(TOOL, widened(0))
    assert (verdict.answer, verdict.pointer) == ("no", "/session_id")
    assert Draft202012Validator(TOOL).is_valid(verdict.witness)
