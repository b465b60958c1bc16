"""Graphs of LangGraph: what they take and give, and their checkpoints."""

from __future__ import annotations

import operator
from typing import Annotated, Any, TypedDict

import anyio
import pytest
from driving import done, events, peer
from graphs import clock, graph, solve
from langchain.agents import create_agent
from langchain_core.messages import AIMessage
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.func import entrypoint
from langgraph.graph import START, MessagesState, StateGraph
from langgraph.pregel.remote import RemoteGraph
from langgraph.runtime import Runtime
from model_server import ModelServer
from pydantic import BaseModel
from subjects import chat_model

from agent_env_wrappers.contract import (
    AgentError,
    FilePart,
    Limits,
    Message,
    ModelCall,
    TextDelta,
    ToolCall,
    ToolReturn,
    Usage,
    WrapError,
)
from agent_env_wrappers.langgraph import LangGraphWrapper, as_tool
from agent_env_wrappers.registry import wrap

pytestmark = pytest.mark.anyio


@pytest.fixture
def saver() -> InMemorySaver:
    return InMemorySaver()


# ── what a graph takes and gives ────────────────────────────────────────────────────────────────────────────────


async def test_a_graph_that_is_not_compiled_is_compiled(models: ModelServer) -> None:
    model = chat_model(models)

    async def node(state: MessagesState) -> Any:
        return {"messages": [await model.ainvoke(state["messages"])]}

    wrapper = wrap(StateGraph(MessagesState).add_node("node", node).add_edge(START, "node"))
    first = await done(wrapper)
    assert (await done(wrapper, "again", first.state)).text == "seen=2"
    assert (await wrapper.describe()).caps.state == "value"


class Question(TypedDict):
    query: str
    answer: str
    log: Annotated[list[str], operator.add]


async def test_a_graph_whose_state_has_one_text_is_given_that(saver: InMemorySaver) -> None:
    def node(state: Question) -> Any:
        return {"answer": state["query"].upper(), "log": [state["query"]]}

    plain, keeping = wrap(graph(node, Question)), wrap(graph(node, Question, checkpointer=saver))
    first = await done(plain, "why")
    assert (first.text, first.data, first.state) == ("WHY", {"query": "why", "answer": "WHY", "log": ["why"]}, None)
    assert (await plain.describe()).caps.state == "none"
    kept = await done(keeping, "why")
    assert (await done(keeping, "how", kept.state)).data["log"] == ["why", "how"]


async def test_an_entry_point_of_the_functional_api_is_driven(saver: InMemorySaver) -> None:
    @entrypoint(checkpointer=saver)
    def count(message: str, *, previous: int | None = None) -> Any:
        return entrypoint.final(value=f"{message} {(previous or 0) + 1}", save=(previous or 0) + 1)

    wrapper = wrap(count)
    first = await done(wrapper, "hello")
    assert (await done(wrapper, "again", first.state)).text == "again 2"


class Numbers(TypedDict):
    left: int
    right: int


def test_a_graph_that_no_message_fits_into_is_refused() -> None:
    with pytest.raises(WrapError, match="the graph takes left, right"):
        wrap(graph(lambda state: {"left": 1}, Numbers))

    @entrypoint()
    def listing(items: list[str]) -> str:
        return "x"

    with pytest.raises(WrapError, match="the graph takes array"):
        wrap(listing)


def test_a_remote_graph_is_refused() -> None:
    with pytest.raises(WrapError, match="serve the graph itself where it runs"):
        wrap(RemoteGraph("x", url="http://there"))


async def test_a_graph_that_says_nothing_is_an_error_and_no_empty_answer() -> None:
    with pytest.raises(AgentError, match="ended without a reply"):
        await done(wrap(graph(lambda state: {})))


async def test_a_reply_that_no_model_made_is_told_as_well() -> None:
    told = await events(wrap(graph(lambda state: {"messages": [AIMessage("so be it", id="1")]})))
    assert told[:1] == [TextDelta("so be it")]
    assert (told[-1].text, told[-1].usage) == ("so be it", None)


async def test_a_message_made_of_blocks_is_read_as_text() -> None:
    blocks = AIMessage([{"type": "text", "text": "two "}, {"type": "text", "text": "parts"}])
    assert (await done(wrap(graph(lambda state: {"messages": blocks})))).text == "two parts"


class City(BaseModel):
    name: str


class Structured(MessagesState):
    structured_response: City


async def test_a_structured_response_is_data() -> None:
    def node(state: Any) -> Any:
        return {"messages": [AIMessage("Oslo")], "structured_response": City(name="Oslo")}

    end = await done(wrap(graph(node, Structured)))
    assert (end.text, end.data) == ("Oslo", {"name": "Oslo"})


class Who(TypedDict):
    name: str


async def test_context_is_handed_to_the_graph() -> None:
    def node(state: MessagesState, runtime: Runtime[Who]) -> Any:
        return {"messages": [AIMessage(runtime.context["name"])]}

    made = StateGraph(MessagesState, context_schema=Who).add_node("node", node).add_edge(START, "node").compile()
    assert (await done(LangGraphWrapper(made, context={"name": "bob"}))).text == "bob"


async def test_tool_events_of_a_subgraph_are_told_once_and_not_again_in_the_next_turn(models: ModelServer) -> None:
    inner = create_agent(chat_model(models), [clock], name="inner")
    outer = StateGraph(MessagesState).add_node("inner", inner).add_edge(START, "inner").compile()
    wrapper = wrap(outer)
    first = await events(wrapper, "call clock")
    assert [type(event) for event in first if isinstance(event, ToolCall | ToolReturn)] == [ToolCall, ToolReturn]
    second = await events(wrapper, "hello", first[-1].state)
    assert not [event for event in second if isinstance(event, ToolCall | ToolReturn)]
    assert "".join(event.text for event in second if isinstance(event, TextDelta)) == "seen=2"


async def test_a_failing_tool_is_marked(models: ModelServer) -> None:
    async def fail(message: str) -> str:
        raise AgentError("out to lunch")

    made = create_agent(chat_model(models), [as_tool(peer(fail))])
    told = await events(wrap(made), "call ask_solver")
    (returned,) = [event for event in told if isinstance(event, ToolReturn)]
    assert (returned.output, returned.is_error) == ("solver failed: out to lunch", True)


async def test_a_peers_tool_blocks_in_a_sync_node() -> None:
    solver = as_tool(peer(solve))

    def node(state: MessagesState) -> Any:
        return {"messages": [AIMessage(solver.invoke({"message": "2+2"}))]}

    with anyio.fail_after(10):
        assert (await done(wrap(graph(node)))).text == "solved 2+2"


async def test_a_cut_reply_ends_for_that_reason(models: ModelServer) -> None:
    told = await events(wrap(create_agent(chat_model(models), [])), "cut")
    assert told[-1].stop == "max_tokens"
    assert [event for event in told if isinstance(event, ModelCall)] == [
        ModelCall("own-model", Usage(10, 7, 1), "length")
    ]


async def test_the_limit_of_steps_stops_the_graph(models: ModelServer) -> None:
    wrapper = wrap(create_agent(chat_model(models), [clock]))
    with pytest.raises(AgentError, match="GraphRecursionError") as stopped:
        await done(wrapper, "call clock", limits=Limits(steps=1))
    assert stopped.value.kind == "limit"
    assert (await done(wrapper, "call clock", limits=Limits(steps=2))).text.startswith("clock said")


async def test_a_graph_is_described_by_its_name_and_tools(models: ModelServer) -> None:
    info = await wrap(create_agent(chat_model(models), [clock], name="Timekeeper")).describe()
    assert (info.name, info.tools[0].name, info.tools[0].description) == ("Timekeeper", "clock", "Tells the time.")
    assert info.tools[0].parameters["required"] == ["place"]
    assert (info.caps.tools, info.caps.model, info.caps.interrupts) == ("factory", "turn", False)
    assert (await wrap(graph(lambda state: {})).describe()).name is None


async def test_files_are_refused() -> None:
    with pytest.raises(WrapError, match="the message has a file"):
        await done(wrap(graph(lambda state: {})), Message((FilePart("image/png", b""),)))


# ── checkpoints ─────────────────────────────────────────────────────────────────────────────────────────────────


async def test_a_turn_that_failed_between_two_nodes_is_forgotten(saver: InMemorySaver) -> None:
    def count(state: MessagesState) -> Any:
        return {"messages": [AIMessage(f"{len(state['messages'])} messages")]}

    def last(state: MessagesState) -> Any:
        if "fail" in state["messages"][-2].content:
            raise ValueError("secret")
        return {}

    made = StateGraph(MessagesState).add_node("count", count).add_node("last", last)
    wrapper = wrap(made.add_edge(START, "count").add_edge("count", "last").compile(checkpointer=saver))
    first = await done(wrapper)
    for _ in range(2):
        with pytest.raises(AgentError, match="ValueError"):
            await done(wrapper, "fail", first.state)
    second = await done(wrapper, "hello", first.state)
    assert (first.text, second.text) == ("1 messages", "3 messages")
    assert (await done(wrapper, "hello", second.state)).text == "5 messages"
    assert (await done(wrapper, "hello", first.state)).text == "3 messages"


async def test_released_conversations_are_gone_from_the_checkpointer(saver: InMemorySaver) -> None:
    wrapper: Any = wrap(graph(lambda state: {"messages": [AIMessage("x")]}, checkpointer=saver))
    state = (await done(wrapper)).state
    copied = await wrapper.fork(state)
    assert copied["thread"] != state["thread"]
    await wrapper.release(state)
    assert {entry.config["configurable"]["thread_id"] for entry in saver.list(None)} == {copied["thread"]}
    await done(wrapper, "hello", copied)
    with pytest.raises(AgentError, match="make the checkpointer outside of it"):
        await done(wrapper, "hello", state)


async def test_a_checkpointer_without_async_methods_is_refused_with_the_remedy() -> None:
    class SyncSaver(InMemorySaver):
        async def aget_tuple(self, config: Any) -> Any:
            raise NotImplementedError

    wrapper = wrap(graph(lambda state: {"messages": [AIMessage("x")]}, checkpointer=SyncSaver()))
    with pytest.raises(WrapError, match="SyncSaver has no async methods"):
        await done(wrapper)


async def test_a_saver_that_copies_threads_itself_is_asked_to() -> None:
    class Copying(InMemorySaver):
        copied: tuple[str, str] | None = None

        async def acopy_thread(self, source_thread_id: str, target_thread_id: str) -> None:
            self.copied = (source_thread_id, target_thread_id)

    saver = Copying()
    wrapper: Any = wrap(graph(lambda state: {"messages": [AIMessage("x")]}, checkpointer=saver))
    state = (await done(wrapper)).state
    copied = await wrapper.fork(state)
    assert saver.copied == (state["thread"], copied["thread"])


async def test_an_empty_conversation_forks_and_is_released(saver: InMemorySaver) -> None:
    wrapper: Any = wrap(graph(lambda state: {}, checkpointer=saver))
    assert await wrapper.fork(None) is None
    await wrapper.release(None)
