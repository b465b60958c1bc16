"""Views of scenarios for classic reinforcement learning: PettingZoo for teams, Gymnasium for one seat.

Needs the extra: `pip install 'agent-env[pettingzoo]'`.
"""

from __future__ import annotations

from collections.abc import Generator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Literal, Unpack, overload

from agent_env.errors import ConfigurationError
from agent_env.training.views.backstage import Backstage
from agent_env.training.views.rules import RuleOptions, Rules

if TYPE_CHECKING:
    from agent_env.training.views.gymnasium import ScenarioSeat
    from agent_env.training.views.pettingzoo import ScenarioAEC, ScenarioParallel

__all__ = ["Backstage", "RuleOptions", "Rules", "to_gymnasium", "to_pettingzoo"]


@overload
def to_pettingzoo(
    scenario: object,
    seats: Sequence[str] | None = None,
    *,
    parallel: Literal[False] = False,
    render_mode: str | None = None,
    stage: Backstage | None = None,
    **rules: Unpack[RuleOptions],
) -> ScenarioAEC: ...
@overload
def to_pettingzoo(
    scenario: object,
    seats: Sequence[str] | None = None,
    *,
    parallel: Literal[True],
    render_mode: str | None = None,
    stage: Backstage | None = None,
    **rules: Unpack[RuleOptions],
) -> ScenarioParallel: ...
def to_pettingzoo(
    scenario: object,
    seats: Sequence[str] | None = None,
    *,
    parallel: bool = False,
    render_mode: str | None = None,
    stage: Backstage | None = None,
    **rules: Unpack[RuleOptions],
) -> ScenarioAEC | ScenarioParallel:
    """Makes an environment of PettingZoo in which `seats` (default: all) of a scenario are agents to act for.

    What the program or another agent says to such a seat is its observation, and its action is the reply. The other
    seats play as they are, so a seat that is not acted for needs an `env`, and no `policy`: a view has no run. All
    agents earn what `score` gives their seats when the program ends, and are truncated without a reward where it fails
    or `max_turns` is reached.

        env = to_pettingzoo(scenario, max_turns=20)
        env.reset(seed=1)
        for agent in env.agent_iter():
            observation, reward, terminated, truncated, info = env.last()
            env.step(None if terminated or truncated else env.action_space(agent).sample())

    `parallel=True` has all agents act at once (`ParallelEnv`), for simultaneous moves. `rules` are the fields of
    `Rules`. The environment is synchronous and may be used in any thread; its event loop runs in a thread of its own
    until `close()`, or on a `stage` that several share. Raises `ConfigurationError` for what does not fit, or without
    PettingZoo.
    """
    with _installed():
        from agent_env.training.views.game import Game
        from agent_env.training.views.pettingzoo import ScenarioAEC, ScenarioParallel
    game = Game(scenario, seats, Rules(**rules), stage)
    return ScenarioParallel(game, render_mode) if parallel else ScenarioAEC(game, render_mode)


def to_gymnasium(
    scenario: object,
    seat: str,
    *,
    render_mode: str | None = None,
    stage: Backstage | None = None,
    **rules: Unpack[RuleOptions],
) -> ScenarioSeat:
    """Makes an environment of Gymnasium in which one seat of a scenario is acted for; the others play as they are.

        env = to_gymnasium(scenario, "solver", actions=["left", "right"])
        observation, info = env.reset(seed=1)
        observation, reward, terminated, truncated, info = env.step(0)

    See `to_pettingzoo` for what observations, actions, rewards and `rules` are.
    """
    with _installed():
        from agent_env.training.views.game import Game
        from agent_env.training.views.gymnasium import ScenarioSeat
    return ScenarioSeat(Game(scenario, [seat], Rules(**rules), stage), render_mode)


@contextmanager
def _installed() -> Generator[None]:
    try:
        yield
    except ModuleNotFoundError as error:
        if error.name not in ("gymnasium", "pettingzoo", "numpy"):
            raise
        raise ConfigurationError(
            f"views need {error.name}, which is not installed; run: pip install 'agent-env[pettingzoo]'"
        ) from error
