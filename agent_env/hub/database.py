"""Connections and transactions of a hub's database, shared by many processes."""

from __future__ import annotations

import sqlite3
from collections.abc import AsyncGenerator, Generator
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path
from typing import Any

import anyio
import anyio.to_thread
from sqlalchemy import Connection, event
from sqlalchemy.exc import DBAPIError, NoSuchModuleError, SQLAlchemyError
from sqlalchemy.ext.asyncio import AsyncConnection, AsyncEngine, create_async_engine
from sqlalchemy.pool import AsyncAdaptedQueuePool

from agent_env.errors import ConfigurationError, TransportError
from agent_env.hub.location import Location
from agent_env.hub.schema import VERSION, migrate, version_of
from agent_env.net.wire_logs import keep_from_logs
from agent_env.sqlite_files import make_file, switch_to_wal

_BUSY_SECONDS = 15.0
_WRITE = "agent_env_write"


class Database:
    """One database, opened at its first transaction.

    SQLite runs in WAL mode: readers never wait, and a writer takes the write lock when its transaction begins, so
    that what it reads cannot change before it writes. Elsewhere writers lock the rows they decide by.
    """

    def __init__(self, location: Location) -> None:
        self._location = location
        self._engine: AsyncEngine | None = None
        self._lock = anyio.Lock()

    async def start(self) -> None:
        """Connects and migrates; raises `ConfigurationError` or `TransportError`."""
        async with self._lock:
            if self._engine is not None:
                return
            with _translated(self._location):
                if self._location.file is not None:
                    await _prepared(self._location.file)
                engine = _engine(self._location)
                try:
                    await _bring_up_to_date(engine)
                except BaseException:
                    await engine.dispose()
                    raise
            self._engine = engine

    async def aclose(self) -> None:
        """Closes the connections."""
        engine, self._engine = self._engine, None
        if engine is not None:
            await engine.dispose()

    @asynccontextmanager
    async def read(self) -> AsyncGenerator[AsyncConnection, None]:
        """A transaction that sees one state of the database."""
        async with self._transaction(write=False) as connection:
            yield connection

    @asynccontextmanager
    async def write(self) -> AsyncGenerator[AsyncConnection, None]:
        """A transaction that nobody else's write comes between; committed at the end, undone by an exception."""
        async with self._transaction(write=True) as connection:
            yield connection

    @asynccontextmanager
    async def _transaction(self, *, write: bool) -> AsyncGenerator[AsyncConnection, None]:
        if self._engine is None:
            await self.start()
        assert self._engine is not None
        # A transaction takes a millisecond, and cancelling it in the middle would cost the connection.
        with _translated(self._location), anyio.CancelScope(shield=True):
            async with self._engine.connect() as connection:
                await connection.execution_options(**{_WRITE: write})
                async with connection.begin():
                    yield connection


@contextmanager
def _translated(location: Location) -> Generator[None, None, None]:
    """Turns what the database raises into our errors."""
    try:
        yield
    except (DBAPIError, sqlite3.Error) as error:
        cause = error.orig if isinstance(error, DBAPIError) else error
        raise TransportError(f"the hub's database {location} cannot be used: {cause}") from error
    except SQLAlchemyError as error:
        raise TransportError(f"the hub's database {location} failed: {error}") from error


async def _prepared(file: Path) -> None:
    try:
        await anyio.to_thread.run_sync(_prepare, file)
    except OSError as error:
        raise ConfigurationError(
            f"the hub's database {file} cannot be opened: {error.strerror or error}; "
            f"set AGENT_ENV_HUB to a place that can be written"
        ) from error


def _prepare(file: Path) -> None:
    """Makes the file, for its user alone (it says which commands to run), and puts it in WAL mode."""
    make_file(file, folder_mode=0o700)
    connection = sqlite3.connect(file, timeout=_BUSY_SECONDS)
    try:
        switch_to_wal(connection, seconds=_BUSY_SECONDS)
    finally:
        connection.close()


def _engine(location: Location) -> AsyncEngine:
    sqlite = location.url.startswith("sqlite")
    keep_from_logs("aiosqlite")  # leases are secrets
    try:
        engine = create_async_engine(
            location.url,
            poolclass=AsyncAdaptedQueuePool,
            # A database in memory is its one connection; a SQLite connection is a thread, and writers take turns.
            pool_size=1 if sqlite and location.file is None else 4,
            max_overflow=0,
            connect_args={"timeout": _BUSY_SECONDS} if sqlite else {},
        )
    except (NoSuchModuleError, ImportError) as error:
        raise ConfigurationError(
            f"the driver of the hub's database {location} is not installed: {error}; install it with pip"
        ) from error
    if sqlite:
        event.listen(engine.sync_engine, "connect", _on_connect)
        event.listen(engine.sync_engine, "begin", _on_begin)
    return engine


def _on_connect(connection: Any, record: Any) -> None:
    # Otherwise the driver begins transactions by itself, late and only before it writes.
    connection.isolation_level = None
    cursor = connection.cursor()
    cursor.execute("PRAGMA synchronous = NORMAL")
    cursor.close()


def _on_begin(connection: Connection) -> None:
    writes = connection.get_execution_options().get(_WRITE, True)
    connection.exec_driver_sql("BEGIN IMMEDIATE" if writes else "BEGIN")


async def _bring_up_to_date(engine: AsyncEngine) -> None:
    if await _version(engine) == VERSION:
        return
    try:
        async with engine.begin() as connection:
            await connection.run_sync(migrate)
    except DBAPIError:
        # Two processes may do it at once, and not every database makes the second wait; the first has done it then.
        if await _version(engine) != VERSION:
            raise


async def _version(engine: AsyncEngine) -> int:
    async with engine.connect() as connection:
        await connection.execution_options(**{_WRITE: False})
        async with connection.begin():
            return await connection.run_sync(version_of)
