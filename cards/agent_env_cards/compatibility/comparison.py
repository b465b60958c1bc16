"""Comparing two schemas: prove, refute, or say that neither can be done."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import cached_property, partial
from itertools import chain, islice
from typing import Any, TypeVar

from agent_env_cards.compatibility.alternatives import Space
from agent_env_cards.compatibility.dialect import Document, Malformed, Pool, read
from agent_env_cards.compatibility.entailment import Prover
from agent_env_cards.compatibility.failure import Failure
from agent_env_cards.compatibility.parts import MAX_PARTS, parts_of
from agent_env_cards.compatibility.values import key
from agent_env_cards.compatibility.verdict import NO_WITNESS, Answer, Verdict
from agent_env_cards.compatibility.work import PROOF_STEPS, SEARCH_STEPS, TooLarge, limited

MAX_TRIED = 60
MAX_KEPT = 4_000
PART_STEPS = PROOF_STEPS // MAX_PARTS
_YES = Verdict("yes")
_UNKNOWN = Verdict("unknown")
_TOO_LARGE = Verdict("unknown", "", "the schemas are too large to decide")

T = TypeVar("T")


class Prepared:
    """A schema that was read once, to be compared many times.

    With `declared_only` it sends no property that it does not declare, which matters where it is on the left. Schemas
    that are prepared with one `pool` are compared faster with each other. `proofs` counts the proofs that were begun
    with this schema on the left.
    """

    def __init__(self, schema: Any, *, declared_only: bool = False, pool: Pool | None = None) -> None:
        self.schema = schema
        self.fault: Malformed | None = None
        self.document = Document()
        self._pool = pool or Pool()
        try:
            self.document = read(schema, declared_only=declared_only, pool=self._pool)
        except Malformed as error:
            self.fault = error
        self.proofs = 0
        self.judged: dict[str | tuple[str, ...], Verdict] = {}
        """What was found with this schema on the left, by the text of a part on the right or those of several."""
        self._prover: Prover | None = None

    @property
    def meaning(self) -> str | None:
        """A text that schemas share only if they allow the same values: without titles, in one dialect.

        None where that cannot be told, as with references out of the schema.
        """
        return key(self.document.root) if self.fault is None and self.document.closed else None

    @cached_property
    def required(self) -> frozenset[str]:
        """The properties that every object of the schema has, as far as its top tells."""
        root = self.document.root
        return frozenset(root.get("required", ())) if isinstance(root, dict) else frozenset()

    @cached_property
    def parts(self) -> Mapping[str, Document]:
        """The parts that all have to take what is sent, by texts that mean the same in every schema."""
        return {} if self.fault is not None else parts_of(self.document, self._pool)

    def facing(self, document: Document) -> Prover:
        """A proof about this schema and another one; what is known of this one is not worked out again."""
        self.proofs += 1
        if self._prover is None or self._prover.space.size > MAX_KEPT:
            self._prover = Prover(Space(self.document))
        self._prover.begin(self.document, document)
        return self._prover

    def warm(self, *, left: bool = False) -> None:
        """Makes what comparisons with this schema on the one side or the other will need."""
        for document in (self.document, *self.parts.values()):
            _bounded(self, partial(document.holds, None), None, SEARCH_STEPS)
        if left:
            _ = self.samples

    @cached_property
    def samples(self) -> list[Any]:
        """A small value and one with everything in it, as far as a validator has confirmed them."""
        if self.fault is not None:
            return []
        none: list[Any] = []
        prover = self.facing(self.document)
        made = _bounded(self, lambda: list(prover.samples.extremes((self.document.root,))), none, SEARCH_STEPS)

        def confirmed() -> list[Any]:
            return [value for value in made if self.document.holds(value, formats=True) is True]

        return _bounded(self, confirmed, none, SEARCH_STEPS)

    def judge(self, parts: str | tuple[str, ...], work: Callable[[], Verdict]) -> Verdict:
        """The verdict on one or several parts on the right, worked out once."""
        found = self.judged.get(parts)
        if found is None:
            if len(self.judged) >= MAX_KEPT:
                self.judged.clear()
            found = self.judged[parts] = work()
        return found

    def forget(self) -> None:
        """Lets go of a proof that was broken off, with what it had only begun to work out."""
        self._prover = None


def compare(left: Prepared, right: Prepared) -> Verdict:
    """Tells whether every value of the left schema is a value of the right one."""
    verdict = _trivial(left, right)
    if verdict is not None:
        return verdict
    verdict = _bounded(left, lambda: _decided(left, right.document), _TOO_LARGE)
    if verdict.answer == "unknown":
        parts, _ = _by_parts(left, right)
        if parts.answer == "yes":
            return parts
        for value in (parts.witness, _lacking(left, right), _refuting(left, right)):
            if value is not NO_WITNESS:
                return Verdict("no", verdict.pointer, verdict.why, value)
    return verdict


def answer(left: Prepared, right: Prepared) -> Answer:
    """The answer of `compare`, without looking for the reason of a "no"."""
    if left.fault is not None or right.fault is not None:
        return "unknown"
    known, undecided = _by_parts(left, right)
    if known.answer != "unknown":
        return known.answer
    if undecided:
        # The other parts are proven, so schemas that share these have one answer.
        return left.judge(undecided, lambda: compare(left, right)).answer
    if _lacking(left, right) is not NO_WITNESS:
        return "no"
    proven = _bounded(left, lambda: _unproven(left, right.document)[1] is None, False)
    if proven:
        return "yes"
    return "no" if _refuting(left, right) is not NO_WITNESS else compare(left, right).answer


def disjoint(left: Prepared, right: Prepared) -> Verdict:
    """Tells whether no value satisfies both schemas; "no" has one that does as its witness."""
    if left.fault is not None or right.fault is not None:
        return Verdict("unknown")
    return _bounded(left, lambda: _met(left, right.document), _TOO_LARGE)


def _trivial(left: Prepared, right: Prepared) -> Verdict | None:
    for side, schema in (("left", left), ("right", right)):
        if schema.fault is not None:
            why = f"the {side} side is not a usable schema: {schema.fault}"
            return Verdict("unknown", schema.fault.pointer, why)
    sender, taker = left.document, right.document
    same = sender.root == taker.root and key(sender.root) == key(taker.root)
    return Verdict("yes") if same and (sender.closed or left.schema == right.schema) else None


def _unproven(left: Prepared, taker: Document) -> tuple[Prover, Failure | None]:
    prover = left.facing(taker)
    return prover, prover.subset((left.document.root,), taker.root)


def _decided(left: Prepared, taker: Document) -> Verdict:
    sender = left.document
    prover, failure = _unproven(left, taker)
    if failure is None:
        return Verdict("yes")
    pointer = "".join("/" + token.replace("~", "~0").replace("/", "~1") for token in failure.path)
    for value in _tried(failure.values(), prover.near((sender.root,), taker.root)):
        if sender.holds(value, formats=True) is True and taker.holds(value) is False:
            return Verdict("no", pointer, failure.why, value)
    return Verdict("unknown", pointer, failure.why)


def _by_parts(left: Prepared, right: Prepared) -> tuple[Verdict, tuple[str, ...]]:
    """What the parts of the right side tell, and those that tell nothing.

    It takes what each of them takes, and refuses what one refuses.
    """
    undecided: list[str] = []
    for text, part in right.parts.items():
        if text in left.parts:
            continue
        known = left.judged.get(text)
        if known is None:
            known = left.judge(text, partial(_part, left, part))
        if known.answer == "no":
            return known, ()
        if known.answer == "unknown":
            undecided.append(text)
    return _UNKNOWN if undecided or not right.parts else _YES, tuple(undecided)


def _part(left: Prepared, part: Document) -> Verdict:
    """A verdict on one part; only the whole schema tells the reason and the place."""

    def decided() -> Verdict:
        if _unproven(left, part)[1] is None:
            return _YES
        witness = next((value for value in left.samples if part.holds(value) is False), NO_WITNESS)
        return _decided(left, part) if witness is NO_WITNESS else Verdict("no", witness=witness)

    return _bounded(left, decided, _TOO_LARGE, PART_STEPS)


def _lacking(left: Prepared, right: Prepared) -> Any:
    """A value of the left side that lacks what the right one requires at the top: the commonest refutation."""
    for value in left.samples if right.required else ():
        if isinstance(value, dict) and not value.keys() >= right.required:
            return value
    return NO_WITNESS


def _refuting(left: Prepared, right: Prepared) -> Any:
    """A value of the left side's samples that the right side refuses."""
    # What has everything in it breaks more often than what has little.
    refused = (value for value in reversed(left.samples) if right.document.holds(value) is False)
    return _bounded(left, lambda: next(refused, NO_WITNESS), NO_WITNESS, SEARCH_STEPS)


def _met(left: Prepared, other: Document) -> Verdict:
    prover, one = left.facing(other), left.document
    if all(prover.disjoint(alternative, other.root) for alternative in prover.space.alternatives((one.root,))):
        return Verdict("yes")
    for value in _tried(prover.near((one.root, other.root), True), prover.near((one.root,), other.root)):
        if one.holds(value, formats=True) is True and other.holds(value, formats=True) is True:
            return Verdict("no", witness=value)
    return Verdict("unknown")


def _tried(*sources: Iterator[Any]) -> Iterable[Any]:
    return chain.from_iterable(islice(source, MAX_TRIED) for source in sources)


def _bounded(left: Prepared, work: Callable[[], T], otherwise: T, steps: int = PROOF_STEPS) -> T:
    try:
        with limited(steps):
            return work()
    except (TooLarge, RecursionError):
        left.forget()
        return otherwise
