"""A run as the gateway sees it: whose tokens it accepts, and which policy plays which seat."""

from __future__ import annotations

import zlib
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import urlsplit

from agent_env.errors import InvalidArguments
from agent_env.gateway.dialects import DIALECTS
from agent_env.gateway.journal import Journal
from agent_env.gateway.retries import RecentCalls
from agent_env.gateway.tokens import checked_name, opens
from agent_env.gateway.upstream import Endpoint

DEFAULT_DIALECTS = ("chat", "completions")
"""What servers of open models speak, with their tokens."""


@dataclass(frozen=True, slots=True)
class SeatPolicy:
    """The policy that plays a seat: its model's name and the endpoints (`…/v1`) that serve it.

    `api_key` goes to these endpoints alone. `settings` go into every request in place of the agent's own, such as
    `{"temperature": 0}`. `tokens=False` asks for no token ids and logprobs, for servers that refuse fields they do not
    know. `dialects` are those that the endpoints are asked in: `chat`, `completions`, `responses`, `messages`. An agent
    that speaks responses or messages to a policy without them is answered through chat completions, which is also the
    one in which servers tell tokens best.
    """

    model: str
    endpoints: tuple[str, ...]
    api_key: str | None = None
    settings: Mapping[str, Any] = field(default_factory=dict[str, Any])
    tokens: bool = True
    dialects: tuple[str, ...] = DEFAULT_DIALECTS

    def to_json(self) -> dict[str, Any]:
        """The policy as `POST /runs` takes it."""
        return {
            "model": self.model,
            "endpoints": list(self.endpoints),
            "api_key": self.api_key,
            "settings": dict(self.settings),
            "tokens": self.tokens,
            "dialects": list(self.dialects),
        }

    @classmethod
    def from_json(cls, seat: str, value: Any) -> SeatPolicy:
        """Reads what `to_json` wrote; raises `InvalidArguments`."""
        if not isinstance(value, Mapping):
            raise InvalidArguments(f'the seat {seat!r} must be {{"model": …, "endpoints": [url, …]}}, not {value!r}')
        model, endpoints, api_key = value.get("model"), value.get("endpoints"), value.get("api_key")
        if not isinstance(model, str) or not model:
            raise InvalidArguments(f"the seat {seat!r} needs the name of a model, not {model!r}")
        if not isinstance(endpoints, list) or not endpoints or not all(map(_is_url, endpoints)):
            raise InvalidArguments(f"the seat {seat!r} needs a list of http URLs as endpoints, not {endpoints!r}")
        if api_key is not None and not _is_header(api_key):
            raise InvalidArguments(f"the api_key of the seat {seat!r} must be a string that a header can hold")
        settings = value.get("settings") or {}
        if not isinstance(settings, Mapping):
            raise InvalidArguments(f"the settings of the seat {seat!r} must be an object, not {settings!r}")
        dialects = value.get("dialects", list(DEFAULT_DIALECTS))
        if not isinstance(dialects, list) or not dialects or not all(name in tuple(DIALECTS) for name in dialects):
            known = ", ".join(DIALECTS)
            raise InvalidArguments(
                f"the dialects of the seat {seat!r} must be a list of some of {known}, not {dialects!r}"
            )
        tokens = value.get("tokens") is not False
        return cls(model, tuple(endpoints), api_key, dict(settings), tokens, tuple(dialects))


def _is_url(value: Any) -> bool:
    if not isinstance(value, str):
        return False
    try:
        parts = urlsplit(value)
        # The port is read out, and found too great, only when it is asked for.
        return parts.scheme in ("http", "https") and bool(parts.hostname) and (parts.port is None or parts.port > 0)
    except ValueError:
        return False


def _is_header(value: Any) -> bool:
    return isinstance(value, str) and value.isascii() and value.isprintable()


class Seating:
    """Who plays which seat, ready to be called; a seat without a policy only tells what it did. Raises `InvalidArguments` for a seat that cannot be."""

    def __init__(self, seats: Mapping[str, SeatPolicy | None]) -> None:
        self.names = frozenset(checked_name("seat", seat) for seat in seats)
        self.policies = {seat: policy for seat, policy in seats.items() if policy is not None}
        self._endpoints: dict[tuple[str, str], list[Endpoint]] = {}
        for seat, policy in self.policies.items():
            for dialect in map(DIALECTS.__getitem__, policy.dialects):
                headers = dialect.key_headers(policy.api_key)
                try:
                    self._endpoints[seat, dialect.name] = [
                        Endpoint.of(f"{endpoint.rstrip('/')}/{dialect.path}", headers) for endpoint in policy.endpoints
                    ]
                except ValueError as error:
                    raise InvalidArguments(
                        f"the seat {seat!r} needs a list of http URLs as endpoints, not {policy.endpoints!r}: {error}"
                    ) from None

    def endpoints(self, episode: str, seat: str, dialect: str) -> list[Endpoint]:
        """Where the model calls of a seat go, the best place first; it is the same for all calls of an episode, so that
        a server finds its prefixes cached."""
        endpoints = self._endpoints[seat, dialect]
        first = zlib.crc32(episode.encode()) % len(endpoints)
        return endpoints[first:] + endpoints[:first]


class OpenRun:
    """One run: its secret, its journal, and its seating, which is replaced as a whole or not at all."""

    def __init__(self, name: str, secret: str, seating: Seating, journal: Journal) -> None:
        self.name = name
        self.secret = secret
        self.seating = seating
        self.journal = journal
        self.recent = RecentCalls()

    @property
    def seats(self) -> Mapping[str, SeatPolicy]:
        """The policies by seat."""
        return self.seating.policies

    def admits(self, episode: str, seat: str | None, token: str) -> bool:
        """Tells whether the token opens this seat in this episode; without a seat, whether it opens any."""
        if seat is not None:
            return seat in self.seats and opens(self.secret, episode, seat, token)
        return any(opens(self.secret, episode, name, token) for name in self.seating.names)
