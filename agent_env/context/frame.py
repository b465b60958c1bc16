"""The turn that is running: what code inside it finds through a context variable."""

from __future__ import annotations

import time
from collections.abc import Generator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import Any

from agent_env.context.budget import Budget, Grant
from agent_env.context.call import CallContext, Link
from agent_env.context.ports import Record, Recorder
from agent_env.context.run import Run


@dataclass(slots=True)
class Frame:
    """A running turn, or the root of an episode.

    A call that is made while a frame is current becomes its child, with no code of the agent's own: it carries the
    frame's trace, episode, chain, deadline and a share of its budget, and leaves an edge in `outbox`.
    """

    trace_id: str
    call_id: str
    agent: str | None
    seat: str | None
    episode: str | None
    chain: tuple[Link, ...]
    deadline: float | None
    budget: Budget
    run: Run | None = None
    recorder: Recorder | None = None
    outbox: list[Record] = field(default_factory=list[Record])
    facts: dict[str, Any] = field(default_factory=dict[str, Any])

    def child(self, grant: Grant, seconds: float | None = None) -> CallContext:
        """The context of a call that this turn makes, at most `seconds` long."""
        context = CallContext(
            trace_id=self.trace_id,
            call_id=self.call_id,
            episode=self.episode,
            chain=self.chain,
            calls=grant.calls,
            deadline=self.deadline,
        )
        return context.within(seconds)

    def seconds_left(self) -> float | None:
        """Seconds until the turn's deadline; None without one."""
        return None if self.deadline is None else max(0.0, self.deadline - time.monotonic())


_current: ContextVar[Frame | None] = ContextVar("agent_env_frame", default=None)


def current_frame() -> Frame | None:
    """The frame that the running code belongs to, None outside."""
    return _current.get()


@contextmanager
def entered(frame: Frame) -> Generator[Frame]:
    """Makes the frame current for the code inside; threads get it through `contextvars.copy_context`."""
    token = _current.set(frame)
    try:
        yield frame
    finally:
        _current.reset(token)
