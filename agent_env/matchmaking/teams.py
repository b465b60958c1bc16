"""Filling the seats of a team at once."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from agent_env.errors import MatchError
from agent_env.matchmaking.assignment import Shortage, assign
from agent_env.matchmaking.report import Pairing, PairingReport, Team


def seated(reports: Mapping[str, PairingReport], optional: frozenset[str], allow_reuse: bool) -> Team:
    """Chooses one candidate a seat, each at most as often as it has places, so that the sum of ranks is least.

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
    """What each ranked candidate costs in each seat: its ranks, written as one number.

    A rank counts the better values that any seat's candidates have in a part of the order. Digits are wide enough
    for a sum over all seats, so comparing sums is comparing the tuples of summed ranks.
    """
    tuples = {seat: [explanation.order for explanation in report.ranked] for seat, report in reports.items()}
    everything = [order for orders in tuples.values() for order in orders]
    ranks = [
        {value: rank for rank, value in enumerate(sorted({order[part] for order in everything}))}
        for part in range(len(everything[0]) if everything else 0)
    ]
    bases = [len(reports) * len(ranking) + 1 for ranking in ranks]
    found: dict[str, list[int]] = {}
    for seat, orders in tuples.items():
        found[seat] = []
        for order in orders:
            cost = 0
            for part, value in enumerate(order):
                cost = cost * bases[part] + ranks[part][value]
            found[seat].append(cost)
    return found


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
