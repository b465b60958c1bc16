"""The Environment Card of a runtime: made from what runs, so that it cannot say anything else."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any
from weakref import WeakKeyDictionary

from agent_env.runtime.declared import Declared
from agent_env.runtime.environment import Runtime
from agent_env_cards import (
    AgentCaps,
    Auth,
    Capabilities,
    EnvironmentCard,
    EpisodeCard,
    Interface,
    Offer,
    RewardCard,
    SessionCard,
    ToolCard,
)

KIND = "agent"
OPERATIONS = ("data/reset",)


def environment_card(
    runtime: Runtime, *, interfaces: Sequence[Interface] = (), auth: Auth | None = None, **instance: Any
) -> EnvironmentCard:
    """Makes the card; `interfaces`, `auth` and `instance` (provider, license, agent_card) are facts of the instance."""
    definition, info = runtime.definition, runtime.info
    limits = definition.limits
    return EnvironmentCard(
        name=definition.name,
        version=definition.version,
        description=definition.description or f"An agent ({info.framework}) named {definition.name}.",
        kind=KIND,
        episode=EpisodeCard(
            observation={"type": "string", "description": "The agent's reply."},
            action={"type": "string", "description": "The message to the agent."},
            seedable=definition.on_reset is not None,
            turn_limit=limits.turn_limit,
        ),
        rewards=[
            RewardCard(name=reward.name, description=reward.description) for reward in definition.rewards.values()
        ],
        needs=list(definition.needs),
        offers=definition.offers or Offer(),
        capabilities=Capabilities(
            tools=[_tool(tool) for tool in runtime.list_tools()],
            functions=[_function(function) for function in definition.functions.values()],
            operations=list(OPERATIONS),
        ),
        interfaces=list(interfaces),
        session=SessionCard(
            capacity=limits.max_sessions,
            idle_timeout=limits.idle_seconds,
            fork=info.caps.fork,
            state=info.caps.state,
        ),
        caps=AgentCaps(
            streaming=info.caps.streaming,
            tool_events=info.caps.tool_events,
            usage=info.caps.usage,
            interrupts=info.caps.interrupts,
            state=info.caps.state,
            fork=info.caps.fork,
            tools=info.caps.tools,
            model=info.caps.model,
            concurrency=info.caps.concurrency,
            parts=sorted(info.caps.parts),
        ),
        auth=auth,
        **instance,
    )


_own: WeakKeyDictionary[Runtime, EnvironmentCard] = WeakKeyDictionary()


def own_card(runtime: Runtime) -> EnvironmentCard:
    """The card of a runtime that is not served; what it says is fixed once it runs, so it is made once."""
    card = _own.get(runtime)
    if card is None:
        card = _own[runtime] = environment_card(runtime)
    return card


def _tool(tool: dict[str, Any]) -> ToolCard:
    return ToolCard(
        name=tool["name"],
        description=tool["description"],
        input_schema=tool["inputSchema"],
        output_schema=tool.get("outputSchema"),
    )


def _function(function: Declared) -> ToolCard:
    return ToolCard(
        name=function.name,
        description=function.description,
        input_schema=dict(function.parameters),
        output_schema=None if function.output is None else dict(function.output),
    )
