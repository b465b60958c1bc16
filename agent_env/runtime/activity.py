"""When an environment was last in use."""

from __future__ import annotations

import time


class Activity:
    """Counts the verbs that run, and remembers when the last one ended."""

    def __init__(self) -> None:
        self._running = 0
        self._ended = time.monotonic()

    def begin(self) -> None:
        """A verb begins."""
        self._running += 1

    def end(self) -> None:
        """A verb has ended."""
        self._running -= 1
        self._ended = time.monotonic()

    @property
    def idle_seconds(self) -> float:
        """Seconds since the last verb ended, or since the start; 0 while one runs."""
        return 0.0 if self._running else time.monotonic() - self._ended
