"""A scenario as an environment of PettingZoo: agents one at a time (AEC), or all at once (parallel)."""

from __future__ import annotations

import weakref
from collections.abc import Mapping
from random import Random
from typing import Any

from gymnasium import spaces
from pettingzoo import AECEnv, ParallelEnv  # type: ignore[import-untyped]

from agent_env.episodes import Episode
from agent_env.errors import ConfigurationError
from agent_env.training.views.game import Game, agent_names
from agent_env.training.views.spaces import Observation

_SEEDS = 2**31


class _Shown:
    """What both forms share: the agents and their spaces, seeds, and the end."""

    def __init__(self, game: Game, render_mode: str | None) -> None:
        if render_mode not in (None, "ansi"):
            raise ConfigurationError(f"render_mode={render_mode!r} must be 'ansi' or None")
        self.game = game
        self.render_mode = render_mode
        self.metadata: dict[str, Any] = {
            "name": game.scenario.name or "scenario",
            "render_modes": ["ansi"],
            "render_fps": 1,
            "is_parallelizable": False,  # agents act when they are asked, not in a round; `parallel=True` is there for that
        }
        self.seats = {agent: seat for seat, agent in agent_names(game.outside).items()}
        self.possible_agents = list(self.seats)
        self.agents: list[str] = []
        self.observation_spaces = {agent: game.coder.observation_space() for agent in self.seats}
        self.action_spaces = {agent: game.coder.action_space(seat) for agent, seat in self.seats.items()}
        self._random = Random()
        # Also at the end of the program: what a view opened in other processes is released.
        self._closing = weakref.finalize(self, game.closing)

    def observation_space(self, agent: str) -> spaces.Space[Any]:
        """The space of what an agent sees."""
        return self.observation_spaces[agent]

    def action_space(self, agent: str) -> spaces.Space[Any]:
        """The space of what an agent does."""
        return self.action_spaces[agent]

    def render(self) -> str | None:
        """What was said in this episode, in lines, with `render_mode="ansi"`."""
        return self.game.transcript() if self.render_mode == "ansi" else None

    def close(self) -> None:
        """Ends the episode and the view's thread, and releases what was opened; a later `reset` begins anew."""
        self.game.close()
        self.agents = []

    @property
    def episode(self) -> Episode | None:
        """What was recorded of the episode that has ended; None before, and where it was cut off."""
        ending = self.game.ending
        return None if ending is None else ending.episode

    def _begin(self, seed: int | None, options: Mapping[str, Any] | None) -> None:
        if seed is not None:
            self._random = Random(seed)
        self.game.begin(self._random.randrange(_SEEDS), options)
        self.agents = list(self.possible_agents)


class ScenarioAEC(_Shown, AECEnv):  # type: ignore[misc]
    """Agents act one at a time, in the order in which they are asked; those who are asked at once, one after another.

    A call that an agent makes in its own turn selects the callee, and its reply selects the caller again.
    """

    rewards: dict[str, float]
    infos: dict[str, dict[str, Any]]
    terminations: dict[str, bool]
    truncations: dict[str, bool]
    agent_selection: str

    def reset(self, seed: int | None = None, options: dict[str, Any] | None = None) -> None:
        """Starts an episode; `options={"task": …}` plays that task."""
        self._begin(seed, options)
        self._cumulative_rewards = dict.fromkeys(self.agents, 0.0)
        self._skip_agent_selection = None
        self._tell()

    def step(self, action: Any) -> None:
        """Has the selected agent act; None for one that has ended."""
        if not self.agents:
            raise ConfigurationError("the episode has ended; call reset first")
        agent = self.agent_selection
        if self.terminations[agent] or self.truncations[agent]:
            self._was_dead_step(action)
            return
        self.game.act({self.seats[agent]: action})
        self._cumulative_rewards[agent] = 0.0
        self._tell()
        self._accumulate_rewards()

    def observe(self, agent: str) -> Observation:
        """What an agent sees: what it is asked, or that it is not."""
        return self.game.observe(self.seats[agent])

    def _tell(self) -> None:
        game, seats = self.game, self.seats
        self.rewards = {agent: game.reward(seats[agent]) for agent in self.agents}
        self.terminations = dict.fromkeys(self.agents, game.terminated)
        self.truncations = dict.fromkeys(self.agents, game.truncated)
        self.infos = {agent: game.info(seats[agent]) for agent in self.agents}
        asked = game.waiting
        self.agent_selection = next(
            (agent for agent in self.agents if asked and seats[agent] == asked[0]), self.agents[0]
        )


class ScenarioParallel(_Shown, ParallelEnv):  # type: ignore[misc]
    """All agents act at once: those who are asked are heard, and the actions of the others are ignored."""

    def reset(
        self, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[dict[str, Observation], dict[str, dict[str, Any]]]:
        """Starts an episode; `options={"task": …}` plays that task."""
        self._begin(seed, options)
        return self._observations(), self._infos()

    def step(
        self, actions: Mapping[str, Any]
    ) -> tuple[dict[str, Observation], dict[str, float], dict[str, bool], dict[str, bool], dict[str, dict[str, Any]]]:
        """Has all agents act; one that is asked and has no action stays asked."""
        if not self.agents:
            return {}, {}, {}, {}, {}
        game, agents = self.game, self.agents
        game.act({self.seats[agent]: action for agent, action in actions.items() if agent in self.seats})
        told = (
            self._observations(),
            {agent: game.reward(self.seats[agent]) for agent in agents},
            dict.fromkeys(agents, game.terminated),
            dict.fromkeys(agents, game.truncated),
            self._infos(),
        )
        if game.ending is not None:
            self.agents = []
        return told

    def _observations(self) -> dict[str, Observation]:
        return {agent: self.game.observe(self.seats[agent]) for agent in self.agents}

    def _infos(self) -> dict[str, dict[str, Any]]:
        return {agent: self.game.info(self.seats[agent]) for agent in self.agents}
