"""What agents that are environments say of themselves: Environment Cards, Agent Cards, references, signatures.

    from agent_env_cards import EnvironmentCard, parse_ref
    card = EnvironmentCard.parse(text)          # lenient: only a name must be there
    card.to_json()                              # strict: a card that breaks a clause is not written

The protocol is in cards/README.md, in numbered clauses; `CardError.problems` and `validate_card` name them.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from agent_env_cards.agent_card import EXTENSION_URI, agent_card, agent_card_v03, environment_card_url
from agent_env_cards.auth import Auth, SecurityScheme
from agent_env_cards.capabilities import AgentCaps, Capabilities, Extension, ToolCard
from agent_env_cards.environment_card import CardSignature, EnvironmentCard, validate_card
from agent_env_cards.episode import EpisodeCard, RewardCard, SessionCard
from agent_env_cards.interfaces import (
    AGENT_CARD_PATH,
    AGENT_CARD_PATH_V03,
    CARD_PATH,
    TRANSPORTS,
    Interface,
    Provider,
    base_url,
    resolve_url,
)
from agent_env_cards.names import name_fault, slug
from agent_env_cards.needs import Criteria, Need, ToolUse
from agent_env_cards.offers import Accepts, Offer, SampleRequest, Skill
from agent_env_cards.problems import CardError, Problem
from agent_env_cards.reference import InvalidReference, Reference, format_ref, parse_ref
from agent_env_cards.versions import DRAFT_VERSION, VersionRange, is_draft, parse_version

if TYPE_CHECKING:
    from agent_env_cards.signing import SignatureError, sign_card, verify_card

__all__ = [
    "AGENT_CARD_PATH",
    "AGENT_CARD_PATH_V03",
    "CARD_PATH",
    "DRAFT_VERSION",
    "EXTENSION_URI",
    "TRANSPORTS",
    "Accepts",
    "AgentCaps",
    "Auth",
    "Capabilities",
    "CardError",
    "CardSignature",
    "Criteria",
    "EnvironmentCard",
    "EpisodeCard",
    "Extension",
    "Interface",
    "InvalidReference",
    "Need",
    "Offer",
    "Problem",
    "Provider",
    "Reference",
    "RewardCard",
    "SampleRequest",
    "SecurityScheme",
    "SessionCard",
    "SignatureError",
    "Skill",
    "ToolCard",
    "ToolUse",
    "VersionRange",
    "agent_card",
    "agent_card_v03",
    "base_url",
    "environment_card_url",
    "format_ref",
    "is_draft",
    "name_fault",
    "parse_ref",
    "parse_version",
    "resolve_url",
    "sign_card",
    "slug",
    "validate_card",
    "verify_card",
]

_SIGNING = frozenset({"SignatureError", "sign_card", "verify_card"})


def __getattr__(name: str) -> object:
    # A JOSE library costs more to import than everything else here, and few cards are signed.
    if name in _SIGNING:
        from agent_env_cards import signing

        return getattr(signing, name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
