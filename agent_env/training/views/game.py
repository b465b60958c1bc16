"""One view's episodes as turns: what is seen, done, and earned, whatever form it is shown in."""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterable, Mapping
from random import Random
from typing import Any

from agent_env.errors import ConfigurationError
from agent_env.training.scenario import Json, Scenario
from agent_env.training.views.backstage import Backstage
from agent_env.training.views.driver import Driver, Ending, Moment
from agent_env.training.views.rules import Rules
from agent_env.training.views.spaces import Coder, Observation


class Game:
    """A scenario in which some seats are played from outside, step by step.

    Raises `ConfigurationError` for seats, rules or tasks that do not fit the scenario.
    """

    def __init__(
        self, scenario: object, outside: Iterable[str] | None, rules: Rules, stage: Backstage | None = None
    ) -> None:
        self.scenario = Scenario.of(scenario)
        seats = list(self.scenario.seats)
        chosen = set(seats if outside is None else outside)
        for seat in chosen:
            _check_seat(self.scenario, seat)
        if not chosen:
            raise ConfigurationError("a view needs a seat that is played from outside; name the scenario's seats")
        may_call = rules.may_call or {}
        for seat, called in may_call.items():
            for name in (seat, *called):
                _check_seat(self.scenario, name)
            if seat not in chosen:
                raise ConfigurationError(f"may_call is for seats that are played from outside, and {seat!r} is not")
            for name in called:
                if name not in chosen and self.scenario.seats[name].env is None:
                    raise ConfigurationError(
                        f"{seat!r} may call {name!r}, which has no environment; act for {name!r} too, or give it one: "
                        "Seat(env)"
                    )
        _check_models(self.scenario, chosen)
        if not rules.seconds > 0:
            raise ConfigurationError(f"seconds={rules.seconds!r} must be above 0")
        self.outside = tuple(seat for seat in seats if seat in chosen)
        self.coder = Coder(
            seats,
            rules.max_turns,
            rules.max_text,
            rules.max_action,
            rules.characters,
            rules.encoding,
            rules.actions,
        )
        self._tasks = self.scenario.tasks if rules.tasks is None else rules.tasks
        self._max_turns = rules.max_turns
        self._driver = Driver(self.scenario, self.outside, may_call, seconds=rules.seconds, stage=stage)
        self._moment: Moment | None = None
        self._ended = False
        self._said: list[str] = []
        self.turn = 0

    # ── an episode ──────────────────────────────────────────────────────────────────────────────────────────────

    def begin(self, seed: int, options: Mapping[str, Any] | None = None) -> None:
        """Starts an episode; `options["task"]` is a task to play in place of one that the seed picks."""
        task = options["task"] if options and "task" in options else self._pick(seed)
        self.turn, self._said = 0, []
        self._moment = self._driver.begin(task, seed)
        # An episode in which nobody is asked has ended already; the first step tells.
        self._ended = False

    def act(self, actions: Mapping[str, Any]) -> None:
        """Takes one step: the seats that are asked do what `actions` has for them, and the others stay asked.

        Raises `InvalidArguments` for an action that is none, when nothing has happened.
        """
        moment = self._now()
        if self._ended:
            raise ConfigurationError("the episode has ended; reset it")
        said = {seat: self.coder.decode(seat, action) for seat, action in actions.items() if seat in moment.waiting}
        for seat, text in said.items():
            asked = moment.waiting[seat]
            self._said += [f"{asked.sender or 'program'} to {seat}: {asked.text}", f"{seat}: {text}"]
        self.turn += 1
        if said:
            moment = self._driver.reply(said)
        if moment.ending is None and self.turn >= self._max_turns:
            moment = self._driver.cut()
        self._moment, self._ended = moment, moment.ending is not None

    def close(self) -> None:
        """Ends the episode, its thread, and what the view opened."""
        self._moment = None
        self._driver.close()

    @property
    def closing(self) -> Callable[[], None]:
        """What closes the view once nobody has it any more; it holds on to no view."""
        return self._driver.close

    # ── what there is to see ────────────────────────────────────────────────────────────────────────────────────

    @property
    def waiting(self) -> tuple[str, ...]:
        """The seats that are asked, the longest waiting first."""
        return tuple(self._now().waiting)

    @property
    def ending(self) -> Ending | None:
        """How the episode ended, once a step has told; None before."""
        return self._now().ending if self._ended else None

    @property
    def terminated(self) -> bool:
        """Whether the scenario was played to its end."""
        return self.ending is not None and self.ending.how == "played"

    @property
    def truncated(self) -> bool:
        """Whether the episode was cut off: by the limit of turns, or by a failure."""
        return self.ending is not None and self.ending.how != "played"

    def reward(self, seat: str) -> float:
        """What the last step earned; 0.0 too where nothing was given, which `info` tells apart."""
        given = None if self.ending is None else self.ending.reward(seat)
        return 0.0 if given is None else float(given)

    def observe(self, seat: str) -> Observation:
        """What a seat sees now."""
        return self.coder.encode(self._now().waiting.get(seat), self.turn)

    def info(self, seat: str) -> dict[str, Any]:
        """What a seat may know besides; equal for equal seeds and actions."""
        asked, ending = self._now().waiting.get(seat), self.ending
        told: dict[str, Any] = {
            "seat": seat,
            "asked": asked is not None,
            "message": "" if asked is None else asked.text,
            "callers": [] if asked is None else list(asked.callers),
        }
        if ending is not None:
            told |= {
                "ended": ending.how,
                "error": ending.error or "",
                "scored": ending.reward(seat) is not None,
            }
        return told

    def transcript(self) -> str:
        """What was said in this episode, in lines."""
        return "\n".join(self._said)

    def _now(self) -> Moment:
        if self._moment is None:
            raise ConfigurationError("there is no episode; call reset first")
        return self._moment

    def _pick(self, seed: int) -> Json:
        random = Random(seed)
        if callable(self._tasks):
            (task,) = self._tasks(random, 1)
            return task
        return self._tasks[random.randrange(len(self._tasks))] if self._tasks else None


def agent_names(seats: Iterable[str]) -> dict[str, str]:
    """The seats' names as PettingZoo wants them: letters, an underscore and a number, each once.

    `manager` is `manager_0`, and `worker2` is `worker_2`.
    """
    names: dict[str, str] = {}
    for seat in seats:
        letters = re.sub("[^a-z]", "", seat.lower()) or "seat"
        digits = re.search(r"[0-9]+$", seat)
        number = int(digits[0]) if digits else 0
        while f"{letters}_{number}" in names.values():
            number += 1
        names[seat] = f"{letters}_{number}"
    return names


def _check_models(scenario: Scenario, outside: Collection[str]) -> None:
    """Refuses a seat whose model calls a policy is to play: a view has no run that could route them to it.

    One without an environment is passed over: nobody but an agent that finds it by itself calls it, and that one may be
    acted for.
    """
    for seat, given in scenario.seats.items():
        if given.policy is not None and given.env is not None and seat not in outside:
            raise ConfigurationError(
                f"the seat {seat!r} is played by the policy {given.policy!r}, but a view has no run; act for {seat!r} "
                "too, or seat an agent that has a model of its own: Seat(env) without a policy"
            )


def _check_seat(scenario: Scenario, seat: str) -> None:
    if seat not in scenario.seats:
        known = ", ".join(map(repr, scenario.seats)) or "none"
        raise ConfigurationError(f"there is no seat {seat!r} to play from outside; the seats: {known}")
