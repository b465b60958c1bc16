"""The progress of rollouts: episodes a second, failures, and the mean reward of late, seat by seat; as a bar on a
terminal, and as lines now and then where there is none."""

from __future__ import annotations

import os
import sys
import time
from collections import deque
from collections.abc import Generator, Iterable
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from datetime import timedelta
from threading import Event, Lock, Thread
from typing import TYPE_CHECKING

from agent_env.episodes import Episode
from agent_env.episodes.records import finite
from agent_env.training.averages import mean
from agent_env.training.scenario import TEAM

if TYPE_CHECKING:
    from rich.console import Console

_WINDOW = 512
"""How many episodes the mean reward is of."""

_FIRST, _LONGEST = 2.0, 300.0
"""Seconds before the first line, and at most between two: each wait is twice the one before, and none is so long that a
machine that runs tests takes the program for dead."""

_NOT_SHOWN = (OSError, ValueError)
"""What a stream raises that is not written to any more, and one that is closed."""


class RolloutProgress:
    """Counts episodes; what `rollout` takes as `progress`. `total` is how many there are to be, None where nobody knows.

    Threads may read while episodes are counted.
    """

    def __init__(self, total: int | None = None) -> None:
        self.total = total
        self.text = ""
        self.played = 0
        self.failed = 0
        self.skipped = 0
        self._late: deque[Earned] = deque(maxlen=_WINDOW)
        self._kept: list[Earned] = []
        self._lock = Lock()
        self._began = time.monotonic()

    @property
    def done(self) -> int:
        """How many episodes there are by now, those of earlier starts included."""
        return self.played + self.skipped

    def describe(self, text: str, *, keep: bool = False) -> None:
        """Says what is being played now; the mean reward begins anew, or with `keep` is that of what was played until now
        as long as this goes on: where all episodes end at about the same time, as those of an update do."""
        with self._lock:
            self._kept = list(self._late) if keep else []
            self._late.clear()
            self.text = text

    def add(self, episode: Episode, *, fresh: bool = True) -> None:
        """Counts an episode that was played and scored, now or (not `fresh`) by an earlier start."""
        earned = Earned.of(episode) if episode.rewards else None
        with self._lock:
            self.played += fresh
            self.skipped += not fresh
            self.failed += not episode.ok
            if earned is not None:
                self._late.append(earned)

    def skip(self, episodes: int) -> None:
        """Counts episodes that an earlier start played."""
        with self._lock:
            self.skipped += episodes

    def rewards(self) -> dict[str, float]:
        """The mean reward of late of each seat, or under "team" that of the team; see `mean_earned`."""
        with self._lock:
            late = self._kept or list(self._late)
        return mean_earned(late)

    def speed(self) -> float | None:
        """Episodes a second since the beginning, whatever else was done meanwhile; None before the first."""
        seconds = time.monotonic() - self._began
        return self.played / seconds if self.played and seconds > 0 else None

    def left(self) -> str:
        """How long the rest takes at this speed, "0:12:34"; "" where nobody knows, or it is more than can be counted."""
        speed = self.speed()
        if speed is None or self.total is None or self.done >= self.total:
            return ""
        try:
            return str(timedelta(seconds=round((self.total - self.done) / speed)))
        except OverflowError:
            return ""

    def earned(self) -> str:
        """The mean rewards of late as a text, "reward solver 0.53"."""
        told = " ".join(f"{seat} {reward:.2f}" for seat, reward in self.rewards().items())
        return f"reward {told or '—'}"

    def before(self) -> str:
        """How many an earlier start played, as a text; "" for none."""
        return f"{self.skipped} played before" if self.skipped else ""

    def line(self) -> str:
        """All of it in a line, for a log."""
        text = f"{self.text}: " if self.text else ""
        left = self.left()
        parts = (
            f"{text}{self.done}/{'?' if self.total is None else self.total} episodes",
            rate(self.speed()),
            self.earned(),
            f"failed {self.failed}",
            self.before(),
            left and f"{left} left",
        )
        return ", ".join(filter(None, parts))


@dataclass(frozen=True, slots=True)
class Earned:
    """What an episode was worth: to the team, and (the team's part included) to each seat that played or was scored;
    `apart` where a seat was scored by itself. A sum that no float holds is left out, as it is of rows."""

    team: float | None
    seats: dict[str, float]
    apart: bool

    @classmethod
    def of(cls, episode: Episode) -> Earned:
        """Sums the rewards of an episode up."""
        scored = {str(reward.target_id) for reward in episode.rewards if reward.target == "seat"}
        earned = {seat: episode.reward(seat) for seat in sorted(scored.union(episode.seats()))}
        seats = {seat: value for seat, value in earned.items() if value is not None and finite(value)}
        team = episode.reward()
        return cls(team if team is not None and finite(team) else None, seats, bool(scored))


def mean_earned(episodes: Iterable[Earned]) -> dict[str, float]:
    """The mean of every seat where any was scored by itself, in whichever episode; else the team's under "team", since
    all seats have that. What has no reward does not count."""
    known = list(episodes)
    apart = any(one.apart for one in known)
    earned: dict[str, list[float]] = {}
    for one in known:
        team = {} if one.team is None else {TEAM: one.team}
        for seat, value in (one.seats if apart else team).items():
            earned.setdefault(seat, []).append(value)
    return {seat: mean(values) for seat, values in sorted(earned.items())}


def rate(speed: float | None) -> str:
    """How fast episodes are played: "12/s", or below one a second how long each takes, "8.0 s each"."""
    if not speed:
        return ""
    return f"{speed:.0f}/s" if speed >= 1 else f"{1 / speed:.1f} s each"


@contextmanager
def rollout_progress(total: int | None, *, visible: bool = True) -> Generator[RolloutProgress, None, None]:
    """Shows how far `total` episodes (None where nobody knows) are while the block runs.

    On a terminal, and in a notebook, that is a bar. Where standard output is neither, as in the log of a CI job, it is
    a line on standard error now and then, at growing intervals, and one at the end. What cannot be shown, as on a
    standard error that is closed or that nobody reads any more, is left out: the block goes on.
    """
    progress = RolloutProgress(total)
    if not visible:
        yield progress
        return
    from rich.console import Console

    console = Console()
    live = console.is_jupyter or (console.is_interactive and console.file.isatty())
    with _bar(progress, console) if live else _lines(progress):
        yield progress


@contextmanager
def _lines(progress: RolloutProgress) -> Generator[None]:
    ended = Event()

    def tell() -> None:
        wait = _FIRST
        while not ended.wait(wait):
            _tell(progress.line())
            wait = min(2 * wait, _LONGEST)

    # A thread, since nothing else runs while an episode takes long or a policy learns.
    thread = Thread(target=tell, name="progress", daemon=True)
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join()
        _tell(progress.line())


def _tell(line: str) -> None:
    if sys.stderr is None:  # pyright: ignore[reportUnnecessaryComparison] - the program was started without one
        return
    stream = sys.__stderr__
    with suppress(*_NOT_SHOWN):
        if stream is None or stream is not sys.stderr:
            print(line, file=sys.stderr, flush=True)
            return
        stream.flush()
        # What cannot be written would stay in the stream's buffer, and when that cannot be flushed at the program's end
        # either, the program has failed.
        os.write(stream.fileno(), f"{line}\n".encode(stream.encoding, "backslashreplace"))


@contextmanager
def _bar(progress: RolloutProgress, console: Console) -> Generator[None]:
    from rich.live import Live
    from rich.progress_bar import ProgressBar
    from rich.table import Table
    from rich.text import Text

    def row() -> Table:
        total = progress.total
        cells = (
            Text(f"{progress.done}/{'?' if total is None else total}", "progress.download"),
            Text(rate(progress.speed()), "cyan"),
            Text(progress.earned()),
            Text(f"failed {progress.failed}"),
            Text(progress.before(), "yellow"),
            Text(progress.left(), "progress.remaining"),
        )
        grid = Table.grid(padding=(0, 1), expand=True)
        grid.add_column(no_wrap=True)
        grid.add_column(ratio=1)
        for _ in cells:
            grid.add_column(no_wrap=True)
        grid.add_row(Text(progress.text), ProgressBar(total, progress.done, pulse=total is None), *cells)
        return grid

    # Whoever draws asks, some times a second: an episode that is counted costs nothing.
    live = Live(console=console, get_renderable=row, refresh_per_second=4)
    with suppress(*_NOT_SHOWN):
        live.start()
    try:
        yield
    finally:
        with suppress(*_NOT_SHOWN):
            live.stop()
