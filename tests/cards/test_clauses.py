"""The protocol's text and its tests: every clause has tests and mutants, and every test cites a clause that there is."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

from mutants import TABLES, mutants

from agent_env_cards.conformance import cases
from agent_env_cards.rules import RULES

TESTS = Path(__file__).parents[1]
README = TESTS.parent / "cards" / "README.md"
CLAUSE = re.compile(r"^- \*\*(EC-\d\d)\*\* ", re.MULTILINE)


def clauses(section: str | None = None) -> list[str]:
    """The ids of the clauses in the protocol, or in one of its sections."""
    text = README.read_text(encoding="utf-8")
    if section is not None:
        text = text.partition(f"## {section}\n")[2].partition("\n## ")[0]
    return CLAUSE.findall(text)


def citations() -> Iterator[tuple[str, str]]:
    """The clauses that tests cite in calls of `….clause(...)`, the marker, each with the file."""
    for file in sorted(TESTS.rglob("*.py")):
        for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr == "clause":
                for argument in node.args:
                    if isinstance(argument, ast.Constant):
                        yield str(argument.value), str(file.relative_to(TESTS))


def test_clauses_are_numbered_once_and_upwards() -> None:
    found = clauses()
    assert found == sorted(set(found))
    assert {"EC-01", "EC-48"} <= set(found) and {"EC-50", "EC-78"} <= set(clauses("Behaviour"))


def test_every_clause_is_cited_by_a_test() -> None:
    missing = set(clauses()) - {clause for clause, _ in citations()}
    assert sorted(missing) == []


def test_every_clause_that_a_test_cites_exists() -> None:
    known = set(clauses())
    assert [(clause, file) for clause, file in citations() if clause not in known] == []


def test_every_clause_that_a_rule_or_a_conformance_card_names_exists() -> None:
    named = {rule.clause for rule in RULES} | {clause for case in cases("invalid") for _, clause in case.problems}
    assert named <= set(clauses())
    assert {rule.clause for rule in RULES} <= {case.name[:5].upper() for case in cases("invalid")}


def test_every_clause_has_a_mutant() -> None:
    tables = {table: {mutant.clause for mutant in mutants(table)} for table in TABLES}
    assert sorted(set(clauses()) - set().union(*tables.values())) == []
    assert tables["cards"] == set(clauses()) - set(clauses("Behaviour"))


def test_the_mutants_of_every_table_are_run() -> None:
    assert {file.stem for file in Path(__file__).parent.glob("test_mutants_of_*.py")} == {
        f"test_mutants_of_{table}" for table in TABLES
    }
