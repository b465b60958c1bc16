"""What breaks a clause about bounds, access and releases fails a test of the clause."""

from __future__ import annotations

from collections.abc import Callable


def test_no_mutant_of_a_clause_about_bounds_lives(kill_all: Callable[..., None]) -> None:
    kill_all("bounds", "serving/test_behaviour.py", "serving/test_behaviour_bounds.py")
