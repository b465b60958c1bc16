"""Tools, functions and schemas: clauses EC-15 to EC-18."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import pytest

from agent_env_cards import ToolCard, validate_card

Found = Callable[..., list[tuple[str, str]]]


def tool(name: str = "look", **members: Any) -> dict[str, Any]:
    return {"name": name, "description": "Looks around.", **members}


def taking(**properties: Any) -> dict[str, Any]:
    return {"type": "object", "properties": properties}


@pytest.mark.clause("EC-15")
@pytest.mark.parametrize("name", ["", "look around", "look.around", "löök", "a" * 65, "look\n"])
@pytest.mark.parametrize("kind", ["tools", "functions"])
def test_a_tool_has_a_name_that_every_protocol_takes(name: str, kind: str, found: Found) -> None:
    assert found(capabilities={kind: [tool(name)]}) == [(f"/capabilities/{kind}/0/name", "EC-15")]
    assert found(capabilities={kind: [tool("a" * 64), tool("Look_Around-2")]}) == []


@pytest.mark.clause("EC-15")
def test_two_tools_have_two_names_but_a_function_may_share_one(good: dict[str, Any]) -> None:
    assert validate_card({**good, "capabilities": {"tools": [tool()], "functions": [tool()]}}) == []
    [problem] = validate_card({**good, "capabilities": {"tools": [tool(), tool("go"), tool()]}})
    assert (problem.pointer, problem.clause) == ("/capabilities/tools/2/name", "EC-15")
    assert "/capabilities/tools/0/name" in problem.message


@pytest.mark.clause("EC-16")
@pytest.mark.parametrize("kind", ["tools", "functions"])
def test_tools_and_their_parameters_are_described(kind: str, found: Found) -> None:
    bare = {"name": "look", "inputSchema": taking(where={"type": "string"}, how={"type": "string", "description": " "})}
    assert found(capabilities={kind: [bare]}) == [
        (f"/capabilities/{kind}/0/description", "EC-16"),
        (f"/capabilities/{kind}/0/inputSchema/properties/how/description", "EC-16"),
        (f"/capabilities/{kind}/0/inputSchema/properties/where/description", "EC-16"),
    ]


@pytest.mark.clause("EC-16")
def test_a_parameter_may_be_described_where_its_reference_leads(found: Found) -> None:
    schema = taking(where={"$ref": "#/$defs/a~1b%"}) | {"$defs": {"a/b%": {"description": "A place."}}}
    assert found(capabilities={"tools": [tool(inputSchema=schema)]}) == []
    for target in ({}, {"description": " "}, {"description": 5}):
        schema["$defs"] = {"a/b%": target}
        assert found(capabilities={"tools": [tool(inputSchema=schema)]}) == [
            ("/capabilities/tools/0/inputSchema/properties/where/description", "EC-16")
        ]


@pytest.mark.clause("EC-16")
def test_a_schema_of_false_has_nothing_to_describe_and_one_of_true_has(found: Found) -> None:
    assert found(capabilities={"tools": [tool(inputSchema=taking(never=False))]}) == []
    assert found(capabilities={"tools": [tool(inputSchema=taking(anything=True))]}) == [
        ("/capabilities/tools/0/inputSchema/properties/anything/description", "EC-16")
    ]


@pytest.mark.clause("EC-17")
def test_arguments_are_an_object_and_no_schema_means_no_parameters(found: Found) -> None:
    for schema in ({"type": "string"}, {"type": ["object", "null"]}, {}):
        assert found(capabilities={"tools": [tool(inputSchema=schema)]}) == [
            ("/capabilities/tools/0/inputSchema/type", "EC-17")
        ]
    assert found(capabilities={"tools": [tool()]}) == []
    assert ToolCard(name="look").input_schema == {"type": "object", "properties": {}}


@pytest.mark.clause("EC-17")
@pytest.mark.parametrize("target", ["https://schemas.example/a.json", "a.json#/x", "#/$defs/none", "#/items/0", ""])
@pytest.mark.parametrize(
    ("at", "wrap"),
    [
        ("/episode/observation", lambda schema: {"episode": {"observation": schema}}),
        (
            "/needs/0/prefers/tool/arguments",
            lambda s: {"needs": [{"seat": "s", "prefers": {"tool": {"arguments": s}}}]},
        ),
        ("/capabilities/functions/0/outputSchema", lambda s: {"capabilities": {"functions": [tool(outputSchema=s)]}}),
    ],
)
def test_a_reference_stays_in_its_schema(
    target: str, at: str, wrap: Callable[[dict[str, Any]], dict[str, Any]], found: Found
) -> None:
    places = {
        "": lambda schema: schema,
        "/items": lambda schema: {"items": schema},
        "/anyOf/1": lambda schema: {"anyOf": [True, schema]},
        "/properties/a~1b/additionalProperties": lambda s: {"properties": {"a/b": {"additionalProperties": s}}},
        "/$defs/x/prefixItems/0": lambda schema: {"$defs": {"x": {"prefixItems": [schema]}}},
        "/items/0": lambda schema: {"items": [schema]} if target != "#/items/0" else {"items": [{}, schema]},
    }
    for place, nest in places.items():
        if target != "#/items/0" or not place.startswith("/items"):
            assert found(**wrap(nest({"$ref": target}))) == [(f"{at}{place}/$ref", "EC-17")]


@pytest.mark.clause("EC-17")
def test_references_inside_a_schema_and_values_that_look_like_one_are_fine(found: Found) -> None:
    schema = {
        "$defs": {"tree": {"$anchor": "tree", "items": {"$ref": "#/$defs/tree"}}},
        "anyOf": [{"$ref": "#"}, {"$ref": "#tree"}, {"$dynamicRef": "#tree"}, {"$ref": "#/$defs/tree/items"}],
        "properties": {"$ref": {"type": "string"}},
        "default": {"$ref": "https://not.a.reference"},
        "enum": [{"$ref": "nor this"}],
    }
    assert found(episode={"action": schema}) == []


@pytest.mark.clause("EC-17")
def test_a_reference_may_lead_to_an_element_and_a_star_is_no_wildcard(found: Found) -> None:
    schema: dict[str, Any] = {"prefixItems": [{}, {"$ref": "#/prefixItems/0"}], "$defs": {"x": {}}}
    assert found(episode={"action": schema}) == []
    for target in ("#/$defs/*", "#/prefixItems/2", "#/prefixItems/x", "#/prefixItems/0/a", "#/prefixItems/" + "1" * 99):
        schema["items"] = {"$ref": target}
        assert found(episode={"action": schema}) == [("/episode/action/items/$ref", "EC-17")]


@pytest.mark.timeout(20)
@pytest.mark.clause("EC-17")
def test_references_are_followed_without_looking_at_all_others(found: Found) -> None:
    # In steps of the square of their number, this would take minutes.
    chain: dict[str, Any] = {f"d{at}": {"$ref": f"#/$defs/d{at + 1}"} for at in range(20_000)}
    chain["d20000"] = {f"x{at}": 1 for at in range(20_000)}
    schema = {"$defs": chain, **taking(**{f"p{at}": {"$ref": "#/$defs/d20000"} for at in range(5_000)})}
    started = time.process_time()
    assert {clause for _, clause in found(capabilities={"tools": [tool(inputSchema=schema)]})} == {"EC-16"}
    assert time.process_time() - started < 10


def chat(**message: Any) -> dict[str, Any]:
    schema = taking(message={"type": "string", "description": "What to say.", **message})
    return tool("chat", inputSchema={**schema, "required": ["message"]})


@pytest.mark.clause("EC-18")
def test_an_agent_can_be_told_a_message(found: Found) -> None:
    optional = tool("chat", inputSchema=chat()["inputSchema"] | {"required": []})
    assert found(kind="agent", capabilities={"tools": [tool(), chat()]}) == []
    assert found(kind="agent", capabilities={"tools": [tool()]}) == [("/capabilities/tools", "EC-18")]
    assert found(kind="agent") == [("/capabilities/tools", "EC-18")]
    for broken in (optional, chat(type="object"), tool("chat")):
        assert found(kind="agent", capabilities={"tools": [broken]}) == [("/capabilities/tools/0/inputSchema", "EC-18")]


@pytest.mark.clause("EC-18")
def test_an_environment_that_is_no_agent_need_not_chat(found: Found) -> None:
    assert found(kind="environment", capabilities={"tools": [tool()]}) == []
