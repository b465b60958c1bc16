"""An event loop in a thread of its own, which tells when nothing in it can go on by itself."""

from __future__ import annotations

import asyncio
import concurrent.futures
import logging
import selectors
import threading
from collections.abc import Callable, Coroutine
from contextlib import suppress
from contextvars import Context
from typing import Any, Self, TypeAlias, TypeVar

from agent_env.errors import ConfigurationError, DeadlineExceeded

log = logging.getLogger("agent_env.training")

T = TypeVar("T")

OnIdle: TypeAlias = Callable[[], bool]

_START_SECONDS = 30.0


class _IdleSelector(selectors.DefaultSelector):
    """Asks whoever wants to know before the loop falls asleep; who answers True has given it something to do.

    An event loop waits in its selector, and does so only when no callback is left to run.
    """

    def __init__(self) -> None:
        super().__init__()
        self.listeners: list[OnIdle] = []

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        if self.listeners and (timeout is None or timeout > 0):
            ready = super().select(0)
            if ready:
                return ready
            told = [listener() for listener in self.listeners]  # all of them: each may have something to wake
            if any(told):
                return ready
        return super().select(timeout)


class _StageLoop(asyncio.SelectorEventLoop):
    """A loop that what plays in it cannot stop: it is the stage's, and other episodes may be played in it."""

    open = True

    def stop(self) -> None:
        """Ends the loop once the stage is closed; raises `ConfigurationError` in whatever else calls it."""
        if self.open or asyncio.current_task(self) is not None:
            raise ConfigurationError(
                "the event loop of a view is not the scenario's to stop; return from `play` instead"
            )
        super().stop()


class Backstage:
    """A thread with an event loop, in which views play their scenarios.

    Each view has one of its own. Give several views the same one where their scenarios share an `AgentEnvironment`,
    which lives in one event loop:

        with Backstage() as stage:
            views = [to_gymnasium(scenario, "solver", stage=stage) for _ in range(8)]

    It starts at its first use and ends in `close`, or with the program. `run` may be called from any thread but its
    own, from inside a running event loop too.
    """

    def __init__(self) -> None:
        self._selector = _IdleSelector()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._started = threading.Event()
        self._over: asyncio.Event | None = None
        self._thread: threading.Thread | None = None
        self._starting = threading.Lock()
        self._closed = False
        self._spawned: set[asyncio.Task[None]] = set()

    def run(self, work: Callable[[], Coroutine[Any, Any, T]], seconds: float) -> T:
        """Runs `work()` in the loop and returns what it returns.

        Raises `DeadlineExceeded` after `seconds`, when the work is cancelled, `ConfigurationError` on a stage that is
        closed or in its own thread, and what the work raises.
        """
        if self.inside:
            raise ConfigurationError(
                "a view cannot be used by what plays on its own stage, which would wait for itself"
            )
        loop = self._running()
        # In a context of its own: whoever calls may be inside an agent's turn, and this is no part of it.
        coroutine = work()
        future: concurrent.futures.Future[T]
        try:
            future = Context().run(asyncio.run_coroutine_threadsafe, coroutine, loop)
        except RuntimeError:
            coroutine.close()
            raise ConfigurationError("this stage has ended; make another one") from None
        try:
            return future.result(seconds)
        except concurrent.futures.TimeoutError:
            if future.done():
                raise  # it is the work's own
            raise DeadlineExceeded(f"what runs in the background did not answer within {seconds} seconds") from None
        finally:
            future.cancel()

    @property
    def inside(self) -> bool:
        """Whether the running code is on this stage."""
        return threading.current_thread() is self._thread

    def spawn(self, work: Callable[[], Coroutine[Any, Any, None]]) -> None:
        """Runs `work()` in the loop, from inside, and waits for nothing."""
        task = asyncio.get_running_loop().create_task(work(), context=Context())
        self._spawned.add(task)
        task.add_done_callback(self._spawned.discard)

    @property
    def closed(self) -> bool:
        """Whether it has ended for good."""
        return self._closed

    def listen(self, listener: OnIdle) -> None:
        """Calls `listener` in the loop whenever nothing there can go on but by a timer, a socket or another thread."""
        self._selector.listeners.append(listener)

    def ignore(self, listener: OnIdle) -> None:
        """Takes `listen` back."""
        if listener in self._selector.listeners:
            self._selector.listeners.remove(listener)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self, seconds: float = 5.0) -> None:
        """Ends the loop and all that runs in it, within `seconds`; a thread that does not end is left behind.

        It does not start again.
        """
        thread, loop, over = self._thread, self._loop, self._over
        self._closed = True
        if thread is None or loop is None or over is None:
            return
        if thread.is_alive() and not loop.is_closed():
            with suppress(RuntimeError):  # it has ended at this very moment
                loop.call_soon_threadsafe(over.set)
        if self.inside:
            return  # it ends when it comes to it
        thread.join(seconds)
        if thread.is_alive():
            log.warning("what runs in the background did not end within %s seconds; its thread is left behind", seconds)

    def _running(self) -> asyncio.AbstractEventLoop:
        with self._starting:
            if self._closed:
                raise ConfigurationError("this stage is closed; make another one")
            if self._thread is None:
                # None that the interpreter waits for at its end: a view that nobody closed must not keep a program.
                self._thread = threading.Thread(target=self._main, name="agent-env-view", daemon=True)
                self._thread.start()
        if not self._started.wait(_START_SECONDS) or self._loop is None:
            raise DeadlineExceeded(f"no event loop started within {_START_SECONDS} seconds")
        return self._loop

    def _main(self) -> None:
        with suppress(SystemExit, KeyboardInterrupt), asyncio.Runner(loop_factory=self._make_loop) as runner:
            loop = runner.get_loop()
            assert isinstance(loop, _StageLoop)
            living = loop.create_task(self._live(loop))
            living.add_done_callback(lambda _: loop.stop())
            try:
                while not living.done():
                    try:
                        loop.run_forever()
                    except (SystemExit, KeyboardInterrupt) as stop:
                        # asyncio raises what a task or a callback raised here as well, and forgets nothing else that
                        # was to run. Whoever waits for that task is told; the loop is not the task's to end.
                        log.warning("%s in what runs in the background ended its task alone", type(stop).__name__)
            finally:
                loop.open = False

    def _make_loop(self) -> asyncio.AbstractEventLoop:
        return _StageLoop(self._selector)

    async def _live(self, loop: _StageLoop) -> None:
        self._over = asyncio.Event()
        self._loop = loop
        self._started.set()
        await self._over.wait()
        loop.open = False
