"""Agents of the OpenAI Agents SDK (`agents.Agent`), with their handoffs.

The conversation is a value: the input items so far and the name of the agent that spoke last, or, while an approval is
open, the SDK's own serialized run. Tracing, which the SDK exports by default, is off.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Iterator, Mapping
from contextlib import aclosing
from typing import TYPE_CHECKING, Any, ClassVar

from agent_env_wrappers.answers import APPROVAL_SCHEMA, Approval, answer_of, approval, refuse_answers
from agent_env_wrappers.contract import (
    AgentError,
    AgentInfo,
    Caps,
    Done,
    Event,
    Interrupt,
    ModelCall,
    ModelRoute,
    Status,
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
from agent_env_wrappers.openai_agents_team import Team
from agent_env_wrappers.openai_client_hook import routed
from agent_env_wrappers.openai_clients import OpenAIClients
from agent_env_wrappers.parts import refuse_files
from agent_env_wrappers.peers import arguments_of
from agent_env_wrappers.replies import ending
from agent_env_wrappers.versions import installed

if TYPE_CHECKING:
    from agents import Agent, RunConfig
    from agents.items import ToolApprovalItem
    from agents.result import RunResultStreaming

SETTLING = 2.0
"""Seconds that a cancelled run gets to end its tasks before the turn ends without them."""


class OpenAIAgentsWrapper:
    """Drives an `agents.Agent`; `context` is handed to every run, as `Runner.run(context=)` takes it."""

    framework: ClassVar[str] = "openai-agents"

    def __init__(self, agent: Agent[Any], *, context: Any = None) -> None:
        if is_kind(agent, "agents.realtime", "RealtimeAgent"):
            raise WrapError("a RealtimeAgent speaks audio, and a chat has text; hand over an agents.Agent")
        self._agent = agent
        self._context = context
        self._clients = OpenAIClients()

    @classmethod
    def match(cls, agent: object) -> int:
        """100 for agents of the SDK."""
        return 100 if is_kind(agent, "agents.agent", "AgentBase") else 0

    @classmethod
    def probe(cls) -> str:
        """Names the SDK's version, or says how to install it."""
        return installed("openai-agents", install="agent-env[openai-agents]", least=(0, 20))

    async def describe(self) -> AgentInfo:
        """Describes the agent by its fields."""
        agent = self._agent
        caps = Caps(
            streaming=True,
            tool_events=True,
            usage=True,
            interrupts=True,
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
            description=agent.handoff_description or "",
            instructions=agent.instructions if isinstance(agent.instructions, str) else None,
            tools=[
                ToolInfo(tool.name, getattr(tool, "description", ""), getattr(tool, "params_json_schema", {}))
                for tool in agent.tools
            ],
            output_schema=_output_schema(agent.output_type),
        )

    async def run(self, turn: Turn) -> AsyncIterator[Event]:
        """Runs the agent that spoke last until it answers, hands over and answers, or needs an approval."""
        refuse_files(turn, self.framework)
        failed: set[str] = set()
        team = Team(self._agent, turn.tools, failed)
        memory: Mapping[str, Any] = turn.state or {}
        with routed(None):
            try:
                if "run" in memory:
                    given = await self._resume(turn, team, memory)
                    if isinstance(given, Interrupt):
                        yield given
                        return
                    first = team.root
                else:
                    refuse_answers(turn)
                    first = team.named(memory.get("agent", self._agent.name))
                    given = [*memory.get("items", ()), {"role": "user", "content": turn.message.prompt}]
                result = self._start(first, given, turn)
                try:
                    usage: Usage | None = None
                    speaker = first.name
                    stream: Any = result.stream_events()
                    async with aclosing(stream) as events:
                        async for event in events:
                            for told in _told(event, failed):
                                if isinstance(told, ModelCall) and told.usage != Usage(requests=1):
                                    usage = (usage or Usage()) + told.usage
                                yield told
                            if event.type == "agent_updated_stream_event" and event.new_agent.name != speaker:
                                speaker = event.new_agent.name
                                yield Status(f"handed over to {speaker}")
                    yield self._end(result, usage)
                finally:
                    await _settle(result)
            except (AgentError, WrapError):
                raise
            except Exception as error:
                raise failure(error) from error

    async def aclose(self) -> None:
        """Closes the connections to routes."""
        await self._clients.aclose()

    def _start(self, agent: Agent[Any], given: Any, turn: Turn) -> RunResultStreaming:
        from agents import Runner

        bound: dict[str, Any] = {} if turn.limits.steps is None else {"max_turns": turn.limits.steps}
        return Runner.run_streamed(agent, given, context=self._context, run_config=self._config(turn.model), **bound)

    def _config(self, route: ModelRoute | None) -> RunConfig:
        from agents import ModelSettings, OpenAIProvider, RunConfig

        config = RunConfig(tracing_disabled=True, model_settings=ModelSettings(include_usage=True))
        if route is not None:
            config.model = route.model
            config.model_provider = OpenAIProvider(openai_client=self._clients.client(route), use_responses=False)
        return config

    async def _resume(self, turn: Turn, team: Team, memory: Mapping[str, Any]) -> Any:
        """The run with all its approvals decided, or the interrupt that asks for the next one."""
        from agents import RunState

        verdicts: dict[str, Any] = {**memory["verdicts"], memory["asked"]: approval(answer_of(turn, memory["asked"]))}
        state = await RunState.from_json(team.root, memory["run"], context_override=self._context)
        pending = state.get_interruptions()
        left = [item for item in pending if item.call_id not in verdicts]
        if left:
            return _question(left[0], memory["run"], verdicts, None)
        for item in pending:
            verdict = Approval(*verdicts[str(item.call_id)])
            if verdict.approved:
                state.approve(item)
            else:
                state.reject(item, rejection_message=verdict.reason)
        return state

    def _end(self, result: RunResultStreaming, usage: Usage | None) -> Done | Interrupt:
        if result.interruptions:
            return _question(result.interruptions[0], result.to_state().to_json(), {}, usage)
        if result.final_output is None:
            raise AgentError("the agent ended its run without an answer", kind="framework")
        done = ending(result.final_output)
        assert isinstance(done, Done)
        state = {"items": result.to_input_list(), "agent": result.last_agent.name}
        return Done(done.text, data=done.data, state=json.loads(json.dumps(state)), usage=usage)


def _question(
    item: ToolApprovalItem, run: Mapping[str, Any], verdicts: Mapping[str, Any], usage: Usage | None
) -> Interrupt:
    state = {"run": run, "verdicts": {name: list(verdict) for name, verdict in verdicts.items()}, "asked": item.call_id}
    prompt = f"May the agent call {item.name} with {item.arguments or 'no arguments'}?"
    return Interrupt(str(item.call_id), "approval", prompt, APPROVAL_SCHEMA, state, usage)


def _told(event: Any, failed: set[str]) -> Iterator[Event]:
    """The contract's events in one of the SDK's."""
    if event.type == "raw_response_event":
        data = event.data
        if data.type in ("response.output_text.delta", "response.refusal.delta"):
            yield TextDelta(data.delta)
        elif data.type in ("response.reasoning_summary_text.delta", "response.reasoning_text.delta"):
            yield TextDelta(data.delta, "thought")
        elif data.type in ("response.completed", "response.incomplete"):
            used = data.response.usage
            usage = Usage(used.input_tokens, used.output_tokens, 1) if used else Usage(requests=1)
            reason = data.response.incomplete_details
            yield ModelCall(data.response.model, usage, reason.reason if reason else None)
    elif event.type == "run_item_stream_event" and event.name == "tool_called":
        raw = event.item.raw_item
        yield ToolCall(_field(raw, "call_id"), _field(raw, "name"), arguments_of(_field(raw, "arguments")))
    elif event.type == "run_item_stream_event" and event.name == "tool_output":
        call_id = _field(event.item.raw_item, "call_id")
        yield ToolReturn(call_id, event.item.output, call_id in failed)


def _field(raw: Any, name: str) -> Any:
    return raw.get(name) if isinstance(raw, Mapping) else getattr(raw, name, None)


def _output_schema(output_type: Any) -> Mapping[str, Any] | None:
    if output_type is None or output_type is str:
        return None
    from agents import AgentOutputSchema, AgentOutputSchemaBase

    schema = output_type if isinstance(output_type, AgentOutputSchemaBase) else AgentOutputSchema(output_type, False)
    return schema.json_schema()


async def _settle(result: RunResultStreaming) -> None:
    """Ends what a run that was broken off still does, so that nothing of it outlives the turn."""
    task = result.run_loop_task
    if task is None or task.done():
        return
    result.cancel()
    await asyncio.wait({task}, timeout=SETTLING)
