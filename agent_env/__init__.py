"""Any agent is an environment: wrap it, serve it, find it, pair it, train it.

from agent_env import serve_agent_as_env
serve_agent_as_env(my_agent, name="agent-b", version="1.0.0")

from agent_env import Environment
async with Environment("agent-b@1.0.0") as agent_b:
    print((await agent_b.chat("Hello!")).text)
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from agent_env.client.environment import Environment as Environment
    from agent_env.client.sync import SyncEnvironment as SyncEnvironment
    from agent_env.episodes import Episode as Episode
    from agent_env.episodes import recording as recording
    from agent_env.errors import AgentEnvError as AgentEnvError
    from agent_env.hub import Hub as Hub
    from agent_env.matchmaking import Matchmaker as Matchmaker
    from agent_env.net.credentials import Tokens as Tokens
    from agent_env.net.limits import Limits as Limits
    from agent_env.runtime.declared import Reward as Reward
    from agent_env.runtime.definition import SessionView as SessionView
    from agent_env.runtime.results import ResetResult as ResetResult
    from agent_env.runtime.results import StepResult as StepResult
    from agent_env.runtime.results import ToolResult as ToolResult
    from agent_env.serving.environment import AgentEnvironment as AgentEnvironment
    from agent_env.serving.run import serve_agent_as_env as serve_agent_as_env
    from agent_env.training.scenario import Seat as Seat
    from agent_env_cards import EnvironmentCard as EnvironmentCard
    from agent_env_cards import Need as Need
    from agent_env_cards import Offer as Offer
    from agent_env_cards import Skill as Skill

__version__ = "0.1.0"

_HOMES = {
    "AgentEnvError": "agent_env.errors",
    "AgentEnvironment": "agent_env.serving.environment",
    "Environment": "agent_env.client.environment",
    "EnvironmentCard": "agent_env_cards",
    "Episode": "agent_env.episodes",
    "Hub": "agent_env.hub",
    "Limits": "agent_env.net.limits",
    "Matchmaker": "agent_env.matchmaking",
    "Need": "agent_env_cards",
    "Offer": "agent_env_cards",
    "ResetResult": "agent_env.runtime.results",
    "Reward": "agent_env.runtime.declared",
    "Seat": "agent_env.training.scenario",
    "SessionView": "agent_env.runtime.definition",
    "Skill": "agent_env_cards",
    "StepResult": "agent_env.runtime.results",
    "SyncEnvironment": "agent_env.client.sync",
    "Tokens": "agent_env.net.credentials",
    "ToolResult": "agent_env.runtime.results",
    "recording": "agent_env.episodes",
    "serve_agent_as_env": "agent_env.serving.run",
}

__all__ = [
    "AgentEnvError",
    "AgentEnvironment",
    "Environment",
    "EnvironmentCard",
    "Episode",
    "Hub",
    "Limits",
    "Matchmaker",
    "Need",
    "Offer",
    "ResetResult",
    "Reward",
    "Seat",
    "SessionView",
    "Skill",
    "StepResult",
    "SyncEnvironment",
    "Tokens",
    "ToolResult",
    "__version__",
    "recording",
    "serve_agent_as_env",
]


def __getattr__(name: str) -> Any:
    # Lazily, so that importing the package, or one name of it, costs only what that name needs.
    home = _HOMES.get(name)
    if home is None:
        raise AttributeError(f"module 'agent_env' has no attribute {name!r}")
    value = getattr(import_module(home), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted(__all__)
