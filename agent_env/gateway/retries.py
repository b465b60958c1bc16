"""Which call repeats which: by the mark of its caller alone, never by an equal prompt.

Agents ask the same thing twice on purpose, in parallel and one after another; only the client knows that it tries again.
The openai and anthropic SDKs count in `X-Stainless-Retry-Count`, other clients may in `Agent-Env-Retry-Count`, or send
an `Idempotency-Key`, which marks a call by being there for the second time.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Hashable, Mapping
from heapq import heappop, heappush
from typing import NamedTuple, TypeAlias

from agent_env.episodes import CallRecord

_COUNTS = (b"x-stainless-retry-count", b"agent-env-retry-count")
_KEY = b"idempotency-key"
_REMEMBERED = 16384
_MOST_TRIES = 32
_MOST_NAMED = 64
"""Of how many calls a record says that it repeats one of them."""


class Mark(NamedTuple):
    """What a request says about being a retry: how often it was tried before, and the key of all tries."""

    attempt: int
    key: bytes | None


def mark_of(headers: Mapping[bytes, bytes]) -> Mark:
    """Reads the mark of a request's headers (lower-case names)."""
    for name in _COUNTS:
        value = headers.get(name)
        if value is not None and value.isdigit() and len(value) < 10:
            return Mark(int(value), headers.get(_KEY))
    return Mark(0, headers.get(_KEY))


Repeats: TypeAlias = tuple[str, ...] | None
"""The calls of which a call repeats one; mostly none, or one. None where nobody knows: no try before it ever came, or
those of which it may be are too many to be told."""


class Try:
    """One call that may be repeated: its id, and what became of it.

    Of a call that was refused, which left no record, `calls` is what it repeats itself.
    """

    __slots__ = ("_equal", "_failed", "_number", "calls")

    def __init__(self, calls: Repeats, equal: _Equal, number: int) -> None:
        self.calls = calls
        self._equal = equal
        self._number = number
        self._failed = False

    @property
    def failed(self) -> bool:
        """Whether it has failed, so far."""
        return self._failed

    @failed.setter
    def failed(self, failed: bool) -> None:
        self._failed = failed
        if failed and self._number in self._equal.free:
            heappush(self._equal.failed, self._number)


class _Equal:
    """The tries that are equal and that no retry repeats so far, in their order; `failed` has the numbers of those that
    did, and perhaps of some that are not here any more."""

    __slots__ = ("_last", "failed", "free")

    def __init__(self) -> None:
        self.free: OrderedDict[int, Try] = OrderedDict()
        self.failed: list[int] = []
        self._last = 0

    def __len__(self) -> int:
        return len(self.free)

    def add(self, call_id: str) -> Try:
        """Adds a try, the latest."""
        self._last += 1
        this = self.free[self._last] = Try((call_id,), self, self._last)
        return this

    def claim(self) -> Repeats:
        """Takes out the one that a retry repeats, and gives its calls; where that is not sure, gives those of all."""
        number = self._surely()
        if number is not None:
            return self.free.pop(number).calls
        # So many would be told with each retry of them: whoever reads the records finds them by the count as well.
        if len(self.free) > _MOST_NAMED:
            return None
        return tuple(call for known in self.free.values() for call in known.calls or ())

    def forget(self) -> None:
        """Lets the oldest one go."""
        number, _ = self.free.popitem(last=False)
        while self.failed and self.failed[0] <= number:
            heappop(self.failed)

    def _surely(self) -> int | None:
        while self.failed:
            known = self.free.get(number := heappop(self.failed))
            if known is not None and known.failed:
                return number
        return next(iter(self.free)) if len(self.free) == 1 else None

    @property
    def latest(self) -> Try:
        """The last one of all."""
        return self.free[self._last]


def tell(record: CallRecord, mark: Mark, repeats: Repeats) -> None:
    """Writes into the record of a call how it was marked and what it repeats."""
    record.attempt = mark.attempt or None
    if repeats is not None and len(repeats) == 1:
        record.retry_of = repeats[0]
    elif repeats or (mark.attempt and repeats is not None):
        record.retry_among = list(repeats)


class RecentCalls:
    """The latest calls of a run, so that a retry finds what it repeats.

    Within one turn, a call that is marked as a later try repeats the latest try before it with the same body: tries
    may be lost on their way. Of several equal ones, those that failed go first, the oldest of them before the others:
    whichever it is, its client has no answer of it. Where none failed, and several were answered or still are under
    way, it is one of these, and it is not guessed which; of very many, not even these are told, but the count of the retry.
    """

    def __init__(self) -> None:
        self._tries: OrderedDict[Hashable, _Equal] = OrderedDict()
        self._count = 0

    def add(self, place: tuple[str, ...], mark: Mark, body: bytes, call_id: str) -> tuple[Try, Repeats]:
        """Notes a call of a turn (`place`); gives it, and what it repeats: nothing that has a record, where the try
        before it was refused."""
        if mark.key is not None:
            # With the body: a client that has one key for all it asks repeats nothing.
            named = (place, hash((mark.key, body)))
            earlier = self._tries.get(named)
            repeats = earlier.latest.calls if earlier is not None else None if mark.attempt else ()
            return self._note(named, call_id), repeats
        text = hash(body)
        repeats = self._claim(place, text, mark.attempt) if mark.attempt else ()
        return self._note((place, text, mark.attempt), call_id), repeats

    def refuse(self, place: tuple[str, ...], mark: Mark, body: bytes) -> None:
        """Notes a call that was refused, such that its next try repeats what it repeats, and no other equal call."""
        this, repeats = self.add(place, mark, body, "")
        this.calls, this.failed = repeats, True

    def _claim(self, place: tuple[str, ...], text: int, attempt: int) -> Repeats:
        for earlier in range(min(attempt, _MOST_TRIES) - 1, -1, -1):
            equal = self._tries.get(name := (place, text, earlier))
            if equal is None:
                continue
            known = len(equal)
            calls = equal.claim()
            self._count -= known - len(equal)
            if not equal.free:
                del self._tries[name]
            return calls
        return None  # none ever came here, or long ago

    def _note(self, place: Hashable, call_id: str) -> Try:
        equal = self._tries.get(place)
        if equal is None:
            equal = self._tries[place] = _Equal()
        this = equal.add(call_id)
        self._tries.move_to_end(place)
        self._count += 1
        while self._count > _REMEMBERED:
            if len(self._tries) > 1:
                self._count -= len(self._tries.popitem(last=False)[1])
            else:
                equal.forget()
                self._count -= 1
        return this
