"""What is easily mistaken is refused where it is given, with the value and what to write instead."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from agent_env.errors import ConfigurationError
from agent_env.training import RoleBaseline, Scenario, Seat, Settings, collect, cut_rows, learn, rollout
from agent_env.training.learning import credit_rows

pytestmark = pytest.mark.anyio

untyped: Any = None
"""Makes a checker look away from a type that is wrong on purpose."""


async def play(team: Any, task: Any) -> str:
    return str(task)


MISTAKES: dict[str, tuple[Callable[[], object], str]] = {
    "a class for credit": (
        lambda: learn({}, [], credit=untyped or RoleBaseline),
        r"class RoleBaseline; make one of it",
    ),
    "an average there is not": (lambda: Settings(average=untyped or "unit"), r"\"tokens\" or \"units\", not 'unit'"),
    "one seat for several": (lambda: cut_rows([], seats="ann"), r"not 'ann'; for one alone: \['ann'\]"),
    "one seat to credit": (lambda: credit_rows([], seats="ann"), r"not 'ann'; for one alone: \['ann'\]"),
    "seats without names": (lambda: Scenario(play, None, untyped or [Seat()]), r"by name, \{'player': Seat\(env\)\}"),
}


@pytest.mark.parametrize("name", MISTAKES)
async def test_a_mistake_is_refused_with_what_to_write_instead(name: str) -> None:
    make, said = MISTAKES[name]
    with pytest.raises(ConfigurationError, match=said):
        make()


async def test_a_text_is_no_list_of_tasks() -> None:
    with pytest.raises(ConfigurationError, match=r"not as the text 'day'; for one alone: \[task\]"):
        await collect(rollout(Scenario(play), "day"))
