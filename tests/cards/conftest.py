"""What the tests of the cards share: the marker that cites a clause, a card with nothing wrong, and the mutants."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from agent_env_cards import CardError, EnvironmentCard, validate_card

# Tests are no packages; this is how they find what they share.
sys.path.insert(0, str(Path(__file__).parent))

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


@pytest.fixture
def kill_all() -> Callable[..., None]:
    """Runs tests against the mutants of a table; each must be killed by a test that cites its clause."""

    def run(table: str, *tests: str) -> None:
        here = Path(__file__).parent
        program = [sys.executable, str(here / "mutation_run.py"), table, *(str(here.parent / test) for test in tests)]
        done = subprocess.run(program, capture_output=True, text=True, timeout=540, check=False)
        assert done.returncode == 0, done.stdout + done.stderr
        outcome: dict[str, Any] = json.loads(done.stdout.strip().splitlines()[-1])
        assert [mutant for mutant, killer in outcome["killed"].items() if killer is None] == []
        assert outcome["unsound"] == []

    return run
