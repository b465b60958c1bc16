"""The journal of a run: every record on disk before it is acknowledged, found again by episode."""

from __future__ import annotations

import asyncio
import hashlib
import hmac
import json
from array import array
from collections.abc import Sequence
from pathlib import Path
from tempfile import TemporaryFile
from typing import Any

from agent_env.episodes.lines import LineFile, LineReader
from agent_env.errors import ConfigurationError, Forbidden, TransportError


class Journal:
    """The records of one run in one file of JSON lines.

    Lines that arrive in the same step of the event loop are written together (group commit). Memory holds offsets
    alone; records are read from the file when they are collected. Opening the file of an earlier process finds all
    that was acknowledged; its first line binds it to the run's secret, of which it holds a digest. The file is locked
    while it is open: raises `BlockingIOError` where it is open already, in this process or in another.
    """

    def __init__(self, path: Path, run: str, secret: str) -> None:
        self._spans: dict[str, array[int]] = {}
        self._buffer: list[tuple[str, bytes]] = []
        self._waiters: list[asyncio.Future[None]] = []
        self.path = path
        self.closed = False
        self._file = LineFile(path, alone=True)
        proof = hashlib.sha256(secret.encode()).hexdigest()
        try:
            if self._file.size:
                self._load(run, proof)
            else:
                self._file.append(_line({"kind": "run", "run": run, "secret_sha256": proof}))
        except BaseException:
            self._file.close()
            raise

    def append(self, episode: str, lines: Sequence[bytes]) -> asyncio.Future[None]:
        """Takes lines, each with its end; the future is done once they are safe, or has a `TransportError`."""
        loop = asyncio.get_running_loop()
        waiter: asyncio.Future[None] = loop.create_future()
        if self.closed:
            waiter.set_exception(TransportError(f"the journal {self.path.name!r} is closed and takes no record"))
            return waiter
        if not self._waiters:
            loop.call_soon(self._commit)
        self._waiters.append(waiter)
        self._buffer.extend((episode, line) for line in lines)
        return waiter

    def read(self, episode: str) -> list[bytes]:
        """The lines of an episode in the order of their arrival; empty for one that nobody wrote about."""
        spans = self._spans.get(episode, array("Q"))
        return [self._file.read_at(spans[at], spans[at + 1]) for at in range(0, len(spans), 2)]

    def close(self, *, remove: bool = False) -> None:
        """Writes what is waiting and closes the file, which stays, unless it is to be removed; harmless when it is
        closed."""
        if self.closed:
            return
        self.closed = True
        try:
            self._commit()
            if remove:
                # While it is locked: whoever opened it before this finds that it has no name any more.
                self.path.unlink(missing_ok=True)
        finally:
            self._file.close()

    def _commit(self) -> None:
        buffer, self._buffer = self._buffer, []
        waiters, self._waiters = self._waiters, []
        if not waiters:
            return
        try:
            offset = self._file.append(b"".join([line for _, line in buffer]))
        except OSError as error:
            for waiter in waiters:
                if not waiter.done():
                    waiter.set_exception(TransportError(f"the gateway's journal takes no record: {error.strerror}"))
            return
        for episode, line in buffer:
            self._index(episode, offset, len(line))
            offset += len(line)
        for waiter in waiters:
            if not waiter.done():
                waiter.set_result(None)

    def _index(self, episode: str, offset: int, length: int) -> None:
        spans = self._spans.get(episode)
        if spans is None:
            spans = self._spans[episode] = array("Q")
        spans.append(offset)
        spans.append(length)

    def _load(self, run: str, proof: str) -> None:
        last: tuple[str, int] | None = None
        lines = LineReader(self._file.path)
        for offset, value in lines:
            if offset == 0:
                if not hmac.compare_digest(str(value.get("secret_sha256")), proof):
                    raise Forbidden(f"the run {run!r} was opened with another secret; choose another name")
                continue
            if last is not None:
                self._index(*last, offset - last[1])
            if "episode" not in value:
                raise lines.refusal("is no record of an episode")
            last = str(value["episode"]), offset
        if last is not None:
            self._index(*last, self._file.size - last[1])


def check_writable(directory: Path) -> None:
    """Makes the directory of journals where it is not there, and a file without a name in it; raises
    `ConfigurationError`."""
    try:
        directory.mkdir(parents=True, exist_ok=True)
        with TemporaryFile(dir=directory):
            pass
    except OSError as error:
        raise ConfigurationError(
            f"no journals can be written in {str(directory)!r}: {error.strerror}; name a directory that can be written"
        ) from error


def _line(value: Any) -> bytes:
    return json.dumps(value, separators=(",", ":")).encode() + b"\n"
