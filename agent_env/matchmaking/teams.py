"""Filling the seats of a team at once."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from agent_env.errors import MatchError
from agent_env.matchmaking.assignment import Shortage, assign
from agent_env.matchmaking.report import Pairing, PairingReport, Team


def seated(reports: Mapping[str, PairingReport], optional: frozenset[str], allow_reuse: bool) -> Team:
    """Chooses one candidate a seat, each at most as often as it has places, so that the sum of ranks is best.

    A seat never takes a candidate below its first `len(reports)`: one of those is free whatever the others take.
    Raises `MatchError` naming a seat that nobody fits, or the seats that compete.
    """
    for seat, report in reports.items():
        if report.best is None and seat not in optional:
            report.require()
    seats = list(reports)
    places = _places(reports, allow_reuse)
    columns: list[str | None] = [ref for ref, count in places.items() for _ in range(count)]
    firsts = {ref: columns.index(ref) for ref in places}
    rows: list[dict[int, int]] = []
    weights = weights_of(reports)
    for seat in seats:
        row: dict[int, int] = {}
        for explanation, cost in zip(reports[seat].ranked, weights[seat], strict=True):
            first = firsts[explanation.ref]
            row |= dict.fromkeys(range(first, first + places[explanation.ref]), cost)
        if seat in optional:
            # A place of its own where nobody sits; it costs more than all seats together could.
            row[len(columns)] = _empty(weights)
            columns.append(None)
        rows.append(row)
    found = assign(rows, len(columns))
    if isinstance(found, Shortage):
        raise _competition([seats[row] for row in found.rows], reports)
    chosen = {seat: columns[column] for seat, column in zip(seats, found, strict=True)}
    return Team({seat: _pairing(seat, ref, reports[seat]) for seat, ref in chosen.items()}, reports)


def weights_of(reports: Mapping[str, PairingReport]) -> dict[str, list[int]]:
    """What each ranked candidate costs in each seat: its rank, written as one number.

    Each part of the rank is a digit, wide enough for a sum over all seats, so comparing sums of costs is comparing
    the parts' sums one after the other. The place of its name among all is the last digit, and breaks ties.
    """
    names = sorted({explanation.ref for report in reports.values() for explanation in report.ranked})
    places = {name: place for place, name in enumerate(names)}
    ranks = {
        seat: [(*explanation.order, places[explanation.ref]) for explanation in report.ranked]
        for seat, report in reports.items()
    }
    parts = list(zip(*(rank for found in ranks.values() for rank in found), strict=True))
    digits = [(min(part), len(reports) * (max(part) - min(part)) + 1) for part in parts]

    def cost(rank: tuple[int, ...]) -> int:
        found = 0
        for value, (least, base) in zip(rank, digits, strict=True):
            found = found * base + value - least
        return found

    return {seat: [cost(rank) for rank in found] for seat, found in ranks.items()}


def _empty(weights: Mapping[str, Sequence[int]]) -> int:
    return 1 + sum(max(costs, default=0) for costs in weights.values())


def _places(reports: Mapping[str, PairingReport], allow_reuse: bool) -> dict[str, int]:
    places: dict[str, int] = {}
    for report in reports.values():
        for explanation in report.ranked:
            free = explanation.candidate.free
            most = len(reports) if free is None else min(free, len(reports))
            places[explanation.ref] = max(1, most) if allow_reuse else 1
    return places


def _pairing(seat: str, ref: str | None, report: PairingReport) -> Pairing | None:
    if ref is None:
        return None
    explanation = next(explanation for explanation in report.ranked if explanation.ref == ref)
    return Pairing(seat, explanation, report.fitting, report.considered)


def _competition(seats: Sequence[str], reports: Mapping[str, PairingReport]) -> MatchError:
    refs = sorted({explanation.ref for seat in seats for explanation in reports[seat].ranked})
    named = ", ".join(map(repr, seats[:-1])) + f" and {seats[-1]!r}"
    shared = "nobody" if not refs else f"only {', '.join(refs)}"
    return MatchError(
        f"the seats {named} compete: {len(seats)} seats have {shared} between them; serve another agent that fits one "
        f"of them, make a seat optional, or allow_reuse",
        seats=list(seats),
        candidates=refs,
    )
