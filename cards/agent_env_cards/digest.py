"""The digest of a release: SHA-256 over the canonical JSON (RFC 8785) of what every replica of it has in common."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from typing import Any

import rfc8785

from agent_env_cards.fact import JsonObject
from agent_env_cards.problems import CardError, Problem

RELEASE_FACTS = ("name", "version", "description", "kind", "episode", "rewards", "needs", "offers")
RELEASE_CAPABILITIES = ("tools", "functions")

# The member by which the elements of a list are told apart: the order of such a list says nothing.
_IDENTITY = {"tools": "name", "functions": "name", "rewards": "name", "needs": "seat", "skills": "id"}


def release_facts(card: Mapping[str, Any]) -> JsonObject:
    """The members of a written card that enter its digest; lists of named things are in the order of their names."""
    facts = {name: card[name] for name in RELEASE_FACTS if name in card}
    capabilities = card.get("capabilities") or {}
    facts |= {name: capabilities[name] for name in RELEASE_CAPABILITIES if capabilities.get(name)}
    if "offers" in facts:
        facts["offers"] = _ordered(facts["offers"])
    return _ordered(facts)


def _ordered(members: Mapping[str, Any]) -> JsonObject:
    return {
        name: sorted(value, key=lambda entry: str(entry[_IDENTITY[name]])) if name in _IDENTITY else value
        for name, value in members.items()
    }


def digest_of(card: Mapping[str, Any]) -> str:
    """The digest of a written card, "sha256:" and 64 hexadecimal digits.

    Raises `CardError` where a number or a string has no canonical form.
    """
    try:
        canonical = rfc8785.dumps(release_facts(card))
    except (rfc8785.CanonicalizationError, RecursionError) as error:
        raise CardError(f"the card has no digest: {error}", [Problem("", str(error), "EC-04")]) from error
    return f"sha256:{hashlib.sha256(canonical).hexdigest()}"
