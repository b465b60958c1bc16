"""Interrupts of a graph: asked, answered, and what a cancelled answer leaves."""

from __future__ import annotations

import asyncio
import datetime
import operator
from typing import Annotated, Any

import anyio
import pytest
from driving import done, question
from graphs import clock, graph
from langchain.agents import create_agent
from langchain.agents.middleware import HumanInTheLoopMiddleware
from langchain_core.messages import AIMessage
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.graph import START, MessagesState, StateGraph
from langgraph.types import Send, interrupt
from model_server import ModelServer
from subjects import chat_model

from agent_env_wrappers.contract import (
    AgentError,
    Answer,
    WrapError,
)
from agent_env_wrappers.registry import wrap

pytestmark = pytest.mark.anyio


@pytest.fixture
def saver() -> InMemorySaver:
    return InMemorySaver()


def asking(*questions: Any) -> Any:
    """A node that asks one question after the other."""

    def node(state: MessagesState) -> Any:
        answers = [interrupt(question) for question in questions]
        return {"messages": [AIMessage(" and ".join(map(str, answers)))]}

    return node


@pytest.mark.parametrize(
    ("value", "prompt"),
    [
        ("Which colour?", "Which colour?"),
        ({"question": "Which colour?", "of": 3}, "Which colour?"),
        ({"of": 3}, '{"of": 3}'),
        ([datetime.date(2000, 1, 1)], '["<date>"]'),
    ],
)
async def test_an_interrupt_is_a_question(saver: InMemorySaver, value: Any, prompt: str) -> None:
    asked = await question(wrap(graph(asking(value), checkpointer=saver)))
    assert (asked.kind, asked.prompt) == ("question", prompt)


@pytest.mark.parametrize("answer", ["red", {"colour": "red"}, {}, None, [1], False])
async def test_any_json_value_answers_a_question(saver: InMemorySaver, answer: Any) -> None:
    wrapper = wrap(graph(asking("Which colour?"), checkpointer=saver))
    asked = await question(wrapper)
    assert (await done(wrapper, "", asked.state, answers=[Answer(asked.id, answer)])).text == str(answer)


async def test_one_question_after_the_other_in_one_node(saver: InMemorySaver) -> None:
    wrapper = wrap(graph(asking("Which colour?", "Which size?"), checkpointer=saver))
    first = await question(wrapper)
    second = await question(wrapper, "red", first.state)
    assert second.prompt == "Which size?"
    assert (await done(wrapper, "large", second.state)).text == "red and large"


class Answers(MessagesState):
    answers: Annotated[list[str], operator.add]


async def test_questions_of_parallel_nodes_are_all_asked_before_the_graph_goes_on(saver: InMemorySaver) -> None:
    def ask(about: Any) -> Any:
        return {"answers": [f"{about}={interrupt(f'Which {about}?')}"]}

    def reply(state: Answers) -> Any:
        return {"messages": [AIMessage(", ".join(sorted(state["answers"])))]}

    made = StateGraph(Answers).add_node("ask", ask).add_node("reply", reply)
    made.add_conditional_edges(START, lambda state: [Send("ask", "colour"), Send("ask", "size")])
    wrapper = wrap(made.add_edge("ask", "reply").compile(checkpointer=saver))
    first = await question(wrapper)
    second = await question(wrapper, first.prompt, first.state)
    assert {first.prompt, second.prompt} == {"Which colour?", "Which size?"}
    assert (await done(wrapper, second.prompt, second.state)).text == "colour=Which colour?, size=Which size?"


async def test_both_copies_of_an_open_question_are_answered_each_in_its_way(saver: InMemorySaver) -> None:
    wrapper: Any = wrap(graph(asking("Which colour?"), checkpointer=saver))
    asked = await question(wrapper)
    copied = await wrapper.fork(asked.state)
    assert (await done(wrapper, "red", asked.state)).text == "red"
    assert (await done(wrapper, "blue", copied)).text == "blue"


async def test_the_threads_that_answers_left_are_released_with_the_conversation(saver: InMemorySaver) -> None:
    wrapper: Any = wrap(graph(asking("Which colour?", "Which size?"), checkpointer=saver))
    first = await question(wrapper)
    second = await question(wrapper, "red", first.state)
    end = await done(wrapper, "large", second.state)
    assert len({entry.config["configurable"]["thread_id"] for entry in saver.list(None)}) == 3
    await wrapper.release(end.state)
    assert list(saver.list(None)) == []


async def test_an_answered_turn_that_is_cancelled_can_be_answered_again(saver: InMemorySaver) -> None:
    reached = asyncio.Event()

    async def node(state: MessagesState) -> Any:
        answer = interrupt("Which colour?")
        if answer == "hang":
            reached.set()
            await asyncio.Event().wait()
        return {"messages": [AIMessage(answer)]}

    wrapper = wrap(graph(node, checkpointer=saver))
    asked = await question(wrapper)
    with anyio.fail_after(10):
        task = asyncio.create_task(done(wrapper, "hang", asked.state))
        await reached.wait()
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert (await done(wrapper, "red", asked.state)).text == "red"


async def test_a_question_without_a_checkpointer_is_refused_with_the_remedy() -> None:
    with pytest.raises(WrapError, match="compile\\(checkpointer=InMemorySaver\\(\\)\\)"):
        await done(wrap(graph(asking("Which colour?"))))


async def test_a_breakpoint_asks_whether_to_go_on(saver: InMemorySaver) -> None:
    node = {"messages": [AIMessage("done")]}
    wrapper = wrap(graph(lambda state: node, checkpointer=saver, interrupt_before=["node"]))
    asked = await question(wrapper)
    assert asked.kind == "approval"
    with pytest.raises(AgentError, match="the graph may not go on") as refused:
        await done(wrapper, "no", asked.state)
    assert refused.value.kind == "refused"
    assert (await done(wrapper, "yes", asked.state)).text == "done"


@pytest.mark.parametrize(
    ("answer", "reply"),
    [
        (True, "clock said [noon in hi] seen=1"),
        ({"approved": False, "reason": "it rains"}, "it rains"),
        ({"decisions": [{"type": "approve"}]}, "clock said [noon in hi] seen=1"),
    ],
)
async def test_langchains_review_of_tool_calls_takes_a_plain_yes_or_no(
    models: ModelServer, saver: InMemorySaver, answer: Any, reply: str
) -> None:
    review = HumanInTheLoopMiddleware(interrupt_on={"clock": True})
    wrapper = wrap(create_agent(chat_model(models), [clock], middleware=[review], checkpointer=saver))
    asked = await question(wrapper, "call clock")
    assert (asked.kind, asked.prompt) == ("approval", 'May the agent call clock with {"place": "hi"}?')
    assert reply in (await done(wrapper, "", asked.state, answers=[Answer(asked.id, answer)])).text
