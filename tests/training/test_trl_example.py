"""The example `trl` without TRL: its agents, and the words and turns of its tiny model. `tests/peers` trains it."""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

pytestmark = pytest.mark.anyio

EXAMPLE = Path(__file__).parents[2] / "examples" / "multiagent" / "trl"


def load(name: str) -> ModuleType:
    spec = importlib.util.spec_from_file_location(name, EXAMPLE / f"{name}.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture
def agents(monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """The module of the agents, under the name by which the others of its folder import it."""
    module = load("agents")
    monkeypatch.setitem(sys.modules, "agents", module)
    yield module


def test_both_ways_of_training_see_the_same_tokens(agents: Any) -> None:
    tokenizer = load("model").make_tokenizer()
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


def test_the_tokenizer_knows_every_word_that_anybody_may_say(agents: Any) -> None:
    tokenizer = load("model").make_tokenizer()
    words = {agents.UNKNOWN, *(f"@{name}" for name in agents.FACTS)}
    for facts in agents.FACTS.values():
        words |= {*facts, *facts.values()}
    assert tokenizer.unk_token_id not in {tokenizer.convert_tokens_to_ids(word) for word in words}
    assert sum(map(len, agents.FACTS.values())) == 24 == len({word for one in agents.FACTS.values() for word in one})


async def test_a_specialist_knows_its_field_and_says_of_others_that_it_does_not(agents: Any) -> None:
    for name, facts in agents.FACTS.items():
        answer = agents.specialist(name)
        assert {word: await answer(f" {word.title()} ") for word in facts} == facts
        for other, foreign in agents.FACTS.items():
            if other != name:
                assert {await answer(word) for word in foreign} == {agents.UNKNOWN}
