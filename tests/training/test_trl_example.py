"""The example `trl` without TRL: its scenario, and the words and turns of its tiny model. `tests/peers` trains it."""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from agent_env.training import Seat

pytestmark = pytest.mark.anyio

EXAMPLES = Path(__file__).parents[2] / "examples" / "multiagent"
SHARED = ("agents", "scenario")


@pytest.fixture
def model(monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """The module of the tiny model, which finds the agents and the scenario of `delegation`."""
    monkeypatch.setattr(sys, "path", [*sys.path])
    for name in SHARED:
        monkeypatch.delitem(sys.modules, name, raising=False)  # the example's own, and not a package of that name
    yield load("model")
    for name in SHARED:
        sys.modules.pop(name, None)


def load(name: str) -> ModuleType:
    spec = importlib.util.spec_from_file_location(f"trl_{name}", EXAMPLES / "trl" / f"{name}.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture
def agents(model: Any) -> Any:
    return sys.modules["agents"]


@pytest.fixture
def scenario(model: Any) -> Any:
    return sys.modules["scenario"]


def test_agents_words_and_scenario_are_those_of_the_delegation(model: Any, agents: Any, scenario: Any) -> None:
    for module in (agents, scenario):
        assert Path(module.__file__).parent == EXAMPLES / "delegation"
    assert model.WORDS is scenario.WORDS and model.ANSWERS is scenario.ANSWERS and model.EXPERTS is scenario.EXPERTS
    # The one difference is who knows the facts: the specialists themselves, so that nobody plays them.
    given, informed = scenario.delegation, scenario.make_scenario(informed=True)
    assert {name: seat.policy for name, seat in given.seats.items()} == {name: name for name in scenario.SEATS}
    unplayed = {name: replace(given.seats[name], policy=None) for name in agents.SPECIALISTS}
    assert informed == replace(given, seats={**given.seats, **unplayed})
    assert informed.seats["manager"] == Seat("delegation-manager@1.0.0", "manager")


def test_both_ways_of_training_see_the_same_tokens(model: Any) -> None:
    tokenizer = model.make_tokenizer()
    asked = {"role": "user", "content": "ghana"}
    call = {"type": "function", "function": {"name": "ann", "arguments": {"message": "ghana"}}}
    by_trl = [
        asked,
        {"role": "assistant", "content": "", "tool_calls": [call]},
        {"role": "tool", "name": "ann", "content": "accra"},
    ]
    served = [asked, {"role": "assistant", "content": "@ann ghana"}, {"role": "user", "content": "accra"}]
    first, second = (
        tokenizer.apply_chat_template(chat, add_generation_prompt=True, return_dict=False) for chat in (by_trl, served)
    )
    assert first == second
    assert tokenizer.decode(first) == "<u> ghana <e> <a> @ann ghana <e> <u> accra <e> <a>"
    # What was said before stays as it is when more is said.
    assert first[:4] == tokenizer.apply_chat_template([asked], add_generation_prompt=True, return_dict=False)
    parsed = tokenizer.parse_response(first[4:7], prefix=first[:4])
    assert parsed == {"role": "assistant", "tool_calls": [call]}
    assert tokenizer.parse_response(first[8:10], prefix=first[:4])["content"] == "accra"


def test_the_tokenizer_knows_every_word_that_anybody_may_say(model: Any, agents: Any) -> None:
    tokenizer = model.make_tokenizer()
    words = {agents.NOBODY, *(f"@{name}" for name in agents.SPECIALISTS)}
    for facts in agents.FACTS.values():
        words |= {*facts, *facts.values()}
    assert tokenizer.unk_token_id not in {tokenizer.convert_tokens_to_ids(word) for word in words}
    assert sum(map(len, agents.FACTS.values())) == 24 == len({word for one in agents.FACTS.values() for word in one})


@pytest.mark.parametrize(
    ("answer", "right"), [("oslo", 1.0), (" Oslo.\n", 1.0), ("riga", 0.0), ("oslo riga", 0.0), ("", 0.0), (None, 0.0)]
)
def test_an_answer_is_right_whichever_way_a_model_writes_it(scenario: Any, answer: object, right: float) -> None:
    assert scenario.is_right(answer, "norway") == right


async def test_an_informed_specialist_knows_its_topic_and_says_of_others_that_it_does_not(agents: Any) -> None:
    for name, facts in agents.FACTS.items():
        answer = agents.informed(name)
        assert {word: await answer(f" {word.title()} ") for word in facts} == facts
        for other, foreign in agents.FACTS.items():
            if other != name:
                assert {await answer(word) for word in foreign} == {agents.NOBODY}
