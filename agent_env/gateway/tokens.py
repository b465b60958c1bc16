"""Tokens of the run plane: minted from a run's secret, one an episode and seat, with nothing registered anywhere."""

from __future__ import annotations

import base64
import hmac
import re
import secrets

from agent_env.errors import InvalidArguments

_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9._~-]{0,127}")


def new_secret() -> str:
    """Mints the secret of a run: 256 random bits."""
    return secrets.token_urlsafe(32)


def checked_secret(secret: object) -> str:
    """A run's secret as tokens are minted from it; raises `InvalidArguments` for what is no text."""
    if not isinstance(secret, str) or not secret or any("\ud800" <= letter <= "\udfff" for letter in secret):
        raise InvalidArguments("the secret of a run must be a text, with no half of a surrogate pair")
    return secret


def mint_token(secret: str, episode: str, seat: str) -> str:
    """The token that opens one seat of one episode: base64url of HMAC-SHA256 over `episode/seat` (RFC 2104)."""
    # What a caller names need not be a text that UTF-8 can hold; it then has a token that nobody was given.
    digest = hmac.digest(secret.encode(), f"{episode}/{seat}".encode("utf-8", "surrogatepass"), "sha256")
    return base64.urlsafe_b64encode(digest).rstrip(b"=").decode()


def opens(secret: str, episode: str, seat: str, token: str) -> bool:
    """Tells whether the token opens the seat, in a time that tells nothing about the right one."""
    return hmac.compare_digest(mint_token(secret, episode, seat).encode(), token.encode("utf-8", "surrogatepass"))


def checked_name(what: str, name: str) -> str:
    """A run, episode or seat name as it may stand in a path; raises `InvalidArguments` for any other."""
    if _NAME.fullmatch(name) is None:
        raise InvalidArguments(
            f"the {what} {name!r} must be 1 to 128 letters, digits, '_', '.', '~' or '-', not beginning with a mark"
        )
    return name
