"""Means and distances of rewards that stay finite, however large the rewards are."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from math import isfinite, sqrt

_LARGEST = sys.float_info.max
_LARGE = 2.0**500
_SHRUNK = 2.0**-600
"""A power of two, so that what is multiplied by it loses no digit; squares of the largest floats times it can be added."""


def mean(values: Sequence[float]) -> float:
    """The arithmetic mean, finite for finite values; raises `ZeroDivisionError` for no values."""
    total = sum(values, 0.0)
    if isfinite(total) or not all(map(isfinite, values)):
        return total / len(values)
    # The sum is more than a float holds, and the mean, which lies between the values, is not.
    part = 0.5 ** len(values).bit_length()
    return min(max(values), max(min(values), sum(value * part for value in values) / (len(values) * part)))


def bounded(value: float) -> float:
    """The number, or the largest that a float holds where it is beyond that."""
    return max(-_LARGEST, min(_LARGEST, value))


class Spread:
    """How values lie around their mean: `distance(value)` is that of a value, with `normalise` in their standard
    deviations, to each of which `least` is added. It is finite for finite values: one beyond what a float holds is the
    largest that it does.

    The values come in parts, of which each weighs the same, and in a part each value: the mean is that of the parts'
    means, and the variance that of their mean squares around it, so that the distances' own mean square is 1 when they
    are weighed so (but for `least`). It is the variance of these values and no estimate of that of others: of n parts of
    one value, a mean over n and not over n - 1."""

    def __init__(self, parts: Sequence[Sequence[float]], *, normalise: bool, least: float) -> None:
        large = normalise and max(abs(value) for part in parts for value in part) > _LARGE
        self._unit = _SHRUNK if large else 1.0
        measured = [[value * self._unit for value in part] for part in parts] if large else parts
        self._middle = mean(list(map(mean, measured)))
        self._scale = 1.0
        if normalise:
            deviation = sqrt(mean([mean([(value - self._middle) ** 2 for value in part]) for part in measured]))
            self._scale = deviation + least * self._unit

    def distance(self, value: float) -> float:
        """How far a value lies above the mean."""
        return bounded((value * self._unit - self._middle) / self._scale)
