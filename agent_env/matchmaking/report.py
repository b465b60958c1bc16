"""What a match says of itself: data for programs, a line for logs, rows for tables."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

from agent_env.errors import MatchError
from agent_env.matchmaking.candidate import LIVE, Candidate, Liveness
from agent_env.matchmaking.findings import Degree, Finding
from agent_env_cards import Need

Row = tuple[str, ...]

HEADER: Row = ("candidate", "degree", "skills", "wishes", "text", "reachable", "free", "why")


_UNBOUNDED = 1 << 40


def order_of(
    degree: Degree, skills: float, wishes: int, text: float, live: Liveness | None, free: int | None
) -> tuple[int, ...]:
    """The rank of a candidate, the better the lower: a later part counts only where all earlier ones are equal."""
    millionths = (round(skills * 1_000_000), wishes, round(text * 1_000_000))
    return tuple(-part for part in (int(degree), *millionths, LIVE[live], _UNBOUNDED if free is None else free))


@dataclass(frozen=True, slots=True)
class Scores:
    """What orders candidates of one degree, the first difference deciding.

    `skills` is how well the skills asked for are covered, from 0 to 1; `wishes` how many preferences are met, of
    `wished`; `text` the bm25 score of the card's text; `live` and `free` as on the candidate.
    """

    skills: float = 1.0
    wishes: int = 0
    wished: int = 0
    text: float = 0.0
    live: Liveness | None = None
    free: int | None = None

    def to_json(self) -> dict[str, Any]:
        """The scores as JSON."""
        return {
            "skills": round(self.skills, 4),
            "wishes": self.wishes,
            "wished": self.wished,
            "text": round(self.text, 4),
            "live": self.live,
            "free": self.free,
        }


@dataclass(frozen=True, slots=True)
class Explanation:
    """Why one candidate fits a need or does not: what each rule found."""

    need: Need
    candidate: Candidate
    degree: Degree
    findings: tuple[Finding, ...]
    scores: Scores = Scores()

    @property
    def ref(self) -> str:
        """The candidate's reference."""
        return self.candidate.ref

    @property
    def order(self) -> tuple[int, ...]:
        """The rank of the candidate, as `order_of` makes it; candidates of equal rank are ordered by their names."""
        scores = self.scores
        return order_of(self.degree, scores.skills, scores.wishes, scores.text, scores.live, scores.free)

    @property
    def fits(self) -> bool:
        """Whether the candidate may be taken."""
        return self.degree is not Degree.FAIL

    @property
    def failed(self) -> tuple[Finding, ...]:
        """The rules that reject the candidate."""
        return tuple(finding for finding in self.findings if finding.result == "no")

    @property
    def why(self) -> str:
        """The reasons that decided, in a line: what fails, else what is not sure, else what was asked for and found."""
        telling = self.failed or tuple(found for found in self.findings if found.result != "yes" and found.fit)
        if telling:
            return "; ".join(f"{finding.rule}: {finding.why}" for finding in telling)
        asked = (
            {"skills", "tool", "name"} if self.need.requires.version is None else {"skills", "tool", "name", "version"}
        )
        said = [found.why for found in self.findings if found.rule in asked and not found.why.startswith("no ")]
        return "; ".join(said) or "nothing speaks against it"

    @property
    def summary(self) -> str:
        """One line for people."""
        verb = "does not fit" if self.degree is Degree.FAIL else "fits" if self.degree >= Degree.FITS else "may fit"
        return f"{self.ref} {verb} the need {self.need.seat!r} ({self.degree}): {self.why}"

    def row(self) -> Row:
        """The explanation as a row under `HEADER`."""
        scores = self.scores
        return (
            self.ref,
            str(self.degree),
            f"{scores.skills:.2f}",
            f"{scores.wishes}/{scores.wished}",
            f"{scores.text:.2f}",
            scores.live or "?",
            "?" if scores.free is None else str(scores.free),
            self.why,
        )

    def to_json(self) -> dict[str, Any]:
        """The explanation as JSON."""
        return {
            "candidate": self.ref,
            "digest": self.candidate.card.digest(),
            "seat": self.need.seat,
            "degree": str(self.degree),
            "summary": self.summary,
            "rules": [finding.to_json() for finding in self.findings],
            "scores": self.scores.to_json(),
        }


@dataclass(frozen=True)
class PairingReport:
    """The candidates for a need in the order in which they should be taken.

    `ranked` holds the best, explained; `fitting` is how many may be taken, of `considered`. `fell` counts the others
    by the first rule that rejects them, in the order of the rules, and `faults` says what they have in common.
    `nearest` are those that the fewest rules reject.
    """

    need: Need
    considered: int
    fitting: int
    ranked: tuple[Explanation, ...]
    fell: Mapping[str, int]
    faults: Mapping[str, str]
    nearest: tuple[Explanation, ...]
    _rejected: Callable[[], Sequence[Explanation]] = field(repr=False, compare=False)

    @property
    def best(self) -> Explanation | None:
        """The first choice, None if nobody fits."""
        return self.ranked[0] if self.ranked else None

    @cached_property
    def rejected(self) -> Sequence[Explanation]:
        """Every candidate that does not fit, with all rules that reject it."""
        return self._rejected()

    @property
    def summary(self) -> str:
        """One line for people."""
        seat = self.need.seat
        if self.best is not None:
            return (
                f"{self.fitting} of {self.considered} fit the need {seat!r}: {self.best.ref} ({self.best.degree}) first"
            )
        if not self.considered:
            return f"nobody fits the need {seat!r}: there are no candidates"
        fell = ", ".join(f"{count} fell at {rule} ({self.faults[rule]})" for rule, count in self.fell.items())
        return f"0 of {self.considered} fit the need {seat!r}: {fell}{self._almost()}"

    def _almost(self) -> str:
        if not self.nearest:
            return ""
        first = self.nearest[0]
        changes = " and ".join(f"{finding.rule}: {finding.change}" for finding in first.failed)
        more = "" if len(self.nearest) == 1 else f" (and {len(self.nearest) - 1} as near)"
        return f"; nearest is {first.ref}{more}, which would fit after: {changes}"

    def require(self) -> Explanation:
        """The first choice; raises `MatchError` if nobody fits, with who fell where and who came nearest."""
        if self.best is None:
            raise MatchError(
                self.summary,
                seat=self.need.seat,
                fell=dict(self.fell),
                nearest=[explanation.to_json() for explanation in self.nearest],
            )
        return self.best

    def rows(self) -> list[Row]:
        """The ranked candidates, or else the nearest ones, as rows under `HEADER`."""
        return [explanation.row() for explanation in self.ranked or self.nearest]

    def to_json(self) -> dict[str, Any]:
        """The report as JSON; rejected candidates are counted, and the nearest of them explained."""
        return {
            "seat": self.need.seat,
            "summary": self.summary,
            "considered": self.considered,
            "fitting": self.fitting,
            "ranked": [explanation.to_json() for explanation in self.ranked],
            "fell": dict(self.fell),
            "nearest": [explanation.to_json() for explanation in self.nearest],
        }


@dataclass(frozen=True)
class Pairing:
    """Who fills a seat, and why: what goes into the episode."""

    seat: str
    explanation: Explanation
    fitting: int
    considered: int

    @property
    def candidate(self) -> Candidate:
        """Who was chosen."""
        return self.explanation.candidate

    @property
    def degree(self) -> Degree:
        """How well the choice fits."""
        return self.explanation.degree

    @cached_property
    def reasons(self) -> dict[str, Any]:
        """The pairing as JSON."""
        told = self.explanation.to_json()
        return {
            "seat": self.seat,
            "peer": told.pop("candidate"),
            **told,
            "fitting": self.fitting,
            "considered": self.considered,
        }


@dataclass(frozen=True)
class Team:
    """Who fills each seat of a team; an optional seat that stays empty has None."""

    seats: Mapping[str, Pairing | None]
    reports: Mapping[str, PairingReport]

    def __getitem__(self, seat: str) -> Pairing:
        pairing = self.seats[seat]
        if pairing is None:
            raise KeyError(f"the optional seat {seat!r} is empty: {self.reports[seat].summary}")
        return pairing

    @property
    def summary(self) -> str:
        """One line for people."""
        named = (f"{seat}: {pairing.candidate.ref if pairing else 'nobody'}" for seat, pairing in self.seats.items())
        return ", ".join(named)

    def rows(self) -> list[Row]:
        """The seats as rows under `("seat", *HEADER)`."""
        return [
            (seat, *(pairing.explanation.row() if pairing else ("nobody", *[""] * (len(HEADER) - 1))))
            for seat, pairing in self.seats.items()
        ]

    def to_json(self) -> dict[str, Any]:
        """The team as JSON."""
        return {seat: None if pairing is None else pairing.reasons for seat, pairing in self.seats.items()}
