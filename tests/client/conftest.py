"""Every test of the client has a hub of its own."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

# Tests are no packages; this is how they find what they share.
sys.path.insert(0, str(Path(__file__).parent))


@pytest.fixture(autouse=True)
def own_hub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    path = tmp_path / "hub.db"
    monkeypatch.setenv("AGENT_ENV_HUB", str(path))
    return path
