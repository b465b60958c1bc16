"""Spreading callers over instances."""

from __future__ import annotations

import random
from collections import Counter
from typing import Any

from agent_env.hub import Instance
from agent_env.hub.choice import Chooser


def instance(name: str, load: int = 0, **facts: Any) -> Instance:
    values = {"state": "up", "capacity": 10, **facts}
    return Instance(name, "agent-b", "1.0.0", "sha256:0", f"http://{name}", card_json={}, load=load, **values)


def test_there_is_nobody_to_choose_from_nothing() -> None:
    assert Chooser(random.Random(0)).choose([]) is None
    assert Chooser(random.Random(0)).choose([], "key") is None


def test_the_less_loaded_of_two_random_ones_is_chosen() -> None:
    chooser = Chooser(random.Random(0))
    instances = [instance("idle", 0), instance("half", 5), instance("busy", 9)]
    chosen = Counter(found.id for _ in range(3000) if (found := chooser.choose(instances)))
    # Of the three pairs, "idle" wins the two that it is in, "half" the one without it, "busy" none.
    assert chosen.keys() == {"idle", "half"}
    assert 1850 < chosen["idle"] < 2150


def test_load_counts_in_proportion_to_capacity() -> None:
    chooser = Chooser(random.Random(0))
    assert chooser.choose([instance("small", 2, capacity=4), instance("large", 10, capacity=100)]).id == "large"
    assert chooser.choose([instance("one", 1, capacity=None), instance("two", 2, capacity=None)]).id == "one"


def test_full_and_suspect_instances_come_last() -> None:
    chooser = Chooser(random.Random(0))
    full, suspect, free = instance("full", 10), instance("suspect", state="suspect"), instance("free", 9)
    assert {chooser.choose([full, suspect, free]).id for _ in range(20)} == {"free"}
    assert {chooser.choose([full, suspect]).id for _ in range(20)} == {"full"}
    assert chooser.choose([suspect]).id == "suspect"
    assert chooser.choose([instance("gone", state="gone")]) is None


def test_a_caller_stays_where_it_is_while_that_is_up() -> None:
    chooser = Chooser(random.Random(1))
    instances = [instance(name) for name in "abcdef"]
    first = chooser.choose(instances, "session")
    assert {chooser.choose(instances, "session").id for _ in range(50)} == {first.id}
    busy = [instance(found.id, 10 if found.id == first.id else 0) for found in instances]
    assert chooser.choose(busy, "session").id == first.id
    down = [instance(found.id, state="suspect" if found.id == first.id else "up") for found in instances]
    second = chooser.choose(down, "session")
    assert second.id != first.id and chooser.choose(instances, "session").id == second.id


def test_only_so_many_callers_are_remembered() -> None:
    chooser = Chooser(random.Random(2))
    instances = [instance("a"), instance("b")]
    for number in range(10_001):
        chooser.choose(instances, str(number))
    assert len(chooser._before) == 10_000 and "0" not in chooser._before
