"""The training loop: play, learn, record, keep, again; and where its policies are served meanwhile."""

from __future__ import annotations

import asyncio
import inspect
import random
import time
from collections import Counter
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping, MutableMapping, Sequence, Sized
from contextlib import AsyncExitStack
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, TypeAlias, TypeVar

import anyio

from agent_env.episodes import Episode, EpisodeStore
from agent_env.errors import AgentFailed, ConfigurationError
from agent_env.training.checkpoints import Run
from agent_env.training.credit import Credit, RoleBaseline, credit_of
from agent_env.training.faults import reason
from agent_env.training.learning import Lesson, Lessons, learn
from agent_env.training.place import OpenRun, Place, policies_served
from agent_env.training.policy import Policy
from agent_env.training.progress import Earned, RolloutProgress, mean_earned
from agent_env.training.propagation import Propagation
from agent_env.training.rollouts import collect, rollout
from agent_env.training.scenario import Json, Scenario, Seat, Tasks
from agent_env.training.staleness import Stale

R = TypeVar("R")

Seats: TypeAlias = Mapping[str, Seat]
Before: TypeAlias = "Callable[[int], Seats | Awaitable[Seats | None] | None]"


@dataclass(slots=True)
class Update:
    """One turn of the loop: the episodes that were played, and what the policies learned from them.

    `reward` is the mean of each seat, or under "team" that of the team where no seat has a reward of its own.
    """

    number: int
    episodes: list[Episode]
    lessons: Lessons
    reward: dict[str, float]
    seconds: float

    def to_json(self) -> dict[str, Any]:
        """The line of the curve."""
        failed = [episode for episode in self.episodes if not episode.ok]
        failures = Counter(f"{one.boundary} {one.code}" for episode in failed for one in episode.failures[:1])
        report, ages = self.lessons.report, self.lessons.staleness
        return {
            "update": self.number,
            "time": round(time.time(), 3),
            "seconds": round(self.seconds, 3),
            "episodes": len(self.episodes),
            "failed": len(failed),
            "failures": dict(failures.most_common()),
            "episodes_per_second": round(len(self.episodes) / self.seconds, 3) if self.seconds else None,
            "reward": self.reward,
            "merge_ratio": report.merge_ratio,
            "delivered_ratio": report.delivered_ratio,
            "dropped": dict(report.dropped),
            "staleness": {"oldest": ages.oldest, "stale": ages.stale, "unlabelled": ages.unlabelled},
            "policies": {name: _lesson(lesson) for name, lesson in self.lessons.policies.items()},
        }


async def training_loop(
    scenario: object,
    tasks: Tasks,
    policies: MutableMapping[str, Policy],
    *,
    updates: int,
    run: Run | None = None,
    place: Place | None = None,
    store: EpisodeStore | None = None,
    group_size: int = 8,
    tasks_per_update: int = 32,
    concurrency: int = 256,
    seconds: float | None = 120.0,
    sampling: Mapping[str, Any] | None = None,
    credit: str | Credit = "per_seat",
    propagation: str | Propagation = "team",
    max_staleness: int | None = None,
    stale: Stale = "drop",
    seed: int = 0,
    checkpoint_every: int = 10,
    device: str | None = None,
    before: Before | None = None,
    info: Mapping[str, Json] | None = None,
    progress: RolloutProgress | None = None,
) -> AsyncGenerator[Update]:
    """Plays a scenario with policies and updates them, `updates` times; yields each update when it is done.

        async for update in training_loop(scenario, tasks, {"player": policy}, updates=100, run=run):
            print(update.number, update.reward)

    | argument | meaning |
    |---|---|
    | `tasks` | a sequence that is gone through in shuffled rounds, or `tasks(random, count)` that makes some |
    | `policies` | by name; seats say who plays them. Those of trainable seats learn, if they are trainable themselves |
    | `run` | where the curve and checkpoints go; it goes on from its newest checkpoint, if it has one |
    | `place` | where policies are served (`policies_served`); default: a place of the loop's own |
    | `store` | where episodes go; default: the run's `episodes.db` |
    | `group_size`, `tasks_per_update` | each update plays so many tasks, each so often |
    | `concurrency`, `seconds` | as `rollout` has them |
    | `sampling` | goes into every model call, in place of what agents ask for: `{"temperature": 1.0}` |
    | `credit`, `propagation`, `max_staleness`, `stale` | as `learn` has them |
    | `checkpoint_every` | a checkpoint after so many updates, and one at the end, at an error, and when it is stopped |
    | `device` | where the policies of a checkpoint are read to; default: that of those given, or the first GPU |
    | `before` | is asked before each update, by its number, for seats to put in place of the scenario's; may serve other policies by adding them to `policies` |

    Updates are numbered from 1, and what is random in update n comes from `seed` and n alone. With a run the policies
    of its newest checkpoint take the places of those given; a `RoleBaseline` gets its averages back. Stopping it,
    between updates or inside one, leaves a checkpoint of the last whole update: an update is whole or never was. Close
    a loop that is left early with `contextlib.aclosing` where its end is to be waited for.

    Raises `AgentFailed` when no episode of an update could be played, and `ConfigurationError` for what cannot be.
    """
    given = Scenario.of(scenario)
    strategy = credit_of(credit)
    done = 0
    if run is not None:
        done = _go_on(run, policies, strategy, device)
    saved, whole = done, True
    draw = _Draw(tasks, seed, tasks_per_update)
    told: set[str] = set()
    lesson = partial(
        learn, credit=strategy, propagation=propagation, max_staleness=max_staleness, stale=stale, told=told
    )
    async with AsyncExitStack() as stack:
        if place is None:
            place = await stack.enter_async_context(policies_served(None if run is None else run.folder / "gateway"))
        if store is None and run is not None:
            store = stack.enter_context(EpisodeStore(run.episodes))
        opened = OpenRun(place)
        stack.push_async_callback(opened.aclose)
        try:
            for number in range(done + 1, updates + 1):
                began = time.monotonic()
                changed = None if before is None else before(number)
                if inspect.isawaitable(changed):
                    changed = await changed
                seats = {**given.seats, **(changed or {})}
                played = replace(given, seats=seats)
                learners = played.seated(policies, trainable=True)
                if not learners:
                    raise ConfigurationError(f"no seat of {given.name or 'the scenario'!r} learns: Seat(env, policy=…)")
                stream = rollout(
                    played,
                    draw(number),
                    run=await opened.run(played.seated(place.serve(policies, sampling))),
                    store=store,
                    group_size=group_size,
                    batch=str(number),
                    concurrency=concurrency,
                    seconds=seconds,
                    seed=_seed(seed, number),
                    info={**(info or {}), "update": number},
                    progress=False if progress is None else progress,
                    told=told,
                )
                episodes = await collect(stream)
                check_played(episodes, of=f" of update {number}")
                whole = False
                lessons, stopped = await _undisturbed(partial(lesson, learners, episodes))
                whole = True
                update = Update(number, episodes, lessons, mean_rewards(episodes), time.monotonic() - began)
                done = number
                if run is not None:
                    run.record(update.to_json())
                    if number % checkpoint_every == 0 or number == updates:
                        _save(run, number, policies, strategy)
                        saved = number
                if stopped is not None:
                    raise stopped
                yield update
        finally:
            if run is not None and whole and done > saved:
                _save(run, done, policies, strategy)


async def evaluate(
    scenario: object,
    tasks: Sequence[Json],
    policies: Mapping[str, Policy],
    *,
    place: Place,
    temperature: float = 1.0,
    store: EpisodeStore | None = None,
    concurrency: int = 256,
    seconds: float | None = 120.0,
    seed: int = 0,
    info: Mapping[str, Json] | None = None,
    progress: RolloutProgress | None = None,
) -> list[Episode]:
    """Plays each task once and learns nothing; a temperature of 0 is greedy. `mean_rewards` sums the episodes up.

    Look at both, sampled and greedy, before and after: a first model can hold what a curve seems to learn.
    """
    given = Scenario.of(scenario)
    seats = given.seated(place.serve(policies, {"temperature": temperature}))
    opened = OpenRun(place)
    try:
        stream = rollout(
            given,
            tasks,
            run=await opened.run(seats),
            store=store,
            concurrency=concurrency,
            seconds=seconds,
            seed=seed,
            info={**(info or {}), "temperature": temperature},
            progress=False if progress is None else progress,
        )
        return await collect(stream)
    finally:
        await opened.aclose()


def mean_rewards(episodes: Sequence[Episode]) -> dict[str, float]:
    """The mean reward of each seat that played or was scored, or under "team" that of the team where no seat has a reward
    of its own; episodes without one do not count."""
    return mean_earned(Earned.of(episode) for episode in episodes)


def check_played(episodes: Sequence[Episode], *, of: str = "") -> None:
    """Raises `AgentFailed` with why the first one failed, when none of the episodes could be played; `of` says in the
    message which they are, as in " of update 3"."""
    if any(episode.ok for episode in episodes):
        return
    first = next((failure for episode in episodes for failure in episode.failures), None)
    why = "" if first is None else f". The first one failed because {reason(first)}"
    raise AgentFailed(f"none of the {len(episodes)} episodes{of} could be played{why}")


class _Draw:
    """The tasks of each update, whichever updates are asked for."""

    def __init__(self, tasks: Tasks, seed: int, count: int) -> None:
        if not callable(tasks) and not (isinstance(tasks, Sequence) and tasks):  # pyright: ignore[reportUnnecessaryIsInstance]
            raise ConfigurationError(
                f"there are no tasks to play in {tasks!r:.100}; pass a list, or tasks(random, count) that makes some"
            )
        if count < 1:
            raise ConfigurationError(f"an update needs at least one task, not {count}")
        self._tasks = tasks
        self._seed = seed
        self._count = count

    def __call__(self, update: int) -> Sequence[Json]:
        if callable(self._tasks):
            made = self._tasks(random.Random(_seed(self._seed, update)), self._count)
            if isinstance(made, Sized) and not len(made):  # pyright: ignore[reportUnnecessaryIsInstance]
                raise ConfigurationError(f"tasks(random, {self._count}) made no task for update {update}, but {made!r}")
            return made
        size = len(self._tasks)
        begin = (update - 1) * self._count
        end = begin + self._count
        # A round is shuffled once, however many of its tasks the update plays.
        rounds = {number: self._order(number, size) for number in range(begin // size, (end - 1) // size + 1)}
        return [self._tasks[rounds[at // size][at % size]] for at in range(begin, end)]

    def _order(self, number: int, size: int) -> list[int]:
        """Where each task of a round is in the list."""
        order = list(range(size))
        random.Random(f"{self._seed}/{number}").shuffle(order)
        return order


def _go_on(run: Run, policies: MutableMapping[str, Policy], strategy: Credit, device: str | None) -> int:
    """Puts the policies of the run's newest checkpoint in place, and says which update they are of."""
    checkpoint = run.resume()
    if checkpoint is None:
        return 0
    for name in checkpoint.policies:
        known = policies.get(name)
        policies[name] = checkpoint.load(name, device=device or (None if known is None else str(known.model.device)))
    if isinstance(strategy, RoleBaseline):
        strategy.values.update(checkpoint.state.get("role_baseline", {}))
    return checkpoint.update


def _save(run: Run, update: int, policies: Mapping[str, Policy], strategy: Credit) -> None:
    state = {"role_baseline": strategy.values} if isinstance(strategy, RoleBaseline) else {}
    run.save(update, policies, state=state)


def _lesson(lesson: Lesson) -> dict[str, Any]:
    """What a policy learned, as the line of the curve tells it."""
    groups, update = lesson.groups, lesson.update
    told: dict[str, Any] = {
        "rows": lesson.rows,
        "groups": groups.groups,
        "singletons": groups.singletons,
        "flat": groups.flat,
    }
    if lesson.idle is not None:
        told["idle"] = lesson.idle
    if update is not None:
        told |= {
            "tokens": update.tokens,
            "loss": update.loss,
            "entropy": update.entropy,
            "clipped": update.clipped,
            "gradient_norm": update.gradient_norm,
        }
    return told


def _seed(seed: int, update: int) -> int:
    return random.Random(f"{seed}/{update}").getrandbits(31)


async def _undisturbed(work: Callable[[], R]) -> tuple[R, BaseException | None]:
    """Runs work in a thread to its end, even when this is cancelled; then that is given, to be raised when all of the
    work's results are in place."""
    thread = asyncio.ensure_future(asyncio.to_thread(work))
    stopped: BaseException | None = None
    with anyio.CancelScope(shield=True):
        while not thread.done():
            try:
                await asyncio.wait({thread})
            except asyncio.CancelledError as error:
                stopped = error
    return thread.result(), stopped
