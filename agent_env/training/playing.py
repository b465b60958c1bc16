"""Plays one task once: from the team's first call to the scored episode."""

from __future__ import annotations

import asyncio
import inspect
import json
from collections.abc import Callable, Iterable, Iterator, Mapping
from collections.abc import Set as AbstractSet
from dataclasses import dataclass
from typing import Any, TypeAlias

from agent_env.episodes import Episode, recording
from agent_env.episodes.boundaries import boundary_of
from agent_env.errors import AgentEnvError, ConfigurationError, DeadlineExceeded, ProtocolError
from agent_env.gateway import RunHandle
from agent_env.training.faults import Faults
from agent_env.training.scenario import Json, Scenario
from agent_env.training.team import Team
from agent_env_wrappers.openai_client_hook import routed

Records: TypeAlias = list[dict[str, Any]]

GRACE = 1.0
"""Seconds that the program has after its time is up: what it calls fails in time by itself, and says more."""


@dataclass(frozen=True, slots=True)
class Job:
    """One episode to play: sample number `sample` of task number `index`."""

    id: str
    index: int
    sample: int
    task: Json
    group: str
    seed: int


class Player:
    """Plays the jobs of one rollout, any number at once."""

    def __init__(
        self,
        scenario: Scenario,
        *,
        run: RunHandle | None,
        run_id: str | None,
        seconds: float | None,
        budget: int | None,
        info: Mapping[str, Json] | None,
        faults: Faults | None = None,
    ) -> None:
        self._scenario = scenario
        self._seats = scenario.seats
        self._run = run
        self._run_id = run_id
        self._seconds = seconds
        self._budget = budget
        self._info = info or {}
        self._faults = faults
        self._collector = None if run is None else Collector(run)
        self._frozen = {seat for seat, given in scenario.seats.items() if not given.trainable}
        self.stopping = False

    async def play(self, job: Job) -> Episode:
        """Plays a job; what goes wrong in it is in its episode. Raises what keeps the gateway from being asked."""
        # What the scenario itself asks of a model, as a judge in `score` is asked, is of no turn, and nobody's stray.
        with routed(None):
            return await self._play(job)

    async def _play(self, job: Job) -> Episode:
        team = Team(self._seats, seed=job.seed)
        errors: list[BaseException] = []
        try:
            episode = await self._record(job, team, errors)
        finally:
            released = await _outcome(team)
        if released is not None:
            errors.append(released)
        failed_calls: set[str] | None = None
        if self._collector is not None:
            records = await self._collector.records(job.id)
            try:
                episode.add(records)
            except AgentEnvError as error:
                # What others told of this episode cannot be read: it has no data, and the others are whole.
                errors.append(error)
            else:
                calls = (call for trace in episode.traces for call in trace.calls)
                failed_calls = {call.call_id for call in calls if call.status != "ok"}
        for one in errors:
            fail(episode, one, failed_calls, self._tell)
        seat_by_edges(episode)
        for trace in episode.traces:
            if trace.seat in self._seats:
                trace.trainable = trace.seat not in self._frozen
        if episode.ok:
            await self._score(episode)
        return episode

    async def _record(self, job: Job, team: Team, errors: list[BaseException]) -> Episode:
        """Has the scenario play; adds what went wrong to the errors, which are judged when the calls are known."""
        run = None if self._run is None else self._run.episode(job.id, next(iter(self._run.seats)))
        limit = asyncio.timeout(None if self._seconds is None else self._seconds + GRACE)
        async with recording(
            job.id, task=job.task, group=job.group, budget=self._budget, seconds=self._seconds, run=run
        ) as episode:
            episode.run = self._run_id or episode.run
            episode.env, episode.seed = self._scenario.name or None, job.seed
            episode.info |= {**self._info, "index": job.index, "sample": job.sample}
            try:
                async with limit:
                    result = await _awaited(self._scenario.play(team, job.task))
                if self.stopping:
                    raise asyncio.CancelledError  # it went on after it was stopped: it is not what would have come
                if result is not None:
                    episode.info["result"] = _plain(result)
            except (Exception, SystemExit) as error:  # noqa: BLE001 - a bad task is data, and the others go on
                errors.append(self._late() if limit.expired() else error)
            except asyncio.CancelledError as cancelled:
                self._bear(cancelled)
                errors.append(asyncio.CancelledError("the program cancelled itself"))
        return episode

    async def _score(self, episode: Episode) -> None:
        given = len(episode.rewards)
        try:
            await self._scenario.apply_scores(episode, seconds=self._seconds)
        except (Exception, SystemExit) as error:  # noqa: BLE001 - what cannot be scored is data, and others go on
            del episode.rewards[given:]  # half a score is none
            episode.fail(error, boundary="reward")
            self._tell(episode, error)
        except asyncio.CancelledError as cancelled:
            self._bear(cancelled)
            del episode.rewards[given:]
            itself = asyncio.CancelledError("the score cancelled itself")
            episode.fail(itself, boundary="reward")
            self._tell(episode, itself)

    def _tell(self, episode: Episode, error: BaseException) -> None:
        """Tells of what the episode failed for just now."""
        if self._faults is not None and not self.stopping:
            self._faults.tell(episode, error)

    def _bear(self, cancelled: asyncio.CancelledError) -> None:
        """Goes on after a cancellation that came out of the scenario's own code; raises one that came from us."""
        if self.stopping:
            raise cancelled
        task = asyncio.current_task()
        while task is not None and task.cancelling():
            task.uncancel()

    async def aclose(self) -> None:
        """Ends what is still being asked of the gateway."""
        if self._collector is not None:
            await self._collector.aclose()

    def _late(self) -> DeadlineExceeded:
        return DeadlineExceeded(
            f"the program did not end within {self._seconds} seconds; allow more: seconds=…, or --seconds of a command"
        )


class Collector:
    """Asks a gateway for the records of episodes, for all at once that wait while an answer is on its way."""

    def __init__(self, run: RunHandle) -> None:
        self._run = run
        self._waiting: dict[str, list[asyncio.Future[Records]]] = {}
        self._fetching: asyncio.Task[None] | None = None

    async def records(self, episode: str) -> Records:
        """The records of an episode, for each who asks; raises what `RunHandle.collect` raises, and `ProtocolError`
        where the answer lacks the episode."""
        future: asyncio.Future[Records] = asyncio.get_running_loop().create_future()
        self._waiting.setdefault(episode, []).append(future)
        if self._fetching is None:
            self._fetching = asyncio.create_task(self._fetch())
        return await future

    async def aclose(self) -> None:
        """Ends the question that is on its way, and the waiting for it."""
        if self._fetching is not None:
            self._fetching.cancel()
            await asyncio.wait({self._fetching})

    async def _fetch(self) -> None:
        asked: dict[str, list[asyncio.Future[Records]]] = {}
        try:
            while self._waiting:
                asked, self._waiting = self._waiting, {}
                try:
                    found = await self._run.collect(asked)
                except Exception as error:  # noqa: BLE001 - it is raised where the records were asked for
                    told: dict[str, Records | Exception] = dict.fromkeys(asked, error)
                else:
                    told = {episode: found.get(episode, _unanswered(episode)) for episode in asked}
                for episode, futures in asked.items():
                    _settle(futures, told[episode])
        finally:
            self._fetching = None
            # One that was told already is not touched.
            for future in (
                future for part in (asked, self._waiting) for futures in part.values() for future in futures
            ):
                future.cancel()
            self._waiting = {}


def _settle(futures: Iterable[asyncio.Future[Records]], told: Records | Exception) -> None:
    for future in futures:
        if future.done():
            continue
        if isinstance(told, Exception):
            future.set_exception(told)
        else:
            future.set_result(told)


def _unanswered(episode: str) -> ProtocolError:
    return ProtocolError(f"the gateway was asked for the records of the episode {episode!r}, and its answer lacks them")


def seat_by_edges(episode: Episode) -> None:
    """Gives agents that know of no seat, since no run came to them, the seat in which they were called."""
    seats = {edge.callee_call_id: edge.callee_seat for edge in episode.edges if edge.callee_call_id is not None}
    for trace in episode.traces:
        for turn in trace.turns:
            if turn.seat is None:
                turn.seat = seats.get(turn.call_id)
            trace.seat = trace.seat or turn.seat
    for edge in episode.edges:
        if edge.caller_seat is None and edge.caller_call_id is not None:
            edge.caller_seat = seats.get(edge.caller_call_id)


def fail(
    episode: Episode,
    error: BaseException,
    failed_calls: AbstractSet[str] | None = None,
    tell: Callable[[Episode, BaseException], None] | None = None,
) -> None:
    """Marks the episode as failed by each of the errors that came together, and tells of each; `failed_calls` as
    `boundary_of` takes them."""
    for one in _leaves(error):
        episode.fail(one, boundary=boundary_of(one, failed_calls=failed_calls))
        if tell is not None:
            tell(episode, one)


def _leaves(error: BaseException) -> Iterator[BaseException]:
    if isinstance(error, BaseExceptionGroup):
        for one in error.exceptions:  # pyright: ignore[reportUnknownVariableType, reportUnknownMemberType]
            yield from _leaves(one)  # pyright: ignore[reportUnknownArgumentType]
    else:
        yield error


async def _awaited(playing: Any) -> Any:
    if not inspect.isawaitable(playing):
        raise ConfigurationError(f"play must be `async def play(team, task)`; it returned {playing!r:.100}")
    return await playing


async def _outcome(team: Team) -> AgentEnvError | None:
    try:
        await team.release()
    except AgentEnvError as error:
        return error
    return None


def _plain(result: Any) -> Json:
    """The result as an episode can keep it; raises `ConfigurationError` for one that is no JSON."""
    if type(result) in (str, bool):
        return result
    try:
        json.dumps(result, allow_nan=False)
    except (TypeError, ValueError, RecursionError) as error:
        raise ConfigurationError(
            f"play returned {result!r:.100}, which is no JSON ({error}); return what of it counts, such as its text"
        ) from None
    return result
