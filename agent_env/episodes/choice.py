"""Which episodes of many are meant."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable
from typing import Any, TypedDict

from agent_env.episodes.episode import Episode


class Choice(TypedDict, total=False):
    """What episodes can be chosen by; what is left out or None chooses all.

    `seat` chooses the episodes in which that seat played. `limit` is how many at most, `newest_first` turns the order
    of arrival round: together they give the latest.
    """

    run: str | None
    group: str | None
    ok: bool | None
    seat: str | None
    limit: int | None
    newest_first: bool


def condition(choice: Choice) -> tuple[str, list[Any]]:
    """The choice as the `WHERE` clause of a query, "" for all, and its values."""
    seat = choice.get("seat")
    terms: list[str] = []
    values: list[Any] = []
    for term, value in (
        ("run = ?", choice.get("run")),
        ('"group" = ?', choice.get("group")),
        ("ok = ?", choice.get("ok")),
        ("instr(seats, ?)", None if seat is None else seats_column([seat])),
    ):
        if value is not None:
            terms.append(term)
            values.append(value)
    return (" WHERE " + " AND ".join(terms) if terms else ""), values


def seats_column(seats: Iterable[str]) -> str:
    """Seats as one text, in which that of one of them is found and no other: a comma before a bare quote begins one."""
    return "," + "".join(f"{json.dumps(seat)}," for seat in seats)


def chosen_by(choice: Choice) -> Callable[[Episode], bool]:
    """The choice as a test of an episode; `limit` and `newest_first` are for whoever asks."""
    run, group, ok, seat = choice.get("run"), choice.get("group"), choice.get("ok"), choice.get("seat")

    def chosen(episode: Episode) -> bool:
        return (
            (run is None or episode.run == run)
            and (group is None or episode.group == group)
            and (ok is None or episode.ok == ok)
            and (seat is None or seat in episode.seats())
        )

    return chosen
