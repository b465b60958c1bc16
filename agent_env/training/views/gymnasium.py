"""One seat of a scenario as an environment of Gymnasium; the others play as they are."""

from __future__ import annotations

import weakref
from typing import Any, ClassVar

import gymnasium

from agent_env.episodes import Episode
from agent_env.errors import ConfigurationError
from agent_env.training.views.game import Game
from agent_env.training.views.spaces import Observation

_SEEDS = 2**31


class ScenarioSeat(gymnasium.Env[Observation, Any]):
    """A step is one action of the seat, and what is asked of it next."""

    metadata: ClassVar[dict[str, Any]] = {"render_modes": ["ansi"], "render_fps": 1}  # type: ignore[misc]

    def __init__(self, game: Game, render_mode: str | None) -> None:
        if render_mode not in (None, "ansi"):
            raise ConfigurationError(f"render_mode={render_mode!r} must be 'ansi' or None")
        (self.seat,) = game.outside
        self.game = game
        self.render_mode = render_mode
        self.observation_space = game.coder.observation_space()
        self.action_space = game.coder.action_space(self.seat)
        # Also at the end of the program: what a view opened in other processes is released.
        self._closing = weakref.finalize(self, game.closing)

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Observation, dict[str, Any]]:
        """Starts an episode; `options={"task": …}` plays that task."""
        super().reset(seed=seed)
        self.game.begin(int(self.np_random.integers(_SEEDS)), options)
        return self.game.observe(self.seat), self.game.info(self.seat)

    def step(self, action: Any) -> tuple[Observation, float, bool, bool, dict[str, Any]]:
        """Has the seat act, and waits until it is asked again or the episode has ended."""
        game, seat = self.game, self.seat
        game.act({seat: action})
        return game.observe(seat), game.reward(seat), game.terminated, game.truncated, game.info(seat)

    def render(self) -> str | None:
        """What was said in this episode, in lines, with `render_mode="ansi"`."""
        return self.game.transcript() if self.render_mode == "ansi" else None

    def close(self) -> None:
        """Ends the episode and the view's thread, and releases what was opened; a later `reset` begins anew."""
        self.game.close()

    @property
    def episode(self) -> Episode | None:
        """What was recorded of the episode that has ended; None before, and where it was cut off."""
        ending = self.game.ending
        return None if ending is None else ending.episode
