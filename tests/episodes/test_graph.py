"""The messages of a trace as a graph: shared by exact prefix, forked where they differ, exact in tokens."""

from __future__ import annotations

import json
import random
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agent_env.episodes import CallRecord, MessageNode, Trace, message_graph, path_to, paths
from agent_env.episodes.conversation import likeness
from agent_env.errors import ProtocolError

Json = Any


def user(text: str) -> Json:
    return {"role": "user", "content": text}


def assistant(text: str, **more: Json) -> Json:
    return {"role": "assistant", "content": text, **more}


def chat(name: str, prompt: Sequence[Json], answer: Json, ids: list[int] | None = None, **more: Json) -> CallRecord:
    """A call in which every character of a message is a token, in brackets that the template adds."""
    told = [*render(prompt), OPEN] if ids is None and "token_ids" not in more else ids
    sampled = [*map(ord, answer["content"] or ""), CLOSE]
    given = {"prompt_token_ids": told, "token_ids": sampled, "logprobs": [-0.5] * len(sampled)}
    return CallRecord(
        *(name, "t1", "ann", "M"),
        request={"messages": list(prompt), "tools": more.pop("tools", None)},
        response={"id": f"r-{name}", "choices": [{"message": answer}]},
        **(given | more),
    )


OPEN, CLOSE = 1, 2


def render(messages: Sequence[Json]) -> list[int]:
    ids: list[int] = []
    for message in messages:
        ids += [OPEN, *map(ord, message.get("content") or ""), CLOSE]
    return ids


def graph(*calls: CallRecord) -> list[MessageNode]:
    return message_graph(Trace("a@1.0.0", "ann", "s", calls=list(calls)))


def shape(nodes: list[MessageNode]) -> list[tuple[int | None, str, bool]]:
    return [(node.parent, str(node.message["content"]), node.sampled) for node in nodes]


def tokens(path: list[MessageNode]) -> list[int]:
    return [token for node in path for token in node.token_ids]


def masked(path: list[MessageNode]) -> list[bool]:
    return [flag for node in path for flag in node.mask]


def test_a_conversation_that_goes_on_is_one_path() -> None:
    first, second = user("hi"), assistant("ho")
    nodes = graph(
        chat("k1", [first], second, started=1.0),
        chat("k2", [first, second, user("so")], assistant("ja"), started=2.0),
    )
    assert shape(nodes) == [(None, "hi", False), (0, "ho", True), (1, "so", False), (2, "ja", True)]
    (path,) = paths(nodes)
    assert tokens(path) == render([first, second, user("so"), assistant("ja")])
    assert [node.call_id for node in path] == [None, "k1", None, "k2"]
    assert masked(path).count(True) == 6 and [len(node.logprobs) for node in path] == [0, 3, 0, 3]


def test_calls_are_taken_in_the_order_of_their_time() -> None:
    calls = [
        chat("k2", [user("a"), assistant("b"), user("c")], assistant("d"), started=2.0),
        chat("k1", [user("a")], assistant("b"), started=1.0),
    ]
    assert [node.call_id for node in graph(*calls)] == [None, "k1", None, "k2"]


def test_what_a_conversation_sends_again_with_every_call_is_read_once(monkeypatch: pytest.MonkeyPatch) -> None:
    read: list[Json] = []

    def counted(message: Json) -> str:
        read.append(message)
        return likeness(message)

    monkeypatch.setattr("agent_env.episodes.graph.likeness", counted)
    said: list[Json] = []
    calls: list[CallRecord] = []
    for number in range(50):
        said += [user(f"q{number}")]
        calls.append(chat(f"k{number}", json.loads(json.dumps(said)), assistant(f"x{number}", refusal=None)))
        said += [assistant(f"x{number}")]
    fork = chat("fork", [*said[:40], user("else")], assistant("y"))
    nodes = graph(*calls, fork)
    assert [node.call_id for node in nodes if node.sampled] == [*(f"k{number}" for number in range(50)), "fork"]
    assert len(nodes) == 102 and len(read) <= 3 * 51
    assert [len(path) for path in paths(nodes)] == [100, 42]


def test_two_answers_to_one_prompt_are_two_paths_that_share_it() -> None:
    nodes = graph(chat("k1", [user("q")], assistant("x")), chat("k2", [user("q")], assistant("x")))
    assert shape(nodes) == [(None, "q", False), (0, "x", True), (0, "x", True)]
    assert [tokens(path) for path in paths(nodes)] == [render([user("q"), assistant("x")])] * 2


def test_of_equal_answers_the_path_that_goes_further_is_taken_up_and_else_the_latest() -> None:
    start, twin = [user("q")], assistant("x")
    longer = [*start, twin, user("more")]
    calls = [chat("k1", start, twin), chat("k2", longer, assistant("y")), chat("k3", start, twin)]
    nodes = graph(*calls, chat("k4", [*longer, assistant("y"), user("end")], assistant("z")))
    assert [node.call_id for node in path_to(nodes, len(nodes) - 1)] == [None, "k1", None, "k2", None, "k4"]
    nodes = graph(*calls, chat("k4", [*start, twin, user("other")], assistant("z")))
    assert [node.call_id for node in path_to(nodes, len(nodes) - 1)] == [None, "k3", None, "k4"]


def test_an_answer_that_was_tokenized_anew_forks_and_is_not_sampled_twice() -> None:
    prompt = [user("q"), assistant("xy"), user("r")]
    anew = [*render([user("q")]), OPEN, 999, CLOSE, *render([user("r")]), OPEN]
    nodes = graph(chat("k1", [user("q")], assistant("xy")), chat("k2", prompt, assistant("z"), anew))
    assert shape(nodes)[1:] == [(0, "xy", True), (0, "xy", False), (2, "r", False), (3, "z", True)]
    first, second = paths(nodes)
    assert tokens(second) == [*anew, ord("z"), CLOSE]
    assert masked(second).count(True) == 2 and masked(first).count(True) == 3


def test_a_prompt_that_is_the_beginning_of_an_earlier_one_shares_its_messages() -> None:
    nodes = graph(chat("k1", [user("a"), user("b")], assistant("x")), chat("k2", [user("a")], assistant("y")))
    assert shape(nodes) == [(None, "a", False), (0, "b", False), (1, "x", True), (0, "y", True)]
    assert [tokens(path) for path in paths(nodes)] == [
        render([user("a"), user("b"), assistant("x")]),
        render([user("a"), assistant("y")]),
    ]
    assert nodes[3].mask == [False] * 4 + [True] * 2


def test_other_tools_make_another_prompt() -> None:
    tool = {"type": "function", "function": {"name": "f"}}
    nodes = graph(chat("k1", [user("a")], assistant("x")), chat("k2", [user("a")], assistant("y"), tools=[tool]))
    assert [node.parent for node in nodes] == [None, 0, None, 2]


def test_calls_without_tokens_share_what_they_say_and_have_none() -> None:
    none: Json = {"prompt_token_ids": None, "token_ids": None, "logprobs": None}
    nodes = graph(
        chat("k1", [user("a")], assistant("x", refusal=None, annotations=[], tool_calls=None), **none),
        chat("k2", [user("a"), assistant("x"), user("b")], assistant("y"), **none),
        chat("k3", [user("a"), assistant("x"), user("b")], assistant("z")),
        chat("k4", [user("a")], assistant("w"), prompt_token_ids=None),
    )
    assert [node.parent for node in nodes] == [None, 0, 1, 2, None, 4, 5, 6, 0]
    assert [bool(tokens(path)) for path in paths(nodes)] == [False, True, False]
    assert [len(node.mask) == len(node.token_ids) for node in nodes] == [True] * 9


def test_what_failed_and_what_a_retry_replaced_is_left_out() -> None:
    nodes = graph(
        chat("k1", [user("a")], assistant("x"), started=1.0),
        chat("k2", [user("a")], assistant("y"), started=2.0, retry_of="k1", retries=1),
        chat("k3", [user("b")], assistant("z"), started=3.0, status="upstream_error"),
        CallRecord("k4", "t1", "ann", "M", started=4.0),
    )
    assert shape(nodes) == [(None, "a", False), (0, "y", True)]
    # An attempt that failed takes nobody's place, and the last that was answered takes that of all before it.
    failed = chat("k2", [user("a")], assistant("y"), started=2.0, retry_of="k1", status="upstream_error")
    first, last = (
        chat("k1", [user("a")], assistant("x"), started=1.0),
        chat("k3", [user("a")], assistant("z"), started=3.0),
    )
    assert shape(graph(first, failed)) == [(None, "a", False), (0, "x", True)]
    assert shape(graph(first, failed, replace(last, retry_of="k2"))) == [(None, "a", False), (0, "z", True)]


def test_tool_calls_come_back_as_they_were_answered() -> None:
    call = {"id": "c1", "type": "function", "index": 0, "function": {"name": "f", "arguments": '{"a": 1}'}}
    back = {name: value for name, value in call.items() if name != "index"}
    answer = {"role": "assistant", "content": None, "tool_calls": [call], "reasoning_content": "hm"}
    result = {"role": "tool", "tool_call_id": "c1", "content": [{"type": "text", "text": "one"}]}
    none: Json = {"prompt_token_ids": None, "token_ids": None, "logprobs": None}
    again = {"role": "assistant", "tool_calls": [back]}
    nodes = graph(
        chat("k1", [user("a")], answer, **none),
        chat("k2", [user("a"), again, result], assistant("x"), **none),
        chat("k3", [user("a"), again, result | {"content": "one"}], assistant("y"), **none),
        chat("k4", [user("a"), again | {"tool_calls": [back | {"id": "c2"}]}, result], assistant("z"), **none),
    )
    assert [node.parent for node in nodes] == [None, 0, 1, 2, 2, 0, 5, 6]


def test_the_arguments_of_a_tool_are_never_taken_for_what_a_server_adds() -> None:
    def asked(status: str) -> Json:
        return {
            "role": "assistant",
            "content": [{"type": "tool_use", "id": "u", "name": "f", "input": {"status": status}}],
        }

    def call(name: str, messages: Sequence[Json], answer: Json) -> CallRecord:
        request = {"messages": messages, "system": "be brief", "max_tokens": 9}
        return CallRecord(name, "t", "ann", "M", api="messages", request=request, response={"id": name} | answer)

    nodes = graph(
        call("k1", [user("a")], asked("open") | {"stop_reason": "tool_use"}),
        call("k2", [user("a"), asked("closed"), user("b")], assistant("x")),
        call("k3", [user("a"), asked("open"), user("b")], assistant([{"type": "text", "text": "y"}])),  # type: ignore[arg-type]
    )
    assert [node.parent for node in nodes] == [None, 0, 1, 1, 3, 4, 2, 6]
    assert nodes[0].message == {"role": "system", "content": "be brief"}


def responses(name: str, given: Json, output: list[Json], **more: Json) -> CallRecord:
    request = {"input": given} | {n: more.pop(n) for n in ("instructions", "previous_response_id") if n in more}
    response = {"id": f"r-{name}", "output": output}
    return CallRecord(name, "t", "ann", "M", api="responses", request=request, response=response, **more)


def item(text: str) -> Json:
    return {"type": "message", "id": f"msg_{text}", "status": "completed", "role": "assistant",
            "content": [{"type": "output_text", "text": text, "annotations": []}]}  # fmt: skip


def test_the_items_of_a_response_are_messages_of_one_answer() -> None:
    asked = {"type": "function_call", "id": "fc_1", "call_id": "c1", "name": "f", "arguments": "{}"}
    result = {"type": "function_call_output", "call_id": "c1", "output": "one"}
    thought = {"type": "reasoning", "id": "rs_1", "summary": []}
    back = [thought, {name: value for name, value in asked.items() if name != "id"}, result]
    nodes = graph(
        responses("k1", "hi", [thought, asked], prompt_token_ids=[1], token_ids=[2, 3], logprobs=[-1.0, -2.0]),
        responses("k2", [user("hi"), *back], [item("x")], prompt_token_ids=[1, 2, 3, 4], token_ids=[5]),
        responses(
            "k3", [user("hi"), *back, assistant("x")], [item("y")], prompt_token_ids=[1, 2, 3, 4, 5], token_ids=[6]
        ),
    )
    assert [node.parent for node in nodes] == [None, 0, 1, 2, 3, 4]
    assert [node.sampled for node in nodes] == [False, True, True, False, True, True]
    assert [node.token_ids for node in nodes] == [[1], [], [2, 3], [4], [5], [6]]


def test_a_response_goes_on_from_the_one_that_it_names() -> None:
    nodes = graph(
        responses("k1", "hi", [item("x")], instructions="be brief", started=1.0),
        responses("k2", "other", [item("z")], started=2.0),
        responses("k3", "so", [item("y")], previous_response_id="r-k1", started=3.0),
        responses("k4", "lost", [item("w")], previous_response_id="r-unknown", started=4.0),
    )
    assert [[str(node.message["role"]) for node in path] for path in paths(nodes)] == [
        ["user", "assistant"],
        ["system", "user", "assistant", "user", "assistant"],
        ["user", "assistant"],
    ]


def test_a_named_response_whose_tokens_are_not_in_the_prompt_is_not_gone_on_from() -> None:
    first = responses("k1", "hi", [item("x")], prompt_token_ids=[1], token_ids=[2], started=1.0)
    more: Json = {"previous_response_id": "r-k1", "token_ids": [5], "started": 2.0}
    nodes = graph(first, responses("k2", "so", [item("y")], prompt_token_ids=[1, 2, 4], **more))
    assert [tokens(path) for path in paths(nodes)] == [[1, 2, 4, 5]]
    nodes = graph(first, responses("k2", "so", [item("y")], prompt_token_ids=[1, 3, 4], **more))
    assert [tokens(path) for path in paths(nodes)] == [[1, 2], [1, 3, 4, 5]]


def test_a_completion_is_one_message_and_its_answer() -> None:
    call = CallRecord(
        *("k1", "t", "ann", "M"), api="completions", request={"prompt": "a"}, response={"choices": [{"text": "b"}]}
    )
    assert shape(graph(call)) == [(None, "a", False), (0, "b", True)]


@pytest.mark.parametrize(
    ("api", "request_", "response", "why"),
    [
        ("chat", {}, {"choices": []}, "no conversation of the dialect 'chat': KeyError 'messages'"),
        ("chat", {"messages": "hi"}, {}, "messages are a list, not 'hi'"),
        ("chat", {"messages": ["hi"]}, {}, "a message is an object, not 'hi'"),
        ("chat", {"messages": []}, {"choices": []}, "IndexError"),
        ("chat", None, {}, "TypeError"),
        ("messages", {"messages": []}, {"role": "assistant"}, "KeyError 'content'"),
        ("smoke", {}, {}, "of the dialect 'smoke'; known: chat, completions, responses, messages"),
    ],
)
def test_a_call_without_the_messages_of_its_dialect_is_told(api: str, request_: Json, response: Json, why: str) -> None:
    with pytest.raises(ProtocolError, match=f"call 'k1' .*{why}"):
        graph(CallRecord("k1", "t", "ann", "M", api=api, request=request_, response=response))


def test_a_node_is_written_with_the_names_of_verifiers() -> None:
    prompt, answer = graph(chat("k1", [user("a")], assistant("")))
    plain = {"parent": None, "message": user("a"), "sampled": False, "token_ids": [1, 97, 2, 1]}
    assert prompt.to_json() == plain | {"mask": [False] * 4, "logprobs": []}
    sampled = {"parent": 0, "message": assistant(""), "sampled": True, "token_ids": [2], "mask": [True]}
    assert answer.to_json() == sampled | {"logprobs": [-0.5], "call_id": "k1"}


@given(st.randoms(use_true_random=False), st.integers(1, 12))
def test_every_call_finds_its_tokens_on_one_path_and_each_is_sampled_once(rng: random.Random, count: int) -> None:
    """Conversations that go on, fork, start anew, repeat, and are tokenized anew, out of a small alphabet."""
    calls: list[CallRecord] = []
    histories: list[list[Json]] = [[]]
    for number in range(count):
        prompt = [*rng.choice(histories), *(user(rng.choice("ab")) for _ in range(rng.randint(0, 2)))]
        answer = assistant(rng.choice(["", "x", "y", "xy"]))
        ids = [*render(prompt), OPEN]
        if rng.random() < 0.2:
            ids[rng.randrange(len(ids))] = 999
        calls.append(chat(f"k{number}", prompt, answer, ids, started=float(number)))
        histories.append([*prompt, answer])
    nodes = graph(*calls)
    assert all(node.parent is None or node.parent < index for index, node in enumerate(nodes))
    answers = {node.call_id: index for index, node in enumerate(nodes) if node.sampled}
    assert len(answers) == sum(node.sampled for node in nodes) == count
    for call in calls:
        assert call.prompt_token_ids is not None and call.token_ids is not None
        path = path_to(nodes, answers[call.call_id])
        assert tokens(path) == call.prompt_token_ids + call.token_ids
        assert path[-1].mask[-len(call.token_ids) :] == [True] * len(call.token_ids)
        assert [node.message for node in path] == [*call.request["messages"], call.response["choices"][0]["message"]]
        assert path[-1].logprobs == call.logprobs
    assert sum(masked(nodes)) == sum(len(call.token_ids or ()) for call in calls)
    assert {id(node) for path in paths(nodes) for node in path} == {id(node) for node in nodes}
