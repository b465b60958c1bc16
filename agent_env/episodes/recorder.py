"""Recording what happens in this process: an episode that fills itself while its block runs."""

from __future__ import annotations

import time
from collections.abc import AsyncGenerator, Sequence
from contextlib import asynccontextmanager

from agent_env.context import Budget, Frame, Record, Run, entered, new_call_id, new_trace_id
from agent_env.episodes.episode import Episode
from agent_env.episodes.records import Json


class EpisodeRecorder:
    """Takes records straight into an episode; the `Recorder` of everything that runs in the same process."""

    def __init__(self, episode: Episode) -> None:
        self.episode = episode

    async def record(self, records: Sequence[Record]) -> None:
        """Adds the records; raises `ProtocolError` for one that belongs elsewhere."""
        self.episode.add(records)


def new_episode_id() -> str:
    """Mints an episode id: 16 hex digits."""
    return new_call_id()


@asynccontextmanager
async def recording(
    episode_id: str | None = None,
    *,
    task: Json = None,
    group: str | None = None,
    budget: int | None = None,
    seconds: float | None = None,
    run: Run | None = None,
) -> AsyncGenerator[Episode, None]:
    """Records every agent that is called inside the block, with no code of the agents' own.

        async with recording(task="boat") as episode:
            async with Environment(my_agent) as agent:
                await agent.call_tool("chat", {"message": "boat"})
        print(episode.traces, episode.edges)

    Agents in this process are recorded directly, with no socket; agents elsewhere post to the collector of `run`, and
    whoever opened the run adds what was collected there. `budget` bounds the calls of the whole tree, `seconds` the
    time. An error that leaves the block marks the episode as not ok, with the boundary that failed, and goes on; a
    call that failed and was handled is told by its edge alone.
    """
    if run is not None:
        episode_id = run.episode if episode_id is None else episode_id
    episode = Episode(episode_id or new_episode_id(), task, group, None if run is None else run.run, time.time())
    began = time.monotonic()
    frame = Frame(
        trace_id=new_trace_id(),
        call_id="",
        agent=None,
        seat=None,
        episode=episode.id,
        chain=(),
        deadline=None if seconds is None else began + seconds,
        budget=Budget(budget),
        run=run,
        recorder=EpisodeRecorder(episode),
    )
    try:
        with entered(frame):
            yield episode
    except Exception as error:
        episode.fail(error)
        raise
    finally:
        episode.add(frame.outbox)
        frame.outbox.clear()
        episode.seconds = time.monotonic() - began
