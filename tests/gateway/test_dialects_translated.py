"""What is put into chat completions and back: every word of a request, every event of an answer, and what is refused."""

from __future__ import annotations

import itertools
import json
from collections.abc import Mapping
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agent_env.episodes import CallRecord
from agent_env.errors import AgentEnvError, InvalidArguments, NotSupported
from agent_env.gateway.dialects import CHAT, DIALECTS
from agent_env.gateway.dialects.messages_reply import MessagesAsChat
from agent_env.gateway.dialects.responses_reply import ResponsesAsChat

PNG = "data:image/png;base64,AAAA"


def respond(**request: Any) -> dict[str, Any]:
    return ResponsesAsChat({"model": "x", "input": "boat", **request}).chat


def message(**request: Any) -> dict[str, Any]:
    return MessagesAsChat(
        {"model": "x", "max_tokens": 5, "messages": [{"role": "user", "content": "boat"}], **request}
    ).chat


BASE = {"model": "x", "messages": [{"role": "user", "content": "boat"}]}


@pytest.mark.parametrize(
    ("request_", "chat"),
    [
        ({}, {}),
        ({"temperature": 0.5, "vendor_field": {"a": 1}, "user": None}, {"temperature": 0.5, "vendor_field": {"a": 1}}),
        ({"max_output_tokens": 7}, {"max_completion_tokens": 7}),
        ({"reasoning": {"effort": "low"}}, {"reasoning_effort": "low"}),
        ({"text": {"verbosity": "low", "format": {"type": "text"}}}, {"verbosity": "low"}),
        ({"text": {"format": {"type": "json_object"}}}, {"response_format": {"type": "json_object"}}),
        (
            {"text": {"format": {"type": "json_schema", "name": "n", "schema": {}, "strict": True}}},
            {"response_format": {"type": "json_schema", "json_schema": {"name": "n", "schema": {}, "strict": True}}},
        ),
        ({"include": ["message.output_text.logprobs"], "top_logprobs": 2}, {"logprobs": True, "top_logprobs": 2}),
        ({"include": ["reasoning.encrypted_content"], "truncation": "disabled", "background": False}, {}),
        ({"stream": True}, {"stream": True, "stream_options": {"include_usage": True}}),
        (
            {
                "tools": [{"type": "function", "name": "f", "parameters": None}],
                "tool_choice": {"type": "function", "name": "f"},
            },
            {
                "tools": [{"type": "function", "function": {"name": "f"}}],
                "tool_choice": {"type": "function", "function": {"name": "f"}},
            },
        ),
    ],
)
def test_fields_of_a_response_have_their_names_in_chat(request_: dict[str, Any], chat: dict[str, Any]) -> None:
    assert respond(**request_) == {**BASE, **chat}


@pytest.mark.parametrize(
    ("items", "messages"),
    [
        ([{"role": "developer", "content": "Zip."}], [{"role": "system", "content": "Zip."}]),
        (
            [{"role": "user", "content": [{"type": "input_text", "text": "a"}, {"type": "input_text", "text": "b"}]}],
            [{"role": "user", "content": "ab"}],
        ),
        (
            [
                {
                    "role": "user",
                    "content": [
                        {"type": "input_text", "text": "a"},
                        {"type": "input_image", "image_url": PNG, "detail": "low"},
                        {"type": "input_audio", "input_audio": {"data": "", "format": "wav"}},
                    ],
                }
            ],
            [
                {
                    "role": "user",
                    "content": [
                        {"type": "text", "text": "a"},
                        {"type": "image_url", "image_url": {"url": PNG, "detail": "low"}},
                        {"type": "input_audio", "input_audio": {"data": "", "format": "wav"}},
                    ],
                }
            ],
        ),
        (
            # One answer of the model, then another one: neither is torn apart, and the two are not joined.
            [
                {"type": "reasoning", "summary": [], "content": [{"type": "reasoning_text", "text": "Hm."}]},
                {"type": "message", "role": "assistant", "content": [{"type": "output_text", "text": "one"}]},
                {"type": "function_call", "call_id": "c1", "name": "f", "arguments": "{}"},
                {"type": "message", "role": "assistant", "content": [{"type": "refusal", "refusal": "no"}]},
                {"type": "reasoning", "summary": [{"type": "summary_text", "text": "So."}]},
                {"type": "function_call", "call_id": "c2", "name": "f", "arguments": "{}"},
                {"type": "reasoning", "summary": [], "encrypted_content": "…"},
            ],
            [
                {
                    "role": "assistant",
                    "reasoning_content": "Hm.",
                    "content": "one",
                    "tool_calls": [{"id": "c1", "type": "function", "function": {"name": "f", "arguments": "{}"}}],
                },
                {"role": "assistant", "content": "no"},
                {
                    "role": "assistant",
                    "content": None,
                    "reasoning_content": "So.",
                    "tool_calls": [{"id": "c2", "type": "function", "function": {"name": "f", "arguments": "{}"}}],
                },
            ],
        ),
    ],
)
def test_items_of_a_response_become_messages(items: list[Any], messages: list[Any]) -> None:
    assert respond(input=items)["messages"] == messages


@pytest.mark.parametrize(
    ("request_", "chat"),
    [
        ({"temperature": 0.5, "vendor_field": 1}, {"temperature": 0.5, "vendor_field": 1}),
        ({"metadata": {"user_id": "u"}, "thinking": {"type": "enabled", "budget_tokens": 1024}}, {"user": "u"}),
        ({"output_config": {"effort": "low"}}, {"reasoning_effort": "low"}),
        (
            {"output_config": {"format": {"type": "json_schema", "schema": {"a": 1}}}},
            {
                "response_format": {
                    "type": "json_schema",
                    "json_schema": {"name": "answer", "schema": {"a": 1}, "strict": True},
                }
            },
        ),
        (
            {"tool_choice": {"type": "any", "disable_parallel_tool_use": True}},
            {"tool_choice": "required", "parallel_tool_calls": False},
        ),
        ({"tool_choice": {"type": "none"}}, {"tool_choice": "none"}),
        (
            {"tool_choice": {"type": "tool", "name": "f"}},
            {"tool_choice": {"type": "function", "function": {"name": "f"}}},
        ),
        (
            {"tools": [{"type": "custom", "name": "f", "input_schema": {}, "strict": True}]},
            {"tools": [{"type": "function", "function": {"name": "f", "strict": True, "parameters": {}}}]},
        ),
        (
            {
                "system": [
                    {"type": "text", "text": "a", "cache_control": {"type": "ephemeral"}},
                    {"type": "text", "text": "b"},
                ]
            },
            {"messages": [{"role": "system", "content": "ab"}, *BASE["messages"]]},
        ),
        (
            {
                "messages": [
                    {
                        "role": "user",
                        "content": [
                            {"type": "text", "text": "a"},
                            {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": "AAAA"}},
                            {"type": "image", "source": {"type": "url", "url": "http://x/y.png"}},
                        ],
                    }
                ]
            },
            {
                "messages": [
                    {
                        "role": "user",
                        "content": [
                            {"type": "text", "text": "a"},
                            {"type": "image_url", "image_url": {"url": PNG}},
                            {"type": "image_url", "image_url": {"url": "http://x/y.png"}},
                        ],
                    }
                ]
            },
        ),
        (
            {
                "messages": [
                    {
                        "role": "assistant",
                        "content": [{"type": "redacted_thinking", "data": "…"}, {"type": "text", "text": "a"}],
                    },
                    {"role": "user", "content": [{"type": "tool_result", "tool_use_id": "t"}]},
                ]
            },
            {"messages": [{"role": "assistant", "content": "a"}, {"role": "tool", "tool_call_id": "t", "content": ""}]},
        ),
    ],
)
def test_fields_of_a_message_have_their_names_in_chat(request_: dict[str, Any], chat: dict[str, Any]) -> None:
    assert message(**request_) == {**BASE, "max_completion_tokens": 5, **chat}


@pytest.mark.parametrize(
    ("dialect", "request_", "error", "told"),
    [
        ("responses", {"previous_response_id": "r"}, NotSupported, "no 'previous_response_id'"),
        ("responses", {"conversation": "c"}, NotSupported, "no 'conversation'"),
        ("responses", {"prompt": {"id": "p"}}, NotSupported, "no 'prompt'"),
        ("responses", {"background": True}, NotSupported, "no `background` calls"),
        ("responses", {"truncation": "auto"}, NotSupported, "no truncation 'auto'"),
        ("responses", {"tools": [{"type": "web_search"}]}, NotSupported, "no tools of type 'web_search'"),
        ("responses", {"tools": [{"type": "function", "name": "f"}], "tool_choice": {"type": "mcp"}}, NotSupported, "no tool_choice of type 'mcp'"),
        ("responses", {"input": [{"type": "item_reference", "id": "i"}]}, NotSupported, "no input items of type 'item_ref"),
        ("responses", {"input": [{"role": "user", "content": [{"type": "input_file"}]}]}, NotSupported, "no content of type 'input_file'"),
        ("responses", {"input": [{"role": "user", "content": [{"type": "input_image", "file_id": "f"}]}]}, NotSupported, "'input_image' in this form"),
        ("responses", {"input": 5}, InvalidArguments, "`input` of a response must be a list, not 5"),
        ("responses", {"input": [5]}, InvalidArguments, "`input` of a response must hold objects, not 5"),
        ("responses", {"tools": "f"}, InvalidArguments, "`tools` of a response must be a list, not 'f'"),
        ("responses", {"text": "f"}, InvalidArguments, "`text` of a response must hold objects"),
        ("messages", {"container": "c"}, NotSupported, "no 'container'"),
        ("messages", {"mcp_servers": [{}]}, NotSupported, "no 'mcp_servers'"),
        ("messages", {"tools": [{"type": "bash_20250124", "name": "bash"}]}, NotSupported, "no tools of type 'bash_2025"),
        ("messages", {"tool_choice": {"type": "perhaps"}}, NotSupported, "no tool_choice of type 'perhaps'"),
        ("messages", {"messages": [{"role": "user", "content": [{"type": "document"}]}]}, NotSupported, "no blocks of type 'document'"),
        ("messages", {"messages": [{"role": "user", "content": [{"type": "image", "source": {"type": "file"}}]}]}, NotSupported, "'image' in this form"),
        ("messages", {"messages": [{"role": "assistant", "content": [{"type": "server_tool_use"}]}]}, NotSupported, "'server_tool_use' in an answer"),
        ("messages", {"messages": [{"role": "assistant", "content": "The"}]}, NotSupported, "no way to go on with words of the assistant"),
        ("messages", {"messages": "boat"}, InvalidArguments, "`messages` of a message must be a list, not 'boat'"),
        ("messages", {"messages": [{"role": "user", "content": ["boat"]}]}, InvalidArguments, "`content` of a message must hold obj"),
    ],
)  # fmt: skip
def test_what_chat_has_no_word_for_is_refused_by_name(
    dialect: str, request_: dict[str, Any], error: type[AgentEnvError], told: str
) -> None:
    with pytest.raises(error) as caught:
        {"responses": respond, "messages": message}[dialect](**request_)
    assert told in caught.value.message


# One answer, whole and in any pieces, is the same answer in the other dialects.

TEXTS = st.text(st.characters(codec="utf-8"), min_size=1, max_size=12)
CALLS = st.lists(
    st.fixed_dictionaries({"name": TEXTS, "arguments": st.dictionaries(TEXTS, TEXTS, max_size=2).map(json.dumps)}),
    max_size=3,
)


@st.composite
def answers(draw: st.DrawFn) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    """A chat completion, and chunks that stream it."""
    reasoning, content = draw(st.none() | TEXTS), draw(st.none() | TEXTS)
    calls = [
        {"index": number, "id": f"call_{number}", "type": "function", "function": function}
        for number, function in enumerate(draw(CALLS))
    ]
    finish = draw(st.sampled_from(["stop", "length", "tool_calls", "content_filter"]))
    usage = {"prompt_tokens": 5, "completion_tokens": 7, "prompt_tokens_details": {"cached_tokens": 2}}
    said: dict[str, Any] = {"role": "assistant", "reasoning_content": reasoning, "content": content}
    head = {"id": "c", "object": "chat.completion", "model": "m", "prompt_token_ids": [1, 2]}
    whole = {
        **head,
        "usage": usage,
        "choices": [{"index": 0, "message": {**said, "tool_calls": calls}, "finish_reason": finish}],
    }
    deltas: list[dict[str, Any]] = [{"role": "assistant"}]
    for name, text in (("reasoning_content", reasoning), ("content", content)):
        deltas += [{name: part} for part in _cut(draw, text or "")]
    for call in calls:
        pieces = _cut(draw, call["function"]["arguments"])
        deltas.append({"tool_calls": [{**call, "function": {**call["function"], "arguments": pieces[0]}}]})
        deltas += [{"tool_calls": [{"index": call["index"], "function": {"arguments": piece}}]} for piece in pieces[1:]]
    chunks = [{**head, "choices": [{"index": 0, "delta": delta, "finish_reason": None}]} for delta in deltas]
    chunks.append({**head, "choices": [{"index": 0, "delta": {}, "finish_reason": finish}]})
    return whole, [*chunks, {**head, "choices": [], "usage": usage}]


def _cut(draw: st.DrawFn, text: str) -> list[str]:
    places = [0, *sorted(draw(st.lists(st.integers(0, len(text)), max_size=3))), len(text)]
    return [text[begin:end] for begin, end in itertools.pairwise(places)]


def _known(value: Any) -> Any:
    """The value without ids and times, which are new each time."""
    if isinstance(value, Mapping):
        left_out = ("id", "item_id", "created_at", "completed_at")
        return {name: _known(part) for name, part in value.items() if name not in left_out}
    return [_known(part) for part in value] if isinstance(value, list) else value


@pytest.mark.parametrize("dialect", ["responses", "messages"])
@given(answers())
def test_a_streamed_answer_is_the_unstreamed_one_and_its_events_tell_it(
    dialect: str, answer: tuple[dict[str, Any], list[dict[str, Any]]]
) -> None:
    whole, chunks = answer
    made = {
        "responses": lambda: ResponsesAsChat({"model": "x", "input": "boat"}),
        "messages": lambda: MessagesAsChat({"model": "x", "messages": []}),
    }[dialect]
    unstreamed, streamed = made(), made()
    expected = unstreamed.whole(json.loads(json.dumps(whole)))
    capture = CHAT.stream(streamed.take)
    for chunk in chunks:
        capture.feed(b"data: " + json.dumps(chunk).encode() + b"\n\n")
    assert _known(streamed.end()) == _known(expected)
    # Whoever reads the events as the dialect's own clients do has the same.
    read = DIALECTS[dialect].stream()
    read.feed(streamed.flush())
    assert read.done and _known(read.finish()) == _known(expected)
    record = CallRecord("k", "c", "a", "A")
    DIALECTS[dialect].capture(record, read.finish(), keep_logprobs=True)
    assert record.usage == {"prompt_tokens": 5, "completion_tokens": 7, "total_tokens": 12}


def test_a_stop_sequence_that_the_server_names_is_told() -> None:
    call = MessagesAsChat({"model": "x", "messages": []})
    choice = {"index": 0, "message": {"content": "a"}, "finish_reason": "stop", "stop_reason": "."}
    told = call.whole({"choices": [choice, {"index": 1, "message": {"content": "b"}}]})
    assert (told["stop_reason"], told["stop_sequence"]) == ("stop_sequence", ".")
    assert told["content"] == [{"type": "text", "text": "a"}]


def test_logprobs_that_the_agent_asks_for_are_in_the_response() -> None:
    entries = [{"token": "a", "logprob": -1.0}, {"token": "", "logprob": -2.0}]
    call = ResponsesAsChat({"model": "x", "input": "boat", "include": ["message.output_text.logprobs"]})
    for choice in (
        {"delta": {"content": "a"}, "logprobs": {"content": entries[:1]}},
        {"delta": {"content": ""}, "logprobs": {"content": entries[1:]}, "finish_reason": "stop"},
    ):
        call.take({"choices": [{"index": 0, **choice}]})
    assert call.end()["output"][0]["content"][0]["logprobs"] == entries
