"""What breaks a clause in the own form of a protocol fails a test of the clause that speaks this protocol."""

from __future__ import annotations

from collections.abc import Callable

import pytest

# Many servers are started and stopped; on a busy machine that takes a while.
pytestmark = [pytest.mark.long, pytest.mark.timeout(560)]

FACES = ("mcp", "mcp_gate", "a2a", "a2a_access", "a2a_tasks", "http")


def test_no_mutant_of_a_protocols_own_form_lives(kill_all: Callable[..., None]) -> None:
    kill_all("faces", *(f"serving/faces/test_{face}.py" for face in FACES))
