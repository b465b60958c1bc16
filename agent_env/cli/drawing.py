"""Curves in the terminal, in dots of Braille: two by four to a character."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from rich.text import Text

COLOURS = ("cyan", "magenta", "green", "yellow", "blue", "red", "white")

_DOTS = ((0x01, 0x08), (0x02, 0x10), (0x04, 0x20), (0x40, 0x80))
"""The bits of a Braille pattern by row and column (Unicode 15, block U+2800)."""

_BLANK = 0x2800


def draw(series: Mapping[str, Sequence[tuple[float, float]]], *, width: int, height: int) -> Text:
    """Draws a line for each series of points (x, y), in colours, with its axes and a legend.

    Lines that cross share a character and have the colour of the later one. Raises `ValueError` without any point.
    """
    points = [point for line in series.values() for point in line]
    lowest, highest = _range([y for _, y in points])
    first, last = min(x for x, _ in points), max(x for x, _ in points)
    labels = [f"{highest:.2f}", f"{(lowest + highest) / 2:.2f}", f"{lowest:.2f}"]
    margin = max(map(len, labels))
    columns = max(10, width - margin - 2)
    canvas = [[_BLANK] * columns for _ in range(height)]
    colours = [[""] * columns for _ in range(height)]

    def place(x: float, y: float) -> tuple[int, int]:
        across = (x - first) / (last - first) if last > first else 0.0
        up = (y - lowest) / (highest - lowest)
        return round(across * (2 * columns - 1)), round((1 - up) * (4 * height - 1))

    for colour, line in zip(_cycled(len(series)), series.values(), strict=True):
        places = [place(x, y) for x, y in line]
        for begin, end in zip(places, places[1:] or places, strict=False):
            for column, row in _between(begin, end):
                canvas[row // 4][column // 2] |= _DOTS[row % 4][column % 2]
                colours[row // 4][column // 2] = colour
    drawn = Text()
    for number, (dots, tints) in enumerate(zip(canvas, colours, strict=True)):
        label = {0: labels[0], (height - 1) // 2: labels[1], height - 1: labels[2]}.get(number, "")
        drawn.append(f"{label:>{margin}} ┤" if label else " " * margin + " │", "dim")
        for dot, tint in zip(dots, tints, strict=True):
            drawn.append(chr(dot) if dot != _BLANK else " ", tint)
        drawn.append("\n")
    ends = f"{first:g}", f"{last:g}"
    drawn.append(" " * margin + " └" + "─" * columns + "\n", "dim")
    drawn.append(" " * (margin + 2) + ends[0] + ends[1].rjust(columns - len(ends[0])) + "\n", "dim")
    for colour, (name, line) in zip(_cycled(len(series)), series.items(), strict=True):
        drawn.append("  ● ", colour).append(f"{name} {line[-1][1]:.3f}" if line else name)
    return drawn


def _range(values: Sequence[float]) -> tuple[float, float]:
    lowest, highest = min(values), max(values)
    if lowest == highest:
        return lowest - 0.5, highest + 0.5
    return lowest, highest


def _between(begin: tuple[int, int], end: tuple[int, int]) -> list[tuple[int, int]]:
    """The dots from one to another, without gaps."""
    steps = max(abs(end[0] - begin[0]), abs(end[1] - begin[1]), 1)
    return [
        (begin[0] + round((end[0] - begin[0]) * step / steps), begin[1] + round((end[1] - begin[1]) * step / steps))
        for step in range(steps + 1)
    ]


def _cycled(count: int) -> list[str]:
    return [COLOURS[index % len(COLOURS)] for index in range(count)]
