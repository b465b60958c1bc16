"""Every test of the serving layer has a hub of its own."""

from __future__ import annotations

import sys
from collections.abc import AsyncGenerator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from agent_env import Limits

# Tests are no packages; this is how they find what they share.
sys.path.insert(0, str(Path(__file__).parent))

if TYPE_CHECKING:
    from behaving import Place


@pytest.fixture(autouse=True)
def own_hub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    path = tmp_path / "hub.db"
    monkeypatch.setenv("AGENT_ENV_HUB", str(path))
    return path


@pytest.fixture(scope="module")
async def place() -> AsyncGenerator[Place]:
    """One environment for all tests of a module that leave it as it was."""
    from behaving import serving

    async with serving(limits=Limits(turn_limit=8, max_message_bytes=2000)) as place:
        yield place
