"""Curves in the terminal, in dots of Braille: two by four to a character."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from string import ascii_letters

from rich.text import Text

COLOURS = ("cyan", "magenta", "green", "yellow", "blue", "red", "white")

_DOTS = ((0x01, 0x08), (0x02, 0x10), (0x04, 0x20), (0x40, 0x80))
"""The bits of a Braille pattern by row and column (Unicode 15, block U+2800)."""

_BLANK = 0x2800


def draw(
    series: Mapping[str, Sequence[tuple[float, float]]], *, width: int, height: int, coloured: bool = True
) -> Text:
    """Draws a line for each series of points (x, y), in colours, with its axes and a legend.

    Lines that cross share a character and have the colour of the later one. Where there are no colours (not `coloured`),
    each of several lines has a letter of its own in place of dots, and lines that go together take turns. Raises
    `ValueError` without any point.
    """
    lettered = not coloured and len(series) > 1
    points = [point for line in series.values() for point in line]
    lowest, highest = _range([y for _, y in points])
    first, last = min(x for x, _ in points), max(x for x, _ in points)
    labels = [f"{highest:.2f}", f"{(lowest + highest) / 2:.2f}", f"{lowest:.2f}"]
    margin = max(map(len, labels))
    columns = max(10, width - margin - 2)
    canvas = [[_BLANK] * columns for _ in range(height)]
    owners: list[list[list[int]]] = [[[] for _ in range(columns)] for _ in range(height)]

    def place(x: float, y: float) -> tuple[int, int]:
        across = (x - first) / (last - first) if last > first else 0.0
        up = (y - lowest) / (highest - lowest)
        return round(across * (2 * columns - 1)), round((1 - up) * (4 * height - 1))

    for number, line in enumerate(series.values()):
        places = [place(x, y) for x, y in line]
        for begin, end in zip(places, places[1:] or places, strict=False):
            for column, row in _between(begin, end):
                canvas[row // 4][column // 2] |= _DOTS[row % 4][column % 2]
                if number not in owners[row // 4][column // 2][-1:]:
                    owners[row // 4][column // 2].append(number)
    drawn = Text()
    for number, (dots, owned) in enumerate(zip(canvas, owners, strict=True)):
        label = {0: labels[0], (height - 1) // 2: labels[1], height - 1: labels[2]}.get(number, "")
        drawn.append(f"{label:>{margin}} ┤" if label else " " * margin + " │", "dim")
        for column, (dot, lines) in enumerate(zip(dots, owned, strict=True)):
            if not lines:
                drawn.append(" ")
            elif lettered:
                drawn.append(_mark(lines[column % len(lines)]))
            else:
                drawn.append(chr(dot), COLOURS[lines[-1] % len(COLOURS)])
        drawn.append("\n")
    ends = f"{first:g}", f"{last:g}"
    drawn.append(" " * margin + " └" + "─" * columns + "\n", "dim")
    drawn.append(" " * (margin + 2) + ends[0] + ends[1].rjust(columns - len(ends[0])) + "\n", "dim")
    for number, (name, line) in enumerate(series.items()):
        mark = _mark(number) if lettered else "●"
        drawn.append(f"  {mark} ", COLOURS[number % len(COLOURS)]).append(f"{name} {line[-1][1]:.3f}" if line else name)
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


def _mark(number: int) -> str:
    return ascii_letters[number % len(ascii_letters)]
