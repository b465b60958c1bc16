"""What a hub says right now, read again only when it may have changed.

In training an environment is resolved and paired anew in every session, hundreds of times a second. A hub in a file
tells by the file itself whether anything was written to it; any other is believed for a second.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TypeAlias

from agent_env.hub.hub import Hub
from agent_env.hub.records import Entry, Release, Resolution
from agent_env.net import PerLoop
from agent_env_cards import Reference

Mark: TypeAlias = tuple[object, ...]

BELIEVE_SECONDS = 1.0
"""How long an answer is believed when nothing was written: a lease lapses without a write."""


class Snapshot:
    """A hub's entries and resolutions; `reads` counts how often the hub was asked.

    `version` changes only when other releases are listed than before, so that an index of their cards outlives the
    renewals of leases. Releases that stay are the same objects, with their cards already parsed.
    """

    def __init__(self, hub: Hub) -> None:
        self._hub = hub
        self._mark: Mark | None = None
        self._listed: Mark | None = None
        self._entries: Sequence[Entry] = ()
        self._resolutions: dict[Reference, Resolution] = {}
        # Many sessions open at once: one of them asks, the others wait for its answer.
        self._asking = asyncio.Lock()
        self.version = 0
        self.reads = 0

    async def entries(self) -> Sequence[Entry]:
        """See `Hub.list`."""
        if self._look() != self._listed:
            async with self._asking:
                mark = self._look()
                if mark != self._listed:
                    self._take(await self._hub.list())
                    self.reads += 1
                    self._listed = mark
        return self._entries

    async def resolve(self, reference: Reference) -> Resolution:
        """See `Hub.resolve`; an error is never kept."""
        self._look()
        found = self._resolutions.get(reference)
        if found is None:
            async with self._asking:
                mark = self._look()
                found = self._resolutions.get(reference)
                if found is None:
                    found = await self._hub.resolve(reference)
                    self.reads += 1
                    if mark == self._mark:
                        self._resolutions[reference] = found
        return found

    def forget(self) -> None:
        """Drops everything: the caller found that it is no longer true."""
        self._mark = self._listed = None
        self._resolutions = {}

    async def aclose(self) -> None:
        """Drops everything; the hub belongs to whoever opened it."""
        self.forget()

    def _look(self) -> Mark:
        # The mark is taken before the read, so what is written meanwhile is read again the next time.
        mark = _mark(self._hub.location.file)
        if mark != self._mark:
            self._mark = mark
            self._resolutions = {}
        return mark

    def _take(self, entries: Sequence[Entry]) -> None:
        known = {_identity(entry.release): entry.release for entry in self._entries}
        if known.keys() != {_identity(entry.release) for entry in entries}:
            self.version += 1
        self._entries = [
            replace(entry, release=known.get(_identity(entry.release), entry.release)) for entry in entries
        ]


def _identity(release: Release) -> tuple[object, ...]:
    return (release.name, release.version, release.digest, release.sequence)


def _mark(file: Path | None) -> Mark:
    moment = int(time.monotonic() / BELIEVE_SECONDS)
    if file is None:
        return (moment,)
    # A write-ahead log takes the writes first (SQLite, "Write-Ahead Logging").
    return (moment, *(_stamp(path) for path in (file, file.with_name(file.name + "-wal"))))


def _stamp(path: Path) -> tuple[int, int] | None:
    try:
        status = path.stat()
    except FileNotFoundError:
        return None
    return status.st_mtime_ns, status.st_size


_snapshots: PerLoop[Hub, Snapshot] = PerLoop(Snapshot, Snapshot.aclose)


def snapshot(hub: Hub) -> Snapshot:
    """The one snapshot of a hub in this process and event loop."""
    return _snapshots.get(hub)
