"""The call context: an immutable value that says where in a tree of calls one call stands."""

from __future__ import annotations

import hashlib
import secrets
import time
from dataclasses import dataclass, field

from agent_env.errors import BudgetExhausted, CallCycle, DeadlineExceeded, ReentrantCall, TooDeep


@dataclass(frozen=True, slots=True)
class Principal:
    """Who is asking, and what they may do: the scopes are "chat" and "orchestrate"."""

    id: str = "local"
    scopes: frozenset[str] = frozenset({"chat", "orchestrate"})


def new_call_id() -> str:
    """Mints a call id: 16 hex digits, usable as a W3C span id."""
    return secrets.token_hex(8)


def new_trace_id() -> str:
    """Mints a trace id: 32 hex digits (W3C Trace Context §3.2.2.3)."""
    return secrets.token_hex(16)


def session_hash(principal: str, session_id: str) -> str:
    """Names a session in logs, chains and episodes without giving away its id, which is a secret."""
    return hashlib.sha256(f"{principal}\0{session_id}".encode()).hexdigest()[:16]


@dataclass(frozen=True, slots=True)
class Link:
    """One environment in a chain of calls, and the session of it that the chain holds."""

    environment: str
    session: str


@dataclass(frozen=True, slots=True)
class CallContext:
    """What a call says about where it comes from.

    | field | meaning |
    |---|---|
    | `trace_id` | the whole tree of calls |
    | `call_id` | the call that makes this one (the parent); empty at the root |
    | `episode` | the episode that the tree belongs to, None outside episodes |
    | `chain` | the environments, outermost first, whose turns wait for this call |
    | `calls` | how many further calls the callee may make, all descendants counted; None is no bound |
    | `deadline` | when the caller stops waiting, on this process's monotonic clock; on the wire it is what is left |
    """

    trace_id: str = field(default_factory=new_trace_id)
    call_id: str = ""
    episode: str | None = None
    chain: tuple[Link, ...] = ()
    calls: int | None = None
    deadline: float | None = None

    @property
    def depth(self) -> int:
        """How many environments are above the callee."""
        return len(self.chain)

    def seconds_left(self) -> float | None:
        """Seconds until the deadline, never negative; None without one."""
        return None if self.deadline is None else max(0.0, self.deadline - time.monotonic())

    def within(self, seconds: float | None) -> CallContext:
        """The same context, with a deadline at most `seconds` from now."""
        if seconds is None:
            return self
        deadline = time.monotonic() + seconds
        if self.deadline is not None and self.deadline <= deadline:
            return self
        # Not `replace`, which looks every field up by name: this is made for every call.
        return CallContext(self.trace_id, self.call_id, self.episode, self.chain, self.calls, deadline)

    def check(self, environment: str, session: str, *, max_depth: int, max_visits: int) -> None:
        """Refuses a call that must not start here.

        `session` is the hash of the one that the call enters, empty for one that it opens. Raises `TooDeep`,
        `CallCycle`, `ReentrantCall`, `BudgetExhausted` or `DeadlineExceeded`.
        """
        self.check_reentry(environment, session)
        path = self._path(environment)
        if self.depth >= max_depth:
            raise TooDeep(f"the chain {path} is {self.depth + 1} deep; {environment!r} allows {max_depth}")
        visits = sum(link.environment == environment for link in self.chain)
        if visits >= max_visits:
            raise CallCycle(
                f"the chain {path} enters {environment!r} {visits + 1} times; its owner allows {max_visits}"
            )
        if self.calls is not None and self.calls < 0:
            raise BudgetExhausted(f"the chain {path} has no calls left; raise the episode's budget")
        if self.deadline is not None and self.deadline <= time.monotonic():
            raise DeadlineExceeded(f"the deadline of the chain {path} was over before {environment!r} started")

    def check_reentry(self, environment: str, session: str) -> None:
        """Refuses a call that would wait for a session which its own chain holds: raises `ReentrantCall`."""
        if session and Link(environment, session) in self.chain:
            raise ReentrantCall(
                f"the chain {self._path(environment)} already holds this session of {environment!r} and would wait for "
                "itself; call it in a new session",
                chain=[link.environment for link in self.chain],
            )

    def _path(self, environment: str) -> str:
        return " -> ".join([link.environment for link in self.chain] + [environment])
