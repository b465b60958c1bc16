"""A schema taken apart: a value satisfies it exactly if it satisfies each of its parts.

Schemas of many tools differ in how they combine properties, and much less in the properties. So what is known of a
part is known of every schema that has it, and a comparison with a schema is mostly looking up its parts.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from agent_env_cards.compatibility.alternatives import Piece
from agent_env_cards.compatibility.dialect import Document, Pool
from agent_env_cards.compatibility.values import key

MAX_PARTS = 32
MAX_LENGTH = 4_000
_OUTSIDE = frozenset(("properties", "required", "$defs"))
# What a reference or `unevaluatedProperties` says depends on all that stands beside it.
_WHOLE = frozenset(("$ref", "unevaluatedProperties"))


def parts_of(document: Document, pool: Pool) -> Mapping[str, Document]:
    """The parts of a schema by texts that mean the same in every document; none where it is one whole.

    The parts are each property, each required name, and all other keywords together. A schema that is large, in the
    number of its parts or in one of them, is not taken apart.
    """
    root = document.root
    if not isinstance(root, dict) or not document.closed or root.keys() & _WHOLE:
        return {}
    if any(target is root for target in document.targets.values()):
        return {}
    found: dict[str, Document] = {}
    for part in _taken_apart(root):
        text = key(part)
        if '"$ref"' in text and "$defs" in root:
            part["$defs"] = root["$defs"]
            text += document.definitions
        if len(text) > MAX_LENGTH or len(found) == MAX_PARTS:
            return {}
        found[text] = pool.parts.setdefault(text, Document(part, document.targets))
    return found if len(found) > 1 else {}


def _taken_apart(root: Piece) -> Iterator[Piece]:
    rest = {keyword: value for keyword, value in root.items() if keyword not in _OUTSIDE}
    properties = root.get("properties", {})
    if "additionalProperties" in root:
        # It speaks of the properties that are not named.
        rest["properties"] = dict.fromkeys(properties, True)
    if rest:
        yield rest
    for name in root.get("required", ()):
        yield {"required": [name]}
    for name, schema in properties.items():
        yield {"properties": {name: schema}}
