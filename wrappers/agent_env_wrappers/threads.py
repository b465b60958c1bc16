"""Threads for sync agents: each running turn has one of its own.

There is no pool on purpose. A sync agent that waits for another sync agent holds its thread while the other needs
one too, so any bound on their number is a deadlock for a deep enough chain of agents.
"""

from __future__ import annotations

import asyncio
import concurrent.futures
import threading
from collections.abc import AsyncGenerator, Awaitable, Callable, Generator
from contextlib import contextmanager
from contextvars import ContextVar, copy_context
from dataclasses import dataclass
from typing import Any, Generic, ParamSpec, Protocol, TypeVar

from agent_env_wrappers.contract import AgentError

P = ParamSpec("P")
T = TypeVar("T")
R = TypeVar("R")

AHEAD = 64
"""How many pieces a thread may be ahead of whoever reads them."""


class TurnAbandoned(BaseException):
    """Raised in a thread whose turn was cancelled, at its next piece or call of a peer, so that it unwinds.

    It is no `Exception`, as `asyncio.CancelledError` is none: agents that catch all errors must not catch it.
    """


@dataclass(frozen=True, slots=True)
class Returned(Generic[R]):
    """What the work in a thread returned; the last thing that `Threads.play` yields."""

    value: R


@dataclass(frozen=True, slots=True)
class _Raised:
    error: BaseException


class _Work:
    """One running thread as both sides see it; `lock` guards the fields that both write."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self.loop = loop
        self.queue: asyncio.Queue[Any] = asyncio.Queue()
        self.room = threading.Semaphore(AHEAD)
        self.lock = threading.Lock()
        self.abandoned = False
        self.ended = False
        self.waits: set[concurrent.futures.Future[Any]] = set()
        self.watch = _watch.get()

    def emit(self, item: object) -> None:
        """Hands a piece over; waits while too many are unread. Raises `TurnAbandoned` after a cancel."""
        self.room.acquire()
        if self.abandoned:
            raise TurnAbandoned
        self._post(item)

    def end(self, outcome: object) -> None:
        with self.lock:
            self.ended = True
        self._post(outcome)

    def abandon(self) -> bool:
        """Lets go of the thread: wakes it where it waits for us; returns whether it is still running."""
        with self.lock:
            if self.ended:
                return False
            self.abandoned = True
            waits = list(self.waits)
        self.room.release(AHEAD)
        for wait in waits:
            wait.cancel()
        return True

    def _post(self, item: object) -> None:
        try:
            self.loop.call_soon_threadsafe(self.queue.put_nowait, item)
        except RuntimeError:
            # The loop is closed: the program is over for whoever waited, and so is this thread.
            if not self.loop.is_closed():
                raise


class Watch(Protocol):
    """Is told of the threads that are left behind; from any thread, and must not block."""

    def left(self) -> None:
        """A thread was abandoned and still runs."""
        ...

    def ended(self) -> None:
        """A thread that was abandoned has ended."""
        ...


_watch: ContextVar[Watch | None] = ContextVar("agent_env_wrappers_watch", default=None)


@contextmanager
def watched(watch: Watch) -> Generator[None]:
    """Has a watch told of the threads that the code inside begins, in the tasks that it starts as well."""
    token = _watch.set(watch)
    try:
        yield
    finally:
        _watch.reset(token)


_current: ContextVar[_Work | None] = ContextVar("agent_env_wrappers_thread", default=None)


class Threads:
    """Runs blocking work, one thread of its own each.

    A thread cannot be stopped from outside: when its turn is cancelled it is abandoned, its waits for peers are
    cancelled, and it counts as leaked until it ends. With `max_leaked` of them no new work is begun, because an
    agent that hangs for ever would fill the process.
    """

    def __init__(self, *, name: str = "agent", max_leaked: int = 256) -> None:
        self._name = name
        self._max_leaked = max_leaked
        self._lock = threading.Lock()
        self._running = 0
        self._leaked = 0

    @property
    def running(self) -> int:
        """Threads at work, the abandoned ones included."""
        return self._running

    @property
    def leaked(self) -> int:
        """Threads whose turn was cancelled and that have not ended since."""
        return self._leaked

    async def play(self, work: Callable[[Callable[[T], None]], R]) -> AsyncGenerator[T | Returned[R]]:
        """Runs `work(emit)` in a thread with a copy of the current context.

        Yields what the work emits, then one `Returned`; raises what the work raises. Raises `AgentError` of kind
        "limit" when too many threads have leaked.
        """
        if self._leaked >= self._max_leaked:
            raise AgentError(
                f"{self._leaked} cancelled turns of this agent still run in threads that cannot be stopped; "
                "make the agent async, or give its blocking calls a timeout",
                kind="limit",
                retryable=True,
            )
        job = _Work(asyncio.get_running_loop())
        thread = threading.Thread(
            target=copy_context().run, args=(self._work, job, work), name=f"{self._name} turn", daemon=True
        )
        with self._lock:
            self._running += 1
        thread.start()
        try:
            while True:
                item = await job.queue.get()
                if isinstance(item, _Raised):
                    raise item.error
                if isinstance(item, Returned):
                    yield item
                    return
                job.room.release()
                yield item
        finally:
            with self._lock:
                if job.abandon():
                    self._leaked += 1
                    if job.watch is not None:
                        job.watch.left()

    async def run(self, function: Callable[P, R], *args: P.args, **kwargs: P.kwargs) -> R:
        """Runs a blocking function in a thread and returns what it returns."""

        def work(emit: Callable[[Any], None]) -> R:
            return function(*args, **kwargs)

        async for item in self.play(work):
            if isinstance(item, Returned):
                return item.value
        raise AssertionError("work in a thread ends by returning or by raising")

    def _work(self, job: _Work, work: Callable[[Callable[[Any], None]], Any]) -> None:
        _current.set(job)
        outcome: object
        try:
            outcome = Returned(work(job.emit))
        except BaseException as error:  # noqa: BLE001 - it is raised where the turn is read
            outcome = _Raised(error)
        job.end(outcome)
        with self._lock:
            self._running -= 1
            if job.abandoned:
                self._leaked -= 1
                if job.watch is not None:
                    job.watch.ended()


def blocking(loop: asyncio.AbstractEventLoop, acall: Callable[P, Awaitable[R]]) -> Callable[P, R]:
    """Makes a blocking function of an async one that must run in `loop`.

    It is for threads: called where a loop runs, it raises `RuntimeError`, since waiting there would stop that loop.
    Context variables of the calling thread go along. When the thread's turn is cancelled the call is, too, and
    raises `TurnAbandoned`.
    """

    def call(*args: P.args, **kwargs: P.kwargs) -> R:
        if _loop_runs_here():
            raise RuntimeError("a blocking call inside a running event loop would stop it; await the async one")
        job = _current.get()
        if job is not None and job.abandoned:
            raise TurnAbandoned
        future = _submit(loop, acall, *args, **kwargs)
        if job is None:
            return future.result()
        with job.lock:
            job.waits.add(future)
        if job.abandoned:
            future.cancel()
        try:
            return future.result()
        except concurrent.futures.CancelledError:
            if job.abandoned:
                raise TurnAbandoned from None
            raise
        finally:
            with job.lock:
                job.waits.discard(future)

    return call


def anywhere(
    loop: asyncio.AbstractEventLoop, acall: Callable[P, Awaitable[R]], call: Callable[P, R]
) -> Callable[P, R | Awaitable[R]]:
    """Makes one function that blocks in a thread and is awaitable where an event loop runs.

    It is for agents that look sync and may yet be async inside: a lambda that returns a coroutine (it runs in
    `loop`), or a function that starts a loop of its own (the call goes to `loop` and its future is awaited there).
    """

    def either(*args: P.args, **kwargs: P.kwargs) -> R | Awaitable[R]:
        if not _loop_runs_here():
            return call(*args, **kwargs)
        if asyncio.get_running_loop() is loop:
            return acall(*args, **kwargs)
        return asyncio.wrap_future(_submit(loop, acall, *args, **kwargs))

    return either


def _submit(
    loop: asyncio.AbstractEventLoop, acall: Callable[P, Awaitable[R]], *args: P.args, **kwargs: P.kwargs
) -> concurrent.futures.Future[R]:
    async def run() -> R:
        return await acall(*args, **kwargs)

    coroutine = run()
    try:
        return asyncio.run_coroutine_threadsafe(coroutine, loop)
    except RuntimeError:
        coroutine.close()
        raise


def _loop_runs_here() -> bool:
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return False
    return True
