"""When an instance counts as up, suspect or gone: pure rules over the times of leases.

A lease lapses one TTL after its last renewal: the instance is then `suspect`, listed last, and `gone` after three TTLs.
When most instances fall silent at once, the cause is rather the hub or the network than all of them: then they stay
`suspect` for ten minutes before they are given up (as Eureka's self-preservation, but with a least number, so that two
or three dead instances do not stay listed for ever).
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Sequence
from dataclasses import dataclass

from agent_env.hub.records import State

TTL_SECONDS = 10.0
"""How long a lease holds after a renewal."""

RENEW_SECONDS = 3.0
"""How often a lease is renewed: three times within its TTL, so that one lost request does no harm."""

GONE_SECONDS = 3 * TTL_SECONDS
"""How long after its last renewal an instance is given up."""

BRAKE_SECONDS = 600.0
"""How long a mass loss is suspected before it is believed."""

REMEMBER_SECONDS = 24 * 3600.0
"""How long the record of a lease that has ended is kept."""

_MASS = 3


@dataclass(frozen=True, slots=True)
class Pulse:
    """The times of one lease, in the hub's own clock.

    `doubted` is when a caller last could not reach the instance, `fell_silent` the last renewal before a silence that
    would have cost it its lease, had it not been one of many.
    """

    registered: float
    renewed: float
    doubted: float | None = None
    ended: float | None = None
    fell_silent: float | None = None


@dataclass(frozen=True, slots=True)
class Judgement:
    """The states of some leases, in their order; `degraded` tells that a mass loss is suspected."""

    states: tuple[State, ...]
    degraded: bool = False


def judge(pulses: Sequence[Pulse], now: float, *, grace: bool = False) -> Judgement:
    """Tells the state of every lease of a hub; `grace` holds on to the silent ones (the hub itself was away)."""
    lost = [pulse for pulse in pulses if _silent(pulse, now) and now - pulse.renewed < GONE_SECONDS + BRAKE_SECONDS]
    windows = _mass_losses(pulses, lost)
    states: list[State] = []
    frozen = False
    for pulse in pulses:
        if pulse.ended is not None:
            states.append("gone")
        elif _silent(pulse, now):
            held = now - pulse.renewed < GONE_SECONDS + BRAKE_SECONDS and (
                grace or any(start <= pulse.renewed < start + TTL_SECONDS for start in windows)
            )
            frozen = frozen or held
            states.append("suspect" if held else "gone")
        elif now - pulse.renewed >= TTL_SECONDS or (pulse.doubted is not None and pulse.doubted >= pulse.renewed):
            states.append("suspect")
        else:
            states.append("up")
    return Judgement(tuple(states), frozen)


def _silent(pulse: Pulse, now: float) -> bool:
    return pulse.ended is None and now - pulse.renewed >= GONE_SECONDS


def _mass_losses(pulses: Sequence[Pulse], lost: Sequence[Pulse]) -> list[float]:
    """The starts of those windows of one TTL in which more than half of the instances alive then, and at least
    three, were heard for the last time."""
    if not lost:
        return []
    # Those that came back fell silent with the others: their return must not make the rest look like a few.
    returned = [pulse.fell_silent for pulse in pulses if pulse.fell_silent is not None]
    last_heard = sorted([pulse.renewed for pulse in lost] + returned)
    ends = sorted(pulse.renewed if pulse.ended is None else pulse.ended for pulse in pulses)
    starts = sorted(pulse.registered for pulse in pulses)
    windows: list[float] = []
    for start in dict.fromkeys(last_heard):
        inside = bisect_left(last_heard, start + TTL_SECONDS) - bisect_left(last_heard, start)
        alive = (len(ends) - bisect_left(ends, start)) - (len(starts) - bisect_right(starts, start + TTL_SECONDS))
        if inside >= _MASS and 2 * inside > alive:
            windows.append(start)
    return windows
