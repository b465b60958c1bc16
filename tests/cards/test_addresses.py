"""Addresses and interfaces: clauses EC-20 to EC-23."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from agent_env_cards import CARD_PATH, EnvironmentCard, Interface, base_url, resolve_url

Found = Callable[..., list[tuple[str, str]]]

FINE = ["/", "/mcp", "/a/b?x=1", "/a..b/.c", "http://h", "https://h:8/p", "ws://[::1]:8/w", "wss://ägent.example/w"]
WRONG = [
    *["", "mcp", "./mcp", "//host/mcp", "/a/../b", "/..", "/a b", "/a\nb", "/a\\b", "\\\\host", "http://", "http:/h/p"],
    *["ftp://h/p", "file:///etc/passwd", "javascript:alert(1)", "http://[::1", "https://h/a b", "https:///p"],
]


@pytest.mark.clause("EC-20")
@pytest.mark.parametrize("url", WRONG)
def test_what_is_neither_a_path_nor_an_http_address_is_not_written(url: str, found: Found) -> None:
    assert found(url=url) == [("/url", "EC-20")]
    assert found(agentCard=url) == [("/agentCard", "EC-20")]
    assert ("/interfaces/1/url", "EC-20") in found(
        interfaces=[{"transport": "http", "url": "/v1"}, {"transport": "mcp", "url": url}]
    )
    assert found(additionalInterfaces=[{"transport": "mcp", "url": url}]) == [("/additionalInterfaces/0/url", "EC-20")]


@pytest.mark.clause("EC-20")
@pytest.mark.parametrize("url", FINE)
def test_paths_and_absolute_addresses_are_written(url: str, found: Found) -> None:
    assert found(url=url, agentCard=url, interfaces=[{"transport": "mcp", "url": url}]) == []


@pytest.mark.clause("EC-21")
@pytest.mark.parametrize(
    ("fetched", "url", "transport", "address"),
    [
        ("http://h:8000/.well-known/agent-env.json", "/mcp", "mcp", "http://h:8000/mcp"),
        ("https://h/sandbox/7/.well-known/agent-env.json", "/mcp", "mcp", "https://h/sandbox/7/mcp"),
        ("https://h/sandbox/7/.well-known/agent-env.json?x=1#y", "/mcp", "mcp", "https://h/sandbox/7/mcp"),
        ("https://h/sandbox/7/", "/mcp", "mcp", "https://h/sandbox/7/mcp"),
        ("http://h/p", "/v1/ws", "websocket", "ws://h/p/v1/ws"),
        ("https://h/p", "/v1/ws", "websocket", "wss://h/p/v1/ws"),
        ("https://h/p", "https://other/x", "http", "https://other/x"),
        ("https://h/p", "http://other/x", "websocket", "ws://other/x"),
        ("https://h/p", "wss://other/x", "websocket", "wss://other/x"),
    ],
)
def test_a_path_is_appended_to_where_the_card_was_fetched(fetched: str, url: str, transport: str, address: str) -> None:
    assert resolve_url(fetched, url, transport=transport) == address


@pytest.mark.clause("EC-21")
def test_the_base_is_the_address_of_the_card_without_its_path() -> None:
    assert base_url("https://h/a" + CARD_PATH) == base_url("https://h/a/") == "https://h/a"
    assert base_url(base_url("https://h" + CARD_PATH)) == "https://h"


@pytest.mark.clause("EC-22")
@pytest.mark.parametrize("url", ["http://0.0.0.0", "https://0.0.0.0:8000/x", "ws://[::]:8/w", "http://[0:0::0]/x"])
def test_an_address_that_is_only_listened_on_is_not_written(url: str, found: Found) -> None:
    assert found(interfaces=[{"transport": "http", "url": url}], agentCard=url) == [
        ("/agentCard", "EC-22"),
        ("/interfaces/0/url", "EC-22"),
    ]


@pytest.mark.clause("EC-22")
def test_loopback_and_names_are_reachable_by_somebody(found: Found) -> None:
    assert found(url="http://127.0.0.1:8000/agentenv", agentCard="http://localhost/card") == []


@pytest.mark.clause("EC-23")
def test_a_reader_takes_interfaces_from_both_lists_once(good: dict[str, Any]) -> None:
    card = EnvironmentCard.parse(
        {
            **good,
            "interfaces": [{"transport": "mcp", "url": "/mcp", "protocolVersions": ["2026-07-28"]}],
            "additionalInterfaces": [
                {"transport": "mcp", "url": "/mcp"},
                {"transport": "mcp", "url": "/other/mcp"},
                {"transport": "carrier-pigeon", "url": "/loft", "x-birds": 2},
            ],
        }
    )
    assert [(interface.transport, interface.url) for interface in card.interfaces] == [
        ("mcp", "/mcp"),
        ("mcp", "/other/mcp"),
        ("carrier-pigeon", "/loft"),
    ]
    assert card.interfaces[0].protocol_versions == ["2026-07-28"]
    assert card.additional_interfaces == []
    assert card.to_dict()["interfaces"][2] == {"transport": "carrier-pigeon", "url": "/loft", "x-birds": 2}


@pytest.mark.clause("EC-23")
def test_a_writer_makes_the_list_of_older_clients_from_the_other() -> None:
    card = EnvironmentCard(name="a", description="A.", interfaces=[Interface(transport="mcp", url="/mcp")])
    moved = card.model_copy(update={"interfaces": [Interface(transport="mcp", url="/new", protocol_versions=["1"])]})
    assert card.to_dict()["additionalInterfaces"] == [{"url": "/mcp", "transport": "mcp"}]
    assert moved.to_dict()["additionalInterfaces"] == [{"url": "/new", "transport": "mcp"}]
    assert "additionalInterfaces" not in EnvironmentCard(name="a", description="A.").to_dict()
