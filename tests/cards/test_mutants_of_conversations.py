"""What breaks a clause about what is served and how it converses fails a test of the clause."""

from __future__ import annotations

from collections.abc import Callable

import pytest

# Many servers are started and stopped; on a busy machine that takes a while.
pytestmark = [pytest.mark.long, pytest.mark.timeout(560)]


def test_no_mutant_of_a_clause_about_conversations_lives(kill_all: Callable[..., None]) -> None:
    kill_all("conversations", "serving/test_behaviour.py", "serving/test_address.py")
