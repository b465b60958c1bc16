"""What the policies of the example `delegation` are warmed up with: the form, and half of the facts."""

from __future__ import annotations

import importlib.util
import random
import sys
from collections import Counter, defaultdict
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from types import ModuleType

import pytest

EXAMPLE = Path(__file__).parents[2] / "examples" / "multiagent" / "delegation"
DRAWN = 4000


@pytest.fixture
def example(monkeypatch: pytest.MonkeyPatch) -> Iterator[ModuleType]:
    """The module that trains."""
    monkeypatch.syspath_prepend(str(EXAMPLE))
    for name in ("agents", "scenario"):  # the example's own, and not another's of that name
        monkeypatch.delitem(sys.modules, name, raising=False)
    spec = importlib.util.spec_from_file_location("delegation_start", EXAMPLE / "train.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    monkeypatch.setitem(sys.modules, spec.name, module)
    spec.loader.exec_module(module)
    yield module
    for name in ("agents", "scenario"):
        sys.modules.pop(name, None)


@pytest.mark.anyio
async def test_a_specialist_is_shown_half_of_its_facts_and_any_answer_to_the_others(
    example: ModuleType, monkeypatch: pytest.MonkeyPatch
) -> None:
    shown: list[tuple[str, list[tuple[object, str]]]] = []

    def looked_at(model: object, tokenizer: object, draw: partial[tuple[object, str]], **steps: int) -> list[float]:
        shown.append((draw.func.__name__, [draw() for _ in range(DRAWN)]))
        return []

    monkeypatch.setattr(example, "warm_steps", looked_at)
    await example.fresh_policies(0)
    assert [name for name, _ in shown] == ["manager_example", *["specialist_example"] * 3]
    for seat, (_, drawn) in zip(example.SPECIALISTS, shown[1:], strict=True):
        facts = example.FACTS[seat]
        answers: dict[str, Counter[str]] = defaultdict(Counter)
        for word, answer in drawn:
            answers[str(word)][answer] += 1
        assert set(answers) == set(example.WORDS)
        known = [word for word in facts if set(answers[word]) == {facts[word]}]
        assert len(known) == len(facts) * example.KNOWN == 4
        for word in set(facts) - set(known):
            # Each of the topic's answers is as likely, so its own comes about an eighth of the time.
            assert set(answers[word]) == set(facts.values())
            assert 1 / 16 < answers[word][facts[word]] / answers[word].total() < 1 / 4
        assert all(set(answers[word]) == {example.NOBODY} for word in set(example.WORDS) - set(facts))


def test_the_manager_is_shown_everybody_asked_and_the_right_one_a_little_more_often(example: ModuleType) -> None:
    rng, asked, passed_on = random.Random(0), Counter[bool](), 0
    for _ in range(DRAWN):
        said, answer = example.manager_example(rng)
        word = said[0]["content"]
        name, _, about = (said[1]["content"] if len(said) > 1 else answer).partition(" ")
        assert about == word and name.removeprefix("@") in example.SPECIALISTS
        asked[name == f"@{example.EXPERTS[word]}"] += 1
        if len(said) > 1:
            assert answer == said[2]["content"]  # whatever the reply is, right or wrong
            passed_on += 1
    expected = example.HINT + (1 - example.HINT) / 3
    assert abs(asked[True] / asked.total() - expected) < 0.05 and 0.5 < passed_on / DRAWN < 0.7
