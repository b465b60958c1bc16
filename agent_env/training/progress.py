"""A progress bar for rollouts: episodes a second, failures, and the mean reward of late."""

from __future__ import annotations

from collections import deque
from collections.abc import Generator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING

from agent_env.episodes import Episode

if TYPE_CHECKING:
    from rich.progress import Progress, TaskID

_WINDOW = 512


class RolloutProgress:
    """Counts episodes and shows them."""

    def __init__(self, progress: Progress, task: TaskID) -> None:
        self._progress = progress
        self._task = task
        self._late: deque[float] = deque(maxlen=_WINDOW)
        self.played = 0
        self.failed = 0

    def describe(self, text: str) -> None:
        """Says what is being played now."""
        self._late.clear()
        self._progress.update(self._task, description=text)

    def played_one(self, episode: Episode) -> None:
        """Counts an episode that was played; what `rollout` takes as `on_episode`."""
        self.played += 1
        self.failed += not episode.ok
        self._progress.update(self._task, advance=1, failed=self.failed)

    def scored(self, episodes: Sequence[Episode]) -> None:
        """Takes the rewards of episodes into the mean."""
        self._late.extend(reward for reward in (episode.reward() for episode in episodes) if reward is not None)
        mean = f"{sum(self._late) / len(self._late):.2f}" if self._late else "—"
        self._progress.update(self._task, reward=mean)


@contextmanager
def rollout_progress(total: int, *, visible: bool = True) -> Generator[RolloutProgress, None, None]:
    """Shows a bar for `total` episodes while the block runs."""
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
        TimeRemainingColumn(),
        disable=not visible,
        refresh_per_second=4,
        speed_estimate_period=10,
        expand=True,
    ) as progress:
        yield RolloutProgress(progress, progress.add_task("", total=total, reward="—", failed=0))
