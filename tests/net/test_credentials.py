"""Static bearer tokens."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agent_env.context import Principal
from agent_env.errors import ConfigurationError, Forbidden, Unauthenticated
from agent_env.net import Tokens, bearer, bearer_headers, check_binding, require

CHAT = frozenset({"chat"})
ALL = Principal().scopes


@pytest.mark.parametrize(
    ("header", "token"),
    [
        ("Bearer abc", "abc"),
        ("bearer   abc ", "abc"),
        ("Basic abc", None),
        ("Bearer", None),
        ("Bearer  ", None),
        ("", None),
        (None, None),
    ],
)
def test_a_bearer_token_is_taken_out_of_its_header(header: str | None, token: str | None) -> None:
    assert bearer(header) == token


@given(st.text(st.characters(min_codepoint=33, max_codepoint=126), min_size=1))
def test_what_is_presented_is_what_is_read(token: str) -> None:
    assert bearer(bearer_headers(token)["Authorization"]) == token


def test_no_token_makes_no_header() -> None:
    assert bearer_headers(None) == bearer_headers("") == {}


def test_a_token_has_its_principal() -> None:
    tokens = Tokens({"s3cret": Principal("alice", CHAT), "r00t": ["chat", "orchestrate"], "one": "chat"})
    assert tokens.authenticate("Bearer s3cret") == Principal("alice", CHAT)
    root = tokens.authenticate("Bearer r00t")
    assert root.scopes == ALL and root.id.startswith("token-") and "r00t" not in root.id
    assert tokens.find("one") is not None and tokens.find("two") is None
    assert len(tokens) == 3 and {principal.scopes for principal in tokens} == {CHAT, ALL}


def test_a_wrong_or_missing_token_is_refused_without_repeating_it() -> None:
    tokens = Tokens({"s3cret": "chat"})
    with pytest.raises(Unauthenticated, match="send the header `Authorization: Bearer <token>`"):
        tokens.authenticate(None)
    with pytest.raises(Unauthenticated, match="not one that this server accepts") as refused:
        tokens.authenticate("Bearer gu3ss\udcff")
    assert "gu3ss" not in refused.value.message


def test_the_tokens_are_not_in_the_object() -> None:
    tokens = Tokens({"s3cret": Principal("alice")})
    assert "s3cret" not in repr(tokens) + repr(vars(tokens)) and "alice" in repr(tokens)


@pytest.mark.parametrize("token", ["", "two words", "ümlaut", "tab\t"])
def test_what_cannot_stand_in_a_header_is_no_token(token: str) -> None:
    with pytest.raises(ConfigurationError, match="printable ASCII"):
        Tokens({token: "chat"})


def test_a_scope_is_required_by_name() -> None:
    require(Principal("a", CHAT), "chat")
    with pytest.raises(Forbidden, match="the scope 'orchestrate'; yours has: chat") as refused:
        require(Principal("a", CHAT), "orchestrate")
    assert refused.value.data == {"scope": "orchestrate"}
    with pytest.raises(Forbidden, match="yours has: none"):
        require(Principal("a", frozenset()), "chat")


def test_tokens_are_read_from_lines() -> None:
    tokens = Tokens.from_text("# the team\n\none\ntwo chat\nthree chat,publish carol\n")
    assert tokens.authenticate("Bearer one").scopes == ALL
    assert tokens.authenticate("Bearer two").scopes == CHAT
    assert tokens.authenticate("Bearer three") == Principal("carol", frozenset({"chat", "publish"}))
    with pytest.raises(ConfigurationError, match="line 2 of the text must be"):
        Tokens.from_text("one\ntwo chat carol extra\n")


def test_tokens_are_read_from_json() -> None:
    tokens = Tokens.from_text('{"one": {"id": "carol", "scopes": ["chat"]}, "two": {}}')
    assert tokens.authenticate("Bearer one") == Principal("carol", CHAT)
    assert tokens.authenticate("Bearer two").scopes == ALL
    for text in ('{"one"', '{"one": "chat"}', '{"one": {"scopes": [1]}}', '{"one": {"scopes": "chat"}}'):
        with pytest.raises(ConfigurationError) as refused:
            Tokens.from_text(text)
        assert '"one":' not in refused.value.message


def test_tokens_are_read_from_the_environment_and_from_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("AGENT_ENV_TOKENS", raising=False)
    assert len(Tokens.from_environment()) == 0
    monkeypatch.setenv("AGENT_ENV_TOKENS", "one chat")
    assert len(Tokens.from_environment()) == 1
    (tmp_path / "tokens").write_text("one\ntwo\n")
    assert len(Tokens.from_file(tmp_path / "tokens")) == 2
    (tmp_path / "binary").write_bytes(b"\xff\xfe")
    for name in ("missing", "binary"):
        with pytest.raises(ConfigurationError, match="cannot be read"):
            Tokens.from_file(tmp_path / name)


@pytest.mark.parametrize("text", ["", "\n  \n", "# the team\n", "{}"])
def test_a_token_file_without_a_token_is_refused(tmp_path: Path, text: str) -> None:
    (tmp_path / "tokens").write_text(text)
    with pytest.raises(ConfigurationError, match=r"tokens' has no token in it; .* `token \[scope,scope \[id\]\]`"):
        Tokens.from_file(tmp_path / "tokens")


@pytest.mark.parametrize("text", ["s3cret chatt\n", "s3cret chat,\n", '{"s3cret": {"scopes": ["chat", "chatt"]}}'])
def test_a_scope_that_nothing_asks_for_is_refused_where_it_is_written(text: str) -> None:
    with pytest.raises(ConfigurationError, match=r"1 of the text .*'(chatt)?'.* chat, orchestrate, publish") as refused:
        Tokens.from_text(text)
    assert "s3cret" not in refused.value.message


def test_the_network_is_let_in_only_with_a_token() -> None:
    check_binding("127.0.0.1", None)
    check_binding("localhost", Tokens({}))
    check_binding("0.0.0.0", Tokens({"one": "chat"}))
    check_binding("0.0.0.0", None, insecure=True)
    for host in ("0.0.0.0", "::", "192.168.1.2", "example.com"):
        with pytest.raises(ConfigurationError, match="lets everybody on the network in: give tokens"):
            check_binding(host, Tokens({}))
