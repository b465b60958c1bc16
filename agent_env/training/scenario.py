"""A scenario: who sits where in a team, how a task is played, and what it is worth."""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, TypeAlias, TypeVar, cast

from agent_env.episodes import Episode
from agent_env.episodes.records import finite, shown
from agent_env.errors import ConfigurationError, DeadlineExceeded, InvalidArguments

if TYPE_CHECKING:
    from random import Random

    from agent_env.training.team import Team

Json: TypeAlias = Any
Value: TypeAlias = float | tuple[float | None, float] | None
"""A reward, with a weight or of weight 1; None says that it could not be told."""

Scores: TypeAlias = Mapping[str, Mapping[str, Value]] | Mapping[str | None, Mapping[str, Value]]
"""Rewards by seat and name; None and "team" stand for the whole team."""

Tasks: TypeAlias = "Sequence[Json] | Callable[[Random, int], Sequence[Json]]"
"""Tasks to go through in shuffled rounds, or what makes a number of them from random numbers."""

Play: TypeAlias = Callable[["Team", Json], Awaitable[Any]]
Score: TypeAlias = Callable[[Episode], "Scores | Awaitable[Scores | None] | None"]

T = TypeVar("T")

TEAM = "team"


@dataclass(frozen=True, slots=True)
class Seat:
    """A place in a team.

    `env` is whatever `Environment(…)` takes, or an `Environment` with its lane and token; None is an agent that its
    callers find by themselves, by a named peer or by its card. `policy` names the policy that plays the seat's model
    calls; None leaves the agent its own model. A seat that is not `trainable` plays and never learns: a judge, a user,
    a past version.

        {"manager": Seat("manager@1", policy="manager"), "worker": Seat(policy="worker")}
        {"first": Seat(player, policy="p"), "second": Seat(player, policy="p")}     # self-play
    """

    env: object = None
    policy: str | None = None
    trainable: bool = True


@dataclass(frozen=True, slots=True)
class Scenario:
    """How a team plays a task: plain Python, with any control flow between any agents.

    `play(team, task)` calls agents as `team["manager"]`, an `Environment` each; what it returns (JSON) goes to
    `episode.info["result"]`. `score(episode)` sees everything that was recorded and returns `{seat: {name: value}}`,
    where None or "team" stands for all seats and a value may be `(value, weight)`; both may be async.

        async def play(team, task):
            return (await team["manager"].chat(task["question"])).text

        def score(episode):
            return {"team": {"right": float(episode.info["result"] == episode.task["answer"])}}

        arithmetic = Scenario(play, score, {"manager": Seat("manager@1.0.0", policy="manager")})

    A module or an object with these names is a scenario too (`Scenario.of`).

    `tasks` is what `agent-env train` plays: a sequence, or `tasks(random, count)` that makes some. `words` is the
    vocabulary of the tiny models that it makes: texts with every word that anybody says, the agents' prompts included;
    default: the words of the tasks.
    """

    play: Play
    score: Score | None = None
    seats: Mapping[str, Seat] = field(default_factory=dict[str, Seat])
    name: str = ""
    tasks: Tasks = ()
    words: Iterable[str] = ()

    def __post_init__(self) -> None:
        if not isinstance(self.seats, Mapping):  # pyright: ignore[reportUnnecessaryIsInstance]
            raise ConfigurationError(
                f"the seats of a scenario are given by name, {{'player': Seat(env)}}, not as {self.seats!r:.100}"
            )
        if TEAM in self.seats:
            raise ConfigurationError(f"a seat cannot be named {TEAM!r}: scores mean all seats by it")
        for seat, given in self.seats.items():
            if not isinstance(given, Seat):  # pyright: ignore[reportUnnecessaryIsInstance]
                raise ConfigurationError(f"the seat {seat!r} must be a Seat, not {given!r:.100}; wrap it: Seat(env)")

    @classmethod
    def of(cls, given: object) -> Scenario:
        """Makes a scenario of a module or an object that has `play`, or of `play` alone.

        Raises `ConfigurationError` for anything else.
        """
        if isinstance(given, Scenario):
            return given
        play: Any = getattr(given, "play", None)
        own: Any = getattr(given, "__name__", None) or type(given).__name__
        name = str(getattr(given, "name", None) or own.rpartition(".")[2])
        if callable(play):
            score, seats = getattr(given, "score", None), getattr(given, "seats", None) or {}
            tasks, words = getattr(given, "tasks", None) or (), getattr(given, "words", None) or ()
            return cls(cast(Play, play), score, seats, name, tasks, words)
        if inspect.isroutine(given):
            return cls(given, name=name)
        raise ConfigurationError(f"{given!r:.100} is no scenario; it needs `async def play(team, task)`")

    def seated(self, policies: Mapping[str, T], *, trainable: bool | None = None) -> dict[str, T]:
        """What plays each seat that has a policy, given by the policy's name; of trainable or frozen seats alone where
        `trainable` says so. Raises `ConfigurationError` for a policy that is not there.

            run = await RunHandle.open(url, token, scenario.seated({"p": SeatPolicy("p", (endpoint,))}))
            learn(scenario.seated({"p": policy}, trainable=True), episodes)
        """
        wanted = {
            seat: given.policy
            for seat, given in self.seats.items()
            if given.policy is not None and trainable in (None, given.trainable)
        }
        for seat, policy in wanted.items():
            if policy not in policies:
                raise ConfigurationError(
                    f"the seat {seat!r} is played by the policy {policy!r}; given are {', '.join(policies) or 'none'}"
                )
        return {seat: policies[policy] for seat, policy in wanted.items()}

    async def apply_scores(self, episode: Episode, *, seconds: float | None = None) -> None:
        """Scores an episode within `seconds`; raises `InvalidArguments` for what is no score, `DeadlineExceeded`, and
        whatever `score` raises."""
        if self.score is None:
            return
        scores = self.score(episode)
        if inspect.isawaitable(scores):
            limit = asyncio.timeout(seconds)
            try:
                async with limit:
                    scores = await scores
            except TimeoutError:
                if not limit.expired():
                    raise
                raise DeadlineExceeded(f"the score took more than {seconds} seconds; allow more time") from None
        if scores is None:
            return
        if not isinstance(scores, Mapping):  # pyright: ignore[reportUnnecessaryIsInstance]
            raise InvalidArguments(f"score must return {{seat: {{name: value}}}} or None, not {scores!r:.100}")
        for seat, rewards in scores.items():
            whose = None if seat == TEAM else seat
            if whose is not None and whose not in self.seats and all(trace.seat != whose for trace in episode.traces):
                known = ", ".join(map(repr, self.seats)) or "none are named"
                raise InvalidArguments(f"score returned the seat {whose!r}, which nobody had; the seats: {known}")
            if not isinstance(rewards, Mapping):  # pyright: ignore[reportUnnecessaryIsInstance]
                raise InvalidArguments(f"score must return {{name: value}} for the seat {seat!r}, not {rewards!r:.100}")
            for name, given in rewards.items():
                value, weight = given if isinstance(given, tuple) and len(given) == 2 else (given, 1.0)
                number, factor = None if value is None else _number(name, value), _number(name, weight)
                if number is not None and not finite(number * factor):
                    raise InvalidArguments(
                        f"the reward {name!r} of {number!r} times its weight {factor!r} is more than a number holds"
                    )
                episode.score(name, number, seat=whose, weight=factor)


def _number(name: str, value: Any) -> float:
    if not isinstance(value, int | float) or not finite(value):
        raise InvalidArguments(
            f"the reward {name!r} must be a finite number, None, or (value, weight), not {shown(value)}"
        )
    return float(value)
