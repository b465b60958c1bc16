"""An agent of the OpenAI Agents SDK with all that it hands over to, and with the peers of one turn."""

from __future__ import annotations

import copy
import weakref
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from agent_env_wrappers.contract import AgentError, PeerTool
from agent_env_wrappers.kinds import is_kind
from agent_env_wrappers.peers import ask, refuse_clash

if TYPE_CHECKING:
    from agents import Agent


class Team:
    """The agent and all that it can hand over to, each with the peers of one turn as further tools.

    `failed` gets the ids of the calls to which a peer replied with an error. The user's agents stay as they are: with peers, the whole graph is copied. The copies are held here, because the
    SDK refers to handoff targets weakly.
    """

    def __init__(self, root: Agent[Any], tools: Sequence[PeerTool], failed: set[str]) -> None:
        self._copies: dict[int, Agent[Any]] = {}
        self._tools = tools
        self._peers = [function_tool(tool, failed) for tool in tools]
        self.root = self._equip(root)

    def named(self, name: str) -> Agent[Any]:
        """The agent that spoke last; raises `AgentError` when the team no longer has it."""
        for agent in self._copies.values():
            if agent.name == name:
                return agent
        raise AgentError(f"the conversation was handed over to {name!r}, who is not in the team", kind="framework")

    def _equip(self, agent: Agent[Any]) -> Agent[Any]:
        if id(agent) in self._copies:
            return self._copies[id(agent)]
        refuse_clash(self._tools, {tool.name for tool in agent.tools}, agent.name)
        made = agent.clone(tools=[*agent.tools, *self._peers]) if self._peers else agent
        self._copies[id(agent)] = made
        handoffs = [self._handoff(handoff) for handoff in agent.handoffs]
        if self._peers:
            made.handoffs = handoffs
        return made

    def _handoff(self, handoff: Any) -> Any:
        """The same handoff to the equipped copy of its target."""
        if not is_kind(handoff, "agents.handoffs", "Handoff"):
            return self._equip(handoff)
        reference = getattr(handoff, "_agent_ref", None)
        target = reference() if reference is not None else None
        if target is not None:
            self._equip(target)
        if not self._peers:
            return handoff
        invoke = handoff.on_invoke_handoff

        async def on_invoke_handoff(context: Any, arguments: str) -> Any:
            return self._equip(await invoke(context, arguments))

        made = copy.copy(handoff)
        made.on_invoke_handoff = on_invoke_handoff
        if target is not None:
            made._agent_ref = weakref.ref(self._copies[id(target)])
        return made


def function_tool(tool: PeerTool, failed: set[str]) -> Any:
    from agents import FunctionTool

    async def on_invoke_tool(context: Any, arguments: str) -> str:
        reply = await ask(tool, arguments)
        if reply.is_error:
            failed.add(context.tool_call_id)
        return reply.text

    return FunctionTool(
        name=tool.name,
        description=tool.description,
        params_json_schema=dict(tool.parameters),
        on_invoke_tool=on_invoke_tool,
        strict_json_schema=False,
    )
