"""Tasks that have ended, or wait for their caller, within bounds: the SDK's own store keeps them forever."""

from __future__ import annotations

import time
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from a2a.auth.user import User
from a2a.server.agent_execution.active_task import INTERRUPTED_TASK_STATES, TERMINAL_TASK_STATES
from a2a.server.context import ServerCallContext
from a2a.server.tasks import InMemoryTaskStore, TaskStore
from a2a.types import ListTasksRequest, ListTasksResponse, Task

WAITING: Final = frozenset(INTERRUPTED_TASK_STATES)
"""States in which a task waits for its caller."""

RESTING: Final = WAITING | TERMINAL_TASK_STATES
"""States in which a task may be forgotten; in the others it runs."""


class Owner(User):
    """A principal, as the SDK knows users."""

    def __init__(self, principal: str) -> None:
        self._principal = principal

    @property
    def is_authenticated(self) -> bool:
        """True: the gate lets nobody else through."""
        return True

    @property
    def user_name(self) -> str:
        """The principal's id; the stores of the SDK keep what belongs to different names apart."""
        return self._principal


@dataclass(frozen=True, slots=True)
class _Kept:
    context: ServerCallContext
    rests_since: float
    size: int


class BoundedTaskStore(TaskStore):
    """Keeps at most `max_tasks` tasks and `max_bytes` of them that rest, the newest, for at most `max_seconds`.

    A task that runs is never forgotten. `on_forget(task_id)` is called for each that is.
    """

    def __init__(
        self,
        *,
        max_tasks: int = 10_000,
        max_bytes: int = 128 * 1024 * 1024,
        max_seconds: float = 3600.0,
        on_forget: Callable[[str], None] = lambda _: None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._tasks = InMemoryTaskStore()
        self._max_tasks = max_tasks
        self._max_bytes = max_bytes
        self._max_seconds = max_seconds
        self._on_forget = on_forget
        self._clock = clock
        self._resting: OrderedDict[str, _Kept] = OrderedDict()
        self._bytes = 0

    async def save(self, task: Task, context: ServerCallContext) -> None:
        """Keeps a task for its owner."""
        await self._tasks.save(task, context)
        self._wake(task.id)
        if task.status.state in RESTING:
            kept = _Kept(ServerCallContext(user=context.user), self._clock(), task.ByteSize())
            self._resting[task.id] = kept
            self._bytes += kept.size
        await self._forget_old()

    async def get(self, task_id: str, context: ServerCallContext) -> Task | None:
        """The task, None if it is not the caller's or was forgotten."""
        await self._forget_old()
        return await self._tasks.get(task_id, context)

    async def list(self, params: ListTasksRequest, context: ServerCallContext) -> ListTasksResponse:
        """The caller's tasks."""
        await self._forget_old()
        return await self._tasks.list(params, context)

    async def delete(self, task_id: str, context: ServerCallContext) -> None:
        """Forgets a task."""
        self._wake(task_id)
        await self._tasks.delete(task_id, context)
        self._on_forget(task_id)

    def _wake(self, task_id: str) -> None:
        kept = self._resting.pop(task_id, None)
        if kept is not None:
            self._bytes -= kept.size

    async def _forget_old(self) -> None:
        oldest = self._clock() - self._max_seconds
        while self._resting:
            task_id, kept = next(iter(self._resting.items()))
            within = len(self._resting) <= self._max_tasks and self._bytes <= self._max_bytes
            if within and kept.rests_since > oldest:
                return
            await self.delete(task_id, kept.context)
