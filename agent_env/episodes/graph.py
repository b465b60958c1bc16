"""The messages of a trace as a graph: what several model calls share is in it once."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from agent_env.episodes.attempts import unheard_calls, with_requests
from agent_env.episodes.conversation import Message, conversation, likeness
from agent_env.episodes.episode import Trace
from agent_env.episodes.records import CallRecord, Json
from agent_env.episodes.tokens import are_token_ids


@dataclass(slots=True)
class MessageNode:
    """One message, and the tokens that it adds to the sequence of its path.

    `parent` is the index of the message before it, None for a first one. `sampled` says that a model call answered it,
    and `call_id` which. Along the path from the root to an answer, `token_ids` add up to exactly what the model was
    given and what it sampled; `mask` is True for each sampled token, and `logprobs` has one for each of those, or none
    at all. Both are empty where the upstream told no tokens.
    """

    parent: int | None
    message: Message
    sampled: bool = False
    token_ids: list[int] = field(default_factory=list[int])
    mask: list[bool] = field(default_factory=list[bool])
    logprobs: list[float] = field(default_factory=list[float])
    call_id: str | None = None

    def to_json(self) -> dict[str, Json]:
        """The node as JSON, with the names of verifiers v1."""
        value: dict[str, Json] = {
            "parent": self.parent,
            "message": self.message,
            "sampled": self.sampled,
            "token_ids": self.token_ids,
            "mask": self.mask,
            "logprobs": self.logprobs,
        }
        return value if self.call_id is None else {**value, "call_id": self.call_id}


def message_graph(trace: Trace) -> list[MessageNode]:
    """The messages of a trace, parents before children; each answer is one node, whatever came after it.

    A call shares the longest path that says the same as the beginning of its prompt, token for token where there are
    tokens; where nothing more is shared, it forks. Nobody told where the tokens of several new messages part: they are
    on the last of them, and on the answer if it alone is new. Of equal paths it goes on with the latest. Calls that
    failed have no answer and are left out, and so are those of which a later attempt was answered, or may have been: the
    answers here are those that rows are cut from (`unheard_calls`).
    Raises `ProtocolError` for a call without the messages of its dialect.

        for path in paths(message_graph(trace)):
            print([node.message["role"] for node in path])
    """
    graph = _Graph()
    unheard = unheard_calls(trace.calls)
    for call in sorted(with_requests(trace.calls), key=lambda call: call.started or 0.0):
        if call.status == "ok" and call.response is not None and call.call_id not in unheard:
            graph.add(call)
    return graph.nodes


def paths(nodes: Sequence[MessageNode]) -> Iterator[list[MessageNode]]:
    """The paths of a graph from its roots to its leaves, in the order of the leaves."""
    parents = {node.parent for node in nodes}
    for index in range(len(nodes)):
        if index not in parents:
            yield path_to(nodes, index)


def path_to(nodes: Sequence[MessageNode], index: int) -> list[MessageNode]:
    """The path from the root to one node."""
    path: list[MessageNode] = []
    at: int | None = index
    while at is not None:
        path.append(nodes[at])
        at = nodes[at].parent
    return path[::-1]


class _Graph:
    def __init__(self) -> None:
        self.nodes: list[MessageNode] = []
        self._children: dict[tuple[int | None, str], list[int]] = {}
        self._answers: dict[str, int] = {}
        self._prompt: list[Message] = []
        self._said: list[str] = []

    def add(self, call: CallRecord) -> None:
        prompt, answer = conversation(call)
        # Calls with tokens and calls without share no path: the tokens of each add up, or it has none.
        told = are_token_ids(call.prompt_token_ids) and are_token_ids(call.token_ids)
        ids = call.prompt_token_ids if told else None
        start, before = self._start(call, ids)
        root = json.dumps([told, call.request.get("tools")], sort_keys=True) if start is None else ""
        keys = self._likenesses(prompt)
        if keys:
            keys[0] = root + keys[0]
        parent, shared, covered = self._longest(start, before, keys, ids)
        fresh = prompt[shared:]
        rest = [] if ids is None else ids[covered:]
        for number, message in enumerate(fresh):
            tokens = rest if number == len(fresh) - 1 else []
            parent = self._append(parent, keys[shared + number], MessageNode(parent, message, False, tokens))
        rest = [] if fresh else rest
        for number, message in enumerate(answer):
            node = MessageNode(parent, message, True, call_id=call.call_id)
            if told and number == len(answer) - 1:
                sampled = call.token_ids or []
                node.token_ids = rest + sampled
                node.mask = [False] * len(rest) + [True] * len(sampled)
                node.logprobs = list(call.logprobs or ())
            parent = self._append(parent, likeness(message), node)
        name = call.response.get("id")
        if parent is not None and isinstance(name, str):
            self._answers[name] = parent

    def _likenesses(self, prompt: list[Message]) -> list[str]:
        """What each message says; of those that the prompt before began with as well, it is known already.

        A conversation that goes on sends all that was said before, again with every call.
        """
        known = 0
        for message, before in zip(prompt, self._prompt, strict=False):
            if message != before:
                break
            known += 1
        self._prompt, self._said = prompt, self._said[:known] + [likeness(message) for message in prompt[known:]]
        return list(self._said)

    def _start(self, call: CallRecord, ids: list[int] | None) -> tuple[int | None, int]:
        """The answer that the call goes on from by its name, with the tokens on its path: the Responses API's way."""
        start = self._answers.get(str(call.request.get("previous_response_id"))) if call.api == "responses" else None
        if start is None:
            return None, 0
        before = [token for node in path_to(self.nodes, start) for token in node.token_ids]
        return (start, len(before)) if (ids or [])[: len(before)] == before else (None, 0)

    def _longest(
        self, start: int | None, before: int, keys: Sequence[str], ids: list[int] | None
    ) -> tuple[int | None, int, int]:
        """The end of the longest path that is shared, and how many messages and tokens of the prompt it covers."""
        best, shared = (start, before), 0
        ends = [best]
        for key in keys:
            further: list[tuple[int | None, int]] = []
            for end, covered in ends:
                for child in self._children.get((end, key), ()):
                    tokens = self.nodes[child].token_ids
                    if ids is None or ids[covered : covered + len(tokens)] == tokens:
                        further.append((child, covered + len(tokens)))
            if not further:
                break
            ends, best, shared = further, further[-1], shared + 1
        return best[0], shared, best[1]

    def _append(self, parent: int | None, key: str, node: MessageNode) -> int:
        if not node.mask:
            node.mask = [False] * len(node.token_ids)
        self.nodes.append(node)
        self._children.setdefault((parent, key), []).append(len(self.nodes) - 1)
        return len(self.nodes) - 1
