"""A team at play: one environment a seat, for one episode."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Mapping
from contextlib import asynccontextmanager
from dataclasses import replace
from random import Random
from types import TracebackType
from typing import Self

from agent_env.client.environment import Environment
from agent_env.client.resolution import Served
from agent_env.errors import ConfigurationError
from agent_env.hub import Instance
from agent_env.runtime.environment import Runtime
from agent_env.serving.environment import AgentEnvironment
from agent_env.training.scenario import Seat
from agent_env_cards import EnvironmentCard

_REACHED = (str, Environment, EnvironmentCard, Instance, Runtime, Served)
"""What an `Environment` reaches; anything else is an agent that is yet to be wrapped."""


class Team:
    """The seats of one episode, as the code that plays it sees them.

    `team["manager"]` is the seat's `Environment`: the same object throughout the episode, so one conversation, reached
    at its first call and released when the episode ends. `team.another("worker")` is a further conversation in the
    same seat. `team.seed` and `team.random` are the episode's own and the same whenever it is played again.

        async with Team({"judge": Seat(judge)}, seed=7) as team:
            verdict = await team["judge"].chat("Is it true?")
    """

    def __init__(self, seats: Mapping[str, Seat], *, seed: int = 0) -> None:
        self.seats = seats
        self.seed = seed
        self._random: Random | None = None
        self._seated: dict[str, Environment] = {}
        self._opened: list[Environment] = []

    @property
    def random(self) -> Random:
        """Numbers that depend on the episode's seed alone."""
        if self._random is None:
            self._random = Random(self.seed)
        return self._random

    def __getitem__(self, seat: str) -> Environment:
        """The seat's environment; raises `ConfigurationError` for a seat that there is not or that has none."""
        environment = self._seated.get(seat)
        if environment is None:
            environment = self._seated[seat] = self.another(seat)
        return environment

    def another(self, seat: str) -> Environment:
        """A conversation of its own in the same seat, such as one of several workers; released with the others."""
        try:
            env = self.seats[seat].env
        except KeyError:
            known = ", ".join(map(repr, self.seats)) or "none"
            raise ConfigurationError(f"there is no seat {seat!r}; the seats of this team: {known}") from None
        if env is None:
            raise ConfigurationError(
                f"the seat {seat!r} has no environment, since its callers find it by themselves; give it one to call "
                f"it from here: Seat(env=…)"
            )
        environment = env.seated(seat) if isinstance(env, Environment) else Environment(env, seat=seat)
        self._opened.append(environment)
        return environment

    async def release(self) -> None:
        """Releases every environment that was opened, whatever becomes of the others; raises the first error."""
        opened, self._opened = self._opened, []
        self._seated.clear()
        if len(opened) < 2:
            for one in opened:
                await one.__aexit__(None, None, None)
            return
        ended = await asyncio.gather(*(one.__aexit__(None, None, None) for one in opened), return_exceptions=True)
        for error in ended:
            if error is not None:
                raise error

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None
    ) -> None:
        await self.release()


@asynccontextmanager
async def wrapped(seats: Mapping[str, Seat]) -> AsyncGenerator[Mapping[str, Seat], None]:
    """The same seats, with each bare agent as one environment for all episodes of the block: wrapping it costs more
    than a turn. Raises `ConfigurationError` for an agent that cannot be wrapped."""
    made: dict[int, AgentEnvironment] = {}
    ready: dict[str, Seat] = {}
    try:
        for name, seat in seats.items():
            if seat.env is not None and not isinstance(seat.env, _REACHED):
                agent = made.setdefault(id(seat.env), AgentEnvironment(seat.env))
                await agent.runtime()
                seat = replace(seat, env=agent)
            ready[name] = seat
        yield ready
    finally:
        for agent in made.values():
            await agent.aclose()
