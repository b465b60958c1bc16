"""Reading leniently and writing strictly: clauses EC-01 to EC-08."""

from __future__ import annotations

import copy
import json
import pickle
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agent_env_cards import (
    Capabilities,
    CardError,
    EnvironmentCard,
    Extension,
    Interface,
    Need,
    Offer,
    Skill,
    ToolCard,
    validate_card,
)

Refused = Callable[[object], list[tuple[str, str]]]
Found = Callable[..., list[tuple[str, str]]]


@pytest.mark.clause("EC-01")
@pytest.mark.parametrize("card", [[], "[]", "null", b"7", 5, None, "{", b"\xff", '{"name": ' + "[" * 100_000])
def test_what_is_not_one_json_object_is_no_card(card: object, refused: Refused) -> None:
    assert refused(card) == [("", "EC-01")]
    assert [problem.clause for problem in validate_card(card)] == ["EC-01"]


@pytest.mark.clause("EC-01")
@pytest.mark.parametrize("encode", [json.dumps, lambda card: json.dumps(card).encode()])
def test_a_card_is_read_from_text_and_from_bytes(encode: Callable[[object], object], good: dict[str, Any]) -> None:
    assert EnvironmentCard.parse(encode(good)) == EnvironmentCard.parse(good)


@pytest.mark.clause("EC-02")
def test_a_name_is_enough_for_a_reader() -> None:
    card = EnvironmentCard.parse({"name": "agent-b"})
    assert (card.name, card.kind, card.url, card.needs, card.session) == (
        "agent-b",
        "environment",
        "/agentenv",
        [],
        None,
    )


@pytest.mark.clause("EC-02")
def test_unknown_members_are_kept_and_written_again_at_every_depth(good: dict[str, Any]) -> None:
    unknown = {"x-cost": {"usd": None, "eur": [1, {"deep": None}]}}
    card = {
        **good,
        **unknown,
        "needs": [{"seat": "s", "requires": {"skills": ["a"], **unknown}, **unknown}],
        "offers": {"skills": [{"id": "a", **unknown}], **unknown},
        "interfaces": [{"transport": "http", "url": "/v1", **unknown}],
        "capabilities": {"extensions": [{"uri": "urn:x:y", **unknown}], "tools": [], **unknown},
    }
    written = EnvironmentCard.parse(card).to_dict()
    assert written["x-cost"] == unknown["x-cost"]
    assert {name: written[name] for name in ("needs", "offers", "interfaces", "capabilities")} == {
        name: card[name] for name in ("needs", "offers", "interfaces", "capabilities")
    }


@pytest.mark.clause("EC-03")
def test_every_wrong_type_is_told_at_once_with_its_place(refused: Refused) -> None:
    card = {
        "name": 7,
        "version": ["1"],
        "needs": [{"seat": 1, "requires": {"skills": "math"}}, 5],
        "capabilities": {"tools": {"name": "x"}},
        "session": {"fork": 1},
    }
    assert refused(card) == [
        ("/capabilities/tools", "EC-03"),
        ("/name", "EC-03"),
        ("/needs/0/requires/skills", "EC-03"),
        ("/needs/0/seat", "EC-03"),
        ("/needs/1", "EC-03"),
        ("/session/fork", "EC-03"),
        ("/version", "EC-03"),
    ]


@pytest.mark.clause("EC-03")
def test_wrong_types_do_not_hide_the_other_problems(refused: Refused) -> None:
    card = {"name": "a", "version": "v1", "kind": 5, "needs": [{"seat": "s", "requires": {"version": "latest"}}]}
    assert refused(card) == [("/kind", "EC-03"), ("/needs/0/requires/version", "EC-29"), ("/version", "EC-11")]


@pytest.mark.clause("EC-03")
def test_the_error_of_a_bad_card_lists_every_problem_for_people_and_for_programs() -> None:
    with pytest.raises(CardError) as caught:
        EnvironmentCard.parse({"version": 1, "session": {"capacity": "many" * 40}})
    name, capacity, version = caught.value.problems
    assert name.to_dict() == {"pointer": "/name", "message": "field required", "clause": "EC-03"}
    assert str(caught.value).splitlines()[0] == "the Environment Card has 3 problems:"
    assert str(version) == "/version: input should be a valid string, not 1 [EC-03]"
    assert "..." in capacity.message and len(capacity.message) < 150
    assert all(str(problem) in str(caught.value) for problem in caught.value.problems)


def test_a_card_error_survives_pickling() -> None:
    with pytest.raises(CardError) as caught:
        EnvironmentCard.parse([])
    again = pickle.loads(pickle.dumps(caught.value))
    assert (type(again), str(again), again.problems) == (CardError, str(caught.value), caught.value.problems)


@pytest.mark.clause("EC-04")
def test_a_card_that_is_too_deep_is_refused_without_recursing(good: dict[str, Any], refused: Refused) -> None:
    deep: object = 1
    for _ in range(50_000):
        deep = [deep]
    [(_, clause)] = refused({**good, "x": deep})
    assert clause == "EC-04"


@pytest.mark.clause("EC-04")
def test_sixty_four_levels_are_not_too_deep(good: dict[str, Any], refused: Refused) -> None:
    deep: object = 1
    for _ in range(63):
        deep = {"a": deep}
    assert EnvironmentCard.parse({**good, "x": deep})
    assert refused({**good, "x": [deep]}) == [("/x/0" + "/a" * 62, "EC-04")]


@pytest.mark.clause("EC-04")
@pytest.mark.parametrize("member", [{"license": "x" * 1_000_001}, {"x": ["y" * 1000] * 1000}, {"x" * 1_000_001: 1}])
def test_a_card_that_is_too_long_is_refused(member: dict[str, Any], good: dict[str, Any], refused: Refused) -> None:
    assert refused({**good, **member}) == [("", "EC-04")]


@pytest.mark.clause("EC-04")
@pytest.mark.parametrize("number", [2**53, -(2**53), 10**400, float("nan"), float("inf")])
def test_a_number_that_is_not_an_exact_double_is_refused(number: float, good: dict[str, Any], refused: Refused) -> None:
    assert refused({**good, "x": [{"n": number}]}) == [("/x/0/n", "EC-04")]
    assert EnvironmentCard.parse({**good, "x": [2**53 - 1, 1e308, True]})


@pytest.mark.clause("EC-04")
def test_half_a_surrogate_pair_is_refused(good: dict[str, Any], refused: Refused) -> None:
    assert refused({**good, "x": ["\ud83c"], "y": {"\udfb2": 1}}) == [("/x/0", "EC-04"), ("/y", "EC-04")]
    assert EnvironmentCard.parse(json.dumps({**good, "description": "\U0001f3b2"})).description == "\U0001f3b2"


@pytest.mark.clause("EC-05")
def test_a_card_that_breaks_a_clause_is_not_written_and_each_clause_is_named() -> None:
    card = EnvironmentCard(name="Agent B", version="1", needs=[Need("Solver")])
    with pytest.raises(CardError, match="the Environment Card of 'Agent B' has 4 problems") as caught:
        card.to_dict()
    assert [problem.clause for problem in caught.value.problems] == ["EC-13", "EC-10", "EC-25", "EC-11"]
    with pytest.raises(CardError):
        card.to_json()


@pytest.mark.clause("EC-05")
def test_a_member_that_was_set_past_the_models_is_not_written(good: dict[str, Any]) -> None:
    card = EnvironmentCard.parse(good).model_copy(update={"needs": "solver", "interfaces": [7]})
    with pytest.raises(CardError) as caught:
        card.to_dict()
    assert [problem.pointer for problem in caught.value.problems] == ["/interfaces/0", "/needs"]
    with pytest.raises(CardError) as caught:
        card.model_copy(update={"children_environments": [1], "capabilities": "chat"}).to_dict()
    pointers = {problem.pointer for problem in caught.value.problems}
    assert {"/children_environments/0", "/capabilities"} <= pointers


@pytest.mark.clause("EC-05", "EC-06")
def test_writing_what_was_read_from_what_was_written_changes_nothing(good: dict[str, Any]) -> None:
    text = EnvironmentCard.parse(good).to_json(indent=2)
    assert EnvironmentCard.parse(text).to_json(indent=2) == text
    assert validate_card(text) == []


@pytest.mark.clause("EC-06")
def test_null_absent_and_default_are_one(good: dict[str, Any]) -> None:
    nulls = ("episode", "rewards", "needs", "offers", "url", "interfaces", "children_environments", "session", "kind")
    empty = {"rewards": [], "needs": [], "offers": {"tags": [], "inputModes": ["text/plain"]}, "kind": "environment"}
    absent = EnvironmentCard.parse(good)
    for card in ({**good, **dict.fromkeys(nulls)}, {**good, **empty}):
        assert EnvironmentCard.parse(card).to_dict() == absent.to_dict()
        assert validate_card(card) == []
    need = {"seat": "s", "requires": None, "description": None, "strict": False}
    assert EnvironmentCard.parse({**good, "needs": [need]}).needs == [Need("s")]


@pytest.mark.clause("EC-06")
def test_null_is_a_value_inside_a_schema(good: dict[str, Any]) -> None:
    schema = {"type": "object", "properties": {"p": {"description": "P.", "default": None, "enum": [None, 1]}}}
    card = EnvironmentCard.parse(
        {**good, "capabilities": {"tools": [{"name": "t", "description": "T.", "inputSchema": schema}]}}
    )
    assert card.to_dict()["capabilities"]["tools"][0]["inputSchema"] == schema


@pytest.mark.clause("EC-06")
def test_the_members_that_older_clients_look_for_are_always_written(good: dict[str, Any]) -> None:
    written = EnvironmentCard.parse(good).to_dict()
    assert written == {
        **good,
        "protocolVersion": "1.0",
        "kind": "environment",
        "url": "/agentenv",
        "preferredTransport": "JSONRPC",
        "capabilities": {"tools": []},
        "digest": written["digest"],
    }


@pytest.mark.clause("EC-07")
def test_absent_operations_stay_absent_and_none_stay_none(good: dict[str, Any]) -> None:
    absent = EnvironmentCard.parse({**good, "capabilities": {"tools": []}})
    none = EnvironmentCard.parse({**good, "capabilities": {"tools": [], "operations": []}})
    assert absent.capabilities.operations is None
    assert none.capabilities.operations == []
    assert "operations" not in absent.to_dict()["capabilities"]
    assert none.to_dict()["capabilities"]["operations"] == []


@pytest.mark.clause("EC-08")
def test_children_are_cards_of_their_own(good: dict[str, Any], found: Found, refused: Refused) -> None:
    child = {**good, "name": "inner", "interfaces": [{"transport": "mcp", "url": "/svc/inner/mcp"}]}
    card = EnvironmentCard.parse({**good, "children_environments": [child]})
    assert card.children_environments == [EnvironmentCard.parse(child)]
    assert card.to_dict()["children_environments"] == [EnvironmentCard.parse(child).to_dict()]
    grandchild = {**child, "children_environments": [{**child, "name": "Inner"}]}
    assert found(children_environments=[grandchild]) == [
        ("/children_environments/0/children_environments/0/name", "EC-10")
    ]
    assert refused({**good, "children_environments": [{"name": 1}, {**child, "version": "v1"}]}) == [
        ("/children_environments/0/name", "EC-03"),
        ("/children_environments/1/version", "EC-11"),
    ]


JSON_VALUES = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**53) + 1, 2**53 - 1) | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=8,
)
MEMBERS = st.sampled_from([*(str(field.serialization_alias) for field in EnvironmentCard.model_fields.values()), "x"])


@pytest.mark.clause("EC-03")
@given(st.dictionaries(MEMBERS, JSON_VALUES, max_size=6))
def test_whatever_comes_is_a_card_or_a_list_of_problems(card: dict[str, Any]) -> None:
    before = copy.deepcopy(card)
    problems = validate_card(card)
    try:
        parsed = EnvironmentCard.parse(card)
    except CardError as error:
        assert error.problems
        assert {problem.pointer for problem in error.problems} <= {problem.pointer for problem in problems}
    else:
        assert "EC-03" not in {problem.clause for problem in problems}
        if not {problem.clause for problem in problems} - {"EC-38"}:
            assert validate_card(parsed.to_dict()) == []
    assert card == before


def test_a_card_finds_its_tools_interfaces_and_skills_by_name() -> None:
    card = EnvironmentCard(
        name="agent-b",
        version="1.0.0",
        interfaces=[Interface(transport="mcp", url="/mcp")],
        offers=Offer(skills=[Skill(id="a"), Skill(id="b")]),
        capabilities=Capabilities(tools=[ToolCard(name="chat")], extensions=[Extension(uri="urn:x:y")]),
    )
    assert (card.tool("chat"), card.tool("look")) == (card.capabilities.tools[0], None)
    assert (card.interface("mcp"), card.interface("a2a")) == (card.interfaces[0], None)
    assert (card.offers.skill("b"), card.offers.skill("c")) == (card.offers.skills[1], None)
    assert card.ref == "agent-b@1.0.0"
