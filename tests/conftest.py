"""What every test shares."""

from __future__ import annotations

import pytest


@pytest.fixture(scope="session")
def anyio_backend() -> str:
    """Runs async tests on asyncio, the event loop that agent-env is made for."""
    return "asyncio"
