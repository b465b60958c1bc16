"""What the user calls the hub, and the hub that a process shares."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from agent_env.errors import ConfigurationError
from agent_env.hub import HUB_VARIABLE, Hub, locate, shared_hub
from agent_env.hub.local import LocalHub
from agent_env.hub.remote import RemoteHub


def test_a_path_is_a_database_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for target in ("hub.db", Path("hub.db"), "sqlite:///hub.db", f"sqlite+aiosqlite:///{tmp_path}/hub.db"):
        location = locate(target)
        assert location.file == tmp_path / "hub.db" and location.local and not location.remote
        assert location.url == f"sqlite+aiosqlite:///{tmp_path}/hub.db"
        assert str(location) == location.target == str(tmp_path / "hub.db")


def test_the_users_data_directory_is_the_default(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.delenv(HUB_VARIABLE, raising=False)
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path))
    assert str(locate().file).endswith("hub.db") and "agent-env" in str(locate().file)
    monkeypatch.setenv(HUB_VARIABLE, "http://127.0.0.1:9000/")
    assert locate().url == "http://127.0.0.1:9000"


def test_urls_keep_what_they_are() -> None:
    assert locate("sqlite://").url == locate("sqlite:///:memory:").url == "sqlite+aiosqlite://"
    assert locate("postgresql://me:pw@db/hub").url == "postgresql+asyncpg://me:pw@db/hub"
    assert locate("postgresql+psycopg://me@db/hub").url == "postgresql+psycopg://me@db/hub"
    assert str(locate("postgresql://me:pw@db/hub")) == "postgresql+asyncpg://db/hub"


def test_a_hub_on_loopback_is_of_this_machine() -> None:
    assert locate("http://localhost:9000").local and locate("http://127.0.0.1").local
    assert not locate("https://hub.example.com").local and not locate("postgresql://localhost/hub").local


def test_what_is_no_place_for_a_hub_says_what_is() -> None:
    with pytest.raises(ConfigurationError, match="is empty; give a path"):
        locate(" ")
    with pytest.raises(ConfigurationError, match=r"has the scheme 'oracle'.*postgresql, sqlite"):
        locate("oracle://db/hub")


@pytest.mark.anyio
async def test_a_hub_is_awaited_or_entered(tmp_path: Path) -> None:
    hub = await Hub.open(tmp_path / "hub.db")
    assert isinstance(hub, LocalHub)
    await hub.aclose()
    await hub.aclose()
    assert await hub.list() == []  # it opens again at need
    await hub.aclose()
    async with Hub.open(tmp_path / "hub.db") as other:
        assert await other.list() == []


@pytest.mark.anyio
async def test_one_hub_is_shared_in_a_loop(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(HUB_VARIABLE, str(tmp_path / "hub.db"))
    hub = shared_hub()
    assert shared_hub(tmp_path / "hub.db") is hub
    assert await hub.list() == []
    assert isinstance(shared_hub("http://127.0.0.1:9"), RemoteHub)


def test_a_shared_hub_is_closed_with_its_loop(tmp_path: Path) -> None:
    async def use() -> LocalHub:
        hub = shared_hub(tmp_path / "hub.db")
        assert await hub.list() == []
        assert isinstance(hub, LocalHub)
        return hub

    first, second = asyncio.run(use()), asyncio.run(use())
    assert first is not second and first._database._engine is None
