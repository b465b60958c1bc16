"""Seats to candidates at the least total cost, and why there may be no way.

The Hungarian method with potentials (Kuhn 1955; Jonker and Volgenant 1987) in exact integers: costs that encode
tuples of ranks are larger than a float can hold.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Shortage:
    """Rows that together have fewer columns than they are (P. Hall's condition, 1935)."""

    rows: tuple[int, ...]
    columns: tuple[int, ...]


def assign(costs: Sequence[Mapping[int, int]], columns: int) -> list[int] | Shortage:
    """Gives each row a column of its own so that the sum of the costs is least.

    `costs[row]` maps the columns that the row may have to their costs, whole numbers from 0; all others are
    forbidden. Returns each row's column, or a set of rows that have one column too few between them.
    """
    row_potential = [0] * (len(costs) + 1)
    column_potential = [0] * (columns + 1)
    row_of = [0] * (columns + 1)  # the row that has a column; rows and columns count from 1, 0 is nobody
    for row in range(1, len(costs) + 1):
        row_of[0] = row
        at = 0
        slack: list[int | None] = [None] * (columns + 1)
        before = [0] * (columns + 1)
        visited = [False] * (columns + 1)
        while True:
            visited[at] = True
            current, allowed = row_of[at], costs[row_of[at] - 1]
            delta: int | None = None
            nearest = 0
            for column in range(1, columns + 1):
                if visited[column]:
                    continue
                cost = allowed.get(column - 1)
                if cost is not None:
                    reduced = cost - row_potential[current] - column_potential[column]
                    known = slack[column]
                    if known is None or reduced < known:
                        slack[column], before[column] = reduced, at
                found = slack[column]
                if found is not None and (delta is None or found < delta):
                    delta, nearest = found, column
            if delta is None:
                rows = sorted(row_of[column] - 1 for column in range(columns + 1) if visited[column])
                return Shortage(tuple(rows), tuple(column - 1 for column in range(1, columns + 1) if visited[column]))
            for column in range(columns + 1):
                if visited[column]:
                    row_potential[row_of[column]] += delta
                    column_potential[column] -= delta
                elif slack[column] is not None:
                    slack[column] -= delta  # type: ignore[operator]
            at = nearest
            if row_of[at] == 0:
                break
        while at:
            row_of[at] = row_of[before[at]]
            at = before[at]
    found_columns = [0] * len(costs)
    for column in range(1, columns + 1):
        if row_of[column]:
            found_columns[row_of[column] - 1] = column - 1
    return found_columns
