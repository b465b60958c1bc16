"""A progress bar for rollouts: episodes a second, failures, and the mean reward of late, seat by seat."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Generator, Iterable
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING

from agent_env.episodes import Episode
from agent_env.training.scenario import TEAM

if TYPE_CHECKING:
    from rich.progress import Progress, TaskID

_WINDOW = 512
"""How many episodes the mean reward is of."""

_SECONDS = 0.2
"""How often the bar is brought up to date: drawing it for every episode would cost more than playing a short one."""


class RolloutProgress:
    """Counts episodes and shows them; what `rollout` takes as `progress`."""

    def __init__(self, progress: Progress, bar: TaskID) -> None:
        self._progress = progress
        self._bar = bar
        self._late: deque[Earned] = deque(maxlen=_WINDOW)
        self._shown = 0.0
        self.played = 0
        self.failed = 0
        self.skipped = 0

    def describe(self, text: str) -> None:
        """Says what is being played now; the mean reward begins anew."""
        self._late.clear()
        self._progress.update(self._bar, description=text)

    def add(self, episode: Episode, *, fresh: bool = True) -> None:
        """Counts an episode that was played and scored, now or (not `fresh`) by an earlier start."""
        self.played += fresh
        self.skipped += not fresh
        self.failed += not episode.ok
        if episode.rewards:
            self._late.append(Earned.of(episode))
        self._show()

    def skip(self, episodes: int) -> None:
        """Counts episodes that an earlier start played."""
        if episodes:
            self.skipped += episodes
            self._show()

    def rewards(self) -> dict[str, float]:
        """The mean reward of late of each seat, or under "team" that of the team; see `mean_earned`."""
        return mean_earned(self._late)

    def flush(self) -> None:
        """Brings the bar up to date."""
        means = self.rewards()
        before = f"{self.skipped} played before" if self.skipped else ""
        told = " ".join(f"{seat} {mean:.2f}" for seat, mean in means.items())
        completed = self.played + self.skipped
        self._progress.update(self._bar, completed=completed, failed=self.failed, reward=told or "—", before=before)

    def _show(self) -> None:
        now = time.monotonic()
        if now - self._shown > _SECONDS:
            self._shown = now
            self.flush()


@dataclass(frozen=True, slots=True)
class Earned:
    """What an episode was worth: to the team, and (the team's part included) to each seat that played or was scored;
    `apart` where a seat was scored by itself."""

    team: float | None
    seats: dict[str, float]
    apart: bool

    @classmethod
    def of(cls, episode: Episode) -> Earned:
        """Sums the rewards of an episode up."""
        scored = {str(reward.target_id) for reward in episode.rewards if reward.target == "seat"}
        earned = {seat: episode.reward(seat) for seat in sorted(scored.union(episode.seats()))}
        seats = {seat: value for seat, value in earned.items() if value is not None}
        return cls(episode.reward(), seats, bool(scored))


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
    return {seat: sum(values) / len(values) for seat, values in sorted(earned.items())}


def rate(speed: float | None) -> str:
    """How fast episodes are played: "12/s", or below one a second how long each takes, "8.0 s each"."""
    if not speed:
        return ""
    return f"{speed:.0f}/s" if speed >= 1 else f"{1 / speed:.1f} s each"


@contextmanager
def rollout_progress(total: int | None, *, visible: bool = True) -> Generator[RolloutProgress, None, None]:
    """Shows a bar for `total` episodes (None where nobody knows) while the block runs."""
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, ProgressColumn, TextColumn, TimeRemainingColumn
    from rich.progress import Task as Bar
    from rich.text import Text

    class Rate(ProgressColumn):
        def render(self, task: Bar) -> Text:
            return Text(rate(task.finished_speed or task.speed), style="cyan")

    with Progress(
        TextColumn("{task.description}"),
        BarColumn(bar_width=None),
        MofNCompleteColumn(),
        Rate(),
        TextColumn("reward {task.fields[reward]}"),
        TextColumn("failed {task.fields[failed]}"),
        TextColumn("{task.fields[before]}", style="yellow"),
        TimeRemainingColumn(),
        disable=not visible,
        refresh_per_second=4,
        speed_estimate_period=10,
        expand=True,
    ) as progress:
        shown = RolloutProgress(progress, progress.add_task("", total=total, reward="—", failed=0, before=""))
        try:
            yield shown
        finally:
            shown.flush()
