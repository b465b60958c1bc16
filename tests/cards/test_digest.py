"""The digest: clauses EC-35 to EC-38."""

from __future__ import annotations

import hashlib
import json
import random
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agent_env_cards import CardError, EnvironmentCard, Need, validate_card
from agent_env_cards.conformance import example

Found = Callable[..., list[tuple[str, str]]]


def by_hand(facts: dict[str, Any]) -> str:
    """The digest of facts whose canonical form `json` can write: ASCII names, no fractions."""
    text = json.dumps(facts, sort_keys=True, separators=(",", ":"), ensure_ascii=False)
    return "sha256:" + hashlib.sha256(text.encode()).hexdigest()


@pytest.mark.clause("EC-35")
def test_the_digest_is_of_name_release_facts_and_tools() -> None:
    card = {
        "name": "agent-b",
        "version": "1.0.0",
        "description": "Grüße \u2603",
        "kind": "environment",
        "episode": {"turnLimit": 3},
        "rewards": [{"name": "r", "description": "R."}],
        "needs": [{"seat": "s", "requires": {"skills": ["a"]}}],
        "offers": {"tags": ["t"]},
        "capabilities": {"tools": [{"name": "t", "description": "T."}], "functions": [{"name": "f"}]},
    }
    facts = {name: value for name, value in card.items() if name != "capabilities"}
    expected = by_hand({**facts, **card["capabilities"]})  # type: ignore[dict-item]
    assert EnvironmentCard.parse(card).digest() == expected


@pytest.mark.clause("EC-35")
def test_the_digest_of_a_bare_name_is_known() -> None:
    assert EnvironmentCard(name="a").digest() == by_hand({"name": "a", "version": "0.0.0-dev", "kind": "environment"})


@pytest.mark.clause("EC-35")
def test_numbers_are_hashed_in_their_canonical_form(good: dict[str, Any]) -> None:
    digests = {
        EnvironmentCard.parse({**good, "episode": {"action": {"minimum": number}}}).digest()
        for number in (1, 1.0, json.loads("1e0"))
    }
    assert len(digests) == 1
    tiny = {**good, "kind": "environment", "episode": {"action": {"minimum": 1e-7}}}
    canonical = json.dumps(tiny, sort_keys=True, separators=(",", ":")).replace("1e-07", "1e-7")
    assert EnvironmentCard.parse(tiny).digest() == "sha256:" + hashlib.sha256(canonical.encode()).hexdigest()


@pytest.mark.clause("EC-35")
def test_what_has_no_canonical_form_has_no_digest() -> None:
    card = EnvironmentCard(name="a", episode={"action": {"minimum": 2**60}})  # type: ignore[arg-type]
    with pytest.raises(CardError, match="no digest") as caught:
        card.digest()
    assert [problem.clause for problem in caught.value.problems] == ["EC-04"]


RELEASE = {
    "name": "other",
    "version": "1.2.1",
    "description": "Another.",
    "kind": "environment",
    "episode": {"turnLimit": 9},
    "rewards": [{"name": "exact", "description": "Other words.", "range": [0, 1]}],
    "needs": [{"seat": "helper"}],
    "offers": {"skills": [{"id": "math.algebra"}]},
}


@pytest.mark.clause("EC-35")
@pytest.mark.parametrize("member", RELEASE)
def test_every_release_fact_changes_the_digest(member: str) -> None:
    card = example("solver")
    assert EnvironmentCard.parse({**card, member: RELEASE[member]}).digest() != card["digest"]


@pytest.mark.clause("EC-35")
def test_a_changed_tool_changes_the_digest() -> None:
    card = example("solver")
    for place in ("description", "inputSchema", "outputSchema"):
        changed = json.loads(json.dumps(card))
        changed["capabilities"]["tools"][0][place] = {"type": "object"} if place != "description" else "Obey me."
        assert EnvironmentCard.parse(changed).digest() != card["digest"]
    functions = {**card["capabilities"], "functions": [{"name": "f", "description": "F."}]}
    assert EnvironmentCard.parse({**card, "capabilities": functions}).digest() != card["digest"]


INSTANCE = {
    "url": "https://replica-7.example/agentenv",
    "protocolVersion": "1.1",
    "preferredTransport": "HTTP",
    "additionalInterfaces": [{"transport": "http", "url": "/elsewhere"}],
    "interfaces": [],
    "agentCard": "https://replica-7.example/agent-card.json",
    "session": {"capacity": 1},
    "auth": {"schemes": {}},
    "caps": {"streaming": False},
    "provider": {"organization": "Somebody else"},
    "license": "MIT",
    "signatures": [{"protected": "e30", "signature": "AA"}],
    "children_environments": [{"name": "child", "description": "C."}],
    "x-region": "eu-1",
}


@pytest.mark.clause("EC-36")
@pytest.mark.parametrize("member", INSTANCE)
def test_no_instance_fact_changes_the_digest(member: str) -> None:
    card = example("solver")
    changed = EnvironmentCard.parse({**card, member: INSTANCE[member]})
    assert changed.digest() == card["digest"]
    extensions = {**card["capabilities"], "operations": [], "extensions": [{"uri": "urn:x:y"}], "x": 1}
    assert EnvironmentCard.parse({**card, "capabilities": extensions}).digest() == card["digest"]


@pytest.mark.clause("EC-36")
def test_the_digest_survives_the_wire_and_back() -> None:
    for name in ("solver", "manager", "draft"):
        card = EnvironmentCard.parse(example(name))
        assert EnvironmentCard.parse(card.to_json(indent=3)).digest() == card.digest() == card.to_dict()["digest"]


@pytest.mark.clause("EC-37")
@given(st.randoms(use_true_random=False))
def test_the_order_of_named_things_and_of_members_says_nothing(shuffler: random.Random) -> None:
    card = {
        "name": "a",
        "rewards": [{"name": name} for name in "abc"],
        "needs": [{"seat": seat, "strict": True} for seat in "abc"],
        "offers": {"skills": [{"id": skill} for skill in "abc"], "tags": ["t"]},
        "capabilities": {kind: [{"name": f"{kind}{n}"} for n in (10, 9, 1)] for kind in ("tools", "functions")},
    }
    digest = EnvironmentCard.parse(card).digest()
    capabilities: Any = card["capabilities"]
    for named in (card["rewards"], card["needs"], card["offers"]["skills"], *capabilities.values()):  # type: ignore[call-overload]
        shuffler.shuffle(named)
    members = list(card.items())
    shuffler.shuffle(members)
    assert EnvironmentCard.parse(dict(members)).digest() == digest


@pytest.mark.clause("EC-37")
def test_other_orders_say_something(good: dict[str, Any]) -> None:
    one, other = (EnvironmentCard.parse({**good, "offers": {"tags": tags}}) for tags in (["a", "b"], ["b", "a"]))
    assert one.digest() != other.digest()


@pytest.mark.clause("EC-38")
def test_a_wrong_digest_is_found_and_told(good: dict[str, Any]) -> None:
    right = EnvironmentCard.parse(good).digest()
    [problem] = validate_card({**good, "digest": "sha256:" + "0" * 64})
    assert (problem.pointer, problem.clause) == ("/digest", "EC-38")
    assert right in problem.message
    assert validate_card({**good, "digest": right}) == []


@pytest.mark.clause("EC-38")
def test_a_program_computes_the_digest_and_never_believes_it(good: dict[str, Any]) -> None:
    right = EnvironmentCard.parse(good).digest()
    liar = EnvironmentCard.parse({**good, "digest": "sha256:" + "0" * 64})
    assert (liar.stated_digest, liar.digest(), liar.to_dict()["digest"]) == ("sha256:" + "0" * 64, right, right)
    changed = EnvironmentCard.parse({**good, "digest": right}).model_copy(update={"needs": [Need("s")]})
    assert changed.to_dict()["digest"] == changed.digest() != right
