"""What every test shares."""

from __future__ import annotations

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
