"""SQLite files that several processes open at once."""

from __future__ import annotations

import os
import sqlite3
import stat
import subprocess
import sys
from contextlib import closing
from pathlib import Path

import pytest

from agent_env.sqlite_files import make_file, switch_to_wal

OPENING = """
import sqlite3, sys
from pathlib import Path
from agent_env.sqlite_files import make_file, switch_to_wal

path = Path(sys.argv[1])
make_file(path)
connection = sqlite3.connect(path, timeout=20, isolation_level=None)
print("ready", flush=True)
sys.stdin.readline()
switch_to_wal(connection, seconds=20)
connection.execute("CREATE TABLE IF NOT EXISTS t (x)")
connection.execute("INSERT INTO t VALUES (1)")
"""


def mode(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


def test_a_file_is_its_users_alone_and_one_that_is_there_is_left(tmp_path: Path) -> None:
    path = tmp_path / "deep" / "er" / "x.db"
    before = os.umask(0)
    try:
        make_file(path, folder_mode=0o700)
    finally:
        os.umask(before)
    assert (mode(path), mode(path.parent)) == (0o600, 0o700)
    path.write_bytes(b"kept")
    make_file(path)
    assert path.read_bytes() == b"kept"
    with pytest.raises(OSError, match=r"(Not a directory|File exists)"):
        make_file(path / "below")


def test_processes_that_switch_one_new_file_at_once_all_get_their_turn(tmp_path: Path) -> None:
    path = tmp_path / "x.db"
    command = [sys.executable, "-c", OPENING, str(path)]
    others = [subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) for _ in range(4)]
    try:
        for other in others:
            assert other.stdout is not None and other.stdout.readline() == b"ready\n"
        for other in others:
            assert other.stdin is not None
            other.stdin.write(b"\n")
            other.stdin.flush()
        assert [other.wait(30) for other in others] == [0] * len(others)
    finally:
        for other in others:
            other.kill()
            other.communicate()
    with closing(sqlite3.connect(path)) as connection:
        assert connection.execute("PRAGMA journal_mode").fetchone() == ("wal",)
        assert connection.execute("SELECT count(*) FROM t").fetchone() == (len(others),)


def test_a_file_that_stays_busy_is_given_up_in_time(tmp_path: Path) -> None:
    path = tmp_path / "x.db"
    make_file(path)
    with (
        closing(sqlite3.connect(path, isolation_level=None)) as holder,
        closing(sqlite3.connect(path, timeout=0)) as late,
    ):
        holder.execute("CREATE TABLE t (x)")
        holder.execute("BEGIN EXCLUSIVE")
        with pytest.raises(sqlite3.OperationalError, match="locked"):
            switch_to_wal(late, seconds=0.1)
        holder.execute("ROLLBACK")
        switch_to_wal(late, seconds=5)


def test_opening_a_file_anew_gives_up_no_lock_that_the_process_has_on_it(tmp_path: Path) -> None:
    """Closing any handle of a file ends all locks of its process there (POSIX), and two writers then meet."""
    path = tmp_path / "x.db"
    make_file(path)
    writes = "import sqlite3, sys; sqlite3.connect(sys.argv[1], timeout=0).execute('BEGIN IMMEDIATE')"
    with closing(sqlite3.connect(path, isolation_level=None)) as connection:
        switch_to_wal(connection, seconds=5)
        connection.execute("BEGIN IMMEDIATE")
        connection.execute("CREATE TABLE t (x)")
        make_file(path)
        program = [sys.executable, "-c", writes, str(path)]
        other = subprocess.run(program, check=False, capture_output=True, text=True, timeout=60)
        assert "database is locked" in other.stderr
        connection.execute("COMMIT")
