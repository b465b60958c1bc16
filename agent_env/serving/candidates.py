"""What the hub offers right now, read again only when it may have changed.

An agent with needs is paired anew in every session, hundreds of times a second in training. A hub in a file tells by
the file itself whether anything was written to it; a served hub is asked at most once a second.
"""

from __future__ import annotations

import os
import time
from collections.abc import Sequence
from typing import TypeAlias

from agent_env.hub import Entry, Hub
from agent_env.net import PerLoop

Mark: TypeAlias = tuple[object, ...]

ASK_SECONDS = 1.0
"""How long the list of a hub that is not a file is believed."""


class Snapshot:
    """The entries of a hub, and the mark that they were read at."""

    def __init__(self, hub: Hub) -> None:
        self._hub = hub
        self._mark: Mark | None = None
        self.entries: Sequence[Entry] = ()
        self.reads = 0

    async def read(self) -> Sequence[Entry]:
        """The entries as they are now."""
        mark = _mark(self._hub)
        if mark != self._mark:
            # The mark is from before the read: what is written meanwhile is read again next time.
            self.entries = await self._hub.list()
            self._mark = mark
            self.reads += 1
        return self.entries

    async def aclose(self) -> None:
        """Forgets what was read; the hub belongs to whoever opened it."""
        self._mark = None


def _mark(hub: Hub) -> Mark:
    file = hub.location.file
    # Liveness changes without a write: a lease that is not renewed lapses.
    moment = int(time.monotonic() / ASK_SECONDS)
    if file is None:
        return (moment,)
    marks: list[object] = [moment]
    for path in (file, file.with_name(file.name + "-wal")):
        try:
            status = os.stat(path)
        except FileNotFoundError:
            marks.append(None)
        else:
            marks.append((status.st_mtime_ns, status.st_size))
    return tuple(marks)


_snapshots: PerLoop[Hub, Snapshot] = PerLoop(Snapshot, Snapshot.aclose)


def snapshot(hub: Hub) -> Snapshot:
    """The one snapshot of a hub in this process and event loop."""
    return _snapshots.get(hub)
