"""A run as the gateway sees it: whose tokens it accepts, and which policy plays which seat."""

from __future__ import annotations

import zlib
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import urlsplit

from yarl import URL

from agent_env.errors import InvalidArguments
from agent_env.gateway.journal import Journal
from agent_env.gateway.tokens import checked_name, opens


@dataclass(frozen=True, slots=True)
class SeatPolicy:
    """The policy that plays a seat: its model's name and the OpenAI-compatible endpoints (`…/v1`) that serve it.

    `api_key` goes to these endpoints alone. `settings` go into every request in place of the agent's own, such as
    `{"temperature": 0}`. `tokens=False` asks for no token ids and logprobs, for servers that refuse fields they do not
    know.
    """

    model: str
    endpoints: tuple[str, ...]
    api_key: str | None = None
    settings: Mapping[str, Any] = field(default_factory=dict[str, Any])
    tokens: bool = True

    def to_json(self) -> dict[str, Any]:
        """The policy as `POST /runs` takes it."""
        return {
            "model": self.model,
            "endpoints": list(self.endpoints),
            "api_key": self.api_key,
            "settings": dict(self.settings),
            "tokens": self.tokens,
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
        return cls(model, tuple(endpoints), api_key, dict(settings), value.get("tokens") is not False)


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
    """Who plays which seat, ready to be called; raises `InvalidArguments` for a seat that cannot be."""

    def __init__(self, seats: Mapping[str, SeatPolicy]) -> None:
        self.policies = {checked_name("seat", seat): policy for seat, policy in seats.items()}
        self._urls: dict[str, list[URL]] = {}
        self._headers: dict[str, dict[str, str]] = {}
        for seat, policy in self.policies.items():
            try:
                self._urls[seat] = [URL(endpoint.rstrip("/") + "/chat/completions") for endpoint in policy.endpoints]
            except ValueError as error:
                raise InvalidArguments(
                    f"the seat {seat!r} needs a list of http URLs as endpoints, not {policy.endpoints!r}: {error}"
                ) from None
            self._headers[seat] = {"Content-Type": "application/json"}
            if policy.api_key is not None:
                self._headers[seat]["Authorization"] = f"Bearer {policy.api_key}"

    def endpoint(self, episode: str, seat: str) -> tuple[URL, dict[str, str]]:
        """Where the model calls of a seat go and with which headers; the same for all calls of an episode, so that a
        server finds its prefixes cached."""
        urls = self._urls[seat]
        return urls[zlib.crc32(episode.encode()) % len(urls)], self._headers[seat]


class OpenRun:
    """One run: its secret, its journal, and its seating, which is replaced as a whole or not at all."""

    def __init__(self, name: str, secret: str, seating: Seating, journal: Journal) -> None:
        self.name = name
        self.secret = secret
        self.seating = seating
        self.journal = journal

    @property
    def seats(self) -> Mapping[str, SeatPolicy]:
        """The policies by seat."""
        return self.seating.policies

    def admits(self, episode: str, seat: str | None, token: str) -> bool:
        """Tells whether the token opens this seat in this episode; without a seat, whether it opens any."""
        if seat is not None:
            return seat in self.seats and opens(self.secret, episode, seat, token)
        return any(opens(self.secret, episode, name, token) for name in self.seats)
