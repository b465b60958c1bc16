"""A progress bar for rollouts: episodes a second, failures, and the mean reward of late, seat by seat."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Generator
from contextlib import contextmanager
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
        self._late: deque[dict[str, float]] = deque(maxlen=_WINDOW)
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
            self._late.append(rewards_by_seat(episode))
        self._show()

    def skip(self, episodes: int) -> None:
        """Counts episodes that an earlier start played."""
        if episodes:
            self.skipped += episodes
            self._show()

    def rewards(self) -> dict[str, float]:
        """The mean reward of late by seat, and under "team" of what counts for the whole team."""
        sums: dict[str, tuple[float, int]] = {}
        for rewards in self._late:
            for seat, value in rewards.items():
                total, count = sums.get(seat, (0.0, 0))
                sums[seat] = total + value, count + 1
        return {seat: total / count for seat, (total, count) in sums.items()}

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


def rewards_by_seat(episode: Episode) -> dict[str, float]:
    """What each seat that has a reward of its own earned (the team's included), or under "team" what the team earned."""
    seats = {str(reward.target_id) for reward in episode.rewards if reward.target == "seat"}
    if not seats:
        team = episode.reward()
        return {} if team is None else {TEAM: team}
    return {seat: value for seat in sorted(seats) if (value := episode.reward(seat)) is not None}


@contextmanager
def rollout_progress(total: int | None, *, visible: bool = True) -> Generator[RolloutProgress, None, None]:
    """Shows a bar for `total` episodes (None where nobody knows) while the block runs."""
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, ProgressColumn, TextColumn, TimeRemainingColumn
    from rich.progress import Task as Bar
    from rich.text import Text

    class Rate(ProgressColumn):
        def render(self, task: Bar) -> Text:
            speed = task.finished_speed or task.speed
            return Text("" if speed is None else f"{speed:.0f}/s", style="cyan")

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
