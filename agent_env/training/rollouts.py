"""Playing many episodes at once, recorded, scored, and with what other processes recorded about them."""

from __future__ import annotations

import inspect
from collections.abc import Awaitable, Callable, Iterable
from typing import Any, TypeAlias

import anyio

from agent_env.episodes import Episode, new_episode_id, recording
from agent_env.errors import AgentEnvError
from agent_env.gateway import RunHandle

Json: TypeAlias = Any
Play: TypeAlias = Callable[[Json], Awaitable[Any]]
"""Plays one task: plain Python that calls agents; what it returns goes to `episode.info["result"]`."""

Score: TypeAlias = Callable[[Episode], Awaitable[None] | None]
"""Scores an episode by `episode.score(name, value)`; it sees everything that was recorded."""


async def rollout(
    tasks: Iterable[Json],
    play: Play,
    *,
    run: RunHandle | None = None,
    score: Score | None = None,
    concurrency: int = 64,
    seconds: float | None = 120.0,
    budget: int | None = None,
    on_episode: Callable[[Episode], None] | None = None,
) -> list[Episode]:
    """Plays every task once, at most `concurrency` at a time, and returns the episodes in the order of the tasks.

    With a run, the model calls of its seats go through its gateway and what agents in other processes posted is
    collected into the episodes. `seconds` and `budget` (calls) bound each episode. A task that fails gives an episode
    that is not ok, with the boundary that failed, and no reward; the others go on. `on_episode` is told about each
    episode when it has been played, before it is scored.

        episodes = await rollout(["boat", "kite"], play, run=run, score=score)
    """
    wanted = list(tasks)
    played: dict[int, Episode] = {}
    left = iter(enumerate(wanted))

    async def work() -> None:
        for index, task in left:
            played[index] = await _play(task, play, run, seconds, budget)
            if on_episode is not None:
                on_episode(played[index])

    async with anyio.create_task_group() as workers:
        for _ in range(min(concurrency, len(wanted))):
            workers.start_soon(work)
    episodes = [played[index] for index in range(len(wanted))]
    if run is not None and episodes:
        records = await run.collect(episode.id for episode in episodes)
        for episode in episodes:
            try:
                episode.add(records[episode.id])
            except AgentEnvError as error:
                # What others told of this episode cannot be read: it has no data, and the rest of the batch is whole.
                episode.fail(error)
    if score is not None:
        for episode in episodes:
            await _score(episode, score)
    return episodes


async def _play(task: Json, play: Play, run: RunHandle | None, seconds: float | None, budget: int | None) -> Episode:
    name = new_episode_id()
    seen = None if run is None else run.episode(name, next(iter(run.seats)))
    block = recording(name, task=task, budget=budget, seconds=seconds, run=seen)
    episode: Episode | None = None
    try:
        async with block as episode:
            result = await play(task)
            if result is not None:
                episode.info["result"] = result
    except Exception:
        # `recording` has put the failure into the episode, which is where it belongs: one bad task ends no run.
        if episode is None:
            raise
    return episode


async def _score(episode: Episode, score: Score) -> None:
    if not episode.ok:
        return
    try:
        scoring = score(episode)
        if inspect.isawaitable(scoring):
            await scoring
    except AgentEnvError as error:
        episode.fail(error, boundary="reward")
