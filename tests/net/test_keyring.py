"""Tokens for peers: each leaves for the one that it belongs to, and for nobody else."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agent_env.errors import ConfigurationError
from agent_env.net import Keyring
from agent_env.net.origins import origin_of, same_origin


@pytest.mark.parametrize(
    ("url", "origin"),
    [
        ("https://Agents.Example", "https://agents.example:443"),
        ("https://agents.example:443/a/b?c", "https://agents.example:443"),
        ("wss://agents.example/v1/ws", "https://agents.example:443"),
        ("http://127.0.0.1:8000/mcp", "http://127.0.0.1:8000"),
        ("ws://[::1]:9/v1/ws", "http://[::1]:9"),
        ("http://agents.example", "http://agents.example:80"),
        ("https://user:pass@agents.example", "https://agents.example:443"),
    ],
)
def test_an_origin_is_scheme_host_and_port(url: str, origin: str) -> None:
    assert origin_of(url) == origin


@pytest.mark.parametrize("url", ["agents.example", "ftp://agents.example", "https://", "https://host:port"])
def test_what_has_no_origin_is_refused(url: str) -> None:
    with pytest.raises(ValueError):
        origin_of(url)


@pytest.mark.parametrize(
    ("one", "other", "same"),
    [
        ("http://localhost:8000/a", "ws://127.0.0.1:8000/b", True),
        ("http://0.0.0.0:8000", "http://127.0.0.1:8000", True),
        ("https://a.example", "https://a.example:443/x", True),
        ("https://a.example", "http://a.example", False),
        ("https://a.example", "https://b.example", False),
        ("http://127.0.0.1:8000", "http://127.0.0.1:8001", False),
        ("http://127.0.0.1:port", "http://127.0.0.1:8001", False),
    ],
)
def test_the_names_of_this_machine_are_one_origin_and_all_others_differ(one: str, other: str, same: bool) -> None:
    assert same_origin(one, other) is same
    assert same_origin(other, one) is same


def test_a_token_is_found_by_origin_and_by_the_name_that_the_hub_has() -> None:
    keyring = Keyring({"https://agents.example": "at-origin", "agent-b": "by-name"})
    assert keyring.token("https://agents.example/v1") == keyring.token("wss://agents.example/v1/ws") == "at-origin"
    assert keyring.token("https://agents.example", "agent-b") == "at-origin"
    assert keyring.token("https://other.example", "agent-b") == keyring.token(None, "agent-b") == "by-name"
    assert len(keyring) == 2


@given(st.sampled_from(["http", "https"]), st.from_regex(r"[a-z]{1,8}\.example", fullmatch=True), st.integers(1, 65535))
def test_no_other_origin_gets_a_token(scheme: str, host: str, port: int) -> None:
    keyring = Keyring({"https://agents.example:8443": "s3cret", "agent-b": "r00t"})
    url = f"{scheme}://{host}:{port}"
    expected = "s3cret" if url == "https://agents.example:8443" else None
    assert keyring.token(url) == expected
    assert keyring.token(url.replace("://", "://agents.example:8443@")) == expected


def test_a_seat_that_was_filled_by_name_keeps_its_token_for_itself() -> None:
    keyring = Keyring({"solver": "for-the-seat", "other": "x", "https://a.example": "y"})
    assert keyring.at("solver") == "for-the-seat"
    rest = keyring.without({"solver"})
    assert rest.token("https://b.example", "solver") is None
    assert (rest.token(None, "other"), rest.token("https://a.example")) == ("x", "y")


def test_of_two_keyrings_the_added_one_counts() -> None:
    first = Keyring({"a": "1", "b": "1", "https://a.example": "1"})
    joined = first.with_others(Keyring({"b": "2", "https://b.example": "2"}))
    assert [joined.token(None, name) for name in "ab"] == ["1", "2"]
    assert [joined.token(f"https://{name}.example") for name in "ab"] == ["1", "2"]
    assert first.token(None, "b") == "1"


@pytest.mark.parametrize("key", ["ftp://a.example", "https://", "https://a.example/path", "https://a.example?x=1"])
def test_a_key_that_looks_like_a_url_must_be_an_origin(key: str) -> None:
    with pytest.raises(ConfigurationError, match="origin"):
        Keyring({key: "t"})


@pytest.mark.parametrize("token", ["", "two words", "line\nbreak", "schlüssel"])
def test_a_token_that_no_header_carries_is_refused_without_being_told(token: str) -> None:
    with pytest.raises(ConfigurationError, match="the token for 'agent-b'") as refused:
        Keyring({"agent-b": token})
    assert not token or token not in str(refused.value)


def test_a_keyring_never_shows_its_tokens() -> None:
    shown = repr(Keyring({"agent-b": "s3cret", "https://a.example": "r00t"}))
    assert "agent-b" in shown and "s3cret" not in shown and "r00t" not in shown


def test_tokens_are_read_from_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AGENT_B_TOKEN", "s3cret\n")
    assert Keyring.from_environment({"agent-b": "AGENT_B_TOKEN"}).token(None, "agent-b") == "s3cret"
    monkeypatch.delenv("AGENT_B_TOKEN")
    with pytest.raises(ConfigurationError, match=r"no token in \$AGENT_B_TOKEN"):
        Keyring.from_environment({"agent-b": "AGENT_B_TOKEN"})
