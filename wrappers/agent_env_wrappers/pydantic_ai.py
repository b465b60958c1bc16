"""Agents of Pydantic AI (`pydantic_ai.Agent` and what wraps it).

The conversation is a value: the messages so far as JSON, and the tool calls that wait for the caller.
"""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Iterator, Mapping
from typing import TYPE_CHECKING, Any, ClassVar

from agent_env_wrappers.answers import APPROVAL_SCHEMA, answer_of, approval, refuse_answers
from agent_env_wrappers.contract import (
    AgentError,
    AgentInfo,
    Caps,
    Done,
    Event,
    Interrupt,
    ModelCall,
    ModelRoute,
    PeerTool,
    TextDelta,
    ToolCall,
    ToolInfo,
    ToolReturn,
    Turn,
    Usage,
    WrapError,
)
from agent_env_wrappers.failures import failure
from agent_env_wrappers.kinds import is_kind
from agent_env_wrappers.openai_client_hook import routed
from agent_env_wrappers.openai_clients import OpenAIClients
from agent_env_wrappers.parts import refuse_files
from agent_env_wrappers.peers import arguments_of, ask, refuse_clash
from agent_env_wrappers.replies import ending
from agent_env_wrappers.versions import installed

if TYPE_CHECKING:
    from pydantic_ai import AgentRunResult, DeferredToolResults
    from pydantic_ai.agent import AbstractAgent
    from pydantic_ai.models import Model


class PydanticAIWrapper:
    """Drives a Pydantic AI agent; `deps` is handed to every run, as `agent.run(deps=)` takes it."""

    framework: ClassVar[str] = "pydantic-ai"

    def __init__(self, agent: AbstractAgent[Any, Any], *, deps: Any = None) -> None:
        self._agent = agent
        self._deps = deps
        self._clients = OpenAIClients()

    @classmethod
    def match(cls, agent: object) -> int:
        """100 for agents of Pydantic AI."""
        return 100 if is_kind(agent, "pydantic_ai.agent", "AbstractAgent") else 0

    @classmethod
    def probe(cls) -> str:
        """Names the framework's version, or says how to install it."""
        return installed("pydantic-ai-slim", install="agent-env[pydantic-ai]", least=(2, 0))

    async def describe(self) -> AgentInfo:
        """Describes the agent by what it tells in public; its instructions it does not."""
        agent = self._agent
        caps = Caps(
            streaming=True,
            tool_events=True,
            usage=True,
            interrupts=self._may_defer(),
            state="value",
            fork=True,
            tools="turn",
            model="turn",
            parts=frozenset({"text", "data"}),
        )
        return AgentInfo(
            framework=self.framework,
            caps=caps,
            name=agent.name,
            description=getattr(agent, "description", None) or "",
            tools=[
                ToolInfo(tool.name, tool.description or "", tool.function_schema.json_schema) for tool in self._tools()
            ],
            output_schema=None if agent.output_type is str else agent.output_json_schema(),
        )

    async def run(self, turn: Turn) -> AsyncIterator[Event]:
        """Runs the agent until it answers or defers a tool call to the caller."""
        from pydantic_ai import ModelMessagesTypeAdapter

        refuse_files(turn, self.framework)
        memory: Mapping[str, Any] = turn.state or {}
        prompt: str | None = turn.message.prompt
        results: DeferredToolResults | None = None
        if "asked" in memory:
            prompt, memory = None, _answered(turn, memory)
            left = [call for call in memory["pending"] if call["id"] not in memory["answers"]]
            if left:
                yield _question(memory, left[0], None)
                return
            results = _results(memory)
        else:
            refuse_answers(turn)
        failed: set[str] = set()
        with routed(None):
            try:
                history = ModelMessagesTypeAdapter.validate_python(memory.get("messages", []))
                async with self._agent.run_stream_events(
                    prompt, message_history=history, deferred_tool_results=results, **self._options(turn, failed)
                ) as events:
                    async for event in events:
                        for told in _told(event, failed):
                            yield told
            except (AgentError, WrapError):
                raise
            except Exception as error:
                raise failure(error) from error

    async def aclose(self) -> None:
        """Closes the connections to routes."""
        await self._clients.aclose()

    def _options(self, turn: Turn, failed: set[str]) -> dict[str, Any]:
        """What a run is given besides the conversation."""
        from pydantic_ai import DeferredToolRequests, FunctionToolset, UsageLimits

        options: dict[str, Any] = {"deps": self._deps}
        if turn.tools:
            refuse_clash(turn.tools, {tool.name for tool in self._tools()}, self._agent.name)
            options["toolsets"] = [FunctionToolset([_tool(tool, failed) for tool in turn.tools])]
        if turn.model is not None:
            options["model"] = self._model(turn.model)
        if turn.limits.steps is not None:
            options["usage_limits"] = UsageLimits(request_limit=turn.limits.steps)
        outputs = self._outputs()
        if DeferredToolRequests not in outputs and self._may_defer():
            options["output_type"] = [*outputs, DeferredToolRequests]
        return options

    def _tools(self) -> list[Any]:
        """The tools that the agent has of its own, as far as they are known before a run."""
        return [tool for toolset in self._agent.toolsets for tool in getattr(toolset, "tools", {}).values()]

    def _outputs(self) -> list[Any]:
        output: Any = self._agent.output_type
        return list(output) if isinstance(output, list | tuple) else [output]

    def _may_defer(self) -> bool:
        """Whether a run may end with the request for an approval; else a tool that needs one fails the run.

        An agent with output validators takes no other output types than its own, so it has to list the request.
        """
        from pydantic_ai import DeferredToolRequests

        return DeferredToolRequests in self._outputs() or not getattr(self._agent, "_output_validators", ())

    def _model(self, route: ModelRoute) -> Model:
        from pydantic_ai.models.openai import OpenAIChatModel
        from pydantic_ai.providers.openai import OpenAIProvider

        return OpenAIChatModel(route.model, provider=OpenAIProvider(openai_client=self._clients.client(route)))


def _tool(tool: PeerTool, failed: set[str]) -> Any:
    from pydantic_ai import RunContext, Tool

    async def call(context: RunContext[Any], **arguments: Any) -> str:
        reply = await ask(tool, arguments)
        if reply.is_error:
            failed.add(context.tool_call_id or "")
        return reply.text

    return Tool.from_schema(call, tool.name, tool.description, dict(tool.parameters), takes_ctx=True)


def _told(event: Any, failed: set[str]) -> Iterator[Event]:
    """The contract's events in one of the framework's; the last one of a run has its end."""
    match event.event_kind:
        case "part_start" if event.part.part_kind in ("text", "thinking") and event.part.content:
            yield TextDelta(event.part.content, "answer" if event.part.part_kind == "text" else "thought")
        case "part_delta" if event.delta.part_delta_kind in ("text", "thinking") and event.delta.content_delta:
            yield TextDelta(event.delta.content_delta, "answer" if event.delta.part_delta_kind == "text" else "thought")
        case "function_tool_call":
            yield ToolCall(event.part.tool_call_id, event.part.tool_name, arguments_of(event.part.args))
        case "function_tool_result":
            part = event.part
            is_error = part.tool_call_id in failed or getattr(part, "outcome", "success") != "success"
            yield ToolReturn(part.tool_call_id, part.model_response_str(), is_error)
        case "agent_run_result":
            yield from _end(event.result)
        case _:
            pass


def _end(result: AgentRunResult[Any]) -> Iterator[Event]:
    """One `ModelCall` for each response, which no event of the framework tells, and the end of the turn."""
    from pydantic_ai import DeferredToolRequests, ModelMessagesTypeAdapter

    for message in result.new_messages():
        if message.kind == "response":
            used = message.usage
            usage = Usage(used.input_tokens, used.output_tokens, 1)
            yield ModelCall(message.model_name or "", usage, message.finish_reason)
    usage = Usage(result.usage.input_tokens, result.usage.output_tokens, result.usage.requests)
    state = {"messages": ModelMessagesTypeAdapter.dump_python(result.all_messages(), mode="json")}
    if isinstance(result.output, DeferredToolRequests):
        pending = [_waiting(call, "approval") for call in result.output.approvals]
        pending += [_waiting(call, "question") for call in result.output.calls]
        yield _question({**state, "pending": pending, "answers": {}}, pending[0], usage)
    else:
        done = ending(result.output)
        yield Done(done.text, data=done.data, state=state, usage=usage) if isinstance(done, Done) else done


def _waiting(call: Any, kind: str) -> dict[str, Any]:
    return {"id": call.tool_call_id, "kind": kind, "name": call.tool_name, "arguments": arguments_of(call.args)}


def _question(memory: Mapping[str, Any], call: Mapping[str, Any], usage: Usage | None) -> Interrupt:
    """Asks for one of the waiting calls: whether it may be made, or what it gives."""
    made = f"{call['name']} with {json.dumps(call['arguments'], ensure_ascii=False)}"
    state = {**memory, "asked": call["id"]}
    if call["kind"] == "approval":
        return Interrupt(call["id"], "approval", f"May the agent call {made}?", APPROVAL_SCHEMA, state, usage)
    return Interrupt(call["id"], "question", f"What does {made} give?", None, state, usage)


def _answered(turn: Turn, memory: Mapping[str, Any]) -> dict[str, Any]:
    """The memory with the caller's answer; raises `AgentError` when it answers something else, or unclearly."""
    asked = memory["asked"]
    value = answer_of(turn, asked)
    if any(call["id"] == asked and call["kind"] == "approval" for call in memory["pending"]):
        value = list(approval(value))
    return {**memory, "answers": {**memory["answers"], asked: value}}


def _results(memory: Mapping[str, Any]) -> DeferredToolResults:
    from pydantic_ai import DeferredToolResults, ToolApproved, ToolDenied

    results = DeferredToolResults()
    for call in memory["pending"]:
        value = memory["answers"][call["id"]]
        if call["kind"] == "question":
            results.calls[call["id"]] = value
        elif value[0]:
            results.approvals[call["id"]] = ToolApproved()
        else:
            results.approvals[call["id"]] = ToolDenied(value[1]) if value[1] else ToolDenied()
    return results
