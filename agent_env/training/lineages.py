"""Lineages: which model calls of one agent instance continue each other.

A call continues another when its prompt begins with all that the other one saw and sampled, token by token. Sequences
of a lineage are kept in a tree of shared beginnings, so that finding what a prompt continues costs one pass over the
prompt, however many calls there are: the whole work is linear in the tokens that were recorded.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass, field

from agent_env.episodes import CallRecord
from agent_env.episodes.attempts import in_order

_TRIED = 2


@dataclass(slots=True)
class Thread:
    """Calls of which each continues the one before; `ambiguous` when the first one has more than one possible parent
    and was joined to none."""

    calls: list[CallRecord]
    ambiguous: bool = False


def thread_calls(calls: Iterable[CallRecord]) -> list[Thread]:
    """Joins the calls of one lineage, in the order in which they began, into threads; each call is in exactly one.

    A call joins the thread that ends with the longest earlier sequence that its prompt begins with. It begins a thread
    of its own when there is none (a mismatch in one token is one), when that sequence was continued already (a fork),
    and when several calls ended with that very sequence: which of them it continues is then not known, and it is not
    guessed. All calls must have token ids.
    """
    threads: list[Thread] = []
    tree = _Tree()
    for call in in_order(calls):
        assert call.prompt_token_ids is not None and call.token_ids is not None
        node, parents = tree.insert(call.prompt_token_ids, call.token_ids)
        thread: Thread | None = None
        if len(parents) == 1 and parents[0].thread.calls[-1] is parents[0].call:
            thread = parents[0].thread
            thread.calls.append(call)
        else:
            thread = Thread([call], ambiguous=len(parents) > 1)
            threads.append(thread)
        node.ends.append(_End(thread, call))
    return threads


@dataclass(slots=True)
class _End:
    thread: Thread
    call: CallRecord


@dataclass(slots=True)
class _Node:
    """A place in the tree: the tokens that lead here from the node above, and the calls whose sequences end here."""

    tokens: list[int] = field(default_factory=list[int])
    children: dict[int, _Node] = field(default_factory=dict[int, "_Node"])
    ends: list[_End] = field(default_factory=list[_End])


class _Tree:
    """The sequences of a lineage by what they begin with.

    What was inserted last is tried first: a conversation that just goes on is then found by one comparison, with no
    walk through all that it said before.
    """

    def __init__(self) -> None:
        self._root = _Node()
        self._latest: deque[tuple[list[int], _Node]] = deque(maxlen=_TRIED)

    def insert(self, prompt: list[int], sampled: list[int]) -> tuple[_Node, list[_End]]:
        """The node where the sequence of a call ends, and the calls that ended with the longest beginning of its
        prompt."""
        sequence = prompt + sampled
        node, at = self._root, 0
        for known, end in sorted(self._latest, key=_length, reverse=True):
            if prompt[: len(known)] == known:
                node, at = end, len(known)
                break
        parents = node.ends
        while at < len(sequence):
            child = node.children.get(sequence[at])
            if child is None:
                child = node.children[sequence[at]] = _Node(sequence[at:])
            elif sequence[at : at + len(child.tokens)] != child.tokens:
                child = _split(node, child, _shared(sequence[at : at + len(child.tokens)], child.tokens))
            node, at = child, at + len(child.tokens)
            if node.ends and at <= len(prompt):
                parents = node.ends
        self._latest.append((sequence, node))
        return node, parents


def _length(latest: tuple[list[int], _Node]) -> int:
    return len(latest[0])


def _split(above: _Node, below: _Node, length: int) -> _Node:
    """Puts a node between two, `length` tokens below the upper one."""
    middle = _Node(below.tokens[:length], {below.tokens[length]: below})
    below.tokens = below.tokens[length:]
    above.children[middle.tokens[0]] = middle
    return middle


def _shared(left: list[int], right: list[int]) -> int:
    """How many tokens two sequences begin with in common; halving, since slices compare faster than tokens in turn."""
    low, high = 0, min(len(left), len(right))
    while low < high:
        middle = (low + high + 1) // 2
        if left[low:middle] == right[low:middle]:
            low = middle
        else:
            high = middle - 1
    return low
