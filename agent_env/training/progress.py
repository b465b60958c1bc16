"""A progress bar for rollouts: episodes a second, failures, and the mean reward of late."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
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
