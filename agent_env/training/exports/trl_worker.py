"""The `rollout_worker` of TRL's `AsyncGRPOTrainer`: plays episodes beside the trainer and feeds it credited rows."""

from __future__ import annotations

import asyncio
import logging
import queue
import threading
import time
from collections.abc import AsyncIterable, Callable, Iterable, Sequence
from contextlib import suppress
from typing import Any, TypeAlias

from agent_env.episodes import Episode
from agent_env.errors import ConfigurationError, DeadlineExceeded
from agent_env.training.credit import Credit
from agent_env.training.exports.trl_async import rollout_samples
from agent_env.training.learning import cut_and_credit
from agent_env.training.propagation import Propagation
from agent_env.training.rows import Row
from agent_env.training.units import origin_of

log = logging.getLogger("agent_env.training")

Play: TypeAlias = Callable[[int], AsyncIterable[Episode]]
"""Plays some tasks with the policy of a version, and yields the episodes as they end; `rollout(...)` gives one."""

Form: TypeAlias = Callable[[Sequence[Row], int], Sequence[Any]]
"""Makes the samples of credited rows; the number is the version to count those as of which none is known."""

_GLANCE = 0.2
"""Seconds between two looks at whether to stop, while the trainer has no room."""


class RolloutWorker:
    """Plays in a thread of its own and puts `RolloutSample`s on `rollout_buffer`, as TRL's `RolloutWorkerProtocol` asks.

    `play(version)` is called again and again; episodes are credited when `group_size` attempts at one problem have
    ended, or at the end of a play, so that none waits for another problem. `seats` are those that the trainer's policy
    plays. At most `capacity` samples wait for the trainer: then playing waits too. Calls of which the gateway knows no
    policy version count as the version at which their play began, which is never too new. `form` makes the samples, by
    default TRL's own.

        async def play(version):
            await run.policy("manager").change(version=version)
            async for episode in rollout(scenario, next_tasks(), run=run, group_size=8):
                yield episode

        trainer = AsyncGRPOTrainer(model, args=config, train_dataset=tasks, rollout_worker=RolloutWorker(play, group_size=8))
    """

    def __init__(
        self,
        play: Play,
        *,
        seats: Iterable[str] | None = None,
        group_size: int | None = None,
        credit: str | Credit = "per_seat",
        propagation: str | Propagation = "team",
        form: Form | None = None,
        capacity: int = 1024,
    ) -> None:
        if capacity < 1:
            raise ConfigurationError(f"a buffer has room for at least one sample, not {capacity!r}")
        self.rollout_buffer: queue.Queue[Any] = queue.Queue(capacity)
        self.metrics_queue: queue.Queue[dict[str, Any]] = queue.Queue()
        self.model_version = 0
        self._play = play
        self._seats = None if seats is None else list(seats)
        self._group_size = group_size
        self._credit: str | Credit = credit
        self._propagation: str | Propagation = propagation
        self._form = form or _samples
        self._thread: threading.Thread | None = None
        self._stopping = threading.Event()
        self._task: asyncio.Task[None] | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._failure: BaseException | None = None
        self._beat = time.monotonic()

    def start(self) -> None:
        """Begins to play; raises `ConfigurationError` when it has begun already."""
        if self._thread is not None:
            raise ConfigurationError("a rollout worker is started once; make another one")
        self._beat = time.monotonic()
        self._thread = threading.Thread(target=self._run, name="agent-env-rollouts", daemon=True)
        self._thread.start()

    def stop(self) -> None:
        """Ends what is being played, and waits for it for up to 30 seconds; harmless when nothing is."""
        self._stopping.set()
        if self._loop is not None and self._task is not None:
            # The loop may have ended by itself in the meantime.
            with suppress(RuntimeError):
                self._loop.call_soon_threadsafe(self._task.cancel)
        if self._thread is not None:
            self._thread.join(timeout=30.0)

    def update_model_version(self, model_version: int) -> None:
        """Takes the version that is served from now on; the next play is told."""
        self.model_version = model_version

    def check_health(self, stale_after_s: float) -> None:
        """Raises what ended the playing, and `DeadlineExceeded` when no episode has been played to its end for so long,
        or all fail."""
        if self._failure is not None:
            raise self._failure
        silent = time.monotonic() - self._beat
        if silent > stale_after_s:
            raise DeadlineExceeded(
                f"no episode has been played to its end for {silent:.0f} s, and {stale_after_s:g} are allowed"
            )

    def _run(self) -> None:
        try:
            asyncio.run(self._main())
        except asyncio.CancelledError:
            log.debug("the rollouts were stopped")
        except BaseException as error:  # noqa: BLE001
            # It is the trainer's thread that tells the user, at its next look at the worker's health.
            self._failure = error

    async def _main(self) -> None:
        self._loop, self._task = asyncio.get_running_loop(), asyncio.current_task()
        while not self._stopping.is_set():
            version = self.model_version
            played, failed, rows = 0, 0, 0
            waiting: dict[str, list[Episode]] = {}
            async for episode in self._play(version):
                played += 1
                failed += not episode.ok
                if episode.ok:
                    self._beat = time.monotonic()
                origin = origin_of(episode)
                waiting.setdefault(origin, []).append(episode)
                if len(waiting[origin]) == self._group_size:
                    rows += await self._deliver(waiting.pop(origin), version)
            rows += await self._deliver([episode for group in waiting.values() for episode in group], version)
            if not rows and not failed:
                # It would be so for ever.
                raise ConfigurationError(
                    f"play({version}) gave {played} episodes that make no row to train on; see the log for reasons"
                )

    async def _deliver(self, episodes: list[Episode], version: int) -> int:
        """Puts the credited rows of episodes on the buffer, and says how many."""
        if not episodes:
            return 0
        rows, _, report = cut_and_credit(
            episodes, seats=self._seats, credit=self._credit, propagation=self._propagation
        )
        failed = sum(not episode.ok for episode in episodes)
        flat = sum(not row.advantage for row in rows)
        self.metrics_queue.put(
            {
                "episodes/played_total": float(len(episodes)),
                "episodes/failed_frac": (float(failed), float(len(episodes))),
                "rows/dropped_calls_total": float(report.dropped.total()),
                "rows/without_advantage_frac": (float(flat), float(len(rows))),
            }
        )
        if not rows:
            log.warning("%d episodes make no row to train on: %s", len(episodes), report.reasons())
        for sample in self._form(rows, version):
            await asyncio.to_thread(self._put, sample)
        return len(rows)

    def _put(self, sample: Any) -> None:
        """Waits for room, unless the trainer is done."""
        while not self._stopping.is_set():
            self._beat = time.monotonic()
            with suppress(queue.Full):
                return self.rollout_buffer.put(sample, timeout=_GLANCE)


def _samples(rows: Sequence[Row], version: int) -> Sequence[Any]:
    return rollout_samples(rows, version=version, enqueued_at=time.time())
