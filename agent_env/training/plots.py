"""Learning curves as pictures."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from agent_env.errors import ConfigurationError


def plot_curves(
    path: str | Path,
    curves: Mapping[str, Sequence[Sequence[float]]],
    *,
    title: str,
    x_label: str = "update",
    y_label: str = "mean reward",
    levels: Mapping[str, float] | None = None,
    window: int = 5,
    y_range: tuple[float, float] | None = (0, 1.02),
) -> None:
    """Draws one line a name into a PNG: the mean over that name's runs, smoothed over `window` points, with each run
    behind it; `levels` are drawn as horizontal lines. A `y_range` of None is as wide as the curves.

    Raises `ConfigurationError` without matplotlib.
    """
    try:
        from matplotlib.backends.backend_agg import FigureCanvasAgg
        from matplotlib.figure import Figure
        from matplotlib.ticker import MaxNLocator
    except ImportError as error:
        raise ConfigurationError("drawing curves needs matplotlib: pip install 'agent-env[train]'") from error
    figure = Figure(figsize=(8, 4.5), dpi=120, layout="constrained")
    FigureCanvasAgg(figure)
    axes = figure.add_subplot()
    for name, runs in curves.items():
        shortest = min(map(len, runs), default=0)
        if not shortest:
            continue
        mean = smoothed([sum(run[at] for run in runs) / len(runs) for at in range(shortest)], window)
        (line,) = axes.plot(range(1, shortest + 1), mean, label=name, linewidth=2)
        for run in runs if len(runs) > 1 else ():
            axes.plot(range(1, len(run) + 1), smoothed(run, window), color=line.get_color(), alpha=0.3, linewidth=0.8)
    for name, level in (levels or {}).items():
        axes.axhline(level, color="gray", linestyle=":", linewidth=1)
        axes.annotate(name, (1.0, level), xycoords=("axes fraction", "data"), ha="right", va="bottom", color="gray")
    shown = y_label if window == 1 else f"{y_label} (over {window} points)"
    axes.set(title=title, xlabel=x_label, ylabel=shown, ylim=y_range)
    axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    axes.grid(alpha=0.2)
    axes.legend(loc="upper left", frameon=False)
    Path(path).parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path)


def smoothed(values: Sequence[float], window: int) -> list[float]:
    """The mean of each value and up to `window - 1` before it."""
    return [
        sum(values[max(0, at - window + 1) : at + 1]) / (at + 1 - max(0, at - window + 1)) for at in range(len(values))
    ]
