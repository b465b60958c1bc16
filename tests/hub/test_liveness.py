"""The rules by which instances are up, suspect or gone."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from agent_env.hub.liveness import BRAKE_SECONDS, GONE_SECONDS, TTL_SECONDS, Pulse, judge

NOW = 100_000.0


def silent(seconds: float, **times: float) -> Pulse:
    return Pulse(**{"registered": NOW - 50_000, "renewed": NOW - seconds, **times})


def test_a_lease_goes_from_up_over_suspect_to_gone() -> None:
    ages = [0, TTL_SECONDS - 0.1, TTL_SECONDS, GONE_SECONDS - 0.1, GONE_SECONDS]
    states = [judge([silent(age)], NOW).states[0] for age in ages]
    assert states == ["up", "up", "suspect", "suspect", "gone"]


def test_what_has_ended_is_gone_whenever_it_was_renewed() -> None:
    assert judge([silent(0, ended=NOW)], NOW).states == ("gone",)


def test_a_doubt_holds_until_the_next_renewal() -> None:
    assert judge([silent(3, doubted=NOW - 1)], NOW).states == ("suspect",)
    assert judge([silent(1, doubted=NOW - 3)], NOW).states == ("up",)


def test_grace_holds_on_to_everything_that_is_silent() -> None:
    judgement = judge([silent(40), silent(0)], NOW, grace=True)
    assert judgement.states == ("suspect", "up") and judgement.degraded
    assert judge([silent(GONE_SECONDS + BRAKE_SECONDS)], NOW, grace=True).states == ("gone",)


def test_three_of_five_at_once_are_a_mass_loss() -> None:
    lost, there = [silent(40 + delay) for delay in (0, 4, 8)], [silent(1), silent(2)]
    assert judge(lost + there, NOW).states == ("suspect",) * 3 + ("up",) * 2
    assert judge([*lost, *there, silent(0)], NOW).states[:3] == ("gone",) * 3


def test_two_of_two_are_just_dead() -> None:
    assert judge([silent(40), silent(41)], NOW).states == ("gone", "gone")


def test_losses_one_after_the_other_are_no_mass_loss() -> None:
    assert judge([silent(40 + 15 * number) for number in range(6)], NOW).states == ("gone",) * 6


def test_those_that_ended_properly_were_alive_and_those_that_came_later_were_not() -> None:
    lost = [silent(40), silent(41), silent(42)]
    left = [silent(45, ended=NOW - 38) for _ in range(3)]
    assert judge(lost + left, NOW).states == ("gone",) * 6
    earlier = [silent(4000, ended=NOW - 3990) for _ in range(3)]
    assert judge(lost + earlier, NOW).states == ("suspect",) * 3 + ("gone",) * 3
    later = [silent(1, registered=NOW - 20) for _ in range(3)]
    assert judge(lost + later, NOW).states == ("suspect",) * 3 + ("up",) * 3


def test_those_that_came_back_count_as_lost_with_the_others() -> None:
    back = silent(0, fell_silent=NOW - 61)
    assert judge([back, silent(60), silent(60)], NOW).states == ("up", "suspect", "suspect")
    assert judge([back, back, back], NOW).states == ("up",) * 3


def test_a_mass_loss_is_believed_in_the_end() -> None:
    assert judge([silent(GONE_SECONDS + BRAKE_SECONDS)] * 5, NOW).states == ("gone",) * 5


ages = st.floats(0, 2 * BRAKE_SECONDS, allow_nan=False)


@given(st.lists(st.tuples(ages, st.floats(0, 1000), st.none() | ages), max_size=12))
def test_silence_alone_decides_except_that_the_brake_holds_back(times: list[tuple[float, float, float | None]]) -> None:
    pulses = [
        Pulse(NOW - age - before, NOW - age, ended=None if ended is None else NOW - min(ended, age))
        for age, before, ended in times
    ]
    judgement = judge(pulses, NOW)
    for pulse, state in zip(pulses, judgement.states, strict=True):
        age = NOW - pulse.renewed
        if pulse.ended is not None:
            assert state == "gone"
        elif age < TTL_SECONDS:
            assert state == "up"
        elif age < GONE_SECONDS:
            assert state == "suspect"
        else:
            assert state == "gone" or judgement.degraded
    assert judgement.degraded == any(
        state == "suspect" and NOW - pulse.renewed >= GONE_SECONDS
        for pulse, state in zip(pulses, judgement.states, strict=True)
    )
    if sum(pulse.ended is None and NOW - pulse.renewed >= GONE_SECONDS for pulse in pulses) < 3:
        assert not judgement.degraded
