"""Graphs of LangGraph: compiled or not, `create_agent`'s, and the functional API's entry points.

A graph with a checkpointer keeps its conversations there: the state is a handle, a thread with the checkpoint that the
last turn ended at, and a turn that was cancelled or failed is forgotten by going on from that checkpoint. Without one
the conversation is a value, the list of messages. What a compiled graph has built in cannot be changed: peers reach
it through a factory (`as_tool` makes a tool of one), its model through the openai or the anthropic client.
"""

from __future__ import annotations

import copy
import sys
from collections.abc import AsyncIterator, Mapping
from contextlib import aclosing
from typing import TYPE_CHECKING, Any, ClassVar, Literal
from uuid import uuid4

from agent_env_wrappers.answers import refuse_answers
from agent_env_wrappers.contract import (
    AgentError,
    AgentInfo,
    Caps,
    Done,
    Event,
    Interrupt,
    PeerTool,
    ToolInfo,
    Turn,
    WrapError,
)
from agent_env_wrappers.failures import failure
from agent_env_wrappers.kinds import is_kind
from agent_env_wrappers.langgraph_questions import ask_next, questions, resumption, take_answer
from agent_env_wrappers.langgraph_shape import Shape
from agent_env_wrappers.langgraph_stream import Reader, apart
from agent_env_wrappers.langgraph_threads import copy_thread, head
from agent_env_wrappers.openai_client_hook import SDKS, hold, install_hooks, routed
from agent_env_wrappers.parts import refuse_files
from agent_env_wrappers.peers import ask
from agent_env_wrappers.replies import to_json
from agent_env_wrappers.threads import Threads
from agent_env_wrappers.versions import installed

if TYPE_CHECKING:
    from langchain_core.tools import BaseTool

MODES = ["messages", "updates", "values"]


class LangGraphWrapper:
    """Drives a graph; `context` is handed to every run, as `graph.ainvoke(context=)` takes it."""

    framework: ClassVar[str] = "langgraph"

    def __init__(self, agent: Any, *, context: Any = None) -> None:
        if is_kind(agent, "langgraph.pregel.remote", "RemoteGraph"):
            raise WrapError("a RemoteGraph runs elsewhere; serve the graph itself where it runs")
        graph: Any = agent.compile() if is_kind(agent, "langgraph.graph.state", "StateGraph") else agent
        self._graph = graph
        self._context = context
        self._saver: Any = graph.checkpointer if hasattr(graph.checkpointer, "aget_tuple") else None
        self._shape = Shape.of(graph)

    @classmethod
    def match(cls, agent: object) -> int:
        """100 for graphs, compiled or not."""
        graph = is_kind(agent, "langgraph.pregel", "PregelProtocol")
        return 100 if graph or is_kind(agent, "langgraph.graph.state", "StateGraph") else 0

    @classmethod
    def probe(cls) -> str:
        """Names the framework's version and whether models can be re-pointed, or says what to install."""
        found = installed("langgraph", install="agent-env[langgraph]", least=(1, 0))
        return f"{found}, models re-pointed through {' and '.join(install_hooks())}"

    async def describe(self) -> AgentInfo:
        """Describes the graph by its name and its tool nodes; its prompts are hidden in its code."""
        name = self._graph.get_name()
        state: Literal["value", "handle", "none"] = "value" if self._shape.key == "messages" else "none"
        if self._saver is not None:
            state = "handle"
        caps = Caps(
            streaming=True,
            tool_events=True,
            usage=True,
            interrupts=self._saver is not None,
            state=state,
            fork=state != "none",
            tools="factory",
            model="turn" if await Threads(name="hooks").run(_can_repoint) else "factory",
            parts=frozenset({"text", "data"}),
        )
        tools = [
            ToolInfo(tool.name, tool.description, to_json(tool.get_input_jsonschema()))
            for node in self._graph.nodes.values()
            for tool in getattr(getattr(node, "bound", None), "tools_by_name", {}).values()
        ]
        return AgentInfo(framework=self.framework, caps=caps, name=None if name == "LangGraph" else name, tools=tools)

    async def run(self, turn: Turn) -> AsyncIterator[Event]:
        """Runs the graph until it ends or interrupts."""
        refuse_files(turn, self.framework)
        if turn.tools:
            raise WrapError(
                "a compiled graph has its tools built in and cannot be given peers; hand over a factory: "
                "@agent_factory def build(build): return create_agent(model, [as_tool(p) for p in build.tools])"
            )
        memory: dict[str, Any] = dict(turn.state or {})
        if memory.get("questions"):
            memory = take_answer(turn, memory)
            if (question := ask_next(memory)) is not None:
                yield question
                return
            given = resumption(memory)
        else:
            refuse_answers(turn)
            given = self._shape.given(turn.message.prompt, memory)
        with routed(turn.model) as route, apart():
            try:
                reader = Reader(route)
                place = await self._place(memory)
                config = _config(turn, place, reader)
                stream: Any = self._graph.astream(
                    given, config, context=self._context, stream_mode=MODES, subgraphs=True
                )
                async with aclosing(stream) as items:
                    async for namespace, mode, item in items:
                        for event in reader.read(namespace, mode, item):
                            yield event
                            hold(route)
                yield await self._end(reader, place)
            except (AgentError, WrapError):
                raise
            except Exception as error:
                raise failure(error) from error

    async def fork(self, state: Any) -> Any:
        """Copies a conversation: its thread with all checkpoints, or the value."""
        forked = copy.deepcopy(state)
        if self._saver is not None and state is not None:
            forked |= {"thread": uuid4().hex, "left": []}
            await copy_thread(self._saver, state["thread"], forked["thread"])
        return forked

    async def release(self, state: Any) -> None:
        """Deletes the conversation's threads from the checkpointer."""
        if self._saver is not None and state is not None:
            for thread in (state["thread"], *state["left"]):
                await self._saver.adelete_thread(thread)

    async def aclose(self) -> None:
        """Frees nothing: the graph and its checkpointer are the user's."""

    async def _place(self, memory: Mapping[str, Any]) -> dict[str, Any]:
        """Where the turn runs: the thread, the checkpoint to go on from if it is not the latest, and threads left.

        A thread that has moved on in a turn that was not committed is taken back by naming the checkpoint. An answer
        is played on a copy: the checkpointer keeps an answer with the checkpoint of its question, so that one of a
        cancelled turn would be there for ever.
        """
        if self._saver is None:
            return {}
        thread, left = memory.get("thread") or uuid4().hex, list(memory.get("left", ()))
        latest = await head(self._saver, thread)
        if memory and latest is None:
            raise AgentError(
                "the graph's checkpointer does not know this conversation; in a factory, make the checkpointer "
                "outside of it",
                kind="framework",
            )
        if memory.get("questions"):
            left.append(thread)
            thread = uuid4().hex
            await copy_thread(self._saver, left[-1], thread)
        moved = memory and latest != memory["checkpoint"]
        return {"thread": thread, "checkpoint": memory["checkpoint"] if moved else None, "left": left}

    async def _end(self, reader: Reader, place: Mapping[str, Any]) -> Done | Interrupt:
        state: dict[str, Any] | None = None
        if self._saver is not None:
            state = {**place, "checkpoint": await head(self._saver, place["thread"])}
        if reader.interrupts is not None:
            if state is None:
                raise WrapError(
                    "the graph asks the caller by an interrupt, and cannot go on without a checkpointer; compile it "
                    "with one, such as compile(checkpointer=InMemorySaver())"
                )
            asked = ask_next({**state, **questions(reader.interrupts, state["checkpoint"])}, reader.usage)
            assert asked is not None
            return asked
        text, data = self._shape.reply(reader.values)
        if state is None and self._shape.key == "messages":
            from langchain_core.messages import messages_to_dict

            state = {"messages": to_json(messages_to_dict(reader.values["messages"]))}
        return Done(text, data=data, state=state, usage=reader.usage, stop=reader.stop)


def _config(turn: Turn, place: Mapping[str, Any], reader: Reader) -> dict[str, Any]:
    configurable: dict[str, Any] = {}
    if place:
        configurable["thread_id"] = place["thread"]
        if place["checkpoint"] is not None:
            configurable["checkpoint_id"] = place["checkpoint"]
    config: dict[str, Any] = {"configurable": configurable, "callbacks": [reader.watch]}
    if turn.limits.steps is not None:
        # A step of an agent is a model request; a graph counts the tools' node between two of them as well.
        config["recursion_limit"] = 2 * turn.limits.steps
    return config


def as_tool(peer: PeerTool) -> BaseTool:
    """Makes a LangChain tool of a peer, for graphs that a factory builds; a peer's failure is told to the model."""
    from langchain_core.tools import StructuredTool, ToolException

    async def call(**arguments: Any) -> str:
        with apart():
            reply = await ask(peer, arguments)
        if reply.is_error:
            raise ToolException(reply.text)
        return reply.text

    return StructuredTool.from_function(
        func=peer.call,
        coroutine=call,
        name=peer.name,
        description=peer.description,
        args_schema=dict(peer.parameters),
        handle_tool_error=True,
    )


def _can_repoint() -> bool:
    """Whether an SDK is there for the graph to use, and takes the hook."""
    if not any(sdk in sys.modules for sdk in SDKS):
        return False
    try:
        install_hooks()
    except WrapError:
        return False
    return True
