"""What a pairing costs, counted and not timed."""

from __future__ import annotations

import importlib.util
import json
import random
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from agent_env.matchmaking import Finding, Matchmaker
from agent_env.matchmaking.index import bits_of
from agent_env.matchmaking.rules import RULES, Rule
from agent_env_cards import Need, ToolUse

BENCHMARK = Path(__file__).parents[2] / "benchmarks" / "matchmaking.py"


@pytest.fixture(scope="module")
def benchmark() -> Any:
    spec = importlib.util.spec_from_file_location("benchmark_of_matchmaking", BENCHMARK)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


def test_schemas_are_compared_once_a_pair_however_many_cards_have_them(benchmark: Any) -> None:
    rng = random.Random(0)
    matchmaker = Matchmaker(benchmark.population(rng, 600, 12))
    assert matchmaker.verdicts.comparisons == 0
    need = benchmark.needs(rng, 1)[0]
    report = matchmaker.pair(need, limit=0)
    assert 0 < matchmaker.verdicts.comparisons <= 12 and report.fitting > 0
    before = matchmaker.verdicts.comparisons
    for skill in benchmark.SKILLS:
        matchmaker.pair(Need("worker", skills=[skill], tool=need.requires.tool), limit=0)
    assert matchmaker.verdicts.comparisons <= 12
    matchmaker.pair(need, limit=0)
    assert matchmaker.verdicts.comparisons - before <= 12


def test_schemas_of_candidates_that_other_rules_reject_are_not_compared(benchmark: Any) -> None:
    rng = random.Random(0)
    matchmaker = Matchmaker(benchmark.population(rng, 300, 50))
    one = next(candidate for candidate in matchmaker.candidates)
    use = ToolUse(name="work", arguments=benchmark.sent(rng))
    matchmaker.pair(Need("worker", name=one.card.name, tool=use), limit=0)
    assert matchmaker.verdicts.comparisons <= 1


def test_a_new_need_costs_as_many_proofs_as_schemas_have_parts_and_not_as_there_are_schemas(benchmark: Any) -> None:
    rng = random.Random(0)
    matchmaker = Matchmaker(benchmark.population(rng, 2_000, 500))
    # Six properties of seven kinds, the task, seven names that may be required, and the type.
    parts = 6 * 7 + 1 + 7 + 1
    for need in benchmark.needs(rng, 5):
        compared, proofs = matchmaker.verdicts.comparisons, matchmaker.verdicts.proofs
        report = matchmaker.pair(need, limit=0)
        assert matchmaker.verdicts.comparisons - compared > 200 and report.fitting > 50
        assert 10 < matchmaker.verdicts.proofs - proofs <= parts + 5


def test_of_an_answer_only_the_parts_are_proven_that_differ_from_what_is_expected(benchmark: Any) -> None:
    rng = random.Random(0)
    cards = [candidate.card for candidate in benchmark.population(rng, 600, 100)]
    tools = [
        [tool.model_copy(update={"output_schema": tool.input_schema}) for tool in card.capabilities.tools]
        for card in cards
    ]
    matchmaker = Matchmaker(
        card.model_copy(update={"capabilities": card.capabilities.model_copy(update={"tools": found})})
        for card, found in zip(cards, tools, strict=True)
    )
    expected = {"type": "object", "properties": {"task": {"type": "string"}, "size": {"type": "number"}}}
    use = ToolUse(name="work", result={**expected, "required": ["task"]})
    report = matchmaker.pair(Need("worker", skills=["math"], tool=use), limit=0)
    # Each answer is another left side, and each has the type, the task and what is required in common.
    assert matchmaker.verdicts.comparisons > 50 and report.fitting > 20
    assert 0 < matchmaker.verdicts.proofs <= matchmaker.verdicts.comparisons


def test_what_cannot_be_decided_of_a_property_is_tried_once_for_all_schemas_that_have_it(
    benchmark: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    rng = random.Random(0)
    kinds = [{"type": "string", "format": "uri"}, {"type": "string", "maxLength": 5_000}, {"type": "string"}]
    monkeypatch.setattr(benchmark, "KINDS", kinds)
    matchmaker = Matchmaker(benchmark.population(rng, 2_000, 500))
    texts = {name: {"type": "string"} for name in ("task", "size")}
    use = ToolUse(name="work", arguments={"type": "object", "properties": texts, "required": ["task"]})
    report = matchmaker.pair(Need("worker", skills=["math"], tool=use), limit=2_000)
    assert {str(explanation.degree) for explanation in report.ranked} >= {"fits", "unknown"}
    matchmaker = Matchmaker(matchmaker.candidates)
    matchmaker.pair(Need("worker", skills=["math"], tool=use), limit=0)
    assert matchmaker.verdicts.comparisons > 150 and matchmaker.verdicts.proofs <= 6 * 3 + 1 + 7 + 1 + 15


def test_no_pairing_waits_for_what_every_pairing_asks(benchmark: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[int] = []

    def counting(members: Any) -> int:
        made.append(len(members))
        return bits_of(members)

    monkeypatch.setattr("agent_env.matchmaking.index.bits_of", counting)
    rng = random.Random(0)
    matchmaker = Matchmaker(benchmark.population(rng, 300, 50))
    need = benchmark.needs(rng, 1)[0]
    made.clear()
    matchmaker.pair(need, limit=0)
    # A skill, by its name and as a part, and two tags.
    assert len(made) <= 2 + 2


def test_rules_are_asked_of_kinds_of_candidates_and_in_full_only_of_the_best(
    benchmark: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    rng = random.Random(0)
    matchmaker = Matchmaker(benchmark.population(rng, 1_000, 12))
    asked: list[str] = []

    def counting(rule: Rule) -> Rule:
        def judge(*arguments: Any) -> Finding:
            asked.append(rule.name)
            return rule.judge(*arguments)

        return replace(rule, judge=judge)

    counted = tuple(map(counting, RULES))
    monkeypatch.setattr("agent_env.matchmaking.matchmaker.RULES", counted)
    monkeypatch.setattr("agent_env.matchmaking.matchmaker.RULE", {rule.name: rule for rule in counted})
    report = matchmaker.pair(benchmark.needs(rng, 1)[0], limit=10)
    best = 10 * (len(RULES) + 2)
    # Thirty versions and a few other kinds; a thousand candidates times twelve rules would be twelve thousand.
    assert report.fitting > 20 and best <= len(asked) < best + 60


def test_the_benchmark_prints_what_it_measured() -> None:
    command = [sys.executable, str(BENCHMARK), "--cards", "200", "--schemas", "10", "--needs", "3", "--json"]
    result = json.loads(subprocess.run(command, capture_output=True, text=True, check=True, timeout=50).stdout)
    assert (result["cards"], result["schemas"]) == (200, 10)
    assert 0 < result["known_median_ms"] < 1_000 and result["comparisons"] <= 3 * (10 + 10)
    table = subprocess.run(command[:-1], capture_output=True, text=True, check=True, timeout=50).stdout
    assert "pair, a known need (median)" in table
