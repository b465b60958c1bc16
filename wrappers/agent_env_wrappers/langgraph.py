"""Graphs of LangGraph: compiled or not, `create_agent`'s, and the functional API's entry points.

A graph with a checkpointer keeps its conversations there: the state is a handle, a thread with the checkpoint that the
last turn ended at, and a turn that was cancelled or failed is forgotten by going on from that checkpoint. Without one
the conversation is a value, the list of messages. What a compiled graph has built in cannot be changed: peers reach
it through a factory (`as_tool` makes a tool of one), its model through the openai client.
"""

from __future__ import annotations

import copy
import sys
from collections.abc import AsyncIterator, Mapping
from contextlib import aclosing
from dataclasses import dataclass
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
from agent_env_wrappers.langgraph_stream import Reader, text_of
from agent_env_wrappers.langgraph_threads import copy_thread, head
from agent_env_wrappers.openai_client_hook import Routed, current_route, install, routed
from agent_env_wrappers.parameters import MESSAGE
from agent_env_wrappers.parts import refuse_files
from agent_env_wrappers.peers import ask
from agent_env_wrappers.replies import ending, to_json
from agent_env_wrappers.versions import installed

if TYPE_CHECKING:
    from langchain_core.tools import BaseTool

REPLY = ("answer", "reply", "response", "output", "result", "text")
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
        self._shape = _Shape.of(graph)

    @classmethod
    def match(cls, agent: object) -> int:
        """100 for graphs, compiled or not."""
        graph = is_kind(agent, "langgraph.pregel", "PregelProtocol")
        return 100 if graph or is_kind(agent, "langgraph.graph.state", "StateGraph") else 0

    @classmethod
    def probe(cls) -> str:
        """Names the framework's version and whether models can be re-pointed, or says what to install."""
        found = installed("langgraph", install="agent-env[langgraph]", least=(1, 0))
        return f"{found}, models re-pointed through openai {install()}"

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
            model="turn" if _can_repoint() else "factory",
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
        with routed(turn.model) as route:
            try:
                reader = Reader(route)
                thread = memory.get("thread") or uuid4().hex
                config = await self._config(turn, thread, memory.get("checkpoint"), reader)
                stream: Any = self._graph.astream(
                    given, config, context=self._context, stream_mode=MODES, subgraphs=True
                )
                async with aclosing(stream) as items:
                    async for namespace, mode, item in items:
                        for event in reader.read(namespace, mode, item):
                            yield event
                            _hold(route)
                yield await self._end(reader, thread)
            except Exception as error:
                raise failure(error) from error

    async def fork(self, state: Any) -> Any:
        """Copies a conversation: its thread with all checkpoints, or the value."""
        forked = copy.deepcopy(state)
        if self._saver is not None and state is not None:
            forked["thread"] = uuid4().hex
            await copy_thread(self._saver, state["thread"], forked["thread"])
        return forked

    async def release(self, state: Any) -> None:
        """Deletes the conversation's thread from the checkpointer."""
        if self._saver is not None and state is not None:
            await self._saver.adelete_thread(state["thread"])

    async def aclose(self) -> None:
        """Frees nothing: the graph and its checkpointer are the user's."""

    async def _config(self, turn: Turn, thread: str, checkpoint: str | None, reader: Reader) -> dict[str, Any]:
        """The run's configuration; a thread that has moved on without a committed turn is taken back."""
        configurable: dict[str, Any] = {}
        if self._saver is not None:
            configurable["thread_id"] = thread
            if checkpoint is not None:
                latest = await head(self._saver, thread)
                if latest is None:
                    raise AgentError(
                        "the graph's checkpointer does not know this conversation; in a factory, make the "
                        "checkpointer outside of it",
                        kind="framework",
                    )
                if latest != checkpoint:
                    configurable["checkpoint_id"] = checkpoint
        config: dict[str, Any] = {"configurable": configurable, "callbacks": [reader.watch]}
        if turn.limits.steps is not None:
            # A step of an agent is a model request; a graph counts the tools' node between two of them as well.
            config["recursion_limit"] = 2 * turn.limits.steps
        return config

    async def _end(self, reader: Reader, thread: str) -> Done | Interrupt:
        state: dict[str, Any] | None = None
        if self._saver is not None:
            state = {"thread": thread, "checkpoint": await head(self._saver, thread)}
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


@dataclass(frozen=True, slots=True)
class _Shape:
    """What a graph takes: a state with `messages`, a state with one text under `key`, or (None) a text itself."""

    key: str | None

    @classmethod
    def of(cls, graph: Any) -> _Shape:
        """Reads the graph's input schema; raises `WrapError` when no message can be put into it."""
        schema: Mapping[str, Any] = graph.get_input_jsonschema()
        properties: Mapping[str, Any] = schema.get("properties", {})
        if "messages" in properties:
            return cls("messages")
        if not properties and schema.get("type", "string") == "string":
            return cls(None)
        named = [name for name in MESSAGE if name in properties]
        if not named:
            takes = ", ".join(properties) or schema.get("type")
            raise WrapError(
                f"the graph takes {takes}, and a message goes into one of messages, {', '.join(MESSAGE)}; give its "
                "input schema such a key, or hand over a function around it"
            )
        return cls(named[0])

    def given(self, prompt: str, memory: Mapping[str, Any]) -> Any:
        """The input of a run: the message, after the earlier ones where the conversation is a value."""
        if self.key is None:
            return prompt
        if self.key != "messages":
            return {self.key: prompt}
        from langchain_core.messages import HumanMessage, messages_from_dict

        return {"messages": [*messages_from_dict(memory.get("messages", [])), HumanMessage(prompt)]}

    def reply(self, values: Any) -> tuple[str, Any]:
        """The text and the data of a run's result."""
        if self.key == "messages" and isinstance(values, Mapping):
            last = values["messages"][-1]
            if last.type == "human":
                raise AgentError("the graph ended without a reply to the message", kind="framework")
            answer = values.get("structured_response")
            return text_of(last), None if answer is None else to_json(answer)
        done = ending(values)
        assert isinstance(done, Done)
        data: Any = done.data
        named = [data[name] for name in REPLY if isinstance(data.get(name), str)] if isinstance(data, dict) else []
        return named[0] if named else done.text, data


def as_tool(peer: PeerTool) -> BaseTool:
    """Makes a LangChain tool of a peer, for graphs that a factory builds; a peer's failure is told to the model."""
    from langchain_core.tools import StructuredTool, ToolException

    async def call(**arguments: Any) -> str:
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


def _hold(route: Routed | None) -> None:
    """Raises `WrapError` when the turn goes on in another context, where the model calls would pass by the route."""
    if current_route() is not route:
        raise WrapError("one task must drive a turn from its first event to its end, and another one went on with it")


def _can_repoint() -> bool:
    """Whether the openai SDK is there for the graph to use, and takes the hook."""
    if "openai" not in sys.modules:
        return False
    try:
        install()
    except WrapError:
        return False
    return True
