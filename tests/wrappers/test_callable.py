"""Functions and other callables as agents."""

from __future__ import annotations

import asyncio
import dataclasses
import functools
import threading
from collections.abc import AsyncIterator, Iterator, Mapping
from typing import TYPE_CHECKING, Any

import anyio
import anyio.lowlevel
import pytest
from driving import done, events, peer, question, threads_end
from pydantic import BaseModel

from agent_env_wrappers.callable import CallableWrapper
from agent_env_wrappers.contract import (
    AgentError,
    Answer,
    DataPart,
    Done,
    FilePart,
    Interrupt,
    Message,
    ModelRoute,
    TextDelta,
    TextPart,
    ToolCall,
    ToolReturn,
    Usage,
    WrapError,
)
from agent_env_wrappers.registry import wrap

if TYPE_CHECKING:
    from somewhere_that_is_not_there import Unknown

pytestmark = pytest.mark.anyio


class Greeter:
    """Greets.

    Only this first paragraph describes it.
    """

    def greet(self, message: str) -> str:
        return f"hi {message}"

    async def agreet(self, message: str) -> str:
        return f"hi {message}"

    def __call__(self, message: str) -> str:
        """Greets whoever calls."""
        return f"called {message}"


async def pieces(message: str, suffix: str = "!") -> AsyncIterator[str]:
    yield message
    yield suffix


def positional(text: str, /) -> str:
    return text.upper()


async def ashout(text: str) -> str:
    return text.upper()


AGENTS: dict[str, tuple[Any, str]] = {
    "a sync function": (lambda message: f"hi {message}", "hi bob"),
    "an async function": (ashout, "BOB"),
    "a method": (Greeter().greet, "hi bob"),
    "an async method": (Greeter().agreet, "hi bob"),
    "an object": (Greeter(), "called bob"),
    "a partial": (functools.partial(lambda greeting, message: f"{greeting} {message}", "hey"), "hey bob"),
    "a partial of an async generator": (functools.partial(pieces, suffix="?"), "bob?"),
    "a lambda that returns a coroutine": (lambda message: ashout(message), "BOB"),
    "a lambda that returns a generator": (lambda message: (c for c in message), "bob"),
    "a lambda that returns an async generator": (lambda message: pieces(message), "bob!"),
    "a positional-only parameter": (positional, "BOB"),
    "another single name": (lambda utterance: utterance, "bob"),
}


@pytest.mark.parametrize(("agent", "reply"), AGENTS.values(), ids=AGENTS)
async def test_anything_that_takes_a_message_is_an_agent(agent: Any, reply: str) -> None:
    assert (await done(wrap(agent), "bob")).text == reply


@pytest.mark.parametrize(
    "agent",
    [
        lambda message, history, temperature=0.5: message,
        lambda history, prompt: prompt,
        lambda text, *, context: text,
        lambda input, **options: input,
        lambda query, history=(), text="default": query,
    ],
)
async def test_the_message_goes_into_the_parameter_with_its_name(agent: Any) -> None:
    assert (await done(wrap(agent), "bob")).text == "bob"


@pytest.mark.parametrize(
    ("agent", "words"),
    [
        (lambda a, b: a, "a, b"),
        (lambda message, tools: message, "tools"),
        (lambda: "x", "no parameter for the message"),
        (lambda *args, **kwargs: "x", "no parameter for the message"),
        (lambda history: "x", "no parameter for the message"),
        (lambda messages: "x", "messages"),
        (print, "no parameter for the message"),
        (dict.fromkeys, "iterable"),
    ],
)
def test_a_callable_that_cannot_be_called_is_refused_with_the_accepted_names(agent: Any, words: str) -> None:
    with pytest.raises(WrapError, match="message, prompt, text, input, query") as refused:
        wrap(agent)
    assert words in str(refused.value)


def test_a_callable_without_a_signature_is_refused() -> None:
    with pytest.raises(WrapError, match="does not tell its parameters"):
        CallableWrapper(type)


async def test_an_annotation_that_cannot_be_evaluated_does_not_matter() -> None:
    def agent(message: Unknown) -> str:
        return str(message)

    assert (await done(wrap(agent), "bob")).text == "bob"


async def test_history_has_the_earlier_messages_and_not_the_current_one() -> None:
    heard: list[Any] = []

    def agent(message: str, history: list[dict[str, str]]) -> str:
        heard.append(history)
        return message.upper()

    wrapper = wrap(agent)
    first = await done(wrapper, "one")
    second = await done(wrapper, "two", first.state)
    await done(wrapper, "three", second.state)
    assert heard[0] == []
    assert heard[2] == [
        {"role": "user", "content": "one"},
        {"role": "assistant", "content": "ONE"},
        {"role": "user", "content": "two"},
        {"role": "assistant", "content": "TWO"},
    ]


async def test_what_an_agent_does_to_its_history_and_state_stays_in_its_turn() -> None:
    def agent(message: str, history: list[Any], state: list[str] | None) -> Done:
        history.clear()
        state = state or []
        state.append(message)
        return Done(" ".join(state), state=state)

    wrapper = wrap(agent)
    first = await done(wrapper, "one")
    assert (await done(wrapper, "two", first.state)).text == "one two"
    assert (await done(wrapper, "three", first.state)).text == "one three"


async def test_context_and_model_are_handed_over() -> None:
    def agent(message: str, context: dict[str, Any], model: ModelRoute | None) -> Any:
        return {"context": context, "model": model.model if model else None}

    wrapper = wrap(agent)
    routed = await done(wrapper, model=ModelRoute("http://there/v1", "m"), context={"depth": 2})
    assert routed.data == {"context": {"depth": 2}, "model": "m"}
    assert (await done(wrapper)).data == {"context": {}, "model": None}


@dataclasses.dataclass
class Point:
    x: int


class Place(BaseModel):
    point: Point
    name: str = "here"


@pytest.mark.parametrize(
    ("reply", "text", "data"),
    [
        ({"a": ["ü", 1]}, '{"a": ["ü", 1]}', {"a": ["ü", 1]}),
        (3, "3", 3),
        (False, "false", False),
        (Point(1), '{"x": 1}', {"x": 1}),
        (Place(point=Point(2)), '{"point": {"x": 2}, "name": "here"}', {"point": {"x": 2}, "name": "here"}),
        ([Place(point=Point(3)), Point(4)], '[{"point": {"x": 3}, "name": "here"}, {"x": 4}]', None),
        (Message((TextPart("see"), DataPart([1]))), "see\n[1]", [1]),
    ],
)
async def test_a_reply_may_be_data(reply: Any, text: str, data: Any) -> None:
    end = await done(wrap(lambda message: reply))
    assert end.text == text
    assert data is None or end.data == data


async def test_a_done_is_taken_as_it_is() -> None:
    end = await done(wrap(lambda message: Done("half", usage=Usage(1, 2, 3), stop="max_tokens")))
    assert (end.text, end.usage, end.stop, end.state) == ("half", Usage(1, 2, 3), "max_tokens", None)


@pytest.mark.parametrize("reply", [None, object(), {1, 2}, Message((FilePart("image/png", b""),)), {"a": object()}])
async def test_what_is_no_reply_is_an_error_and_never_its_text(reply: Any) -> None:
    with pytest.raises(AgentError, match="replied with"):
        await done(wrap(lambda message: reply))


async def test_a_generator_yields_text_and_events_and_ends_with_its_text() -> None:
    def agent(message: str) -> Iterator[Any]:
        yield "I "
        yield TextDelta("hm", "thought")
        yield ToolCall("1", "clock", {})
        yield ToolReturn("1", "noon")
        yield TextDelta("know")

    told = await events(wrap(agent))
    assert told == [
        TextDelta("I "),
        TextDelta("hm", "thought"),
        ToolCall("1", "clock", {}),
        ToolReturn("1", "noon"),
        TextDelta("know"),
        Done("I know"),
    ]


async def test_a_generator_may_end_with_a_done_or_return_its_reply() -> None:
    closed = threading.Event()

    def early(message: str) -> Iterator[Any]:
        try:
            yield "draft"
            yield Done("final")
            yield "never"
        finally:
            closed.set()

    def late(message: str) -> Iterator[Any]:
        yield "draft"
        return {"final": True}

    assert (await done(wrap(early))).text == "final"
    assert await asyncio.to_thread(closed.wait, 5)
    assert (await done(wrap(late))).data == {"final": True}


async def test_a_generator_that_yields_nothing_says_nothing() -> None:
    async def agent(message: str) -> AsyncIterator[str]:
        for word in ():
            yield word

    assert (await done(wrap(agent))).text == ""


async def test_a_generator_that_yields_something_else_fails() -> None:
    def agent(message: str) -> Iterator[Any]:
        yield 3

    with pytest.raises(AgentError, match="yielded int; yield str or an Event"):
        await done(wrap(agent))


@pytest.mark.parametrize("error", [ValueError("secret"), SystemExit(3), StopIteration("secret"), TimeoutError()])
@pytest.mark.parametrize("is_async", [True, False])
async def test_what_an_agent_raises_is_told_by_its_name_alone(error: BaseException, is_async: bool) -> None:
    def agent(message: str) -> str:
        raise error

    async def aagent(message: str) -> str:
        raise error

    with pytest.raises(AgentError) as failed:
        await done(wrap(aagent if is_async else agent))
    assert "secret" not in str(failed.value)
    assert failed.value.kind == "agent"
    assert failed.value.__cause__ is not None


async def test_an_agent_may_say_itself_how_it_failed() -> None:
    def agent(message: str) -> str:
        raise AgentError("the oracle sleeps", kind="tool", retryable=True)

    with pytest.raises(AgentError, match="the oracle sleeps") as failed:
        await done(wrap(agent))
    assert failed.value.retryable


async def test_an_async_agent_awaits_its_peers_and_a_sync_one_blocks() -> None:
    async def agent(message: str, peers: Mapping[str, Any]) -> str:
        return str(await peers["solver"](message))

    def sync_agent(message: str, peers: Mapping[str, Any]) -> str:
        return str(peers["solver"](message))

    for each in (agent, sync_agent):
        assert (await done(wrap(each), "2+2", tools=[peer(solve)])).text == "solved 2+2"


async def solve(message: str) -> str:
    await anyio.lowlevel.checkpoint()
    return f"solved {message}"


async def test_peers_work_wherever_an_agent_turns_out_to_run() -> None:
    async def inner(message: str, peers: Mapping[str, Any]) -> str:
        return str(await peers["solver"](message))

    looks_sync = lambda message, peers: inner(message, peers)
    own_loop = lambda message, peers: asyncio.run(inner(message, peers))
    for each in (looks_sync, own_loop):
        with anyio.fail_after(10):
            assert (await done(wrap(each), "2+2", tools=[peer(solve)])).text == "solved 2+2"


async def test_a_peer_takes_the_other_arguments_of_its_tool_by_name() -> None:
    asked = peer(solve)

    async def acall(question: str, style: str = "plain") -> str:
        return f"{style}: {question}"

    tool = dataclasses.replace(asked, acall=acall, parameters={"properties": {"question": {"type": "string"}}})

    async def agent(message: str, peers: Mapping[str, Any]) -> str:
        return str(await peers["solver"](message, style="grand"))

    assert (await done(wrap(agent), "why", tools=[tool])).text == "grand: why"


async def test_a_seat_that_nobody_fills_is_named() -> None:
    async def agent(message: str, peers: Mapping[str, Any]) -> str:
        return str(await peers["judge"](message))

    with pytest.raises(AgentError, match="'judge', which no peer fills in this turn \\(filled: 'solver'\\)"):
        await done(wrap(agent), tools=[peer(solve)])


async def test_two_peers_in_one_seat_are_refused() -> None:
    with pytest.raises(WrapError, match="two peers have the seat 'solver'"):
        await done(wrap(lambda message, peers: "x"), tools=[peer(solve), peer(solve)])


async def test_a_failing_peer_fails_the_agent_with_its_own_error() -> None:
    async def fail(message: str) -> str:
        raise AgentError("the solver is out", kind="tool")

    with pytest.raises(AgentError, match="the solver is out"):
        await done(wrap(lambda message, peers: peers["solver"](message)), tools=[peer(fail)])


async def test_an_agent_asks_and_reads_the_answer() -> None:
    def agent(message: str, history: list[Any], answers: Mapping[str, Any]) -> Any:
        if answers:
            return f"{answers['colour']} it is, after {len(history)}"
        return Interrupt("colour", "question", "Which colour?", {"type": "string"})

    wrapper = wrap(agent)
    asked = await question(wrapper)
    assert (await done(wrapper, "", asked.state, answers=[Answer("colour", "red")])).text == "red it is, after 2"
    assert (await done(wrapper, "blue", asked.state)).text == "blue it is, after 2"


async def test_an_answer_is_heard_as_the_message_where_an_agent_takes_no_answers() -> None:
    def agent(message: str) -> Any:
        return Interrupt("go", "approval", "Go?") if message == "start" else f"heard {message}"

    wrapper = wrap(agent)
    asked = await question(wrapper, "start")
    reply = await done(wrapper, Message(()), asked.state, answers=[Answer("go", {"approved": True})])
    assert reply.text == 'heard {"approved": true}'


async def test_data_is_read_as_json_and_files_only_as_a_whole_message() -> None:
    said = Message((TextPart("look"), DataPart({"a": 1})))
    file = Message((FilePart("text/plain", b"abc"),))
    assert (await done(wrap(lambda message: message), said)).text == 'look\n{"a": 1}'
    with pytest.raises(WrapError, match="annotate its message as `Message`"):
        await done(wrap(lambda message: message), file)

    def agent(message: Message) -> str:
        (part,) = message.parts
        assert isinstance(part, FilePart)
        return f"{part.media_type} {part.data!r}"

    wrapper = wrap(agent)
    assert (await done(wrapper, file)).text == "text/plain b'abc'"
    assert (await wrapper.describe()).caps.parts == {"text", "data", "file"}


async def test_a_callable_is_described_by_its_name_docstring_and_parameters() -> None:
    def agent(message: str, history: Any, peers: Any) -> str:
        """Solves
        puzzles.

        In secret ways.
        """
        return message

    info = await wrap(agent).describe()
    assert (info.framework, info.name, info.description) == ("callable", "agent", "Solves puzzles.")
    assert (info.caps.state, info.caps.tools, info.caps.model, info.caps.fork) == ("value", "turn", "turn", True)
    assert (await wrap(Greeter()).describe()).name == "Greeter"
    assert (await wrap(lambda message: message).describe()).name is None
    assert (await wrap(functools.partial(pieces, suffix="")).describe()).caps.streaming


async def test_cancelling_a_sync_generator_closes_it_and_leaves_no_thread() -> None:
    closed = threading.Event()

    def ticker(message: str) -> Iterator[str]:
        try:
            while True:
                yield "tick"
        finally:
            closed.set()

    wrapper = CallableWrapper(ticker)
    with anyio.fail_after(10):
        async for event in wrapper.run(turn := _turn()):
            assert event == TextDelta("tick"), turn
            break
        assert await asyncio.to_thread(closed.wait, 5)
        await threads_end("ticker")
    assert (wrapper.threads.running, wrapper.threads.leaked) == (0, 0)
    await wrapper.aclose()


def _turn() -> Any:
    from agent_env_wrappers.contract import Turn

    return Turn(Message.of("go"))
