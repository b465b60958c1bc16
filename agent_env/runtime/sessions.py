"""Sessions: one conversation each, with its own state, lock and idle clock.

A session is found by `(principal, session_id)`: a foreign id is as unknown as one that never was. A session in use is
never reaped; one that is idle too long is, and so leaves nothing behind when a client never says goodbye.
"""

from __future__ import annotations

import asyncio
import secrets
import time
from collections import deque
from collections.abc import AsyncGenerator, Callable, Coroutine, Iterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any, TypeAlias

from agent_env.context import Peer, session_hash
from agent_env.errors import AtCapacity, DeadlineExceeded, TransportError, UnknownSession
from agent_env.net.limits import Limits
from agent_env_wrappers.contract import Interrupt

Key: TypeAlias = tuple[str, str]


@dataclass(slots=True, eq=False)
class Session:
    """One conversation.

    Everything that a turn changes is committed at its end, so a cancelled or failed turn leaves the session as it was.
    `using` counts the calls that hold it or wait for it; until one has succeeded, and it is `kept`, it ends with the
    last of them.
    """

    principal: str
    id: str
    state: Any = None
    messages: list[dict[str, str]] = field(default_factory=list[dict[str, str]])
    memory: dict[str, Any] = field(default_factory=dict[str, Any])
    turns: int = 0
    terminated: bool = False
    interrupt: Interrupt | None = None
    peers: Sequence[Peer] | None = None
    seed: int | None = None
    options: Any = None
    lock: asyncio.Lock = field(default_factory=asyncio.Lock)
    using: int = 0
    kept: bool = False
    used_at: float = 0.0
    hash: str = ""

    def __post_init__(self) -> None:
        self.hash = session_hash(self.principal, self.id)

    @property
    def key(self) -> Key:
        """What the session is found by."""
        return (self.principal, self.id)

    def clear(self) -> None:
        """Forgets the conversation, and the peers that it was had with; the session stays."""
        self.state = None
        self.peers = None
        self.messages = []
        self.memory = {}
        self.turns = 0
        self.terminated = False
        self.interrupt = None


async def acquire(lock: asyncio.Lock, seconds: float | None, what: str) -> None:
    """Acquires a lock in order of arrival, or raises `DeadlineExceeded` that names `what` the call waited for."""
    try:
        async with asyncio.timeout(seconds):
            await lock.acquire()
    except TimeoutError:
        raise DeadlineExceeded(f"the deadline passed while the call waited for {what}; nothing was done") from None


def mint_session_id() -> str:
    """Makes a session id of 128 random bits; whoever has it, and is its principal, has the session."""
    return "s-" + secrets.token_urlsafe(16)


class SessionStore:
    """All sessions of one environment, bounded by its limits."""

    def __init__(
        self,
        limits: Limits,
        *,
        dispose: Callable[[Session], Coroutine[Any, Any, None]],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._limits = limits
        self._dispose = dispose
        self._clock = clock
        self._sessions: dict[Key, Session] = {}
        self._waiting: deque[asyncio.Future[None]] = deque()
        self._reserved = 0
        self._sweep: asyncio.TimerHandle | None = None
        self._disposing: set[asyncio.Task[None]] = set()

    def __len__(self) -> int:
        return len(self._sessions)

    def __iter__(self) -> Iterator[Session]:
        return iter(self._sessions.values())

    async def open(self, principal: str, session_id: str | None = None, *, seconds: float | None = None) -> Session:
        """Opens a session, under a fresh id unless one is given; one that got this id meanwhile is found.

        Waits for a place for at most `limits.queue_seconds`, then raises `AtCapacity`; `DeadlineExceeded` when
        `seconds` are over before that.
        """
        await self._reserve(seconds)
        self._reserved -= 1
        session = Session(principal, session_id or mint_session_id(), used_at=self._clock())
        known = self._sessions.setdefault(session.key, session)
        if known is session:
            self._schedule_sweep()
        else:
            self._wake()
        return known

    def find(self, principal: str, session_id: str) -> Session:
        """Finds a session; raises `UnknownSession`, and never opens one in its place."""
        session = self._sessions.get((principal, session_id))
        if session is None:
            raise UnknownSession(
                f"there is no session {session_id!r} for you: it was never opened, was released, or was idle for more "
                f"than {self._limits.idle_seconds:g} s; leave the id out to open a new one"
            )
        return session

    def knows(self, principal: str, session_id: str) -> bool:
        """Tells whether the session exists."""
        return (principal, session_id) in self._sessions

    @asynccontextmanager
    async def hold(self, session: Session, seconds: float | None = None) -> AsyncGenerator[Session]:
        """Holds a session's lock: turns queue in order, and a session that is held or waited for is not reaped.

        Raises `DeadlineExceeded` when the turn before takes longer than `seconds`, `AtCapacity` when too many wait.
        """
        if session.using > self._limits.max_queued_turns:
            raise AtCapacity(
                f"{session.using - 1} turns already wait for this session, the most that it takes; wait for an answer "
                "before you send the next message",
                retry_after=1.0,
            )
        session.using += 1
        try:
            await acquire(session.lock, seconds, "the turn before it in the same session")
            try:
                if self._sessions.get(session.key) is not session:
                    raise UnknownSession("the session was released while this call waited for it; open a new one")
                yield session
            finally:
                session.lock.release()
        finally:
            session.using -= 1
            session.used_at = self._clock()

    async def remove(self, session: Session) -> None:
        """Ends a session and frees its place."""
        if self._forget(session):
            await self._dispose(session)

    async def aclose(self) -> None:
        """Ends all sessions, and turns away whoever waits for a place."""
        if self._sweep is not None:
            self._sweep.cancel()
            self._sweep = None
        for waiter in self._waiting:
            if not waiter.done():
                waiter.set_exception(TransportError("the environment stopped while the call waited for a place"))
        self._waiting.clear()
        for session in list(self._sessions.values()):
            await self.remove(session)
        if self._disposing:
            await asyncio.wait(self._disposing)

    def sweep(self) -> None:
        """Reaps the sessions that are idle for longer than the limit."""
        oldest = self._clock() - self._limits.idle_seconds
        for session in [s for s in self._sessions.values() if not s.using and s.used_at <= oldest]:
            # Out of reach at once, so that no call can begin in a session that is about to end.
            self._forget(session)
            task = asyncio.get_running_loop().create_task(self._dispose(session))
            self._disposing.add(task)
            task.add_done_callback(self._disposing.discard)

    def _forget(self, session: Session) -> bool:
        """Puts a session out of reach and frees its place; tells whether it was there."""
        if self._sessions.get(session.key) is not session:
            return False
        del self._sessions[session.key]
        self._wake()
        return True

    async def _reserve(self, seconds: float | None) -> None:
        if len(self._sessions) + self._reserved >= self._limits.max_sessions:
            self.sweep()
        if len(self._sessions) + self._reserved < self._limits.max_sessions:
            self._reserved += 1
            return
        longest = self._limits.queue_seconds
        waiter: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting.append(waiter)
        try:
            async with asyncio.timeout(longest if seconds is None else min(longest, seconds)):
                await waiter
        except BaseException as error:
            if waiter in self._waiting:
                self._waiting.remove(waiter)
            if waiter.done() and not waiter.cancelled() and waiter.exception() is None:
                # The place came in the same step as the end of the wait: it goes to the next one.
                self._reserved -= 1
                self._wake()
            if not isinstance(error, TimeoutError):
                raise
            if seconds is not None and seconds < longest:
                raise DeadlineExceeded(
                    f"the deadline passed while the call waited for one of {self._limits.max_sessions} sessions; "
                    "nothing was done"
                ) from None
            raise AtCapacity(
                f"all {self._limits.max_sessions} sessions are taken and none became free in {longest:g} s; release "
                "sessions that you are done with, or try again",
                retry_after=max(1.0, longest),
            ) from None

    def _wake(self) -> None:
        """Gives a freed place to whoever waits longest."""
        while self._waiting and len(self._sessions) + self._reserved < self._limits.max_sessions:
            waiter = self._waiting.popleft()
            if not waiter.done():
                self._reserved += 1
                waiter.set_result(None)

    def _schedule_sweep(self) -> None:
        if self._sweep is None:
            delay = min(30.0, max(0.05, self._limits.idle_seconds / 4))
            self._sweep = asyncio.get_running_loop().call_later(delay, self._sweep_again)

    def _sweep_again(self) -> None:
        self._sweep = None
        self.sweep()
        if self._sessions:
            self._schedule_sweep()
