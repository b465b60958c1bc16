"""Rows of whole trees of calls: each sampled token is trained exactly once, for work that grows as the tokens do."""

from __future__ import annotations

import random
import sys
from collections import Counter, defaultdict
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from agent_env.episodes import CallRecord, EdgeRecord, Episode, TurnRecord, message_graph
from agent_env.training.learning import credit_rows
from agent_env.training.rows import Row, cut_rows


class Forest:
    """Makes up a tree of calls: sessions that run at once, ask each other, go on, fork, forget, drift and retry."""

    def __init__(self, rng: random.Random) -> None:
        self.rng = rng
        self.turns: list[TurnRecord] = []
        self.edges: list[EdgeRecord] = []
        self.calls: list[CallRecord] = []
        self.seats: dict[str, str] = {}
        for number in range(rng.randrange(1, 6)):
            session, seat = f"s{number}", rng.choice("ab")
            parent = rng.choice(self.turns).call_id if self.turns and rng.random() < 0.7 else None
            self.seats[session] = seat
            turn = TurnRecord(f"t{number}", f"{seat}@1.0.0", session, seat=seat, parent_call_id=parent)
            self.turns.append(turn)
            self.edges.append(
                EdgeRecord(
                    f"e{number}", turn.agent, caller_call_id=parent, callee_seat=seat, callee_call_id=turn.call_id
                )
            )

    def words(self, least: int, most: int) -> list[int]:
        return [self.rng.randrange(4) for _ in range(self.rng.randrange(least, most))]

    def grow(self) -> None:
        """One more call, somewhere."""
        rng = self.rng
        session = rng.choice(list(self.seats))
        turn = f"t{session[1:]}"
        mine = [call for call in self.calls if call.parent_call_id == turn]
        fields: dict[str, Any] = {}
        prompt, sampled = self.words(1, 4), self.words(1, 4)
        if mine:
            old = rng.choice(mine)
            asked, said = old.prompt_token_ids or [], old.token_ids or []
            match rng.randrange(8):
                case 0 | 1:  # the conversation goes on, or forks
                    prompt = asked + said + self.words(0, 3)
                case 2:  # its context is compressed: the head stays, a summary follows
                    prompt = asked[:1] + self.words(1, 3)
                case 3:  # it is rendered a little differently
                    prompt = asked + said + self.words(0, 2)
                    prompt[rng.randrange(len(prompt))] = 9
                case 4:  # the same is asked and said again: whoever continues it has two possible parents
                    prompt, sampled = list(asked), list(said)
                case 5:  # a retry, marked as one
                    prompt, fields = list(asked), {"retry_of": old.choice_of or old.call_id}
                    if rng.random() < 0.5:
                        sampled = list(said)
                case 6:  # another choice of the same answer, with its marks
                    prompt, fields = list(asked), {"choice_of": old.choice_of or old.call_id}
                    fields |= {"retry_of": old.retry_of, "status": old.status, "model": old.model}
                case _:  # something new
                    pass
        if "choice_of" not in fields:
            if rng.random() < 0.15:
                fields["status"] = "upstream_error"
            if rng.random() < 0.1:
                fields["model"] = "other"
        number = len(self.calls)
        logprobs = [-(number + 1.0) - place / 100 for place in range(len(sampled))]
        self.calls.append(
            CallRecord(
                f"k{number}",
                turn,
                **{"seat": self.seats[session], "model": "policy", **fields},
                started=float(number),
                prompt_token_ids=prompt,
                token_ids=sampled,
                logprobs=logprobs,
                policy_version=number // 5,
            )
        )

    def episode(self) -> Episode:
        """What was recorded of it, in no order."""
        records = [*self.turns, *self.edges, *self.calls]
        self.rng.shuffle(records)
        made = Episode("ep")
        made.add(records)
        made.score("x", 1.0)
        return made

    def superseded(self) -> set[str]:
        """The answered calls that a later answered attempt at the same call replaces."""
        attempts: defaultdict[str, dict[str, list[str]]] = defaultdict(dict)
        known = {call.call_id: call for call in self.calls}
        for call in self.calls:
            first = known[call.choice_of or call.call_id]
            while first.retry_of is not None:
                first = known[first.retry_of]
            if call.status == "ok":
                attempts[first.call_id].setdefault(call.choice_of or call.call_id, []).append(call.call_id)
        return {name for tries in attempts.values() for choices in [*tries.values()][:-1] for name in choices}


def threads_by_hand(calls: list[CallRecord]) -> tuple[list[list[str]], set[str]]:
    """Who continues whom, by comparing each call of a lineage with all before it; and who is ambiguous."""
    threads: list[list[str]] = []
    ambiguous: set[str] = set()
    for index, call in enumerate(calls):
        prompt = call.prompt_token_ids or []
        ended = {c.call_id: (c.prompt_token_ids or []) + (c.token_ids or []) for c in calls[:index]}
        fitting = {name: tokens for name, tokens in ended.items() if prompt[: len(tokens)] == tokens}
        longest = max(map(len, fitting.values()), default=0)
        parents = [name for name, tokens in fitting.items() if len(tokens) == longest]
        thread = next((t for t in threads if len(parents) == 1 and t[-1] == parents[0]), None)
        if thread is None:
            threads.append([call.call_id])
            if len(parents) > 1:
                ambiguous.add(call.call_id)
        else:
            thread.append(call.call_id)
    return threads, ambiguous


@settings(max_examples=150)
@given(st.randoms(use_true_random=False), st.integers(1, 40))
def test_every_sampled_token_is_trained_exactly_once(rng: random.Random, count: int) -> None:
    """Over made-up trees of calls, with sessions that interleave, workers side by side, retries, forks, compressed and
    drifting contexts, and calls whose parent nobody can tell."""
    forest = Forest(rng)
    for _ in range(count):
        forest.grow()
    rows, report = cut_rows([forest.episode()])
    superseded = forest.superseded()
    wanted = {c.call_id: c for c in forest.calls if c.status == "ok" and c.call_id not in superseded}
    assert Counter(name for row in rows for name in row.calls) == Counter(wanted.keys())
    for row in rows:
        check(row, wanted, forest.seats)
    weights: Counter[str] = Counter()
    for row in rows:
        weights[row.seat] += row.weight
    assert all(abs(weight - 1.0) < 1e-9 for weight in weights.values())

    lineages: defaultdict[tuple[str, str], list[CallRecord]] = defaultdict(list)
    for call in wanted.values():
        lineages[call.parent_call_id, call.model].append(call)
    by_hand = [threads_by_hand(calls) for calls in lineages.values()]
    assert sorted(row.calls for row in rows) == sorted(thread for threads, _ in by_hand for thread in threads)
    assert {row.calls[0] for row in rows if row.quarantined} == {name for _, names in by_hand for name in names}

    assert report.calls == count == sum(report.dropped.values()) + report.rows + report.merged
    assert report.captured_tokens == sum(len(call.token_ids or ()) for call in forest.calls)
    assert report.captured_tokens == report.delivered_tokens + sum(report.dropped_tokens.values())
    assert report.delivered_tokens == sum(row.sampled for row in rows) == sum(report.seats.values())
    assert report.dropped["retried"] == len(superseded)
    assert report.forked == len(rows) - len(lineages)


def spoken(call: CallRecord) -> CallRecord:
    """The call with its messages: one a token of the prompt, and the answer."""
    return replace(
        call,
        request={"messages": [{"role": "user", "content": str(token)} for token in call.prompt_token_ids or ()]},
        response={"choices": [{"message": {"role": "assistant", "content": str(call.token_ids)}}]},
    )


@settings(max_examples=100)
@given(st.randoms(use_true_random=False), st.integers(1, 30))
def test_the_sampled_tokens_of_message_graphs_are_those_that_rows_train(rng: random.Random, count: int) -> None:
    forest = Forest(rng)
    for _ in range(count):
        forest.grow()
    forest.calls = [spoken(call) for call in forest.calls]
    made = forest.episode()
    rows, _ = cut_rows([made])
    trained = {
        span.call_id: (row.token_ids[span.start : span.end], row.logprobs[span.start : span.end])
        for row in rows
        for span in row.spans
    }
    sampled: dict[str | None, tuple[list[int], list[float]]] = {}
    for trace in made.traces:
        for node in message_graph(trace):
            if node.sampled:
                assert node.call_id not in sampled
                tokens = [token for token, under in zip(node.token_ids, node.mask, strict=True) if under]
                sampled[node.call_id] = tokens, node.logprobs
    assert sampled == trained


def check(row: Row, calls: dict[str, CallRecord], seats: dict[str, str]) -> None:
    """Each call's tokens stand in its row behind exactly the prompt that it was sampled from, and only they count."""
    assert len(row.token_ids) == len(row.loss_mask) == len(row.logprobs) == len(row.version_ids)
    mask, logprobs, versions = ([0] * len(row.token_ids), [0.0] * len(row.token_ids), [-1] * len(row.token_ids))
    for span in row.spans:
        call = calls[span.call_id]
        assert call.prompt_token_ids is not None and call.token_ids is not None and call.logprobs is not None
        assert row.token_ids[: span.end] == call.prompt_token_ids + call.token_ids
        assert span.start == len(call.prompt_token_ids)
        mask[span.start : span.end] = [1] * len(call.token_ids)
        logprobs[span.start : span.end] = call.logprobs
        versions[span.start : span.end] = [call.policy_version] * len(call.token_ids)
        assert (row.seat, row.instance, row.policy) == (seats[row.instance], f"s{call.parent_call_id[1:]}", call.model)
    assert (row.loss_mask, row.logprobs, row.version_ids) == (mask, logprobs, versions)
    assert row.prompt_len == mask.index(1) and row.calls == [span.call_id for span in row.spans]
    told = [version for version in versions if version >= 0]
    assert row.versions == (min(told), max(told))


class Token(int):
    """A token that counts how often it is compared."""

    compared = 0

    def __eq__(self, other: object) -> bool:
        Token.compared += 1
        return int(self) == other

    __hash__ = int.__hash__


def conversation(turns: int, tokens: int, *, fork_every: int = 0, kind: type[int] = int) -> Episode:
    """One session of many turns with one growing context, in which every so many turns the latest context is left for
    one that differs near its end."""
    made = Episode("ep")
    made.add([TurnRecord("t", "a@1.0.0", "s", seat="a")])
    calls: list[CallRecord] = []
    known: list[int] = []
    for turn in range(turns):
        if fork_every and turn and turn % fork_every == 0:
            known = [*known[:-2], 7, 7]
        known = [*known, *([turn % 5] * tokens)]
        sampled = [kind(3) for _ in range(tokens)]
        prompt: list[int] = [kind(token) for token in known]
        fields: dict[str, Any] = {"prompt_token_ids": prompt, "token_ids": list(sampled), "logprobs": [-1.0] * tokens}
        calls.append(CallRecord(f"k{turn}", "t", seat="a", model="p", started=float(turn), **fields))
        known = [*known, *map(int, sampled)]
    made.add(calls)
    made.score("x", 1.0)
    return made


def steps(work: Callable[[], object]) -> int:
    """How many functions, of Python and of C, a piece of work calls."""
    count = 0

    def tell(frame: object, event: str, argument: object) -> None:
        nonlocal count
        count += event in ("call", "c_call")

    before = sys.getprofile()
    sys.setprofile(tell)
    try:
        work()
    finally:
        sys.setprofile(before)
    return count


def test_cutting_a_long_conversation_compares_each_token_of_each_prompt_a_fixed_number_of_times() -> None:
    for fork_every in (0, 3):
        for turns in (30, 120):
            episode = conversation(turns, 10, fork_every=fork_every, kind=Token)
            given_tokens = sum(len(call.prompt_token_ids or ()) for call in episode.traces[0].calls)
            Token.compared = 0
            rows, _ = cut_rows([episode])
            assert len(rows) == (turns - 1) // fork_every + 1 if fork_every else len(rows) == 1
            assert 0 < Token.compared <= 3 * given_tokens


def test_a_fork_in_the_middle_of_a_long_prompt_is_found_with_few_comparisons() -> None:
    made = Episode("ep")
    tokens = 4000
    for number, at in enumerate((tokens, 1000, 3000, 2000, 1)):
        prompt: list[int] = [Token(1) for _ in range(at)] + [Token(2 + number) for _ in range(tokens - at)]
        fields: dict[str, Any] = {"prompt_token_ids": prompt, "token_ids": [3], "logprobs": [-1.0]}
        made.add([CallRecord(f"k{number}", "t", "a", "p", started=float(number), **fields)])
    made.score("x", 1.0)
    Token.compared = 0
    rows, _ = cut_rows([made])
    assert len(rows) == 5 and Token.compared <= 5 * 5 * tokens


def test_cutting_a_long_conversation_takes_steps_as_its_turns_and_not_as_their_square() -> None:
    short, long = conversation(50, 4), conversation(400, 4)
    cut_rows([short])
    assert steps(lambda: cut_rows([long])) < 9 * steps(lambda: cut_rows([short]))


def test_five_hundred_turns_of_twenty_thousand_tokens_are_one_row() -> None:
    episode = conversation(500, 20)
    (row,), report = cut_rows([episode])
    assert len(row.token_ids) == 20_000 and row.sampled == 10_000 and report.merged == 499


def many(count: int) -> list[Episode]:
    """Episodes of two agents with one call each."""
    made: list[Episode] = []
    for number in range(count):
        episode = Episode(f"ep{number}", task=number % (count // 5))
        episode.add(
            [
                TurnRecord("t1", "a@1.0.0", "s1", seat="a"),
                TurnRecord("t2", "b@1.0.0", "s2", seat="b", parent_call_id="t1"),
            ]
        )
        for seat, turn in (("a", "t1"), ("b", "t2")):
            tokens: dict[str, Any] = {"prompt_token_ids": [1, number % 7], "token_ids": [2], "logprobs": [-1.0]}
            episode.add([CallRecord(f"k{turn}", turn, seat=seat, model=seat, started=1.0, **tokens)])
        episode.score("x", float(number % 2))
        made.append(episode)
    return made


@pytest.mark.parametrize("credit", ["per_seat", "per_prompt", "per_parent_call", "broadcast", "difference"])
def test_crediting_many_episodes_takes_steps_as_their_number(credit: str) -> None:
    few, lots = many(100), many(1000)
    credit_rows(few)
    assert steps(lambda: credit_rows(lots, credit=credit)) < 10.5 * steps(lambda: credit_rows(few, credit=credit))


def test_five_thousand_episodes_of_two_calls_take_a_fixed_number_of_steps_each() -> None:
    lots = many(5000)
    rows, _, _ = credit_rows(lots)
    assert len(rows) == 10_000
    assert steps(lambda: credit_rows(lots)) < 500 * len(lots)


def test_a_tree_of_many_workers_and_as_many_scores_takes_steps_as_their_number() -> None:
    def tree(count: int) -> Episode:
        episode = Episode("ep")
        episode.add([TurnRecord("t", "m@1.0.0", "m", seat="m")])
        episode.add(TurnRecord(f"t{n}", "w@1.0.0", f"s{n}", seat=f"w{n}", parent_call_id="t") for n in range(count))
        episode.add(
            CallRecord(f"k{n}", f"t{n}", f"w{n}", "p", prompt_token_ids=[n], token_ids=[1], logprobs=[-1.0])
            for n in range(count)
        )
        for number in range(count):
            episode.score("x", 1.0, seat=f"w{number}")
        return episode

    small, large = tree(100), tree(800)
    assert steps(lambda: cut_rows([large])) < 9 * steps(lambda: cut_rows([small]))


def test_a_chain_of_agents_deeper_than_the_stack_is_placed() -> None:
    depth = 3000
    episode = Episode("ep")
    turns = [
        TurnRecord(f"t{n}", "a@1.0.0", f"s{n}", seat="a", parent_call_id=f"t{n - 1}" if n else None)
        for n in range(depth)
    ]
    episode.add(turns)
    last = depth - 1
    episode.add([CallRecord("k", f"t{last}", "a", "p", prompt_token_ids=[1], token_ids=[2], logprobs=[-1.0])])
    episode.score("x", 1.0)
    (row,), _ = cut_rows([episode], propagation=lambda instance: float(instance.depth))
    assert row.reward == last
