"""Episodes in a SQLite database: durable when acknowledged, found by run, group and outcome."""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Generator, Iterable, Iterator, Sequence
from contextlib import closing, contextmanager
from itertools import islice
from pathlib import Path
from threading import Lock
from types import TracebackType
from typing import Any, Self, Unpack

from agent_env.episodes.choice import Choice, condition, seats_column
from agent_env.episodes.episode import Episode
from agent_env.episodes.lines import replacing
from agent_env.episodes.pairings import joined, parted
from agent_env.episodes.store import EpisodeReader
from agent_env.episodes.summary import EpisodeSummary
from agent_env.errors import ConfigurationError, ProtocolError
from agent_env.sqlite_files import make_file, switch_to_wal

APPLICATION = 0x61656E76
"""What marks a SQLite file as ours (`PRAGMA application_id`)."""

VERSION = 2
"""The version of the tables (`PRAGMA user_version`). Those of version 1, in which each episode holds its own pairings,
are read as well, and become this one when somebody writes."""

_BUSY_SECONDS = 30.0
_BATCH = 256

# `arrival` never repeats, so that an episode that is replaced is the newest.
_TABLES = """
CREATE TABLE IF NOT EXISTS episodes (
    arrival INTEGER PRIMARY KEY AUTOINCREMENT,
    id TEXT NOT NULL UNIQUE,
    run TEXT,
    "group" TEXT,
    ok INTEGER NOT NULL,
    seats TEXT NOT NULL,
    summary TEXT NOT NULL,
    body TEXT NOT NULL
);
CREATE INDEX IF NOT EXISTS episodes_by_run ON episodes (run, arrival);
"""
# `name` is a digest of `text`.
_PAIRINGS = "CREATE TABLE IF NOT EXISTS pairings (name TEXT PRIMARY KEY, text TEXT NOT NULL) WITHOUT ROWID"


class EpisodeStore:
    """Keeps episodes in a SQLite file, for one process or several at once.

        with EpisodeStore("runs/today/episodes.db") as store:
            store.append([episode])
            store.get(episode.id)

    When `append` returns, the episodes survive the death of the process, and with `fsync` a power cut too. The file is
    made where there is none, unless `readonly`. Threads may share a store. Raises `ConfigurationError` when the file
    is of another kind or cannot be used.
    """

    torn = 0
    """Bytes of an unfinished end: a database has none."""

    def __init__(self, path: str | Path, *, fsync: bool = False, readonly: bool = False) -> None:
        self.path = Path(path)
        self._lock = Lock()
        with self._translated():
            if not readonly:
                make_file(self.path)  # it holds what agents were told
            self._connection = _connect(self.path, readonly=readonly)
            try:
                if not readonly:
                    self._prepare(fsync)
                self._check()
            except BaseException:
                self._connection.close()
                raise

    def append(self, episodes: Iterable[Episode]) -> None:
        """Writes episodes, all or none; one with the id of an earlier one takes its place, as the newest."""
        pairings: dict[str, str] = {}
        rows = [_row(episode, pairings) for episode in episodes]
        if not rows:
            return
        with self._lock, self._translated(), _transaction(self._connection):
            self._connection.executemany("INSERT OR IGNORE INTO pairings VALUES (?, ?)", pairings.items())
            self._connection.executemany(
                'INSERT OR REPLACE INTO episodes (id, run, "group", ok, seats, summary, body) VALUES (?,?,?,?,?,?,?)',
                rows,
            )

    def append_all(self, episodes: Iterable[Episode]) -> int:
        """Writes more episodes than memory holds, some at a time, and says how many; an error keeps those before it."""
        rest, written = iter(episodes), 0
        while batch := list(islice(rest, _BATCH)):
            self.append(batch)
            written += len(batch)
        return written

    def get(self, episode: str) -> Episode | None:
        """The episode with this id, None if there is none."""
        with self._lock, self._translated():
            query = "SELECT body FROM episodes WHERE id = ?"
            row = self._connection.execute(query, (_column(episode),)).fetchone()
            body = None if row is None else joined(row[0], _Pairings(self._connection))
        return None if body is None else Episode.from_json(_loads(body))

    def find(self, **choice: Unpack[Choice]) -> Iterator[Episode]:
        """The episodes that are chosen, in the order of their arrival, as they are when the first is asked for."""
        for line in self.lines(**choice):
            yield Episode.from_json(_loads(line))

    def summaries(self, **choice: Unpack[Choice]) -> Iterator[EpisodeSummary]:
        """The outlines of the episodes that are chosen, in the order of their arrival, without reading the rest."""
        for summary in self._select("summary", choice):
            yield EpisodeSummary.from_json(_loads(summary))

    def lines(self, **choice: Unpack[Choice]) -> Iterator[str]:
        """The episodes that are chosen, each as one line of JSON without its end."""
        return self._select("body", choice)

    def count(self, **choice: Unpack[Choice]) -> int:
        """How many episodes are chosen."""
        with self._lock, self._translated():
            query, values = _query("arrival", choice)
            return int(self._connection.execute(f"SELECT count(*) FROM ({query})", values).fetchone()[0])

    def finished(self, run: str) -> set[str]:
        """The ids of the run's episodes that are here, whether they are ok or failed: a resumed run skips them."""
        with self._lock, self._translated():
            rows = self._connection.execute("SELECT id FROM episodes WHERE run = ?", (_column(run),)).fetchall()
        return {_text(row[0]) for row in rows}

    def import_lines(self, path: str | Path) -> int:
        """Takes in the episodes of a JSONL file and says how many; an id that is here already is replaced.

        Raises `ProtocolError`, with its number, for a line that is no episode: some of those before it are in.
        """
        return self.append_all(EpisodeReader(path))

    def export_lines(self, path: str | Path, **choice: Unpack[Choice]) -> int:
        """Writes the episodes that are chosen to a JSONL file, in place of what it held, and says how many."""
        written = 0
        with replacing(path) as file:
            for line in self.lines(**choice):
                file.write(line.encode() + b"\n")
                written += 1
        return written

    def close(self) -> None:
        """Closes the database; harmless when it is closed."""
        self._connection.close()

    def __len__(self) -> int:
        return self.count()

    def __iter__(self) -> Iterator[Episode]:
        return self.find()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.close()

    def _select(self, column: str, choice: Choice) -> Iterator[str]:
        # A connection of its own sees one state of the database from its first row to its last, whatever is appended.
        with self._translated(), closing(_connect(self.path, readonly=True)) as connection:
            pairings = _Pairings(connection)
            for row in connection.execute(*_query(column, choice)):
                yield joined(row[0], pairings)

    def _prepare(self, fsync: bool) -> None:
        switch_to_wal(self._connection, seconds=_BUSY_SECONDS)
        # A commit in WAL mode is in the operating system's hands when it returns; FULL also waits for the disk.
        self._connection.execute(f"PRAGMA synchronous = {'FULL' if fsync else 'NORMAL'}")
        with _transaction(self._connection):
            fresh = _pragma(self._connection, "application_id") == 0 and not self._tables()
            if fresh:
                for statement in _TABLES.split(";"):
                    self._connection.execute(statement)
                self._connection.execute(f"PRAGMA application_id = {APPLICATION}")
            if fresh or self._version() == (APPLICATION, 1):
                self._connection.execute(_PAIRINGS)
                self._connection.execute(f"PRAGMA user_version = {VERSION}")

    def _check(self) -> None:
        application, version = self._version()
        if application != APPLICATION:
            raise ConfigurationError(
                f"{str(self.path)!r} is a SQLite database, but none of episodes; name another file"
            )
        if version not in (1, VERSION):
            raise ConfigurationError(
                f"the episodes in {str(self.path)!r} were written by another release (tables of version {version}, "
                f"this one reads {VERSION}); upgrade agent-env, or export them there and import them here"
            )

    def _version(self) -> tuple[int, int]:
        return _pragma(self._connection, "application_id"), _pragma(self._connection, "user_version")

    def _tables(self) -> int:
        return int(self._connection.execute("SELECT count(*) FROM sqlite_master").fetchone()[0])

    @contextmanager
    def _translated(self) -> Generator[None]:
        """Turns what SQLite and the file system raise into our errors."""
        try:
            yield
        except sqlite3.Error as error:
            raise ConfigurationError(f"the episodes in {str(self.path)!r} cannot be used: {error}") from error
        except OSError as error:
            raise ConfigurationError(
                f"the episodes in {str(self.path)!r} cannot be opened: {error.strerror or error}"
            ) from error


def _connect(path: Path, *, readonly: bool) -> sqlite3.Connection:
    uri = f"{path.absolute().as_uri()}?mode={'ro' if readonly else 'rw'}"
    return sqlite3.connect(uri, uri=True, timeout=_BUSY_SECONDS, isolation_level=None, check_same_thread=False)


@contextmanager
def _transaction(connection: sqlite3.Connection) -> Generator[None]:
    connection.execute("BEGIN IMMEDIATE")
    try:
        yield
    except BaseException:
        # SQLite has rolled back by itself when the disk is full.
        if connection.in_transaction:
            connection.execute("ROLLBACK")
        raise
    connection.execute("COMMIT")


def _pragma(connection: sqlite3.Connection, name: str) -> Any:
    return connection.execute(f"PRAGMA {name}").fetchone()[0]


def _query(column: str, choice: Choice) -> tuple[str, Sequence[Any]]:
    where, values = condition(choice)
    order = "DESC" if choice.get("newest_first") else "ASC"
    query = f"SELECT {column} FROM episodes{where} ORDER BY arrival {order}"
    limit = choice.get("limit")
    if limit is not None:
        query, values = f"{query} LIMIT ?", [*values, limit]
    return query, [_column(value) if isinstance(value, str) else value for value in values]


class _Pairings:
    """The pairings of a database by their names, each read once."""

    def __init__(self, connection: sqlite3.Connection) -> None:
        self._connection = connection
        self._known: dict[str, str] = {}

    def __call__(self, name: str) -> str | None:
        if name not in self._known:
            row = self._connection.execute("SELECT text FROM pairings WHERE name = ?", (name,)).fetchone()
            if row is None:
                return None
            self._known[name] = row[0]
        return self._known[name]


def _row(episode: Episode, pairings: dict[str, str]) -> tuple[Any, ...]:
    """The columns of an episode; the pairings that it tells of are added."""
    summary = EpisodeSummary.of(episode)
    body, parts = parted(episode, _dumps(episode.to_json()))
    pairings |= parts
    return (
        _column(episode.id),
        None if episode.run is None else _column(episode.run),
        None if episode.group is None else _column(episode.group),
        episode.ok,
        seats_column(summary.seats),
        _dumps(summary.to_json()),
        body,
    )


def _column(text: str) -> str | bytes:
    """Text as SQLite takes it; what is no Unicode (half a surrogate pair) goes in as bytes, so nothing is refused."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return text.encode("utf-8", "surrogatepass")
    return text


def _text(column: str | bytes) -> str:
    return column.decode("utf-8", "surrogatepass") if isinstance(column, bytes) else column


def _dumps(value: Any) -> str:
    return json.dumps(value, separators=(",", ":"))


def _loads(text: str) -> Any:
    try:
        return json.loads(text)
    except (ValueError, RecursionError) as error:
        raise ProtocolError(f"a stored episode is no JSON that can be read: {error}") from error
