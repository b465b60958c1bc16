"""What is wrong with a card: problems with a place and a clause, and the error that carries all of them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Problem:
    """One thing that is wrong.

    `pointer` is a JSON Pointer (RFC 6901) into the card, empty for the card itself; `clause` is the id of the clause
    of the Environment Card protocol that is broken, such as "EC-10".
    """

    pointer: str
    message: str
    clause: str

    def __str__(self) -> str:
        return f"{self.pointer or '(card)'}: {self.message} [{self.clause}]"

    def to_dict(self) -> dict[str, str]:
        """The problem as JSON."""
        return {"pointer": self.pointer, "message": self.message, "clause": self.clause}


class CardError(ValueError):
    """A card, a reference or a signature is refused; `problems` has every reason at once.

    Example:
        >>> from agent_env_cards import CardError, EnvironmentCard
        >>> try:
        ...     EnvironmentCard.parse({"name": 5, "needs": "solver"})
        ... except CardError as error:
        ...     for problem in error.problems:
        ...         print(problem.pointer, problem.clause)
        /name EC-03
        /needs EC-03
    """

    def __init__(self, message: str, problems: Sequence[Problem] = ()) -> None:
        super().__init__(message)
        self.message = message
        self.problems = tuple(problems)

    def __reduce__(self) -> tuple[type[CardError], tuple[str, tuple[Problem, ...]]]:
        return type(self), (self.message, self.problems)

    @classmethod
    def listing(cls, what: str, problems: Sequence[Problem]) -> CardError:
        """Makes an error whose message lists all the problems, one a line."""
        count = "1 problem" if len(problems) == 1 else f"{len(problems)} problems"
        return cls("\n".join([f"{what} has {count}:", *(f"  {problem}" for problem in problems)]), problems)
