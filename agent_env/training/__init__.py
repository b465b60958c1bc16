"""From episodes to better policies: rollouts, rows, credit, updates, and tiny models to try it all on.

Needs the extra: `pip install 'agent-env[train]'`.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from agent_env.errors import ConfigurationError

if TYPE_CHECKING:
    from agent_env.training.credit import RoleBaseline as RoleBaseline
    from agent_env.training.credit import group_advantages as group_advantages
    from agent_env.training.learning import credit_rows as credit_rows
    from agent_env.training.learning import learn as learn
    from agent_env.training.plots import plot_curves as plot_curves
    from agent_env.training.policy import Policy as Policy
    from agent_env.training.policy_server import PolicyServer as PolicyServer
    from agent_env.training.progress import rollout_progress as rollout_progress
    from agent_env.training.publishing import InMemory as InMemory
    from agent_env.training.publishing import PublishedPolicy as PublishedPolicy
    from agent_env.training.publishing import Publisher as Publisher
    from agent_env.training.rollouts import collect as collect
    from agent_env.training.rollouts import rollout as rollout
    from agent_env.training.rows import Row as Row
    from agent_env.training.rows import cut_rows as cut_rows
    from agent_env.training.scenario import Scenario as Scenario
    from agent_env.training.scenario import Seat as Seat
    from agent_env.training.team import Team as Team
    from agent_env.training.tiny import TinyLM as TinyLM
    from agent_env.training.tiny import WordTokenizer as WordTokenizer
    from agent_env.training.tiny import make_model as make_model
    from agent_env.training.update import Settings as Settings
    from agent_env.training.vllm import VllmLora as VllmLora
    from agent_env.training.warm import warm_start as warm_start

_HOMES = {
    "InMemory": "publishing",
    "Policy": "policy",
    "PolicyServer": "policy_server",
    "RoleBaseline": "credit",
    "PublishedPolicy": "publishing",
    "Publisher": "publishing",
    "Row": "rows",
    "Scenario": "scenario",
    "Seat": "scenario",
    "Settings": "update",
    "Team": "team",
    "TinyLM": "tiny",
    "VllmLora": "vllm",
    "WordTokenizer": "tiny",
    "collect": "rollouts",
    "credit_rows": "learning",
    "cut_rows": "rows",
    "group_advantages": "credit",
    "learn": "learning",
    "make_model": "tiny",
    "plot_curves": "plots",
    "rollout": "rollouts",
    "rollout_progress": "progress",
    "warm_start": "warm",
}

__all__ = [
    "InMemory",
    "Policy",
    "PolicyServer",
    "PublishedPolicy",
    "Publisher",
    "RoleBaseline",
    "Row",
    "Scenario",
    "Seat",
    "Settings",
    "Team",
    "TinyLM",
    "VllmLora",
    "WordTokenizer",
    "collect",
    "credit_rows",
    "cut_rows",
    "group_advantages",
    "learn",
    "make_model",
    "plot_curves",
    "rollout",
    "rollout_progress",
    "warm_start",
]


def __getattr__(name: str) -> Any:
    # Lazily: what needs no network (rows, credit) must not import PyTorch.
    home = _HOMES.get(name)
    if home is None:
        raise AttributeError(f"module 'agent_env.training' has no attribute {name!r}")
    try:
        module = import_module(f"agent_env.training.{home}")
    except ModuleNotFoundError as error:
        if error.name not in ("torch", "matplotlib"):
            raise
        raise ConfigurationError(
            f"{name} needs {error.name}, which is not installed; run: pip install 'agent-env[train]'"
        ) from error
    return getattr(module, name)
