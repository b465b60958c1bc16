"""Runs the tests of each clause against its mutants, and prints which test killed which mutant as JSON.

A program of its own, started by test_mutants.py: the mutants exist in this process alone.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest
from _pytest.runner import runtestprotocol
from mutants import Mutant, applied, every_mutant


class Mutation:
    """A pytest plugin that, in place of running the tests, runs for each mutant those that cite its clause."""

    def __init__(self) -> None:
        self.killed: dict[str, str | None] = {}

    def pytest_configure(self, config: pytest.Config) -> None:
        # Imported here, since pytest wants to be there first. A failure need not be made small.
        from hypothesis import HealthCheck, Phase, settings

        settings.register_profile(
            "mutants",
            max_examples=40,
            database=None,
            derandomize=True,
            phases=[Phase.explicit, Phase.generate],
            suppress_health_check=list(HealthCheck),
        )
        settings.load_profile("mutants")

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtestloop(self, session: pytest.Session) -> bool:
        citing: dict[str, list[pytest.Item]] = {}
        for item in session.items:
            for marker in item.iter_markers("clause"):
                for clause in marker.args:
                    citing.setdefault(clause, []).append(item)
        for mutant in every_mutant():
            with applied(mutant):
                self.killed[str(mutant)] = self._killer(mutant, citing.get(mutant.clause, []))
        return True

    def _killer(self, mutant: Mutant, items: list[pytest.Item]) -> str | None:
        for item in items:
            if any(report.failed for report in runtestprotocol(item, log=False, nextitem=None)):
                return item.name
        return None


def main() -> int:
    """Runs them all; returns 1 if the tests could not be collected."""
    mutation = Mutation()
    folder = Path(__file__).parent
    status = pytest.main(["-q", "-p", "no:cacheprovider", str(folder)], plugins=[mutation])
    print()
    print(json.dumps(mutation.killed))
    return 0 if status in (pytest.ExitCode.OK, pytest.ExitCode.NO_TESTS_COLLECTED) else 1


if __name__ == "__main__":
    sys.exit(main())
