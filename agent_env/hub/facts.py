"""What a hub keeps of a card."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Self

from agent_env.errors import InvalidCard
from agent_env_cards import CardError, EnvironmentCard


@dataclass(frozen=True, slots=True)
class Facts:
    """A card as written, and what it is found by."""

    name: str
    version: str
    digest: str
    card: dict[str, Any]

    @classmethod
    def of(cls, card: EnvironmentCard) -> Self:
        """Writes a card; raises `InvalidCard` with every problem."""
        try:
            return cls(card.name, card.version, card.digest(), card.to_dict())
        except CardError as error:
            raise invalid_card(error) from error


def parsed_card(value: Mapping[str, Any]) -> EnvironmentCard:
    """Reads a card that somebody sent; raises `InvalidCard` with every problem."""
    try:
        return EnvironmentCard.parse(value)
    except CardError as error:
        raise invalid_card(error) from error


def invalid_card(error: CardError) -> InvalidCard:
    """Our error for what the card protocol refuses."""
    return InvalidCard(error.message, problems=[problem.to_dict() for problem in error.problems])
