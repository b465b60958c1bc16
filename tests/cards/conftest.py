"""What the tests of the cards share: the marker that cites a clause, and a card with nothing wrong."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from agent_env_cards import CardError, EnvironmentCard, validate_card

MARKER = "clause(*ids): the test shows that these clauses of cards/README.md hold"


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line("markers", MARKER)


@pytest.fixture
def good() -> dict[str, Any]:
    """A card that may be written, to spoil."""
    return {"name": "agent-b", "version": "1.0.0", "description": "Talks about the weather."}


@pytest.fixture
def found(good: dict[str, Any]) -> Callable[..., list[tuple[str, str]]]:
    """Gives the pointer and clause of each problem of the good card with other members."""

    def problems(**members: Any) -> list[tuple[str, str]]:
        return [(problem.pointer, problem.clause) for problem in validate_card({**good, **members})]

    return problems


@pytest.fixture
def refused() -> Callable[[object], list[tuple[str, str]]]:
    """Gives the pointer and clause of each problem for which a reader refuses a card; the card must be refused."""

    def problems(card: object) -> list[tuple[str, str]]:
        with pytest.raises(CardError) as caught:
            EnvironmentCard.parse(card)
        return [(problem.pointer, problem.clause) for problem in caught.value.problems]

    return problems
