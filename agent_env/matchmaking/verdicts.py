"""Verdicts on pairs of schemas, each reached once."""

from __future__ import annotations

import hashlib
import json
from collections import OrderedDict
from collections.abc import Callable
from typing import Any, TypeVar

from agent_env_cards.compatibility import Answer, Prepared, Verdict, answer, compare, disjoint

MAX_KEPT = 50_000

T = TypeVar("T")


def digest_of(schema: Any) -> str:
    """Names a schema by its contents."""
    text = json.dumps(schema, sort_keys=True, separators=(",", ":"), default=repr)
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()


class Verdicts:
    """Compares schemas, and remembers by their digests; `comparisons` counts what had to be worked out.

    The side that speaks (a caller's arguments, a tool's result) sends only properties that it declares.
    """

    def __init__(self) -> None:
        self.comparisons = 0
        self._pool: dict[str, Any] = {}
        self._prepared: OrderedDict[tuple[str, bool], Prepared] = OrderedDict()
        self._verdicts: OrderedDict[tuple[str, str], Verdict] = OrderedDict()
        self._answers: OrderedDict[tuple[str, str], Answer] = OrderedDict()
        self._meeting: OrderedDict[tuple[str, str], bool] = OrderedDict()

    def prepare(self, takes: tuple[str, Any], gives: tuple[str, Any] | None) -> None:
        """Reads the schemas of a tool, so that no pairing waits for it."""
        self._schema(takes, False).warm()
        if gives is not None:
            self._schema(gives, True)

    def answer(self, speaker: tuple[str, Any], taker: tuple[str, Any]) -> Answer:
        """Whether all that one schema sends is taken by the other one; each comes with its digest."""
        if speaker[0] == taker[0]:
            return "yes"
        return self._kept(self._answers, speaker, taker, answer)

    def verdict(self, speaker: tuple[str, Any], taker: tuple[str, Any]) -> Verdict:
        """The same with its reason."""
        if speaker[0] == taker[0]:
            return Verdict("yes")
        return self._kept(self._verdicts, speaker, taker, compare)

    def meet(self, speaker: tuple[str, Any], taker: tuple[str, Any]) -> bool:
        """Whether some of what one schema sends is surely taken by the other one."""
        return self._kept(self._meeting, speaker, taker, lambda one, other: disjoint(one, other).answer == "no")

    def _kept(
        self,
        known: OrderedDict[tuple[str, str], T],
        speaker: tuple[str, Any],
        taker: tuple[str, Any],
        work: Callable[[Prepared, Prepared], T],
    ) -> T:
        pair = (speaker[0], taker[0])
        if pair not in known:
            self.comparisons += 1
            known[pair] = work(self._schema(speaker, True), self._schema(taker, False))
            _bound(known)
        return known[pair]

    def _schema(self, schema: tuple[str, Any], speaks: bool) -> Prepared:
        name = (schema[0], speaks)
        if name not in self._prepared:
            self._prepared[name] = Prepared(schema[1], declared_only=speaks, pool=self._pool)
            _bound(self._prepared)
        return self._prepared[name]


def _bound(known: OrderedDict[Any, Any]) -> None:
    if len(known) > MAX_KEPT:
        known.popitem(last=False)
