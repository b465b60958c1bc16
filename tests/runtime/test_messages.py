"""Messages, answers to questions, and what is refused of them."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

import pytest
from scripted_agents import Scripted

from agent_env.errors import (
    AgentFailed,
    InvalidArguments,
    MessageTooLarge,
    UnsupportedContent,
)
from agent_env.net.limits import Limits
from agent_env.runtime.caller import Caller
from agent_env_wrappers.contract import (
    Done,
    Event,
    Interrupt,
    Turn,
)

pytestmark = pytest.mark.anyio

Say = Callable[..., Awaitable[Any]]


async def tallying(turn: Turn) -> AsyncIterator[Event]:
    yield Done(turn.message.text)


async def _chat(runtime: Any, arguments: dict[str, Any], session_id: str | None = None) -> Any:
    return await runtime.call_tool("chat", arguments, session_id=session_id, caller=Caller())


async def test_a_message_that_is_too_large_says_how_large_one_may_be(runtime_of: Any) -> None:
    runtime = await runtime_of(Scripted(tallying), limits=Limits(max_message_bytes=10))
    await _chat(runtime, {"message": "x" * 10})
    for text in ("x" * 11, "é" * 6):
        with pytest.raises(MessageTooLarge, match="takes 10") as refused:
            await _chat(runtime, {"message": text})
        assert refused.value.data == {"limit": 10}


@pytest.mark.parametrize(
    ("arguments", "match"),
    [
        ({}, "it got nothing"),
        ({"message": 3}, r"it got 3 \(int\)"),
        ({"message": None}, "it got nothing"),
        ({"message": "x", "mood": "good"}, "chat takes no 'mood'"),
        ({"parts": []}, "chat takes no 'parts'"),
        ({"message": "x", "answer": 1}, "chat takes no 'answer'"),
    ],
)
async def test_arguments_that_do_not_fit_are_refused(runtime_of: Any, arguments: dict[str, Any], match: str) -> None:
    runtime = await runtime_of(Scripted(tallying))
    with pytest.raises(InvalidArguments, match=match):
        await _chat(runtime, arguments)
    assert len(runtime.sessions) == 0


async def test_parts_go_to_an_agent_that_reads_them(runtime_of: Any) -> None:
    async def play(turn: Turn) -> AsyncIterator[Event]:
        yield Done(repr([type(part).__name__ for part in turn.message.parts]))

    runtime = await runtime_of(Scripted(play, parts=frozenset({"text", "data", "file"})))
    parts = [
        {"type": "text", "text": "see"},
        {"type": "data", "data": {"n": 1}},
        {"type": "file", "mediaType": "image/png", "data": "aGk=", "name": "a.png"},
    ]
    result = await _chat(runtime, {"parts": parts})
    assert result.text == "['TextPart', 'DataPart', 'FilePart']"
    state = await runtime.state(session_id=result.session_id, caller=Caller())
    assert state["messages"][0] == {"role": "user", "content": 'see\n{"n": 1}\n[a.png]'}
    both = await _chat(runtime, {"message": "first", "parts": parts[:1]})
    assert both.text == "['TextPart', 'TextPart']"


async def test_a_part_that_the_agent_cannot_read_is_refused(runtime_of: Any) -> None:
    runtime = await runtime_of(Scripted(tallying, parts=frozenset({"text", "data"})))
    with pytest.raises(UnsupportedContent, match="reads data, text, not file parts"):
        await _chat(runtime, {"parts": [{"type": "file", "mediaType": "a/b", "uri": "http://x"}]})
    with pytest.raises(InvalidArguments, match="one or more message parts"):
        await _chat(runtime, {"parts": []})


async def approving(turn: Turn) -> AsyncIterator[Event]:
    if turn.answers:
        yield Done(f"{turn.answers[0].interrupt_id} {turn.answers[0].value!r} {turn.state}", state="done")
    else:
        schema = {"type": "boolean"} if turn.message.text == "delete" else None
        yield Interrupt("i1", "approval", "Shall I?", schema, state="asked")


async def test_a_question_is_answered_by_the_next_message_of_its_session(runtime_of: Any, say: Say) -> None:
    runtime = await runtime_of(Scripted(approving, interrupts=True))
    asked = await say(runtime, "delete")
    assert (asked.stop, asked.text) == ("input_required", "Shall I?")
    question = {"id": "i1", "kind": "approval", "prompt": "Shall I?", "schema": {"type": "boolean"}}
    assert asked.interrupt == question
    state = await runtime.state(session_id=asked.session_id, caller=Caller())
    assert state["interrupt"] == question
    answered = await say(runtime, "true", asked.session_id)
    assert answered.text == "i1 True asked"
    assert (await runtime.state(session_id=asked.session_id, caller=Caller()))["interrupt"] is None


async def test_free_text_answers_stay_text_and_so_does_what_is_no_json(runtime_of: Any, say: Say) -> None:
    runtime = await runtime_of(Scripted(approving, interrupts=True))
    asked = await say(runtime, "ask")
    assert (await say(runtime, "true", asked.session_id)).text == "i1 'true' asked"
    asked = await say(runtime, "delete")
    assert (await say(runtime, "yes please", asked.session_id)).text == "i1 'yes please' asked"


async def test_an_answer_may_come_as_a_value_of_its_own(runtime_of: Any, say: Say) -> None:
    runtime = await runtime_of(Scripted(approving, interrupts=True))
    asked = await say(runtime, "delete")
    answered = await _chat(runtime, {"answer": {"ok": True}}, asked.session_id)
    assert answered.text == "i1 {'ok': True} asked"
    messages = (await runtime.state(session_id=asked.session_id, caller=Caller()))["messages"]
    assert [message["content"] for message in messages] == ["delete", "Shall I?", '{"ok": true}', answered.text]


async def test_an_answer_without_a_question_is_refused(runtime_of: Any) -> None:
    runtime = await runtime_of(Scripted(approving, interrupts=True))
    with pytest.raises(InvalidArguments, match="asked nothing"):
        await _chat(runtime, {"answer": 1})


# ── what no protocol can carry ─────────────────────────────────────────────────────────────────────────────────


async def test_half_a_character_is_refused(runtime_of: Any) -> None:
    runtime = await runtime_of(Scripted(tallying, parts=frozenset({"text", "data"})))
    for arguments in ({"message": "a\ud800"}, {"parts": [{"type": "data", "data": {"k": ["\udfff"]}}]}):
        with pytest.raises(InvalidArguments, match="surrogate"):
            await _chat(runtime, arguments)


@pytest.mark.parametrize("data", [["\ud800"], {1, 2}, object(), float("nan")])
async def test_data_that_no_protocol_can_carry_are_the_agents_failure(runtime_of: Any, say: Say, data: Any) -> None:
    async def play(turn: Turn) -> AsyncIterator[Event]:
        yield Done("x", data=data)

    runtime = await runtime_of(Scripted(play))
    with pytest.raises(AgentFailed, match=r"agent@1\.0\.0 replied with data that are no JSON"):
        await say(runtime, "x")
    assert len(runtime.sessions) == 0


async def test_a_reply_of_half_characters_is_made_whole(runtime_of: Any, say: Say) -> None:
    async def play(turn: Turn) -> AsyncIterator[Event]:
        if turn.message.text == "ask":
            yield Interrupt("i", "question", "\ud83d\ude00 or \ud800?")
        else:
            yield Done("é \ud83d\ude00 \udfff")  # what a model streamed in two pieces, and a piece alone

    runtime = await runtime_of(Scripted(play, interrupts=True))
    assert (await say(runtime, "x")).text == "é 😀 \ufffd"
    assert (await say(runtime, "ask")).text == "😀 or \ufffd?"
