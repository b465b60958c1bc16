"""Rewards, episodes, sessions and security: clauses EC-31 to EC-34."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from agent_env_cards import AgentCaps, Auth, EnvironmentCard, SessionCard

Found = Callable[..., list[tuple[str, str]]]


@pytest.mark.clause("EC-31")
@pytest.mark.parametrize(
    ("members", "place"),
    [
        ({"range": [1, 0]}, "range"),
        ({"range": [0.5, 0.25]}, "range"),
        ({"description": " "}, "description"),
        ({"name": "the best"}, "name"),
        ({"name": "same"}, "name"),
    ],
)
def test_a_reward_is_named_described_and_goes_upwards(members: dict[str, Any], place: str, found: Found) -> None:
    fine = [
        {"name": "same", "description": "S."},
        {"name": "low", "description": "L.", "range": [None, 0]},
        {"name": "one", "description": "O.", "range": [1, 1]},
        {"name": "r", "description": "R.", "range": [-1, 1.5]},
    ]
    assert found(rewards=fine) == []
    assert found(rewards=[*fine[:3], {**fine[3], **members}]) == [(f"/rewards/3/{place}", "EC-31")]


@pytest.mark.clause("EC-32")
@pytest.mark.parametrize("limit", [0, -1])
def test_an_episode_has_a_turn_at_least(limit: int, found: Found) -> None:
    assert found(episode={"turnLimit": limit}) == [("/episode/turnLimit", "EC-32")]
    assert found(episode={"turnLimit": 1}) == []


@pytest.mark.clause("EC-33")
def test_a_session_has_room_and_time(found: Found) -> None:
    assert found(session={"capacity": 0, "idleTimeout": 0}) == [
        ("/session/capacity", "EC-33"),
        ("/session/idleTimeout", "EC-33"),
    ]
    assert found(session={"capacity": 1, "idleTimeout": 0.5}) == []
    assert SessionCard().capacity is None


FLOWS = {"clientCredentials": {"tokenUrl": "https://id.example/t", "scopes": {}}}
SCHEMES = {
    "key": {"type": "apiKey", "name": "X-Key", "in": "header"},
    "bearer": {"type": "http", "scheme": "bearer"},
    "login": {"type": "oauth2", "flows": FLOWS},
    "sso": {"type": "openIdConnect", "openIdConnectUrl": "https://id.example/.well-known/openid-configuration"},
    "tls": {"type": "mutualTLS"},
}


@pytest.mark.clause("EC-34")
@pytest.mark.parametrize(
    ("scheme", "place"),
    [
        ({"type": "apiKey", "name": "X-Key"}, "in"),
        ({"type": "apiKey", "in": "query"}, "name"),
        ({"type": "apiKey", "name": "k", "in": "body"}, "in"),
        ({"type": "http"}, "scheme"),
        ({"type": "oauth2"}, "flows"),
        (
            {"type": "oauth2", "flows": {"authorizationCode": {"tokenUrl": "/t", "scopes": {}}}},
            "flows/authorizationCode/authorizationUrl",
        ),
        ({"type": "openIdConnect"}, "openIdConnectUrl"),
        ({"type": "password"}, "type"),
    ],
)
def test_a_scheme_has_what_openapi_asks_of_its_type(scheme: dict[str, Any], place: str, found: Found) -> None:
    assert found(auth={"schemes": {**SCHEMES, "x": scheme}}) == [(f"/auth/schemes/x/{place}", "EC-34")]
    assert found(auth={"schemes": SCHEMES}) == []


@pytest.mark.clause("EC-34")
def test_a_requirement_names_declared_schemes(found: Found) -> None:
    security = [{"bearer": ["chat"]}, {"key": [], "other": []}]
    assert found(auth={"schemes": SCHEMES, "security": security}) == [("/auth/security/1/other", "EC-34")]


@pytest.mark.clause("EC-34")
def test_bearer_tokens_are_told_in_one_call(good: dict[str, Any]) -> None:
    card = EnvironmentCard.parse(good).model_copy(update={"auth": Auth.bearer(["chat"])})
    assert card.to_dict()["auth"] == {
        "schemes": {"bearer": {"type": "http", "scheme": "bearer"}},
        "security": [{"bearer": ["chat"]}],
    }


def test_the_parts_that_an_agent_reads_are_written_in_one_order() -> None:
    assert AgentCaps(parts=["text", "data", "file"]).parts == ["data", "file", "text"]
