"""Plays a scenario from outside: up to where somebody is asked, and on from there when they have acted."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Collection, Coroutine, Mapping, Sequence
from contextlib import AsyncExitStack
from contextvars import copy_context
from dataclasses import dataclass, field, replace
from typing import Any, Literal, TypeAlias

from agent_env.client.standins import standing_in
from agent_env.episodes import Episode, new_episode_id
from agent_env.errors import ConfigurationError, DeadlineExceeded
from agent_env.training.playing import Job, Player
from agent_env.training.scenario import Json, Scenario
from agent_env.training.team import wrapped
from agent_env.training.views.backstage import Backstage
from agent_env.training.views.calls import Asked, Calls, enter
from agent_env.training.views.outside import played_from_outside

log = logging.getLogger("agent_env.training")

Standing: TypeAlias = Sequence[tuple[object, object]]
How: TypeAlias = Literal["played", "failed", "turn limit"]

GRACE = 5.0
"""Seconds that an episode which is cut off has to end, and a thread after it."""


@dataclass(frozen=True, slots=True)
class Ending:
    """How an episode ended; `error` is whose failure it was and of which kind, and `episode` what was recorded."""

    how: How
    error: str | None = None
    episode: Episode | None = None

    def reward(self, seat: str) -> float | None:
        """What the seat was given in the end, None where nothing was."""
        return self.episode.reward(seat) if self.how == "played" and self.episode is not None else None


@dataclass(frozen=True, slots=True)
class Moment:
    """A point at which the scenario waits for those outside, or where it has ended.

    `waiting` has the first message for each seat that is asked, in the order in which they were asked.
    """

    waiting: Mapping[str, Asked] = field(default_factory=dict[str, Asked])
    ending: Ending | None = None


@dataclass(eq=False, slots=True)
class _Play:
    calls: Calls
    player: Player
    task: asyncio.Task[Episode]
    known: int = 0
    waker: asyncio.Future[None] | None = None

    def wake(self) -> bool:
        """Wakes who waits for this play to settle, if it has."""
        if self.waker is None or self.waker.done() or not (self.calls.settled or self.task.done()):
            return False
        self.waker.set_result(None)
        return True


class Driver:
    """Plays the episodes of one view, one after another, in a thread of its own.

    Raises `ConfigurationError` in `begin` for an agent that cannot be wrapped.
    """

    def __init__(
        self,
        scenario: Scenario,
        outside: Collection[str],
        may_call: Mapping[str, Sequence[str]],
        *,
        seconds: float,
        stage: Backstage | None,
    ) -> None:
        self._scenario = scenario
        self._outside = frozenset(outside)
        self._order = [seat for seat in scenario.seats if seat in self._outside]
        self._may_call = may_call
        self._seconds = seconds
        self._number = 0
        self._shared = stage
        self._stage: Backstage | None = None
        self._open = AsyncExitStack()
        self._seated: tuple[Scenario, Standing] | None = None
        self._play: _Play | None = None

    def begin(self, task: Json, seed: int) -> Moment:
        """Starts an episode, in place of one that has not ended."""
        job = Job(new_episode_id(), self._number, 0, task, str(self._number), seed)
        self._number += 1
        return self._advance(lambda: self._begin(job))

    def reply(self, actions: Mapping[str, str]) -> Moment:
        """Gives each of these seats' first message its reply, and goes on."""
        return self._advance(lambda: self._reply(actions))

    def cut(self) -> Moment:
        """Ends the episode at the limit of its turns."""
        return self._advance(self._cut)

    def close(self) -> None:
        """Ends the episode and the thread, and lets go of every environment."""
        stage, self._stage = self._stage, None
        if stage is None or stage.closed:
            return
        if stage.inside:
            # A view that was forgotten may be found by a collection of garbage in any thread.
            stage.spawn(lambda: self._close_inside(stage))
            return
        try:
            stage.run(self._aclose, 2 * GRACE)
        except DeadlineExceeded as error:
            log.warning("a view of %s was not closed in order: %s", self._scenario.name or "a scenario", error)
        finally:
            self._leave(stage, GRACE)

    def _advance(self, work: Callable[[], Coroutine[Any, Any, Moment]]) -> Moment:
        if self._stage is None:
            self._stage = self._shared or Backstage()
            self._stage.listen(self._idle)
        try:
            return self._stage.run(work, self._seconds + 2 * GRACE)
        except DeadlineExceeded as error:
            # Its event loop stands still, so it cannot even be told to stop: the next episode gets another one.
            log.warning("%s blocks its event loop: %s", self._scenario.name or "a scenario", error)
            self._abandon()
            return Moment(ending=Ending("failed", "program: deadline_exceeded"))

    def _abandon(self) -> None:
        stage, self._stage = self._stage, None
        self._open, self._seated, self._play = AsyncExitStack(), None, None
        if stage is not None:
            self._leave(stage, 0.0)

    def _leave(self, stage: Backstage, seconds: float) -> None:
        stage.ignore(self._idle)
        if stage is not self._shared:
            stage.close(seconds)

    def _idle(self) -> bool:
        return self._play is not None and self._play.wake()

    # ── in the thread ───────────────────────────────────────────────────────────────────────────────────────────

    async def _begin(self, job: Job) -> Moment:
        await self._stop()
        scenario, standing = await self._ready()
        calls = Calls(self._outside)
        player = Player(scenario, run=None, run_id=None, seconds=None, budget=None, info=None)
        context = copy_context()
        context.run(enter, calls)
        play = _Play(calls, player, asyncio.create_task(_played(player, job, standing), context=context))
        play.task.add_done_callback(lambda _: play.wake())
        self._play = play
        return await self._settle(play)

    async def _ready(self) -> tuple[Scenario, Standing]:
        """The scenario with seats that can be played; agents are wrapped once, for all episodes."""
        if self._seated is None:
            frozen = {name: seat for name, seat in self._scenario.seats.items() if name not in self._outside}
            async with AsyncExitStack() as opening:
                ready = await opening.enter_async_context(wrapped(frozen))
                cast = await opening.enter_async_context(
                    played_from_outside(self._scenario.seats, ready, self._outside, self._may_call)
                )
                self._open = opening.pop_all()
            self._seated = replace(self._scenario, seats=cast.seats), cast.standing
        return self._seated

    async def _reply(self, actions: Mapping[str, str]) -> Moment:
        play = self._play
        if play is None:
            raise ConfigurationError("there is no episode to go on with; call reset first")
        for seat, asked in self._first(play).items():
            if seat in actions:
                play.calls.answer(asked, actions[seat])
        play.known = len(play.calls.waiting)
        return await self._settle(play)

    async def _settle(self, play: _Play) -> Moment:
        """Waits until the play has ended or waits for somebody outside alone."""
        if not play.task.done():
            play.waker = asyncio.get_running_loop().create_future()
            try:
                async with asyncio.timeout(self._seconds):
                    await play.waker
            except TimeoutError:
                await self._stop()
                return Moment(ending=Ending("failed", "deadline: deadline_exceeded"))
            finally:
                play.waker = None
        if play.task.done():
            self._play = None
            return Moment(ending=self._ending(play.task))
        # Those who were asked since the last time come in the order of their seats: which of several threads or
        # sockets was the fastest is no part of the game.
        waiting = play.calls.waiting
        waiting[play.known :] = sorted(waiting[play.known :], key=lambda asked: self._order.index(asked.seat))
        play.known = len(waiting)
        return Moment(self._first(play))

    def _first(self, play: _Play) -> dict[str, Asked]:
        first: dict[str, Asked] = {}
        for asked in play.calls.waiting:
            first.setdefault(asked.seat, asked)
        return first

    def _ending(self, task: asyncio.Task[Episode]) -> Ending:
        if task.cancelled():
            return Ending("failed", "program: CancelledError")
        raised = task.exception()
        if raised is not None:
            log.warning("an episode of %s broke", self._scenario.name or "a scenario", exc_info=raised)
            return Ending("failed", f"program: {type(raised).__name__}")
        episode = task.result()
        if episode.ok:
            return Ending("played", None, episode)
        failure = episode.failures[0]
        log.info("an episode of %s failed: %s: %s", episode.env or "a scenario", failure.code, failure.message)
        return Ending("failed", f"{failure.boundary}: {failure.code}", episode)

    async def _cut(self) -> Moment:
        await self._stop()
        return Moment(ending=Ending("turn limit"))

    async def _stop(self) -> None:
        play, self._play = self._play, None
        if play is None:
            return
        play.calls.over = play.player.stopping = True
        play.task.cancel()
        await asyncio.wait({play.task}, timeout=GRACE)
        if not play.task.done():
            log.warning("%s goes on after it was cancelled", self._scenario.name or "a scenario")
        elif not play.task.cancelled():
            play.task.exception()  # nobody asks for it any more

    async def _aclose(self) -> None:
        await self._stop()
        opened, self._open, self._seated = self._open, AsyncExitStack(), None
        await opened.aclose()

    async def _close_inside(self, stage: Backstage) -> None:
        try:
            await self._aclose()
        finally:
            self._leave(stage, 0.0)


async def _played(player: Player, job: Job, standing: Standing) -> Episode:
    try:
        with standing_in(standing):
            return await player.play(job)
    except (SystemExit, KeyboardInterrupt) as stop:
        # They would end the event loop, and it is the scenario that wants to end.
        episode = Episode(job.id, job.task)
        episode.fail(stop, boundary="program")
        return episode
