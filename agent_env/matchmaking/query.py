"""What is asked of candidates, and by whom."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass, field
from typing import TypeAlias

from agent_env.errors import ConfigurationError
from agent_env.matchmaking.candidate import Candidate
from agent_env_cards import Criteria, EnvironmentCard, Need, VersionRange

Held: TypeAlias = Collection[str] | Mapping[str, Collection[str] | None]
Credentials: TypeAlias = Held | Callable[[Candidate], Held]
"""What a caller can authenticate with: names of schemes on the card, or kinds of them.

The kinds are "bearer", "basic" and other HTTP schemes, "apiKey", "oauth2", "openIdConnect" and "mutualTLS". A mapping
tells the scopes of each, None for all of them. A function tells what there is for one candidate, where that differs.
"""

SPEAKS: Mapping[str, frozenset[str]] = {
    "websocket": frozenset({"1"}),
    "http": frozenset({"1"}),
    "mcp": frozenset({"2024-11-05", "2025-03-26", "2025-06-18", "2025-11-25", "2026-07-28"}),
    "a2a": frozenset({"0.3", "1.0"}),
}
"""The transports that `Environment` speaks, and the versions of the protocol on each."""


@dataclass(frozen=True, slots=True)
class Caller:
    """Who will call the peer: its card if it has one, its credentials, and the transports and versions it speaks."""

    card: EnvironmentCard | None = None
    auth: Credentials = ()
    speaks: Mapping[str, frozenset[str]] = field(default_factory=lambda: SPEAKS)

    def scopes(self, candidate: Candidate, scheme: str, kind: str) -> frozenset[str] | bool | None:
        """The scopes that the caller has for a scheme: None for all of them, False if it has no such credentials."""
        held = self.auth(candidate) if callable(self.auth) else self.auth
        for name in (scheme, kind):
            if name in held:
                scopes = held[name] if isinstance(held, Mapping) else None
                return None if scopes is None else frozenset(scopes)
        return False


@dataclass(frozen=True, slots=True)
class Query:
    """A need, the criteria of it that are asked now, and the caller.

    `wishes` is what the need prefers, one query a wish, each with the name of the rule that decides it.
    """

    need: Need
    criteria: Criteria
    caller: Caller
    wishes: tuple[tuple[str, Query], ...] = ()

    @classmethod
    def of(cls, need: Need, caller: Caller) -> Query:
        """Asks for what a need requires; raises `ConfigurationError` for a need whose version is no range."""
        for criteria in (need.requires, need.prefers):
            if criteria.version is not None:
                try:
                    VersionRange(criteria.version)
                except ValueError as error:
                    raise ConfigurationError(
                        f"the need {need.seat!r} asks for no version that there is: {error}"
                    ) from None
        wishes = tuple((rule, cls(need, criteria, caller)) for rule, criteria in _apart(need.prefers))
        return cls(need, need.requires, caller, wishes)


def _apart(wanted: Criteria) -> Iterator[tuple[str, Criteria]]:
    for skill in wanted.skills:
        yield "skills", Criteria(skills=[skill])
    for tag in wanted.tags:
        yield "tags", Criteria(tags=[tag])
    if wanted.name is not None:
        yield "name", Criteria(name=wanted.name)
    if wanted.version is not None:
        yield "version", Criteria(version=wanted.version)
    if wanted.input_modes:
        yield "modes", Criteria(input_modes=wanted.input_modes)
    if wanted.output_modes:
        yield "modes", Criteria(output_modes=wanted.output_modes)
    if wanted.tool is not None:
        yield "tool", Criteria(tool=wanted.tool)
