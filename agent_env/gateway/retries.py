"""Which call repeats which: by the mark of its caller alone, never by an equal prompt.

Agents ask the same thing twice on purpose, in parallel and one after another; only the client knows that it tries again.
The openai and anthropic SDKs count in `X-Stainless-Retry-Count`, other clients may in `Agent-Env-Retry-Count`, or send
an `Idempotency-Key`, which marks a call by being there for the second time.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Hashable, Mapping
from dataclasses import dataclass
from typing import NamedTuple

_COUNTS = (b"x-stainless-retry-count", b"agent-env-retry-count")
_KEY = b"idempotency-key"
_REMEMBERED = 16384
_MOST_TRIES = 32


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


@dataclass(slots=True)
class Try:
    """One call that may be repeated: its id, and what became of it.

    Of a call that was refused, which left no record, `calls` are those of which it repeats one, if it repeats any.
    """

    calls: tuple[str, ...]
    failed: bool = False
    repeated: bool = False


class RecentCalls:
    """The latest calls of a run, so that a retry finds what it repeats.

    Within one turn, a call that is marked as a later try repeats the latest try before it with the same body: tries
    may be lost on their way. Of several equal ones, those that failed go first, the oldest of them before the others:
    whichever it is, its client has no answer of it. Where none failed, and several were answered or still are under
    way, it is one of these, and it is not guessed which.
    """

    def __init__(self) -> None:
        self._tries: OrderedDict[Hashable, list[Try]] = OrderedDict()
        self._count = 0

    def add(self, place: tuple[str, ...], mark: Mark, body: bytes, call_id: str) -> tuple[Try, tuple[str, ...]]:
        """Notes a call of a turn (`place`); gives it, and the ids of the calls of which it repeats one: mostly none,
        or one."""
        this = Try((call_id,))
        if mark.key is not None:
            # With the body: a client that has one key for all it asks repeats nothing.
            named = (place, hash((mark.key, body)))
            earlier = self._tries.get(named)
            repeats = earlier[-1].calls if earlier is not None else ()
            self._note(named, this)
            return this, repeats
        text = hash(body)
        repeats = self._claim(place, text, mark.attempt)
        self._note((place, text, mark.attempt), this)
        return this, repeats

    def refuse(self, place: tuple[str, ...], mark: Mark, body: bytes) -> None:
        """Notes a call that was refused, such that its next try repeats what it repeats, and no other equal call."""
        this, repeats = self.add(place, mark, body, "")
        this.calls, this.failed = repeats, True

    def _claim(self, place: tuple[str, ...], text: int, attempt: int) -> tuple[str, ...]:
        for earlier in range(min(attempt, _MOST_TRIES) - 1, -1, -1):
            free = [known for known in self._tries.get((place, text, earlier), ()) if not known.repeated]
            if free:
                break
        else:
            return ()  # none ever came here, or long ago
        sure = next((known for known in free if known.failed), free[0] if len(free) == 1 else None)
        if sure is None:
            return tuple(call for known in free for call in known.calls)
        sure.repeated = True
        return sure.calls

    def _note(self, place: Hashable, this: Try) -> None:
        self._tries.setdefault(place, []).append(this)
        self._tries.move_to_end(place)
        self._count += 1
        while self._count > _REMEMBERED:
            if len(self._tries) > 1:
                self._count -= len(self._tries.popitem(last=False)[1])
            else:
                del self._tries[place][0]
                self._count -= 1
