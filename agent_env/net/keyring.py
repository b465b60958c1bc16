"""The tokens that an environment presents to its peers, each to the one that it belongs to."""

from __future__ import annotations

import os
from collections.abc import Collection, Mapping

from agent_env.errors import ConfigurationError
from agent_env.net.credentials import checked_token
from agent_env.net.origins import origin_of


class Keyring:
    """Bearer tokens by whom they are for.

    A key is an origin (`"https://agents.example"`, `"http://10.0.0.7:8000"`), the name of an environment as the hub
    has it, or a seat that the owner filled by name. A token leaves for nobody else; names are taken from the hub
    alone, since a card may say any name. Raises `ConfigurationError`, which names the key but never the token.

        keyring = Keyring({"https://agents.example": "s3cret", "agent-b": "r00t"})
        keyring.token("https://agents.example/v1")      # "s3cret"
    """

    def __init__(self, tokens: Mapping[str, str] | None = None) -> None:
        self._origins: dict[str, str] = {}
        self._names: dict[str, str] = {}
        for key, token in (tokens or {}).items():
            try:
                checked_token(token)
            except ConfigurationError as error:
                raise ConfigurationError(f"the token for {key!r} cannot be sent: {error.message}") from None
            if "://" in key:
                self._origins[_origin(key)] = token
            else:
                self._names[key] = token

    @classmethod
    def from_environment(cls, variables: Mapping[str, str]) -> Keyring:
        """Reads the tokens from environment variables, given by name: `{"agent-b": "AGENT_B_TOKEN"}`."""
        missing = sorted(name for name in variables.values() if not os.environ.get(name))
        if missing:
            listed = ", ".join(f"${name}" for name in missing)
            raise ConfigurationError(f"there is no token in {listed}; set it to the token of the peer that it is for")
        return cls({key: os.environ[name].strip() for key, name in variables.items()})

    def __len__(self) -> int:
        return len(self._origins) + len(self._names)

    def __repr__(self) -> str:
        return f"Keyring({', '.join([*sorted(self._names), *sorted(self._origins)])})"

    def at(self, seat: str) -> str | None:
        """The token for a seat, by that name."""
        return self._names.get(seat)

    def without(self, seats: Collection[str]) -> Keyring:
        """The keyring without these seats: their tokens are for those alone whom the owner put there."""
        left = Keyring()
        left._origins = self._origins
        left._names = {name: token for name, token in self._names.items() if name not in seats}
        return left

    def with_others(self, others: Keyring) -> Keyring:
        """The keyring with the tokens of another, which count where both have one."""
        joined = Keyring()
        joined._origins = self._origins | others._origins
        joined._names = self._names | others._names
        return joined

    def token(self, url: str | None, name: str | None = None) -> str | None:
        """The token for a server, by its origin or else by the name that the hub has for it; None for all others."""
        if url is not None and self._origins:
            try:
                found = self._origins.get(origin_of(url))
            except ValueError:
                found = None
            if found is not None:
                return found
        return None if name is None else self._names.get(name)


def _origin(key: str) -> str:
    try:
        origin = origin_of(key)
    except ValueError as error:
        raise ConfigurationError(f"a token is bound to an origin, and {error}") from None
    _, _, rest = key.partition("://")
    if rest.rstrip("/") != rest.partition("/")[0] or set(rest) & set("?#@"):
        raise ConfigurationError(f"{key!r} is more than an origin; a token is for all of {origin}, so say that")
    return origin
