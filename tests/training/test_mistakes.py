"""What is easily mistaken is refused where it is given, with the value and what to write instead."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from agent_env.errors import ConfigurationError, InvalidArguments
from agent_env.gateway import SeatPolicy
from agent_env.training import RoleBaseline, Scenario, Seat, Settings, collect, cut_rows, learn, rollout
from agent_env.training.learning import credit_rows

pytestmark = pytest.mark.anyio


def wrong(value: Any) -> Any:
    """A value of a type that is wrong on purpose."""
    return value


async def play(team: Any, task: Any) -> str:
    return str(task)


MISTAKES: dict[str, tuple[Callable[[], object], str]] = {
    "a class for credit": (
        lambda: learn({}, [], credit=wrong(RoleBaseline)),
        r"class RoleBaseline; make one of it",
    ),
    "an average there is not": (lambda: Settings(average=wrong("unit")), r"\"tokens\" or \"units\", not 'unit'"),
    "one seat for several": (lambda: cut_rows([], seats="ann"), r"not 'ann'; for one alone: \['ann'\]"),
    "one seat to credit": (lambda: credit_rows([], seats="ann"), r"not 'ann'; for one alone: \['ann'\]"),
    "seats without names": (lambda: Scenario(play, None, wrong([Seat()])), r"by name, \{'player': Seat\(env\)\}"),
}


@pytest.mark.parametrize("name", MISTAKES)
async def test_a_mistake_is_refused_with_what_to_write_instead(name: str) -> None:
    make, said = MISTAKES[name]
    with pytest.raises(ConfigurationError, match=said):
        make()


async def test_a_text_is_no_list_of_tasks() -> None:
    with pytest.raises(ConfigurationError, match=r"not as the text 'day'; for one alone: \[task\]"):
        await collect(rollout(Scenario(play), "day"))


def test_one_endpoint_is_not_taken_for_many_of_a_letter() -> None:
    with pytest.raises(InvalidArguments, match=r"not 'http://a/v1'; write \('http://a/v1',\)"):
        SeatPolicy("m", wrong("http://a/v1"))
