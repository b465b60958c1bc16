"""SQLite files that several processes open at once: made for their user alone, and in WAL mode."""

from __future__ import annotations

import os
import sqlite3
import time
from contextlib import suppress
from pathlib import Path


def make_file(path: Path, *, folder_mode: int = 0o777) -> None:
    """Makes the file where there is none, for its user alone, and the folders above it; raises `OSError`."""
    path.parent.mkdir(mode=folder_mode, parents=True, exist_ok=True)
    # Never one that is there: whoever closes a file gives up all locks that its process has on it, SQLite's too
    # (https://sqlite.org/howtocorrupt.html §2.2).
    with suppress(FileExistsError):
        os.close(os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o600))


def switch_to_wal(connection: sqlite3.Connection, *, seconds: float) -> None:
    """Puts the database in WAL mode, in which readers wait for nobody; raises `sqlite3.OperationalError` when it was
    busy for all of `seconds`.

    Two processes that both switch a new file get in each other's way, and SQLite does not wait then.
    """
    give_up = time.monotonic() + seconds
    while connection.execute("PRAGMA journal_mode").fetchone()[0] != "wal":
        try:
            connection.execute("PRAGMA journal_mode = WAL")
        except sqlite3.OperationalError:
            if time.monotonic() > give_up:
                raise
            time.sleep(0.02)
