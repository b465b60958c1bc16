"""The folders of runs: locked while one process has them open, and on the disk when it is said that they are."""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import re
import shutil
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from agent_env.errors import ConfigurationError

_LOCK = "run.lock"
_NAMED = re.compile(r"[0-9]+(\.[0-9]+)?")


def read_object(path: Path) -> dict[str, Any]:
    """The JSON object in a file; raises `OSError`, or `ValueError` with the rest of a sentence about it."""
    try:
        value: Any = json.loads(path.read_text("utf-8"))
    except (ValueError, RecursionError) as error:
        raise ValueError(f"is no JSON that can be read ({error})") from None
    if not isinstance(value, dict):
        raise ValueError(f"is no JSON object, but {value!r:.100}")  # noqa: TRY004 - it is what a file holds
    return value


def locked(folder: Path) -> int:
    """Locks a run for the life of this process, however that ends."""
    lock = os.open(folder / _LOCK, os.O_RDWR | os.O_CREAT, 0o600)
    for _ in range(20):
        # Whoever looks whether it is locked has it for a moment.
        with contextlib.suppress(BlockingIOError):
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return lock
        time.sleep(0.02)
    os.close(lock)
    raise ConfigurationError(f"another process has the run {folder.name!r} open; stop it first, or begin another run")


def is_locked(folder: Path) -> bool:
    """Tells whether some process has a run open."""
    try:
        lock = os.open(folder / _LOCK, os.O_RDWR)
    except FileNotFoundError:
        return False
    try:
        fcntl.flock(lock, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    finally:
        os.close(lock)
    return False


def whole_checkpoints(checkpoints: Path) -> Iterator[Path]:
    """The complete checkpoints of a folder: others have names that begin with a dot."""
    return (found for found in checkpoints.glob("[0-9]*") if _NAMED.fullmatch(found.name))


def order(checkpoint: Path) -> tuple[int, int]:
    """Its update, and how often that was written before: what checkpoints are sorted by, as numbers."""
    update, _, again = checkpoint.name.partition(".")
    return int(update), int(again or 0)


def put_in_place(written: Path, update: int) -> Path:
    """Gives a checkpoint that was written aside, in the folder of all, its name, and takes those of the same update away;
    whoever is killed meanwhile leaves the one before or this one, whole."""
    checkpoints = written.parent
    whole = checkpoints / f"{update:06d}"
    before = [older for older in whole_checkpoints(checkpoints) if order(older)[0] == update]
    if before:
        # The one before stays until this one has a name, and goes before this one gets its own.
        newer = checkpoints / f"{update:06d}.{max(map(order, before))[1] + 1}"
        written.rename(newer)
        sync_folder(checkpoints)
        for older in before:
            remove(older)
        newer.rename(whole)
    else:
        written.rename(whole)
    sync_folder(checkpoints)
    return whole


def remove(checkpoint: Path) -> None:
    """Removes a checkpoint, which is none any more as soon as it begins to be removed."""
    aside = checkpoint.with_name(f".{checkpoint.name}.old")
    shutil.rmtree(aside, ignore_errors=True)
    checkpoint.rename(aside)
    shutil.rmtree(aside)


def link(source: str, target: str) -> None:
    """Gives a file a second name, or copies it where there are no links."""
    try:
        os.link(source, target)
    except OSError:  # a file system without links
        shutil.copy2(source, target)


def sync(folder: Path) -> None:
    """Brings a tree to the disk, files before the folders that name them."""
    for place, _, files in os.walk(folder, topdown=False):
        for name in files:
            file = os.open(Path(place) / name, os.O_RDONLY)
            try:
                os.fsync(file)
            finally:
                os.close(file)
        sync_folder(Path(place))


def sync_folder(folder: Path) -> None:
    """Brings the names in a folder to the disk."""
    opened = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(opened)
    finally:
        os.close(opened)
