"""The database under a hub: its schema from version to version, and what goes wrong with files."""

from __future__ import annotations

import json
import sqlite3
import stat
from collections.abc import AsyncGenerator, Callable
from pathlib import Path
from typing import Any

import anyio
import pytest
from sqlalchemy import create_engine, insert, inspect, text

from agent_env.errors import ConfigurationError, TransportError
from agent_env.hub import Hub
from agent_env.hub.schema import VERSION, metadata, migrate, version_of
from agent_env_cards import EnvironmentCard

pytestmark = pytest.mark.anyio

MakeCard = Callable[..., EnvironmentCard]


def old_database(file: Path, version: int, card: EnvironmentCard, now: float) -> None:
    """A database as the release with this schema version left it, with a release and an instance in it."""
    file.parent.mkdir(parents=True, exist_ok=True)
    engine = create_engine(f"sqlite:///{file}")
    with engine.begin() as connection:
        migrate(connection, to=version)
        columns = {column["name"] for column in inspect(connection).get_columns("leases")}
        written = json.dumps(card.to_dict())
        release = {"name": card.name, "version": card.version, "digest": card.digest(), "card": written}
        connection.execute(insert(metadata.tables["releases"]).values(**release, published=now, sequence=1))
        connection.execute(text("UPDATE feed SET sequence = 1"))
        lease = {**release, "id": "0" * 32, "url": "http://127.0.0.1:1", "load": 1, "superseded": 0}
        times = {"registered": now, "renewed": now}
        table = metadata.tables["leases"]
        connection.execute(insert(table).values({k: v for k, v in (lease | times).items() if k in columns}))
        assert version_of(connection) == version
    engine.dispose()


@pytest.mark.parametrize("version", range(1, VERSION + 1))
async def test_a_database_of_every_earlier_version_is_brought_up_to_date(
    version: int, file: Path, clock: Any, make_card: MakeCard
) -> None:
    old_database(file, version, make_card(), clock())
    async with Hub.open(file, clock=clock) as hub:
        resolution = await hub.resolve("agent-b@1.0.0")
        assert resolution.card.digest() == make_card().digest()
        assert [instance.load for instance in resolution.instances] == [1]
        await hub.register(make_card(), "http://127.0.0.1:2", source="sha256:aa", launch_id="l1")
        assert (await hub.claim_launch("agent-b", "1.0.0", seconds=1)).granted
    made = create_engine(f"sqlite:///{file.with_name('fresh.db')}")
    metadata.create_all(made)
    made.dispose()
    assert reflected(file) == reflected(file.with_name("fresh.db"))


def reflected(file: Path) -> dict[str, dict[str, tuple[str, bool]]]:
    """The tables of a database; how SQLite spells the type of a double does not matter."""
    engine = create_engine(f"sqlite:///{file}")
    inspector = inspect(engine)
    tables = {
        table: {
            column["name"]: (str(column["type"]).replace("DOUBLE", "REAL"), column["nullable"])
            for column in inspector.get_columns(table)
        }
        for table in inspector.get_table_names()
        if table != "schema_version"
    }
    engine.dispose()
    return tables


async def test_a_database_of_a_newer_release_is_left_alone(file: Path) -> None:
    async with Hub.open(file):
        pass
    connection = sqlite3.connect(file)
    connection.execute("UPDATE schema_version SET version = 99")
    connection.commit()
    connection.close()
    with pytest.raises(ConfigurationError, match=r"schema version 99.*upgrade agent-env"):
        async with Hub.open(file):
            pass


async def test_a_file_that_is_no_database_is_not_touched(tmp_path: Path) -> None:
    file = tmp_path / "notes.txt"
    file.write_text("not a database, but long enough to look at its header, which is checked first of all\n" * 20)
    before = file.read_bytes()
    with pytest.raises(TransportError, match="cannot be used: file is not a database"):
        await Hub.open(file)
    assert file.read_bytes() == before


async def test_a_place_that_cannot_be_written_says_so(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(ConfigurationError, match=r"cannot be opened: .*; set AGENT_ENV_HUB to a place"):
        await Hub.open(tmp_path / "file" / "hub.db")


async def test_the_file_is_for_its_user_alone(file: Path) -> None:
    async with Hub.open(file):
        modes = [stat.S_IMODE((await anyio.Path(place).stat()).st_mode) for place in (file, file.parent)]
    assert modes == [0o600, 0o700]


async def test_a_database_without_its_driver_says_what_to_install() -> None:
    with pytest.raises(ConfigurationError, match=r"the driver .* is not installed"):
        await Hub.open("postgresql+psycopg2cffi://localhost/hub")


@pytest.fixture
async def memory() -> AsyncGenerator[Hub, None]:
    async with Hub.open("sqlite://") as hub:
        yield hub


async def test_a_hub_in_memory_serves_many_tasks_at_once(memory: Hub, make_card: MakeCard) -> None:
    async def publish(number: int) -> None:
        await memory.publish(make_card(version=f"1.{number}.0"))
        await memory.resolve("agent-b")

    with anyio.fail_after(20):
        async with anyio.create_task_group() as tasks:
            for number in range(20):
                tasks.start_soon(publish, number)
    changes = await memory.changes()
    assert changes.sequence == 20
    assert sorted(release.sequence for release in changes.releases) == list(range(1, 21))


async def test_a_cancelled_call_leaves_the_hub_usable(memory: Hub, make_card: MakeCard) -> None:
    for delay in (0.0, 0.001, 0.002, 0.004):
        with anyio.move_on_after(delay):
            await memory.register(make_card(), "http://127.0.0.1:1")
    with anyio.fail_after(10):
        lease = await memory.register(make_card(), "http://127.0.0.1:1")
        await memory.renew(lease)
