"""Playing many episodes at once, as a stream: recorded, scored, stored, and gone on with after a stop."""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import json
import logging
import secrets
from collections import Counter
from collections.abc import AsyncGenerator, AsyncIterable, Callable, Iterable, Iterator, Mapping, Sequence, Sized
from dataclasses import replace
from functools import cached_property
from typing import Any, Literal, TypeAlias, get_args

import anyio

from agent_env.episodes import Episode, EpisodeStore, EpisodeWriter, new_episode_id
from agent_env.errors import AgentEnvError, ConfigurationError
from agent_env.gateway import RunHandle
from agent_env.training.faults import Faults
from agent_env.training.playing import Job, Player
from agent_env.training.progress import RolloutProgress, rollout_progress
from agent_env.training.scenario import Json, Scenario, Seat
from agent_env.training.team import wrapped

log = logging.getLogger("agent_env.training")

Finished: TypeAlias = Literal["skip", "yield", "retry"]

_STOP_SECONDS = 15.0
"""How long what is cancelled may take to end: saying goodbye to an environment takes 10 at most."""


async def rollout(
    scenario: object,
    tasks: Iterable[Json],
    *,
    seats: Mapping[str, Seat] | None = None,
    run: RunHandle | None = None,
    store: EpisodeStore | EpisodeWriter | None = None,
    run_id: str | None = None,
    finished: Finished = "skip",
    group_size: int = 1,
    batch: str | None = None,
    concurrency: int = 64,
    seconds: float | None = 120.0,
    budget: int | None = None,
    seed: int = 0,
    info: Mapping[str, Json] | None = None,
    on_episode: Callable[[Episode], None] | None = None,
    progress: bool | RolloutProgress = False,
    told: set[str] | None = None,
) -> AsyncGenerator[Episode, None]:
    """Plays every task `group_size` times and yields the episodes as they end, scored, and stored where there is a
    store.

        async for episode in rollout(scenario, tasks, group_size=8, store=store, run_id="monday", progress=True):
            print(episode.task, episode.reward("solver"))

    | argument | meaning |
    |---|---|
    | `scenario` | a `Scenario`, a module or object with `play`, or `play` alone |
    | `seats` | seats to put in place of the scenario's, such as a frozen one |
    | `run` | the gateway's run: model calls of its seats go through it, and what other processes posted is added |
    | `store`, `run_id` | where episodes go, and the name under which a second start finds those of the first |
    | `finished` | what a second start does with episodes that the store has: "skip", "yield" them, or "retry" those that failed and skip the others |
    | `batch` | begins the names of the groups, so that no group of another rollout has the same: a name or number of this one; default: one that is made up, or none where `run_id` tells them apart |
    | `concurrency` | how many episodes are played at a time; an agent that waits for another takes no further place |
    | `seconds`, `budget` | bounds of each episode: time, and calls |
    | `seed` | what the seeds of the episodes (`team.seed`) come from, with the numbers of task and sample |
    | `info` | goes into `episode.info` of all |
    | `on_episode` | is told about each episode before it is yielded |
    | `progress` | shows a bar of its own, or goes on with one of `rollout_progress` |
    | `told` | the kinds of failures that were warned of before, which it adds to; pass the same set each time |

    A task that fails gives an episode that is not ok, with the boundary that failed, and no reward; the others go on.
    A warning names each kind of failure once, with the place in the scenario's code that it came from.
    The episodes of a task share a `group`, which no other task has: the batch, the task's "id" or a number, and a digest
    of the task. `episode.info` has `index`, `sample` and `result`. Whoever takes them slowly is waited for: at most
    twice `concurrency` episodes are begun or ended that were not taken yet.

    A second start knows a task by all that it says, wherever it stands in the list by then; one that stands there twice
    is played twice. Of a task that has fewer than `group_size` episodes the others are played, into the same group.

    Leaving the loop, or cancelling it, ends the episodes that are being played: they are not stored, and a second
    start plays them again, under ids of their own. Close a stream that is left early with `contextlib.aclosing` where
    its end is to be waited for. Raises `ConfigurationError` for what cannot be played, and the error of a store, of a
    gateway that does not answer, or of `tasks`.
    """
    if isinstance(tasks, str):
        raise ConfigurationError(f"tasks are given as a list, not as the text {tasks!r:.100}; for one alone: [task]")
    given = Scenario.of(scenario)
    given = replace(given, seats={**given.seats, **(seats or {})})
    _check(given, run, store, run_id, finished, group_size, concurrency)
    earlier = _Earlier(store, run_id, finished) if isinstance(store, EpisodeStore) and run_id is not None else None
    async with contextlib.AsyncExitStack() as stack:
        given = replace(given, seats=await stack.enter_async_context(wrapped(given.seats)))
        faults = Faults(set() if told is None else told)
        player = Player(given, run=run, run_id=run_id, seconds=seconds, budget=budget, info=info, faults=faults)
        stream = _Stream(player, _jobs(tasks, group_size, seed, run_id, batch, earlier), earlier, concurrency)
        bar = progress if isinstance(progress, RolloutProgress) else None
        if progress is True:
            total = len(tasks) * group_size if isinstance(tasks, Sized) else None
            bar = stack.enter_context(rollout_progress(total))
            bar.describe(given.name)
        try:
            while ended := await stream.next():
                if store is not None:
                    store.append(episode for episode, fresh in ended if fresh)
                for episode, fresh in ended:
                    stream.take()
                    if bar is not None:
                        bar.add(episode, fresh=fresh)
                    if on_episode is not None:
                        on_episode(episode)
                    yield episode
                if bar is not None:
                    bar.skip(stream.skipped())
            if bar is not None:
                bar.skip(stream.skipped())
        finally:
            left = await stream.stop()
            if store is not None and left:
                store.append(left)


async def collect(episodes: AsyncIterable[Episode]) -> list[Episode]:
    """The episodes of a stream, in the order of their tasks and samples.

    episodes = await collect(rollout(scenario, tasks))
    """
    found = [episode async for episode in episodes]
    return sorted(found, key=lambda episode: (episode.info["index"], episode.info["sample"]))


class _Earlier:
    """What an earlier start of the same run left in the store."""

    def __init__(self, store: EpisodeStore, run_id: str, finished: Finished) -> None:
        self._store = store
        self._run_id = run_id
        self._yielding = finished == "yield"
        failed = {summary.id for summary in store.summaries(run=run_id, ok=False)}
        well = store.finished(run_id) - failed
        # One that failed may have been played again, well.
        ids = [*(() if finished == "retry" else failed), *well]
        self._ids = {_name(episode): episode for episode in ids}

    def has(self, name: str) -> bool:
        """Tells whether the episode of this name was played."""
        return name in self._ids

    def episode(self, job: Job) -> Episode | None:
        """The episode, if those of earlier are wanted, at the place that its task has now."""
        episode = self._store.get(self._ids[_name(job.id)]) if self._yielding else None
        if episode is not None:
            episode.info["index"] = job.index
        return episode

    def begun(self, names: Sequence[str]) -> str | None:
        """The group to go on with of a task whose episodes have these names: one that was begun, and is not whole."""
        played = [name for name in names if name in self._ids]
        if not 0 < len(played) < len(names):
            return None
        episode = self._store.get(self._ids[played[0]])
        group = None if episode is None else episode.group
        return None if group in self._mixed else group

    @cached_property
    def _mixed(self) -> set[str | None]:
        """The groups with several tasks: before groups were named by their task, a changed list left such."""
        tasks: dict[str | None, set[str]] = {}
        for summary in self._store.summaries(run=self._run_id):
            tasks.setdefault(summary.group, set()).add(_text(summary.task))
        return {group for group, texts in tasks.items() if len(texts) > 1}


class _Stream:
    """Plays jobs, at most `concurrency` at a time, and at most twice as many that nobody has taken yet.

    Only a job holds a place, and an agent that waits for another one holds none: whatever calls whatever, at whatever
    depth, no call waits for a place.
    """

    def __init__(self, player: Player, jobs: Iterator[Job], earlier: _Earlier | None, concurrency: int) -> None:
        self._player = player
        self._jobs = jobs
        self._earlier = earlier
        self._concurrency = concurrency
        self._playing: set[asyncio.Task[Episode]] = set()
        self._ended: list[tuple[Episode, bool]] = []
        self._untaken = 0
        self._skipped = 0
        self._error: BaseException | None = None
        self._no_more: Exception | None = None
        self._woken = asyncio.Event()

    async def next(self) -> list[tuple[Episode, bool]]:
        """The episodes that have ended by now, each with whether it was played just now; none when all are taken."""
        self._fill()
        while not self._ended and self._error is None and self._playing:
            self._woken.clear()
            await self._woken.wait()
        if self._error is not None:
            raise self._error
        if not self._ended and self._no_more is not None:
            raise self._no_more
        batch, self._ended = self._ended, []
        return batch

    def take(self) -> None:
        """Says that one of the episodes goes to whoever takes them, so another may be played."""
        self._untaken -= 1
        self._fill()

    def skipped(self) -> int:
        """How many jobs were skipped since this was last asked."""
        skipped, self._skipped = self._skipped, 0
        return skipped

    async def stop(self) -> list[Episode]:
        """Ends what is being played and gives what has ended and was not handed out."""
        self._player.stopping = True
        for task in self._playing:
            task.cancel()
        with anyio.CancelScope(shield=True):
            if self._playing:
                await asyncio.wait(self._playing, timeout=_STOP_SECONDS)
            await self._player.aclose()
        if self._playing:
            log.error("%d episodes did not end within %g s of being cancelled", len(self._playing), _STOP_SECONDS)
        return [episode for episode, fresh in self._ended if fresh]

    def _fill(self) -> None:
        while (
            len(self._playing) < self._concurrency
            and len(self._playing) + self._untaken < 2 * self._concurrency
            and (self._error or self._no_more) is None
        ):
            try:
                job = next(self._jobs, None)
                if job is not None and self._known(job):
                    continue
            except Exception as error:  # noqa: BLE001 - it is raised when those that are being played were taken
                self._no_more = error
                return
            if job is None:
                return
            task = asyncio.create_task(self._player.play(job))
            self._playing.add(task)
            task.add_done_callback(self._end)

    def _known(self, job: Job) -> bool:
        """Tells whether a job was played by an earlier start, and hands its episode out where that is wanted."""
        if self._earlier is None or not self._earlier.has(_name(job.id)):
            return False
        episode = self._earlier.episode(job)
        if episode is None:
            self._skipped += 1
        else:
            self._ended.append((episode, False))
            self._untaken += 1
        return True

    def _end(self, task: asyncio.Task[Episode]) -> None:
        self._playing.discard(task)
        self._woken.set()
        if task.cancelled():
            self._error = self._error or AgentEnvError("an episode was cancelled from outside while it was collected")
        elif (error := task.exception()) is not None:
            self._error = self._error or error
        else:
            self._ended.append((task.result(), True))
            self._untaken += 1
        if not self._player.stopping:
            self._fill()


def _jobs(
    tasks: Iterable[Json],
    group_size: int,
    seed: int,
    run_id: str | None,
    batch: str | None,
    earlier: _Earlier | None,
) -> Iterator[Job]:
    if batch is None:
        batch = secrets.token_hex(4) if run_id is None else ""
    met: Counter[str] = Counter()
    for index, task in enumerate(tasks):
        text = repr(task) if run_id is None else _text(task)
        digest = hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()[:16]
        number = index
        if run_id is not None:  # another start may have another list: which of the equal ones it is stays
            number = met[digest]
            met[digest] += 1
        named: Any = task.get("id") if isinstance(task, Mapping) else None  # pyright: ignore[reportUnknownVariableType, reportUnknownMemberType]
        group = f"{named if isinstance(named, str | int) else number}-{digest}"
        group = f"{batch}.{group}" if batch else group
        if run_id is None:
            ids = [new_episode_id() for _ in range(group_size)]
        else:
            names = [_hashed([run_id, seed, digest, number, sample]) for sample in range(group_size)]
            if earlier is not None:
                # Earlier versions had the place in the list in the name.
                placed = [_hashed([run_id, seed, index, sample], text) for sample in range(group_size)]
                pairs = zip(names, placed, strict=True)
                names = [old if earlier.has(old) and not earlier.has(name) else name for name, old in pairs]
                group = earlier.begun(names) or group
            # What a start that was stopped left at the gateway, or still writes there, must not get into the episode
            # that is played in its place.
            ids = [f"{name}-{secrets.token_hex(4)}" for name in names]
        for sample, episode in enumerate(ids):
            chance = hashlib.sha256(f"{seed}/{index}/{sample}".encode()).digest()
            yield Job(episode, index, sample, task, group, int.from_bytes(chance[:4]) >> 1)


def _hashed(parts: list[Json], text: str = "") -> str:
    return hashlib.sha256((json.dumps(parts) + text).encode()).hexdigest()[:16]


def _name(episode: str) -> str:
    """What the id of an episode says about run, task and sample, whichever attempt it is."""
    return episode.partition("-")[0]


def _text(task: Json) -> str:
    try:
        return json.dumps(task, sort_keys=True)
    except (TypeError, ValueError, RecursionError) as error:
        raise ConfigurationError(
            f"the task {task!r:.100} is no JSON ({error}); a run that resumes needs that"
        ) from None


def _check(
    scenario: Scenario,
    run: RunHandle | None,
    store: EpisodeStore | EpisodeWriter | None,
    run_id: str | None,
    finished: Finished,
    group_size: int,
    concurrency: int,
) -> None:
    """Refuses at once what would fail in every episode, or be overlooked."""
    if group_size < 1 or concurrency < 1:
        raise ConfigurationError(f"group_size and concurrency must be at least 1, not {group_size} and {concurrency}")
    if finished not in get_args(Finished):
        raise ConfigurationError(f"finished must be one of {', '.join(get_args(Finished))}, not {finished!r}")
    if run_id is not None and store is not None and not isinstance(store, EpisodeStore):
        raise ConfigurationError(f"a {type(store).__name__} cannot tell what was played; resume with an EpisodeStore")
    if run is not None and not run.seats:
        raise ConfigurationError(f"the run {run.run!r} has no seats; open it with scenario.seated({{policy: …}})")
    for seat, given in scenario.seats.items():
        if given.policy is None or (run is not None and run.seats.get(seat) is not None):
            continue
        lack = "there is no run" if run is None else f"the run {run.run!r} has no policy for it"
        raise ConfigurationError(
            f"the seat {seat!r} is played by the policy {given.policy!r}, but {lack}; open one with "
            "scenario.seated({policy: SeatPolicy(…)}) and pass run=…"
        )
