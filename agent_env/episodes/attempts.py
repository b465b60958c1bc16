"""Which of several attempts at one model call counts: what the agent went on with."""

from __future__ import annotations

import json
from collections import OrderedDict, deque
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Literal, TypeAlias

from agent_env.episodes.records import CallRecord

Unheard: TypeAlias = Literal["retried", "ambiguous retry"]
"""Why an agent did not go on with an answer, or may not have: a later attempt was answered in its place, or in the
place of one of several, and nobody told of which."""


def in_order(calls: Iterable[CallRecord]) -> list[CallRecord]:
    """The calls in the order in which they began.

    Calls of one instant, or whose times nobody told, are ordered by length: what continues is longer.
    """
    return sorted(calls, key=_began)


def with_requests(calls: Iterable[CallRecord]) -> list[CallRecord]:
    """The calls in their order, those of further choices with the request, which the first one alone has."""
    given = list(calls)
    asked = {call.call_id: call.request for call in given}
    return [
        replace(call, request=asked.get(call.choice_of))
        if call.choice_of is not None and call.request is None
        else call
        for call in given
    ]


def unheard_calls(calls: Iterable[CallRecord]) -> dict[str, Unheard]:
    """The answered calls of a trace that the agent did not go on with for certain, and why, by their ids.

    Of all attempts at one call the last that was answered is what the agent went on with: an attempt that failed takes
    nobody's place. What a retry repeats is told by one of its marks:

    - `retry_of` names the call.
    - `retry_among` names several: it is the oldest of these that failed, or else the only one that no other retry
      repeats, or else any of them. An empty one says that it repeats none.
    - `attempt` alone, its count, is all that a gateway knows that was started again in between: it may be any of the
      latest earlier tries that asked the same in the same turn.

    A mark that names no call of the trace is none, and neither are equal prompts: two calls may well ask the same.
    """
    ordered = in_order(calls)
    if all(call.retry_of is None and call.retry_among is None and not call.attempt for call in ordered):
        return {}
    # The choices of one answer are one attempt.
    attempts: dict[str, list[CallRecord]] = {}
    for call in ordered:
        attempts.setdefault(call.choice_of or call.call_id, []).append(call)
    marks = {name: choices[0] for name, choices in attempts.items()}
    repeats, doubtful = _repeats(marks)
    found: dict[str, Unheard] = {}
    for name in doubtful | _replaced(marks, repeats):
        for call in attempts[name]:
            found[call.call_id] = "ambiguous retry" if name in doubtful else "retried"
    return found


def _repeats(marks: Mapping[str, CallRecord]) -> tuple[dict[str, str], set[str]]:
    """Which call each retry repeats, as far as it is told, and the calls of which it is not."""
    repeats = {
        name: call.retry_of for name, call in marks.items() if call.retry_of is not None and call.retry_of in marks
    }
    taken = set(repeats.values())
    doubtful: set[str] = set()
    tries = _Tries(marks.values(), taken)
    for name, call in marks.items():
        equal = tries.add(name, call)
        if call.retry_among is not None:
            free = [other for other in call.retry_among if other not in taken and other != name]
            one = _only(free, marks)
        else:
            free, one = ([], None) if equal is None else equal.claim()
        if one is None:
            doubtful.update(other for other in free if other in marks)
        else:
            repeats[name] = one
            taken.add(one)
            tries.take(one)
    return repeats, doubtful - taken


class _Equal:
    """Tries that asked the same in one turn and are as late as each other, without those that are known to be repeated:
    retries of which nothing but their count is known repeat them, each another one."""

    def __init__(self) -> None:
        self.free: OrderedDict[str, None] = OrderedDict()
        self._failed: deque[str] = deque()
        self._told = False

    def add(self, name: str, *, failed: bool) -> None:
        """Adds the latest try."""
        self.free[name] = None
        self._told = False
        if failed:
            self._failed.append(name)

    def claim(self) -> tuple[list[str], str | None]:
        """The one that a retry repeats, or those of which it repeats one, where these were not told before."""
        while self._failed:
            if (one := self._failed.popleft()) in self.free:
                return [], one
        if len(self.free) == 1:
            return [], next(iter(self.free))
        told, self._told = self._told, True
        return [] if told else list(self.free), None


class _Tries:
    """The calls by what they asked and in which turn, for retries of which nothing but their count is known; those that
    are `taken` are repeated by a retry that names them."""

    def __init__(self, calls: Iterable[CallRecord], taken: set[str]) -> None:
        self._wanted = any(map(_counted_alone, calls))
        self._known: dict[tuple[str, str, str], dict[int, _Equal]] = {}
        self._homes: dict[str, _Equal] = {}
        self._taken = taken

    def add(self, name: str, call: CallRecord) -> _Equal | None:
        """Adds a call; gives those that it may repeat by its count: of what asked the same, the latest tries."""
        if not self._wanted:
            return None
        asked = json.dumps(call.request, sort_keys=True)
        known = self._known.setdefault((call.parent_call_id, call.seat, asked), {})
        count = call.attempt or 0
        latest = max((earlier for earlier in known if earlier < count), default=None)
        found = None if latest is None or not _counted_alone(call) else known[latest]
        home = known.setdefault(count, _Equal())
        if name not in self._taken:
            home.add(name, failed=call.status != "ok")
            self._homes[name] = home
        return found

    def take(self, name: str) -> None:
        """Takes out a call that a retry repeats."""
        if (home := self._homes.get(name)) is not None:
            home.free.pop(name, None)


def _counted_alone(call: CallRecord) -> bool:
    return bool(call.attempt) and call.retry_of is None and call.retry_among is None


def _only(free: Sequence[str], marks: Mapping[str, CallRecord]) -> str | None:
    failed = next((name for name in free if name in marks and marks[name].status != "ok"), None)
    return failed or (free[0] if len(free) == 1 and free[0] in marks else None)


def _replaced(marks: Mapping[str, CallRecord], repeats: Mapping[str, str]) -> set[str]:
    """The answered calls in whose place a later attempt was answered."""
    first = {name: name for name in marks}

    def find(name: str) -> str:
        while first[name] != name:
            first[name] = first[first[name]]
            name = first[name]
        return name

    for name, other in repeats.items():
        first[find(name)] = find(other)
    last: dict[str, str] = {}
    replaced: set[str] = set()
    for name, call in marks.items():
        if call.status == "ok":
            attempt = find(name)
            if attempt in last:
                replaced.add(last[attempt])
            last[attempt] = name
    return replaced


def _began(call: CallRecord) -> tuple[float, int]:
    return call.started or 0.0, len(call.prompt_token_ids or ()) + len(call.token_ids or ())
