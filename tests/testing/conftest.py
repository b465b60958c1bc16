"""Every check has a hub of its own."""

from __future__ import annotations

from pathlib import Path

import pytest


@pytest.fixture(autouse=True)
def own_hub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    path = tmp_path / "hub.db"
    monkeypatch.setenv("AGENT_ENV_HUB", str(path))
    return path
