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

from typing import Any

from agent_env_cards.compatibility.comparison import Prepared, answer, compare, disjoint
from agent_env_cards.compatibility.dialect import Pool
from agent_env_cards.compatibility.verdict import NO_WITNESS, Answer, Verdict

__all__ = ["NO_WITNESS", "Answer", "Pool", "Prepared", "Verdict", "answer", "compare", "disjoint", "is_subschema"]


def is_subschema(left: Any, right: Any, *, declared_only: bool = False) -> Verdict:
    """Tells whether every value that satisfies the left schema satisfies the right one.

    JSON Schema lets an object have properties that nobody declared, so a right side with a further optional property
    has strictly fewer values. With `declared_only` the left side sends no property that it does not declare, as
    callers and tools do, unless it says `additionalProperties` or names no property at all.

    Schemas are JSON Schema 2020-12 or older, or OpenAPI's; references into their own document are followed, nothing
    is ever fetched. A "yes" is proven and a "no" has a witness that a validator has confirmed; what can be neither
    proven nor refuted, differing formats, and whatever is no schema are "unknown". Never raises for bad schemas.
    """
    return compare(Prepared(left, declared_only=declared_only), Prepared(right))
