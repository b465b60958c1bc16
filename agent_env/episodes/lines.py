"""A file of lines that only grows: what was appended survives the death of the process."""

from __future__ import annotations

import json
import os
from collections.abc import Generator, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, BinaryIO

from agent_env.errors import ConfigurationError, ProtocolError

_TAIL = 64 * 1024


class LineFile:
    """An append-only file of JSON lines with one writer.

    `append` hands the lines to the operating system before it returns, so a killed process loses none of them; with
    `fsync` they also survive a power cut. A line that a killed writer left unfinished was never acknowledged: opening
    the file again cuts it off, and `torn` says how many bytes that were.

    `alone` locks the file while it is open, and raises `BlockingIOError` where somebody else has it open so, in this
    process or in another: a second writer would be told wrong offsets.
    """

    def __init__(self, path: str | Path, *, fsync: bool = False, alone: bool = False) -> None:
        self.path = Path(path)
        self._fsync = fsync
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            self._file = os.open(self.path, os.O_RDWR | os.O_CREAT | os.O_APPEND, 0o600)
        except OSError as error:
            raise ConfigurationError(f"{str(self.path)!r} cannot be written: {error.strerror}") from error
        if alone:
            self._lock()
        size = os.fstat(self._file).st_size
        self.size = self._end_of_lines(size)
        self.torn = size - self.size
        if self.torn:
            os.ftruncate(self._file, self.size)

    def append(self, lines: bytes) -> int:
        """Writes whole lines and returns the offset at which they begin; raises `OSError` and then keeps none."""
        offset = self.size
        view = memoryview(lines)
        try:
            while view:
                view = view[os.write(self._file, view) :]
            if self._fsync:
                os.fsync(self._file)
        except OSError:
            os.ftruncate(self._file, offset)
            raise
        self.size = offset + len(lines)
        return offset

    def read_at(self, offset: int, length: int) -> bytes:
        """The bytes of a span that was appended."""
        found = os.pread(self._file, length, offset)
        if len(found) != length:
            raise ProtocolError(f"{str(self.path)!r} was cut by somebody else: it lacks bytes at {offset}")
        return found

    def close(self) -> None:
        """Closes the file; harmless when it is closed."""
        if self._file >= 0:
            os.close(self._file)
            self._file = -1

    def _lock(self) -> None:
        import fcntl  # not on every system on which episodes are read

        try:
            fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            if not os.fstat(self._file).st_nlink:
                raise BlockingIOError(f"{str(self.path)!r} was removed as it was opened")
        except OSError as error:
            self.close()
            if isinstance(error, BlockingIOError):
                raise
            raise ConfigurationError(f"{str(self.path)!r} cannot be locked: {error.strerror}") from error

    def _end_of_lines(self, size: int) -> int:
        """Where the last finished line ends."""
        end = size
        while end > 0:
            start = max(0, end - _TAIL)
            newline = os.pread(self._file, end - start, start).rfind(b"\n")
            if newline >= 0:
                return start + newline + 1
            end = start
        return 0


class LineReader:
    """Reads the JSON lines of a file, `(offset, object)` each; `number` is that of the line read last, from 1.

    A last line without an end is passed over, and `torn` says how many bytes it has; any other line that is not a JSON
    object raises `ProtocolError` with its number.
    """

    def __init__(self, path: str | Path) -> None:
        self.path = Path(path)
        self.torn = 0
        self.number = 0

    def __iter__(self) -> Iterator[tuple[int, dict[str, Any]]]:
        offset = 0
        self.torn = 0
        with self.path.open("rb") as file:
            for self.number, line in enumerate(file, start=1):
                if not line.endswith(b"\n"):
                    self.torn = len(line)
                    return
                try:
                    value = json.loads(line)
                except ValueError:
                    raise self.refusal("is not JSON") from None
                except RecursionError:
                    raise self.refusal("is nested too deeply to be read") from None
                if not isinstance(value, dict):
                    raise self.refusal("is not a JSON object")
                yield offset, value
                offset += len(line)

    def refusal(self, why: str) -> ProtocolError:
        """The error that the line read last deserves."""
        return ProtocolError(f"line {self.number} of {str(self.path)!r} {why}")


@contextmanager
def replacing(path: str | Path) -> Generator[BinaryIO]:
    """A file to write that takes the place of `path` at the end of the block; an error or a kill leaves what was there.

    Raises `ConfigurationError` where nothing can be written.
    """
    path = Path(path)
    partial = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        file = os.fdopen(os.open(partial, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "wb")
    except OSError as error:
        raise ConfigurationError(f"{str(path)!r} cannot be written: {error.strerror}") from error
    try:
        with file:
            yield file
        partial.replace(path)
    except BaseException as error:
        partial.unlink(missing_ok=True)
        if isinstance(error, OSError) and error.filename in (None, str(partial)):
            raise ConfigurationError(f"{str(path)!r} cannot be written: {error.strerror}") from error
        raise
