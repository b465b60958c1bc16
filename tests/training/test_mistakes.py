"""What is easily mistaken is refused where it is given, with the value and what to write instead."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from agent_env.episodes import CallRecord, Episode, TurnRecord
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


@pytest.mark.parametrize("cut", [cut_rows, credit_rows])
def test_seats_that_have_nothing_to_learn_from_are_told_with_those_that_have(
    cut: Callable[..., tuple[Any, ...]], caplog: pytest.LogCaptureFixture
) -> None:
    episode = Episode("e")
    for seat in ("left", "right", "judge"):
        episode.add([TurnRecord(seat, seat, f"s-{seat}", "e", seat=seat)])
        episode.add(
            [CallRecord(f"c-{seat}", seat, seat, "m", "e", prompt_token_ids=[1], token_ids=[2], logprobs=[-1.0])]
        )
    episode.traces[2].trainable = False
    episode.score("won", 1.0)
    there = "there are model calls of 'judge' (1, frozen), 'left' (1), 'right' (1)"
    for seats, named in ((["lefft"], "'lefft'"), (iter(["left", "judge", "lefft"]), "'judge', 'lefft'")):
        caplog.clear()
        cut([episode], seats=seats)
        assert [record.getMessage() for record in caplog.records] == [f"no row can be made of {named}; {there}"]
    *_, report = cut([episode], seats=["lefft"])
    assert report.reasons() == f"no model call of a seat to train was recorded, but of{there.partition('of')[2]}"
    caplog.clear()
    for seats in (None, ["left", "right"], []):
        cut([episode], seats=seats)
    cut([], seats=["left"])
    cut([Episode("e2")], seats=["left"])
    assert caplog.records == []
