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
_REMEMBERED = 4096
_REMEMBERED_EQUAL = 64


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
    """One call that may be repeated: its id, and whether its caller was given a whole answer.

    Of a call that was refused, which left no record, it is the id of the one that it repeats.
    """

    call_id: str | None
    answered: bool = False
    repeated: bool = False


class RecentCalls:
    """The latest calls of a run, so that a retry finds what it repeats.

    Within one turn, a call that is marked as the second try repeats a first try with the same body. Of several, those
    that got no answer go first, the oldest of them before the others: a client has no reason to repeat one that did.
    """

    def __init__(self) -> None:
        self._tries: OrderedDict[Hashable, list[Try]] = OrderedDict()

    def add(self, place: tuple[str, ...], mark: Mark, body: bytes, call_id: str) -> tuple[Try, str | None]:
        """Notes a call of a turn (`place`); gives it, and the id of the call that it repeats."""
        this = Try(call_id)
        if mark.key is not None:
            # With the body: a client that has one key for all it asks repeats nothing.
            named = (place, mark.key, hash(body))
            earlier = self._tries.get(named)
            repeats = earlier[-1].call_id if earlier is not None else None
            self._note(named, this)
            return this, repeats
        text = hash(body)
        repeats = self._claim((place, text, mark.attempt - 1)) if mark.attempt else None
        self._note((place, text, mark.attempt), this)
        return this, repeats

    def refuse(self, place: tuple[str, ...], mark: Mark, body: bytes) -> None:
        """Notes a call that was refused, such that its next try repeats what it repeats, and no other equal call."""
        this, repeats = self.add(place, mark, body, "")
        this.call_id = repeats

    def _claim(self, place: Hashable) -> str | None:
        free = [known for known in self._tries.get(place, ()) if not known.repeated]
        if not free:
            return None  # it never came here, or long ago
        found = next((known for known in free if not known.answered), free[-1])
        found.repeated = True
        return found.call_id

    def _note(self, place: Hashable, this: Try) -> None:
        tries = self._tries.setdefault(place, [])
        tries.append(this)
        del tries[:-_REMEMBERED_EQUAL]
        self._tries.move_to_end(place)
        if len(self._tries) > _REMEMBERED:
            self._tries.popitem(last=False)
