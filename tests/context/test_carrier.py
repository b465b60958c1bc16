"""The call context on the wire: what goes in comes out."""

from __future__ import annotations

import time
from urllib.parse import quote

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from agent_env.context import CallContext, Link, Route, Run, decode_run, encode_run, extract, inject, new_trace_id
from agent_env.errors import InvalidArguments

hexadecimal = st.integers(1, 2**64 - 1).map(lambda number: f"{number:016x}")
traces = st.integers(1, 2**128 - 1).map(lambda number: f"{number:032x}")
names = st.from_regex(r"[a-z0-9]([a-z0-9-]{0,40}[a-z0-9])?@[0-9]\.[0-9]\.[0-9](-[a-z]{1,6})?", fullmatch=True)
links = st.builds(Link, names, st.one_of(st.just(""), hexadecimal))
words = st.text(st.characters(exclude_categories=("Cs",)), min_size=1, max_size=40)


@given(
    trace_id=traces,
    call_id=st.one_of(st.just(""), hexadecimal.filter(lambda value: value != "0000000000000001")),
    episode=st.one_of(st.none(), words),
    chain=st.lists(links, max_size=8).map(tuple),
    calls=st.one_of(st.none(), st.integers(-1, 10**9)),
)
@settings(max_examples=300)
def test_a_context_survives_its_round_trip(
    trace_id: str, call_id: str, episode: str | None, chain: tuple[Link, ...], calls: int | None
) -> None:
    context = CallContext(trace_id=trace_id, call_id=call_id, episode=episode, chain=chain, calls=calls)
    carrier = inject(context)
    assert all(value.isascii() and value.isprintable() for value in carrier.values())  # they are header values
    assert extract(carrier) == context


@given(seconds=st.floats(0, 10**6))
def test_a_deadline_travels_as_what_is_left_of_it(seconds: float) -> None:
    before = time.monotonic()
    deadline = extract(inject(CallContext(deadline=before + seconds))).deadline
    assert deadline is not None
    assert abs(deadline - (before + seconds)) < 0.5


def test_a_deadline_that_is_over_stays_over() -> None:
    context = extract(inject(CallContext(deadline=time.monotonic() - 5)))
    assert context.seconds_left() == 0


def test_a_caller_that_says_nothing_starts_a_tree_of_its_own() -> None:
    one, other = extract({}), extract({"traceparent": "", "baggage": ""})
    assert one.trace_id != other.trace_id
    assert (one.call_id, one.chain, one.calls, one.deadline, one.episode) == ("", (), None, None, None)


def test_foreign_entries_are_passed_over() -> None:
    carrier = {"baggage": "tenant=7,agent-env.episode=e1", "accept": "*/*"}
    context = extract(carrier)
    assert context.episode == "e1"
    assert context.call_id == ""


def test_a_broken_traceparent_starts_a_tree_of_its_own() -> None:
    assert len(extract({"traceparent": "00-zz-zz-01"}).trace_id) == 32


def test_a_root_has_no_parent_on_the_other_side() -> None:
    context = CallContext(trace_id=new_trace_id())
    assert extract(inject(context)).call_id == ""


@pytest.mark.parametrize("entry", ["calls=many", "calls=1.5", "ms=soon", "calls="])
def test_a_number_that_is_none_is_refused_by_name(entry: str) -> None:
    with pytest.raises(InvalidArguments, match="agent-env." + entry.partition("=")[0]):
        extract({"baggage": f"agent-env.{entry}"})


def test_a_chain_without_sessions_is_refused() -> None:
    with pytest.raises(InvalidArguments, match="environment/session"):
        extract({"baggage": "agent-env.chain=justaname"})


@given(
    gateway=words,
    run=words,
    episode=words,
    seat=words,
    routes=st.dictionaries(words, st.builds(Route, words, words), max_size=4),
)
def test_a_run_survives_its_round_trip(
    gateway: str, run: str, episode: str, seat: str, routes: dict[str, Route]
) -> None:
    sent = Run(gateway, run, episode, seat, routes)
    header = encode_run(sent)
    assert header.isascii()
    assert decode_run(header) == sent


@pytest.mark.parametrize("header", ["", "%%%", "bm90IGpzb24=", "WzFd", "WyJnIiwiciIsImUiLCJzIixbMV1d", "é", "W10"])
def test_a_header_that_is_no_run_is_refused(header: str) -> None:
    with pytest.raises(InvalidArguments, match="Agent-Env-Run"):
        decode_run(header)


@pytest.mark.parametrize("key", ["ms", "calls"])
@pytest.mark.parametrize("digits", ["9" * 400, "1e3", "1_0", "\u0661", "-", "x"])
def test_a_number_that_no_clock_holds_is_the_callers_mistake(key: str, digits: str) -> None:
    with pytest.raises(InvalidArguments, match="whole number"):
        extract({"baggage": f"agent-env.{key}={quote(digits)}"})


@pytest.mark.parametrize("value", [7, ["a"], {"a": 1}])
def test_a_context_of_anything_but_strings_is_the_callers_mistake(value: object) -> None:
    with pytest.raises(InvalidArguments, match="must be a string"):
        extract({"baggage": value})
