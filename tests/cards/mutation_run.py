"""Runs the tests of each clause against its mutants, and prints which test killed which mutant.

    python mutation_run.py TABLE TESTS [TESTS ...]

A program of its own, started by the tests of each table: the mutants exist in this process alone. Its last line is
JSON: each mutant with the test that killed it and what that test said, the seconds that it took, and the tests that
fail without a mutant.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Sequence
from typing import Any

import pytest
from _pytest.runner import runtestprotocol
from mutants import Mutant, applied, edit, mutants

# A test that waits for what never comes has failed; in a run without mutants these bounds are far away.
TEST_SECONDS = 15


class Mutation:
    """A pytest plugin that, in place of running the tests, runs for each mutant those that cite its clause."""

    def __init__(self, table: str) -> None:
        self._table = table
        self.killed: dict[str, dict[str, str] | None] = {}
        self.seconds: dict[str, float] = {}
        self.unsound: list[str] = []

    def pytest_configure(self, config: pytest.Config) -> None:
        # Imported here, since pytest wants to be there first. A failure need not be made small.
        from hypothesis import HealthCheck, Phase, settings

        settings.register_profile(
            "mutants",
            max_examples=40,
            deadline=None,
            database=None,
            derandomize=True,
            phases=[Phase.explicit, Phase.generate],
            suppress_health_check=list(HealthCheck),
        )
        settings.load_profile("mutants")

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtestloop(self, session: pytest.Session) -> bool:
        if session.testsfailed:
            raise session.Failed("the tests cannot be collected")
        citing: dict[str, list[pytest.Item]] = {}
        for item in session.items:
            for marker in item.iter_markers("clause"):
                for clause in marker.args:
                    citing.setdefault(clause, []).append(item)
        killers: dict[str, pytest.Item] = {}
        found = mutants(self._table)
        for mutant in found:
            edit(mutant)  # all before the first test, so that what is stale is told at once
        for mutant in found:
            self.killed[str(mutant)] = None
            started = time.perf_counter()
            with applied(mutant):
                for item in sorted(citing.get(mutant.clause, ()), key=lambda item: _order(mutant, item)):
                    said = _failure(item)
                    if said is not None:
                        self.killed[str(mutant)] = {"test": item.name, "said": said}
                        killers[item.nodeid] = item
                        break
            self.seconds[str(mutant)] = round(time.perf_counter() - started, 2)
        # What killed a mutant must live without it, also in a process in which there were others.
        self.unsound = [f"{name}: {said}" for name, item in killers.items() if (said := _failure(item)) is not None]
        return True


def _order(mutant: Mutant, item: pytest.Item) -> Sequence[Any]:
    """Runs the tests of one lane first, which is that of the mutant if it has one; those that cite many clauses last."""
    module = mutant.target.partition(":")[0]
    about = module.rpartition(".")[2].partition("_")[0] if ".faces." in module else "websocket"
    lane: str = item.callspec.params.get("lane", "") if hasattr(item, "callspec") else ""
    clauses = sum(len(marker.args) for marker in item.iter_markers("clause"))
    return (lane not in ("", about), clauses)


def _failure(item: pytest.Item) -> str | None:
    """Runs a test; what it said when it failed. One that could not be set up has shown nothing about a clause."""
    for report in runtestprotocol(item, log=False, nextitem=None):
        if report.failed and report.when == "call":
            crash = getattr(report.longrepr, "reprcrash", None)
            return str(getattr(crash, "message", report.longrepr))[:300]
    return None


def main(table: str, *tests: str) -> int:
    """Runs them all; returns 1 if the tests could not be collected."""
    mutation = Mutation(table)
    # Native tracebacks: pytest's own read the source of every frame, in which CPython 3.11 may fail (gh-106905).
    options = ["-q", "-p", "no:cacheprovider", "--tb=native", f"--timeout={TEST_SECONDS}"]
    status = pytest.main([*options, *tests], plugins=[mutation])
    print()
    print(json.dumps({"killed": mutation.killed, "seconds": mutation.seconds, "unsound": mutation.unsound}))
    return 0 if status in (pytest.ExitCode.OK, pytest.ExitCode.NO_TESTS_COLLECTED) else 1


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
