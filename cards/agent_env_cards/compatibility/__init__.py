"""Does everything that one side sends fit what the other side takes? Subsumption of JSON Schemas, in three values.

>>> from agent_env_cards.compatibility import is_subschema
>>> print(is_subschema({"type": "integer"}, {"type": "number"}))
yes
>>> print(is_subschema({"type": "string"}, {"type": ["string", "null"], "minLength": 1}))
no: a text shorter than 1 may come (for example '')
>>> verdict = is_subschema({"type": "object", "properties": {"n": {"type": "number"}}},
...                        {"type": "object", "properties": {"n": {"type": "integer"}}})
>>> verdict.answer, verdict.pointer, verdict.witness
('no', '/n', {'n': 0.5})
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from itertools import chain, islice
from typing import Any, Final, Literal

from agent_env_cards.compatibility.alternatives import Space, TooLarge
from agent_env_cards.compatibility.dialect import Document, Malformed, read
from agent_env_cards.compatibility.entailment import Prover
from agent_env_cards.compatibility.values import key

__all__ = ["NO_WITNESS", "Verdict", "is_subschema"]


class _NoWitness:
    def __repr__(self) -> str:
        return "NO_WITNESS"


NO_WITNESS: Final = _NoWitness()
"""What a verdict without a counter-example holds as its witness, since None is a value."""

MAX_TRIED = 60


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

    answer: Literal["yes", "no", "unknown"]
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


def is_subschema(left: Any, right: Any, *, declared_only: bool = False) -> Verdict:
    """Tells whether every value that satisfies the left schema satisfies the right one.

    JSON Schema lets an object have properties that nobody declared, so a right side with a further optional property
    has strictly fewer values. With `declared_only` the left side sends no property that it does not declare, as
    callers and tools do, unless it says `additionalProperties` or names no property at all.

    Schemas are JSON Schema 2020-12 or older, or OpenAPI's; references into their own document are followed, nothing
    is ever fetched. A "yes" is proven and a "no" has a witness that a validator has confirmed; what can be neither
    proven nor refuted, differing formats, and whatever is no schema are "unknown". Never raises for bad schemas.
    """
    documents: list[Document] = []
    for side, schema in (("left", left), ("right", right)):
        try:
            documents.append(read(schema, declared_only=declared_only and side == "left"))
        except Malformed as error:
            return Verdict("unknown", error.pointer, f"the {side} side is not a usable schema: {error}")
    sender, taker = documents
    same = sender.root == taker.root and key(sender.root) == key(taker.root)
    if same and (sender.closed or left == right):
        return Verdict("yes")
    try:
        prover = Prover(Space(*documents))
        failure = prover.subset((sender.root,), taker.root)
        if failure is None:
            return Verdict("yes")
        pointer = "".join("/" + token.replace("~", "~0").replace("/", "~1") for token in failure.path)
        guided, around = failure.values(), prover.near((sender.root,), taker.root)
        for value in chain(islice(guided, MAX_TRIED), islice(around, MAX_TRIED)):
            if sender.holds(value, formats=True) is True and taker.holds(value) is False:
                return Verdict("no", pointer, failure.why, value)
        return Verdict("unknown", pointer, failure.why)
    except (TooLarge, RecursionError):
        return Verdict("unknown", "", "the schemas are too large to compare")


def _short(value: Any) -> str:
    text = repr(value) if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
    return text if len(text) <= 80 else text[:77] + "…"
