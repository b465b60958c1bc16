"""The answer to a comparison of two schemas."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any, Final, Literal, TypeAlias

Answer: TypeAlias = Literal["yes", "no", "unknown"]


class _NoWitness:
    def __repr__(self) -> str:
        return "NO_WITNESS"


NO_WITNESS: Final = _NoWitness()
"""What a verdict without a counter-example holds as its witness, since None is a value."""


@dataclass(frozen=True, slots=True)
class Verdict:
    """The answer to "is every value of the left schema a value of the right one?".

    | answer | meaning |
    |---|---|
    | `yes` | proven |
    | `no` | refuted: `witness` satisfies the left schema and not the right one |
    | `unknown` | neither: a keyword is beyond what is decided here, or its meaning is the validator's (`format`) |

    `pointer` is the JSON Pointer (RFC 6901) of the place inside the value where it breaks; `why` says what breaks.
    """

    answer: Answer
    pointer: str = ""
    why: str = ""
    witness: Any = NO_WITNESS

    def __bool__(self) -> bool:
        raise TypeError("a verdict has three answers; compare `.answer` with 'yes', 'no' or 'unknown'")

    def __str__(self) -> str:
        place = f" at {self.pointer}" if self.pointer else ""
        shown = "" if self.witness is NO_WITNESS else f" (for example {_short(self.witness)})"
        return f"{self.answer}{place}: {self.why}{shown}" if self.why else self.answer

    def to_json(self) -> dict[str, Any]:
        """The verdict as JSON; `witness` is absent where there is none."""
        found = {"answer": self.answer, "pointer": self.pointer, "why": self.why}
        return {name: value for name, value in found.items() if value} | (
            {} if self.witness is NO_WITNESS else {"witness": self.witness}
        )


def _short(value: Any) -> str:
    text = repr(value) if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
    return text if len(text) <= 80 else text[:77] + "…"
