"""Bounds, and sockets to listen on."""

from __future__ import annotations

import socket
from typing import Any

import pytest

from agent_env.errors import ConfigurationError
from agent_env.net import Limits, bound_url, listen


def test_the_defaults_are_what_the_table_of_the_readme_says() -> None:
    limits = Limits()
    assert (limits.max_message_bytes, limits.max_sessions, limits.max_queued_turns) == (4 * 2**20, 10_000, 64)
    assert (limits.queue_seconds, limits.idle_seconds, limits.turn_seconds) == (10.0, 1800.0, 600.0)
    assert (limits.max_depth, limits.max_visits, limits.turn_limit) == (8, 2, None)


@pytest.mark.parametrize(
    "bounds",
    [
        {"max_sessions": 0},
        {"turn_seconds": -1},
        {"queue_seconds": -0.1},
        {"turn_limit": 0},
        {"max_depth": float("nan")},
    ],
)
def test_a_bound_that_nothing_can_stay_within_is_refused(bounds: dict[str, Any]) -> None:
    with pytest.raises(ConfigurationError, match=rf"Limits\({next(iter(bounds))}="):
        Limits(**bounds)


def test_no_queue_is_a_bound_too() -> None:
    assert Limits(queue_seconds=0, max_queued_turns=0, turn_limit=1).queue_seconds == 0


def test_a_listener_takes_a_free_port_and_answers_without_delay() -> None:
    with listen() as listener:
        assert bound_url(listener) == f"http://127.0.0.1:{listener.getsockname()[1]}"
        assert listener.proto == socket.IPPROTO_TCP
        with socket.create_connection(listener.getsockname(), timeout=5):
            pass


def test_a_wildcard_is_reached_by_loopback() -> None:
    with listen("0.0.0.0") as listener:
        assert bound_url(listener).startswith("http://127.0.0.1:")


@pytest.mark.skipif(not socket.has_ipv6, reason="this machine has no IPv6")
def test_an_ipv6_listener_has_an_ipv6_url() -> None:
    try:
        listener = listen("::1")
    except ConfigurationError:
        pytest.skip("this machine has no IPv6 loopback")
    with listener:
        assert bound_url(listener) == f"http://[::1]:{listener.getsockname()[1]}"


def test_a_taken_port_names_the_remedy() -> None:
    with listen() as listener, pytest.raises(ConfigurationError, match="is taken by another program; choose another"):
        listen(port=listener.getsockname()[1])


def test_a_host_that_is_not_here_names_the_remedy() -> None:
    with pytest.raises(ConfigurationError, match=r"not an address of this machine .*; bind to 127\.0\.0\.1"):
        listen("192.0.2.1")
    with pytest.raises(ConfigurationError, match="'no such host' does not resolve"):
        listen("no such host")


@pytest.mark.parametrize("port", [-1, 65_536, 70_000])
def test_a_number_that_is_no_port_is_refused(port: int) -> None:
    with pytest.raises(ConfigurationError, match=f"the port {port} is not one of 0 to 65535"):
        listen(port=port)


def test_a_port_that_is_not_allowed_names_the_remedy(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(self: socket.socket, address: object) -> None:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(socket.socket, "bind", refuse)
    with pytest.raises(ConfigurationError, match="choose one above 1023"):
        listen(port=80)
