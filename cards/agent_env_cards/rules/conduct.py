"""Rules about how an environment behaves: rewards, episodes, sessions, and who may call."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from agent_env_cards.names import tool_fault
from agent_env_cards.pointers import objects, pointer, select

Found = Iterator[tuple[str, str]]

_SCHEME_MEMBERS = {
    "apiKey": ("name", "in"),
    "http": ("scheme",),
    "oauth2": ("flows",),
    "openIdConnect": ("openIdConnectUrl",),
    "mutualTLS": (),
}
_FLOW_MEMBERS = {
    "authorizationCode": ("authorizationUrl", "tokenUrl", "scopes"),
    "clientCredentials": ("tokenUrl", "scopes"),
    "implicit": ("authorizationUrl", "scopes"),
    "password": ("tokenUrl", "scopes"),
}


def rewards_are_bounded(card: Mapping[str, Any]) -> Found:
    """EC-31: rewards have names of their own and a description, and a range goes from low to high."""
    seen: dict[str, str] = {}
    for at, reward in objects(card, "rewards", "*"):
        name = reward.get("name")
        if isinstance(name, str):
            if fault := tool_fault(name, "reward"):
                yield at + pointer("name"), fault
            if name in seen:
                yield at + pointer("name"), f"the name {name!r} is taken by {seen[name]}"
            seen.setdefault(name, at + pointer("name"))
        if not str(reward.get("description") or "").strip():
            yield at + pointer("description"), f"{name!r} has no description; say what it rewards"
        bounds = [value for _, value in select(reward, "range", "*") if _is_number(value)]
        if len(bounds) == 2 and bounds[0] > bounds[1]:
            yield at + pointer("range"), f"the range goes from {bounds[0]} down to {bounds[1]}; turn it around"


def turns_are_counted(card: Mapping[str, Any]) -> Found:
    """EC-32: a turn limit is at least one."""
    for at, limit in select(card, "episode", "turnLimit"):
        if _is_number(limit) and limit < 1:
            yield at, f"the turn limit is {limit}; write at least 1, or leave it out for no limit"


def sessions_have_room(card: Mapping[str, Any]) -> Found:
    """EC-33: an instance keeps at least one session, for a time that is positive."""
    for at, capacity in select(card, "session", "capacity"):
        if _is_number(capacity) and capacity < 1:
            yield at, f"the capacity is {capacity}; write at least 1, or leave it out for no bound"
    for at, seconds in select(card, "session", "idleTimeout"):
        if _is_number(seconds) and seconds <= 0:
            yield at, f"the idle timeout is {seconds} seconds; write a positive number, or leave it out for none"


def schemes_are_complete(card: Mapping[str, Any]) -> Found:
    """EC-34: a security scheme has what OpenAPI asks of its type, and a requirement names schemes that are there."""
    for at, scheme in objects(card, "auth", "schemes", "*"):
        kind = scheme.get("type")
        if not isinstance(kind, str):
            continue
        if kind not in _SCHEME_MEMBERS:
            yield at + pointer("type"), f"the type {kind!r} is not one of {', '.join(_SCHEME_MEMBERS)}"
        for member in _SCHEME_MEMBERS.get(kind, ()):
            if not scheme.get(member):
                yield at + pointer(member), f"a scheme of type {kind!r} has a member {member!r}; add it"
        for flow, members in _FLOW_MEMBERS.items():
            for place, stated in objects(scheme, "flows", flow):
                for member in members:
                    if member not in stated:
                        yield at + place + pointer(member), f"the flow {flow!r} has a member {member!r}; add it"
        if kind == "apiKey" and scheme.get("in") not in ("header", "query", "cookie", None):
            yield at + pointer("in"), f"a key is in the header, query or cookie, not in {scheme.get('in')!r}"
    declared = {at.rpartition("/")[2] for at, _ in select(card, "auth", "schemes", "*")}
    for at, _ in select(card, "auth", "security", "*", "*"):
        if at.rpartition("/")[2] not in declared:
            yield at, f"there is no scheme of this name; declared are {sorted(declared)}"


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)
