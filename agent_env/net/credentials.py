"""Static bearer tokens: who may call, and what they may do (RFC 6750 §2.1)."""

from __future__ import annotations

import hashlib
import hmac
import json
import os
import secrets
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeAlias

from agent_env.context import Principal
from agent_env.errors import ConfigurationError, Forbidden, Unauthenticated
from agent_env.net.guard import is_loopback

TOKENS_VARIABLE = "AGENT_ENV_TOKENS"
"""The environment variable that `Tokens.from_environment` reads."""

SCOPES = ("chat", "orchestrate", "publish")
"""The scopes that our servers ask for: environments the first two, hubs the third."""

Grant: TypeAlias = Principal | str | Iterable[str]
"""What a token gives: a principal, one scope, or several scopes (the id is then made from the token)."""


def bearer(authorization: str | None) -> str | None:
    """Takes the token out of an `Authorization` header; None without a header or with another scheme."""
    scheme, _, token = (authorization or "").strip().partition(" ")
    return (token.strip() or None) if scheme.lower() == "bearer" else None


def bearer_headers(token: str | None) -> dict[str, str]:
    """The headers that present a token; empty without one."""
    return {"Authorization": f"Bearer {token}"} if token else {}


def require(principal: Principal, scope: str) -> None:
    """Raises `Forbidden` unless the principal has the scope."""
    if scope not in principal.scopes:
        has = ", ".join(sorted(principal.scopes)) or "none"
        raise Forbidden(f"this needs a token with the scope {scope!r}; yours has: {has}", scope=scope)


def check_binding(host: str, tokens: Tokens | None, *, insecure: bool = False) -> None:
    """Raises `ConfigurationError` for a server that the network would reach with no token asked for."""
    if not tokens and not insecure and not is_loopback(host):
        raise ConfigurationError(
            f"binding to {host!r} lets everybody on the network in: give tokens (--tokens FILE; in Python "
            f"auth=Tokens(…), or Tokens.from_environment(), which reads ${TOKENS_VARIABLE}), bind to "
            f"127.0.0.1, or pass --insecure (insecure=True) when something in front asks for credentials"
        )


class Tokens:
    """The tokens that a server accepts, each with its principal.

    Only keyed digests of the tokens are kept and compared (key and digests never leave the process), so neither a
    dump of the object nor the time that a look-up takes tells anything about a token.

        tokens = Tokens({"s3cret": Principal("alice", frozenset({"chat"})), "r00t": ["chat", "orchestrate"]})
        tokens.authenticate("Bearer s3cret").id      # "alice"
    """

    def __init__(self, tokens: Mapping[str, Grant]) -> None:
        self._key = secrets.token_bytes(32)
        self._principals: dict[bytes, Principal] = {}
        for token, grant in tokens.items():
            self._principals[self._digest(checked_token(token))] = _principal(token, grant)

    @classmethod
    def from_text(cls, text: str, source: str = "the text") -> Tokens:
        """Reads a JSON object `{token: {"id", "scopes"}}`, or one line a token: `token [scope,scope [id]]`.

        A token without scopes has those of environments, "chat" and "orchestrate"; empty lines and lines that start
        with # are skipped. Raises `ConfigurationError`, also for a scope that is none of `SCOPES`; it names the line
        but never the token.
        """
        if text.lstrip().startswith("{"):
            return cls(_from_json(text, source))
        grants: dict[str, Grant] = {}
        for number, line in enumerate(text.splitlines(), start=1):
            words = line.split()
            if not words or words[0].startswith("#"):
                continue
            if len(words) > 3:
                raise ConfigurationError(f"line {number} of {source} must be `token [scope,scope [id]]`")
            scopes = (
                _scopes(words[1].split(","), f"line {number} of {source}") if len(words) > 1 else Principal().scopes
            )
            grants[words[0]] = Principal(words[2] if len(words) > 2 else _anonymous_id(words[0]), scopes)
        return cls(grants)

    @classmethod
    def from_environment(cls, variable: str = TOKENS_VARIABLE) -> Tokens:
        """Reads the tokens from an environment variable, in the form of `from_text`; none when it is not set."""
        return cls.from_text(os.environ.get(variable, ""), f"${variable}")

    @classmethod
    def from_file(cls, path: str | Path) -> Tokens:
        """Reads the tokens from a file, in the form of `from_text`; raises `ConfigurationError` for one without any."""
        try:
            text = Path(path).read_text(encoding="utf-8")
        except (OSError, UnicodeDecodeError) as error:
            raise ConfigurationError(f"the token file {str(path)!r} cannot be read: {error}") from error
        tokens = cls.from_text(text, repr(str(path)))
        if not tokens:
            raise ConfigurationError(
                f"the token file {str(path)!r} has no token in it; write one a line, as `token [scope,scope [id]]`"
            )
        return tokens

    def __len__(self) -> int:
        return len(self._principals)

    def __iter__(self) -> Iterator[Principal]:
        return iter(self._principals.values())

    def __repr__(self) -> str:
        return f"Tokens({len(self)} for {', '.join(sorted({principal.id for principal in self}))})"

    def find(self, token: str) -> Principal | None:
        """The principal of a token, None for a token that is not accepted."""
        return self._principals.get(self._digest(token))

    def authenticate(self, authorization: str | None) -> Principal:
        """The principal behind an `Authorization` header; raises `Unauthenticated`."""
        token = bearer(authorization)
        if token is None:
            raise Unauthenticated("this server wants a token: send the header `Authorization: Bearer <token>`")
        principal = self.find(token)
        if principal is None:
            raise Unauthenticated("the bearer token is not one that this server accepts; ask its owner for one")
        return principal

    def _digest(self, token: str) -> bytes:
        return hmac.digest(self._key, token.encode("utf-8", "surrogateescape"), "sha256")


def checked_token(token: str) -> str:
    """The token as it is; raises `ConfigurationError` for one that no header can carry (RFC 6750 §2.1)."""
    if not token or not token.isascii() or not token.isprintable() or " " in token:
        raise ConfigurationError("a bearer token must be printable ASCII without spaces, and not empty")
    return token


def _anonymous_id(token: str) -> str:
    return "token-" + hashlib.sha256(token.encode()).hexdigest()[:12]


def _principal(token: str, grant: Grant) -> Principal:
    if isinstance(grant, Principal):
        return grant
    return Principal(_anonymous_id(token), frozenset([grant] if isinstance(grant, str) else grant))


def _scopes(names: Sequence[str], place: str) -> frozenset[str]:
    for name in names:
        if name not in SCOPES:
            raise ConfigurationError(f"{place} has the scope {name!r}, which nothing asks for; use {', '.join(SCOPES)}")
    return frozenset(names)


def _from_json(text: str, source: str) -> dict[str, Grant]:
    try:
        entries: dict[str, Any] = json.loads(text)
    except ValueError as error:
        raise ConfigurationError(f"{source} is not a JSON object of tokens: {error}") from None
    grants: dict[str, Grant] = {}
    for number, (token, entry) in enumerate(entries.items(), start=1):
        scopes = entry.get("scopes", sorted(Principal().scopes)) if isinstance(entry, dict) else None
        if not isinstance(scopes, list) or not all(isinstance(scope, str) for scope in scopes):
            raise ConfigurationError(f'entry {number} of {source} must be {{"id": string, "scopes": [string, ...]}}')
        granted = _scopes(scopes, f"entry {number} of {source}")
        grants[token] = Principal(str(entry.get("id") or _anonymous_id(token)), granted)
    return grants
