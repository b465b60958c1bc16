"""Which of several attempts at one model call counts: what the agent went on with."""

from __future__ import annotations

from collections.abc import Iterable

from agent_env.episodes.records import CallRecord


def in_order(calls: Iterable[CallRecord]) -> list[CallRecord]:
    """The calls in the order in which they began.

    Calls of one instant, or whose times nobody told, are ordered by length: what continues is longer.
    """
    return sorted(calls, key=_began)


def replaced_calls(calls: Iterable[CallRecord]) -> set[str]:
    """The ids of those answered calls of a trace of which a later attempt was answered, as `retry_of` marks it.

    Of all attempts at one call the last that was answered is what the agent went on with: an attempt that failed takes
    nobody's place. A mark that names no call of the trace is none, and neither are equal prompts: two calls may well
    ask the same.
    """
    ordered = in_order(calls)
    first = {call.call_id: call.call_id for call in ordered}

    def find(name: str) -> str:
        while first[name] != name:
            first[name] = first[first[name]]
            name = first[name]
        return name

    marked = False
    for call in ordered:
        if call.retry_of is not None and call.retry_of in first:
            first[find(call.call_id)] = find(call.retry_of)
            marked = True
    if not marked:
        return set()
    last: dict[str, str] = {}
    replaced: set[str] = set()
    for call in ordered:
        if call.status == "ok":
            attempt = find(call.call_id)
            if attempt in last:
                replaced.add(last[attempt])
            last[attempt] = call.call_id
    return replaced


def _began(call: CallRecord) -> tuple[float, int]:
    return call.started or 0.0, len(call.prompt_token_ids or ()) + len(call.token_ids or ())
