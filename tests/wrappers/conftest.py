"""The model server of these tests, and the way to their shared modules (tests are no packages)."""

from __future__ import annotations

import sys
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))

from model_server import ModelServer


@pytest.fixture
async def models() -> AsyncIterator[ModelServer]:
    """A running model server."""
    async with ModelServer() as server:
        yield server
