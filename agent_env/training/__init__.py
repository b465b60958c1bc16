"""From episodes to better policies: rollouts, rows, credit, updates, and tiny models to try it all on.

Needs the extra: `pip install 'agent-env[train]'`.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from agent_env.errors import ConfigurationError

if TYPE_CHECKING:
    from agent_env.training.checkpoints import Run as Run
    from agent_env.training.credit import RoleBaseline as RoleBaseline
    from agent_env.training.credit import group_advantages as group_advantages
    from agent_env.training.learning import credit_rows as credit_rows
    from agent_env.training.learning import learn as learn
    from agent_env.training.loop import evaluate as evaluate
    from agent_env.training.loop import mean_rewards as mean_rewards
    from agent_env.training.loop import training_loop as training_loop
    from agent_env.training.place import policies_served as policies_served
    from agent_env.training.plots import plot_curves as plot_curves
    from agent_env.training.policy import Policy as Policy
    from agent_env.training.policy_server import PolicyServer as PolicyServer
    from agent_env.training.pretrained import Lora as Lora
    from agent_env.training.pretrained import load_pretrained as load_pretrained
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
    from agent_env.training.views import Backstage as Backstage
    from agent_env.training.views import to_gymnasium as to_gymnasium
    from agent_env.training.views import to_pettingzoo as to_pettingzoo
    from agent_env.training.vllm import VllmLora as VllmLora
    from agent_env.training.warm import warm_start as warm_start
    from agent_env.training.warm import warm_steps as warm_steps

_HOMES = {
    "Backstage": "views",
    "InMemory": "publishing",
    "Lora": "pretrained",
    "Policy": "policy",
    "PolicyServer": "policy_server",
    "PublishedPolicy": "publishing",
    "Publisher": "publishing",
    "RoleBaseline": "credit",
    "Row": "rows",
    "Run": "checkpoints",
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
    "evaluate": "loop",
    "group_advantages": "credit",
    "learn": "learning",
    "load_pretrained": "pretrained",
    "make_model": "tiny",
    "mean_rewards": "loop",
    "plot_curves": "plots",
    "policies_served": "place",
    "rollout": "rollouts",
    "rollout_progress": "progress",
    "to_gymnasium": "views",
    "to_pettingzoo": "views",
    "training_loop": "loop",
    "warm_start": "warm",
    "warm_steps": "warm",
}

__all__ = [
    "Backstage",
    "InMemory",
    "Lora",
    "Policy",
    "PolicyServer",
    "PublishedPolicy",
    "Publisher",
    "RoleBaseline",
    "Row",
    "Run",
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
    "evaluate",
    "group_advantages",
    "learn",
    "load_pretrained",
    "make_model",
    "mean_rewards",
    "plot_curves",
    "policies_served",
    "rollout",
    "rollout_progress",
    "to_gymnasium",
    "to_pettingzoo",
    "training_loop",
    "warm_start",
    "warm_steps",
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
