"""What every test shares."""

from __future__ import annotations

import sys
from collections.abc import Callable
from types import FrameType
from typing import Any

import hypothesis
import pytest

# How long an example takes says something about the machine: on a fresh clone the first text waits for the table of
# Unicode to be made. What a test may take is bounded by pytest's own timeout.
hypothesis.settings.register_profile(
    "agent-env", deadline=None, suppress_health_check=[hypothesis.HealthCheck.too_slow]
)
hypothesis.settings.load_profile("agent-env")


@pytest.fixture(scope="session")
def anyio_backend() -> str:
    """Runs async tests on asyncio, the event loop that agent-env is made for."""
    return "asyncio"


@pytest.fixture
def instructions() -> Callable[[Callable[[], object]], int]:
    """Tells how many instructions of Python a piece of work takes: what it costs, on whatever machine."""

    def counted(work: Callable[[], object]) -> int:
        count = 0

        def trace(frame: FrameType, event: str, _: object) -> Any:
            nonlocal count
            frame.f_trace_opcodes = True
            count += event == "opcode"
            return trace

        before = sys.gettrace()
        sys.settrace(trace)
        try:
            work()
        finally:
            sys.settrace(before)
        return count

    return counted
