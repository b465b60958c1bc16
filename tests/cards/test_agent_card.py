"""The A2A Agent Card: clauses EC-45 to EC-48."""

from __future__ import annotations

import json
from typing import Any

import pytest
from a2a.client.card_resolver import parse_agent_card
from a2a.compat.v0_3 import types as v03
from a2a.types import AgentCard
from google.protobuf.json_format import MessageToDict, ParseDict

from agent_env_cards import (
    EXTENSION_URI,
    Auth,
    CardError,
    EnvironmentCard,
    Interface,
    Offer,
    Provider,
    SampleRequest,
    SecurityScheme,
    Skill,
    agent_card,
    agent_card_v03,
    environment_card_url,
)
from agent_env_cards.conformance import example

BASE = "https://agents.example/lab/solver"


@pytest.fixture
def solver() -> EnvironmentCard:
    return EnvironmentCard.parse(example("solver"))


def parsed(card: EnvironmentCard, base_url: str = BASE) -> AgentCard:
    return ParseDict(agent_card(card, base_url=base_url), AgentCard())


def parsed_v03(card: EnvironmentCard, base_url: str = BASE) -> v03.AgentCard:
    return v03.AgentCard.model_validate(agent_card_v03(card, base_url=base_url))


@pytest.mark.clause("EC-45")
def test_the_agent_card_has_the_facts_of_the_environment_card(solver: EnvironmentCard) -> None:
    card = parsed(solver)
    assert (card.name, card.version, card.description) == (solver.name, solver.version, solver.description)
    assert (card.provider.organization, card.provider.url) == ("Example Lab", "https://lab.example")
    assert (list(card.default_input_modes), list(card.default_output_modes)) == (["text/plain"], ["text/plain"])
    assert [(skill.id, skill.name, list(skill.tags), list(skill.examples)) for skill in card.skills] == [
        (
            "math.algebra",
            "math.algebra",
            ["equations", "school"],
            ["Solve 2x = 6.", "A train needs 2 h for 180 km. How fast is it?"],
        ),
        ("math.arithmetic", "math.arithmetic", ["school"], ["A train needs 2 h for 180 km. How fast is it?"]),
    ]
    assert [skill.description for skill in card.skills] == [skill.description for skill in solver.offers.skills]
    assert card.security_schemes["bearer"].http_auth_security_scheme.scheme == "bearer"
    assert list(card.security_requirements[0].schemes["bearer"].list) == ["chat"]


@pytest.mark.clause("EC-45")
def test_an_environment_without_skills_can_be_talked_to() -> None:
    card = parsed(EnvironmentCard(name="echo", description="Says it again."))
    assert [(skill.id, skill.description, list(skill.tags)) for skill in card.skills] == [
        ("chat", "Says it again.", ["chat"])
    ]
    assert not card.HasField("provider")
    bare = EnvironmentCard(name="a", description="A.", offers=Offer(skills=[Skill(id="x"), Skill(id="y", name="Y")]))
    assert [(skill.name, skill.description) for skill in parsed(bare).skills] == [("x", "x"), ("Y", "Y")]


@pytest.mark.clause("EC-45")
def test_both_forms_have_the_same_facts(solver: EnvironmentCard) -> None:
    new, old = agent_card(solver, base_url=BASE), agent_card_v03(solver, base_url=BASE)
    for member in ("name", "version", "description", "skills", "provider", "defaultInputModes", "defaultOutputModes"):
        assert new[member] == old[member]
    assert new["capabilities"]["extensions"] == old["capabilities"]["extensions"]


@pytest.mark.clause("EC-45")
def test_every_security_scheme_is_told_in_both_forms() -> None:
    flow = {"tokenUrl": "https://id.example/t", "scopes": {"chat": "Talk"}}
    auth = Auth(
        schemes={
            "key": SecurityScheme(type="apiKey", name="X-Key", location="header", description="A key."),
            "bearer": SecurityScheme(type="http", scheme="bearer", bearer_format="JWT"),
            "login": SecurityScheme(type="oauth2", flows={"password": flow, "clientCredentials": flow}),
            "sso": SecurityScheme(type="openIdConnect", open_id_connect_url="https://id.example/x"),
            "tls": SecurityScheme(type="mutualTLS"),
        },
        security=[{"key": []}, {"login": ["chat"], "tls": []}],
    )
    card = EnvironmentCard(name="a", description="A.", auth=auth, provider=Provider(organization="Lab"))
    made = parsed(card)
    schemes = {name: scheme.WhichOneof("scheme") for name, scheme in made.security_schemes.items()}
    assert schemes == {
        "key": "api_key_security_scheme",
        "bearer": "http_auth_security_scheme",
        "login": "oauth2_security_scheme",
        "sso": "open_id_connect_security_scheme",
        "tls": "mtls_security_scheme",
    }
    key, login = made.security_schemes["key"].api_key_security_scheme, made.security_schemes["login"]
    assert (key.location, key.name, key.description) == ("header", "X-Key", "A key.")
    assert login.oauth2_security_scheme.flows.client_credentials.token_url == "https://id.example/t"
    assert [sorted(requirement.schemes) for requirement in made.security_requirements] == [["key"], ["login", "tls"]]
    assert made.provider.url == BASE
    old = parsed_v03(card)
    assert old.model_dump(by_alias=True, exclude_none=True, mode="json") == agent_card_v03(card, base_url=BASE)
    assert old.security == [{"key": []}, {"login": ["chat"], "tls": []}]


@pytest.mark.clause("EC-45")
def test_a_card_that_may_not_be_written_makes_no_agent_card() -> None:
    for make in (agent_card, agent_card_v03):
        with pytest.raises(CardError, match="Agent-B"):
            make(EnvironmentCard(name="Agent-B", description="B."), base_url=BASE)


@pytest.mark.clause("EC-46")
def test_both_bindings_are_listed_once_for_each_version(solver: EnvironmentCard) -> None:
    interfaces = parsed(solver, BASE + "/").supported_interfaces
    assert [(entry.url, entry.protocol_binding, entry.protocol_version) for entry in interfaces] == [
        (f"{BASE}/a2a", "JSONRPC", "1.0"),
        (f"{BASE}/a2a/rest", "HTTP+JSON", "1.0"),
        (f"{BASE}/a2a", "JSONRPC", "0.3"),
        (f"{BASE}/a2a/rest", "HTTP+JSON", "0.3"),
    ]
    unserved = parsed(EnvironmentCard(name="a", description="A.")).supported_interfaces
    assert [(entry.url, entry.protocol_version) for entry in unserved] == [
        (entry.url, entry.protocol_version) for entry in interfaces
    ]


@pytest.mark.clause("EC-46")
def test_the_interface_on_the_card_says_where_and_which_versions() -> None:
    elsewhere = Interface(transport="a2a", url="https://a2a.example/rpc", protocol_versions=["1.0"])
    card = EnvironmentCard(name="a", description="A.", interfaces=[elsewhere])
    assert [(entry.url, entry.protocol_version) for entry in parsed(card).supported_interfaces] == [
        ("https://a2a.example/rpc", "1.0"),
        ("https://a2a.example/rpc/rest", "1.0"),
    ]


@pytest.mark.clause("EC-46")
def test_nothing_is_lost_when_the_sdk_reads_it(solver: EnvironmentCard) -> None:
    made = agent_card(solver, base_url=BASE)
    again = MessageToDict(ParseDict(made, AgentCard()), always_print_fields_with_no_presence=False)
    made["capabilities"]["extensions"][0].pop("required")  # False is what ProtoJSON leaves out.
    assert again == made
    capabilities = parsed(solver).capabilities
    assert (capabilities.streaming, capabilities.push_notifications) == (True, True)
    assert agent_card(solver, base_url=BASE, push_notifications=False)["capabilities"]["pushNotifications"] is False


@pytest.mark.clause("EC-46")
@pytest.mark.parametrize(
    ("base_url", "clause"),
    [("/lab", "EC-20"), ("agents.example", "EC-20"), ("ws://h", "EC-20"), ("http://0.0.0.0:8000", "EC-22")],
)
def test_an_agent_card_needs_an_address_that_callers_can_use(base_url: str, clause: str) -> None:
    for make in (agent_card, agent_card_v03):
        with pytest.raises(CardError) as caught:
            make(EnvironmentCard(name="a", description="A."), base_url=base_url)
        assert [problem.clause for problem in caught.value.problems] == [clause]


@pytest.mark.clause("EC-46")
def test_an_environment_that_does_not_speak_a2a_has_no_agent_card() -> None:
    card = EnvironmentCard(name="a", description="A.", interfaces=[Interface(transport="mcp", url="/mcp")])
    with pytest.raises(CardError, match="no A2A interface among mcp"):
        agent_card(card, base_url=BASE)


@pytest.mark.clause("EC-47")
def test_the_older_form_is_what_the_older_types_are(solver: EnvironmentCard) -> None:
    card = parsed_v03(solver)
    assert (card.protocol_version, card.url, card.preferred_transport) == ("0.3.0", f"{BASE}/a2a", "JSONRPC")
    assert [(entry.url, entry.transport) for entry in card.additional_interfaces or ()] == [
        (f"{BASE}/a2a", "JSONRPC"),
        (f"{BASE}/a2a/rest", "HTTP+JSON"),
    ]
    assert card.model_dump(by_alias=True, exclude_none=True, mode="json") == agent_card_v03(solver, base_url=BASE)


@pytest.mark.clause("EC-47")
def test_the_newer_sdk_reads_the_older_form_too(solver: EnvironmentCard) -> None:
    card = parse_agent_card(json.loads(json.dumps(agent_card_v03(solver, base_url=BASE))))
    assert {(entry.protocol_binding, entry.protocol_version) for entry in card.supported_interfaces} == {
        ("JSONRPC", "0.3.0"),
        ("HTTP+JSON", "0.3.0"),
    }
    assert card.security_schemes["bearer"].http_auth_security_scheme.scheme == "bearer"


@pytest.mark.clause("EC-47")
def test_an_environment_that_speaks_only_the_newer_version_has_no_older_card() -> None:
    newer = Interface(transport="a2a", url="/a2a", protocol_versions=["1.0"])
    with pytest.raises(CardError, match=r"does not speak A2A 0\.3 but 1\.0") as caught:
        agent_card_v03(EnvironmentCard(name="a", description="A.", interfaces=[newer]), base_url=BASE)
    assert caught.value.problems[0].clause == "EC-47"


@pytest.mark.clause("EC-48")
def test_each_card_leads_to_the_other(solver: EnvironmentCard) -> None:
    [extension] = parsed(solver).capabilities.extensions
    params: dict[str, Any] = MessageToDict(extension.params)
    assert (extension.uri, extension.required) == (EXTENSION_URI, False) == ("urn:agent-env:environment-card:v1", False)
    assert params == {"card": f"{BASE}/.well-known/agent-env.json", "digest": solver.digest()}
    assert solver.agent_card == "/.well-known/agent-card.json"
    for make in (agent_card, agent_card_v03):
        assert environment_card_url(make(solver, base_url=BASE)) == f"{BASE}/.well-known/agent-env.json"


@pytest.mark.clause("EC-48")
@pytest.mark.parametrize(
    "foreign",
    [{}, {"capabilities": None}, {"capabilities": {"extensions": [{"uri": "urn:x:y"}, {"uri": EXTENSION_URI}]}}],
)
def test_an_agent_card_of_somebody_else_leads_to_no_environment_card(foreign: dict[str, Any]) -> None:
    assert environment_card_url(foreign) is None


def test_sample_requests_go_to_the_skill_that_they_show() -> None:
    samples = [SampleRequest(request="One?", skill="a"), SampleRequest(request="Two?", skill="a")]
    offer = Offer(skills=[Skill(id="a"), Skill(id="b")], examples=samples)
    card = agent_card(EnvironmentCard(name="x", description="X.", offers=offer), base_url=BASE)
    assert [skill.get("examples") for skill in card["skills"]] == [["One?", "Two?"], None]
