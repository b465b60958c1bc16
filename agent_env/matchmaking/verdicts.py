"""Verdicts on pairs of schemas, each reached once."""

from __future__ import annotations

import hashlib
import json
from collections import OrderedDict
from collections.abc import Callable
from typing import Any, TypeAlias, TypeVar

from agent_env_cards.compatibility import Answer, Pool, Prepared, Verdict, answer, compare, disjoint

MAX_KEPT = 50_000

Named: TypeAlias = tuple[str, Any]
"""A schema, after the digest of its meaning."""

T = TypeVar("T")
K = TypeVar("K")


class Verdicts:
    """Compares schemas, and remembers by the digests of their meaning.

    `comparisons` counts the pairs that were worked out, and `proofs` what that took: the parts that schemas have in
    common are proven once.
    The side that speaks (a caller's arguments, a tool's result) sends only properties that it declares.
    """

    def __init__(self) -> None:
        self.comparisons = self.proofs = 0
        self._pool = Pool()
        self._names: OrderedDict[int, Named] = OrderedDict()
        self._digests: OrderedDict[str, str] = OrderedDict()
        self._prepared: OrderedDict[tuple[str, bool], Prepared] = OrderedDict()
        self._answers: OrderedDict[tuple[str, str], Answer] = OrderedDict()
        self._verdicts: OrderedDict[tuple[str, str], Verdict] = OrderedDict()
        self._meeting: OrderedDict[tuple[str, str], bool] = OrderedDict()

    def named(self, schema: Any) -> Named:
        """Names a schema by what it means: titles, descriptions and the order of members make no difference."""
        known = self._names.get(id(schema))
        # The schema is kept with its name, so an id that is found stands for the schema that it was given to.
        return known if known is not None else _kept(self._names, id(schema), (self._digest(schema), schema))

    def prepare(self, schema: Named, *, speaks: bool) -> None:
        """Reads a schema that will be held against others, so that no pairing waits for it."""
        self._schema(schema, speaks).warm(left=speaks)

    def answer(self, speaker: Named, taker: Named) -> Answer:
        """Whether all that one schema sends is taken by the other one."""
        if speaker[0] == taker[0]:
            return "yes"
        return self._reached(self._answers, speaker, taker, answer)

    def verdict(self, speaker: Named, taker: Named) -> Verdict:
        """The same with its reason."""
        if speaker[0] == taker[0]:
            return Verdict("yes")
        return self._reached(self._verdicts, speaker, taker, compare)

    def meet(self, speaker: Named, taker: Named) -> bool:
        """Whether some of what one schema sends is surely taken by the other one."""
        return self._reached(self._meeting, speaker, taker, lambda one, other: disjoint(one, other).answer == "no")

    def _reached(
        self,
        known: OrderedDict[tuple[str, str], T],
        speaker: Named,
        taker: Named,
        work: Callable[[Prepared, Prepared], T],
    ) -> T:
        pair = (speaker[0], taker[0])
        found = known.get(pair)
        if found is None:
            self.comparisons += 1
            left, right = self._schema(speaker, True), self._schema(taker, False)
            before = left.proofs
            found = _kept(known, pair, work(left, right))
            self.proofs += left.proofs - before
        return found

    def _schema(self, schema: Named, speaks: bool) -> Prepared:
        name = (schema[0], speaks)
        found = self._prepared.get(name)
        if found is None:
            found = _kept(self._prepared, name, Prepared(schema[1], declared_only=speaks, pool=self._pool))
        return found

    def _digest(self, schema: Any) -> str:
        text = json.dumps(schema, sort_keys=True, separators=(",", ":"), default=repr)
        found = self._digests.get(text)
        if found is None:
            meaning = Prepared(schema, pool=self._pool).meaning or f"as written: {text}"
            found = hashlib.sha256(meaning.encode("utf-8", "surrogatepass")).hexdigest()
            _kept(self._digests, text, found)
        return found


def _kept(known: OrderedDict[K, T], name: K, value: T) -> T:
    if len(known) >= MAX_KEPT:
        known.popitem(last=False)
    known[name] = value
    return value
