"""The cards in conformance/ and examples/: each clause against the cards that come with the package."""

from __future__ import annotations

from importlib.resources import files

import pytest
from a2a.types import AgentCard
from google.protobuf.json_format import ParseDict
from jsonschema import Draft202012Validator

from agent_env_cards import CardError, EnvironmentCard, agent_card, validate_card
from agent_env_cards.conformance import Case, cases, example
from agent_env_cards.schema import read_schema

FORM = Draft202012Validator(read_schema("environment-card"))
EXAMPLES = sorted(file.name.removesuffix(".json") for file in (files("agent_env_cards") / "examples").iterdir())


def invalid() -> list[object]:
    return [
        pytest.param(case, id=case.name, marks=pytest.mark.clause(case.name[:5].upper())) for case in cases("invalid")
    ]


@pytest.mark.clause("EC-05", "EC-06")
@pytest.mark.parametrize("case", cases("valid"), ids=lambda case: case.name)
def test_a_valid_card_is_read_and_written_as_it_is(case: Case) -> None:
    assert validate_card(case.card) == []
    assert EnvironmentCard.parse(case.card).to_dict() == case.card
    assert list(FORM.iter_errors(case.card)) == []


@pytest.mark.parametrize("case", invalid())
def test_an_invalid_card_has_exactly_the_problems_that_come_with_it(case: Case) -> None:
    problems = validate_card(case.card)
    assert [(problem.pointer, problem.clause) for problem in problems] == list(case.problems)
    if case.reader_refuses:
        with pytest.raises(CardError):
            EnvironmentCard.parse(case.card)
    elif case.name.startswith("ec-38"):
        assert EnvironmentCard.parse(case.card).to_dict()["digest"] != case.card["digest"]  # type: ignore[call-overload, index]
    else:
        with pytest.raises(CardError) as caught:
            EnvironmentCard.parse(case.card).to_dict()
        assert set(case.problems) <= {(problem.pointer, problem.clause) for problem in caught.value.problems}


@pytest.mark.clause("EC-02")
@pytest.mark.parametrize("case", cases("foreign"), ids=lambda case: case.name)
def test_a_foreign_card_is_read_and_what_keeps_it_from_being_written_is_told(case: Case) -> None:
    card = EnvironmentCard.parse(case.card)
    assert [(problem.pointer, problem.clause) for problem in validate_card(case.card)] == list(case.problems)
    with pytest.raises(CardError) as caught:
        card.to_dict()
    assert [(problem.pointer, problem.clause) for problem in caught.value.problems] == list(case.problems)


@pytest.mark.clause("EC-07", "EC-08", "EC-23")
def test_cards_of_another_system_keep_their_meaning() -> None:
    foreign = {case.name: EnvironmentCard.parse(case.card) for case in cases("foreign")}
    counter, gateway = foreign["class-name"], foreign["children"]
    assert (counter.name, counter.is_draft, counter.kind) == ("CounterEnv", True, "environment")
    interface = counter.interface("mcp")
    assert interface is not None and interface.url == "/mcp"
    assert counter.capabilities.operations == ["data/reset", "data/add", "data/get"]
    assert [extension.uri for extension in counter.capabilities.extensions] == [
        "urn:example:score/v1",
        "urn:agentenv:state/v1",
    ]
    assert counter.capabilities.tools[1].input_schema == {"type": "object", "properties": {}}
    assert foreign["operations-absent"].capabilities.operations is None
    assert gateway.capabilities.operations == []
    assert [child.name for child in gateway.children_environments] == ["CounterEnv", "old_world"]
    inner = gateway.children_environments[0].interface("mcp")
    assert inner is not None and inner.url == "/svc/counter/mcp"


@pytest.mark.clause("EC-05", "EC-46")
@pytest.mark.parametrize("name", EXAMPLES)
def test_an_example_is_a_card_that_can_be_served(name: str) -> None:
    card = EnvironmentCard.parse(example(name))
    assert card.to_dict() == example(name)
    assert ParseDict(agent_card(card, base_url="http://127.0.0.1:8000"), AgentCard()).name == card.name
