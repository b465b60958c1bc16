"""One call of a tool: its frame, its deadline, and the records that it leaves."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable, Coroutine
from dataclasses import dataclass, replace
from typing import Any, TypeVar

from agent_env.context import Budget, Frame, Link, Record, entered, new_call_id
from agent_env.errors import AgentEnvError, DeadlineExceeded, PeerFailed, RunClosed, Unauthenticated
from agent_env.runtime.caller import Caller
from agent_env.runtime.definition import Definition
from agent_env.runtime.parts import encode_usage
from agent_env.runtime.results import ToolResult
from agent_env.runtime.sessions import Session

log = logging.getLogger("agent_env.runtime")

T = TypeVar("T")

RECORD_GRACE = 2.0
"""Seconds that the record of a cancelled call may take."""


@dataclass(frozen=True, slots=True)
class Outcome:
    """What a call answers, and the change to its session that is made only when its record is safe."""

    result: ToolResult
    commit: Callable[[], None]


class Call:
    """A call that is being served."""

    def __init__(
        self, definition: Definition, session: Session | None, caller: Caller, *, tool: str, request: Any
    ) -> None:
        context = caller.context.within(definition.limits.turn_seconds)
        link = Link(definition.identity, "" if session is None else session.hash)
        self._tool = tool
        self._request = request
        self._parent = context.call_id or None
        self._session = session
        self._abandoned = definition.abandoned
        self.frame = Frame(
            trace_id=context.trace_id,
            call_id=new_call_id(),
            agent=definition.identity,
            seat=None if caller.run is None else caller.run.seat,
            episode=context.episode if caller.run is None else caller.run.episode,
            chain=(*context.chain, link),
            deadline=context.deadline,
            budget=Budget(context.calls),
            run=caller.run,
            recorder=caller.recorder,
        )

    async def play(self, work: Callable[[], Awaitable[Outcome]]) -> ToolResult:
        """Does the work, records it whatever comes of it, and commits it if all went well."""
        started, clock = time.time(), time.perf_counter()
        try:
            outcome = await work()
        except AgentEnvError as caught:
            error = self._in_time(caught)
            if self.frame.recorder is not None:
                # The caller's edge leads to this turn. A copy: that of a call further down may hold the data it had.
                error.data = {**error.data, "call_id": self.frame.call_id}
            if self.frame.budget.left is not None:
                error.data["calls_left"] = self.frame.budget.left
            await self._keep(self._turn(started, clock, error.code, error=error.to_wire()))
            if error is caught:
                raise
            raise error from caught
        except asyncio.CancelledError:
            if self.frame.recorder is not None:
                await self._keep_while_cancelled(self._turn(started, clock, "cancelled"))
            raise
        except GeneratorExit:
            raise  # the coroutine is thrown away, and may wait for nothing more
        except BaseException:
            failed = AgentEnvError("the server failed; its log has the details")
            await self._keep(self._turn(started, clock, failed.code, error=failed.to_wire()))
            raise
        left = self.frame.budget.left
        result = outcome.result if left is None else replace(outcome.result, calls_left=left)
        if self.frame.recorder is not None:
            await self._keep(self._turn(started, clock, "ok", result=result))
        outcome.commit()
        return result

    async def bounded(self, work: Coroutine[Any, Any, T]) -> T:
        """Runs the owner's own function inside the call's frame and deadline, and leaves it behind as `play` does."""
        with entered(self.frame):
            task = self._abandoned.start(work)
        if not await self._abandoned.wait(task, self.frame.seconds_left(), f"{self._tool!r} of {self.frame.agent}"):
            raise self._late()
        result: T = await task
        return result

    def _in_time(self, error: AgentEnvError) -> AgentEnvError:
        """The error, or `DeadlineExceeded` where a peer failed for no other reason: both have the same deadline, and
        which of them notices first is chance."""
        wire = error.data.get("error") if isinstance(error, PeerFailed) else None
        late = wire is not None and wire["code"] == DeadlineExceeded.code and self.frame.seconds_left() == 0
        return self._late() if late else error

    def _late(self) -> DeadlineExceeded:
        return DeadlineExceeded(
            f"{self._tool!r} of {self.frame.agent} did not answer before the deadline; allow more time"
        )

    def _turn(
        self,
        started: float,
        clock: float,
        status: str,
        *,
        result: ToolResult | None = None,
        error: dict[str, Any] | None = None,
    ) -> Record:
        frame = self.frame
        reply: Any = None
        if result is not None:
            reply = result.text if result.data is None else result.data
        return {
            "kind": "turn",
            "call_id": frame.call_id,
            "parent_call_id": self._parent,
            "trace_id": frame.trace_id,
            "episode": frame.episode,
            "agent": frame.agent,
            "seat": frame.seat,
            "session": "" if self._session is None else self._session.hash,
            "tool": self._tool,
            "request": self._request,
            "reply": reply,
            "stop": None if result is None else result.stop,
            "reward": None if result is None else result.reward,
            "status": status,
            "error": error,
            "started": started,
            "seconds": time.perf_counter() - clock,
            "usage": None if result is None else encode_usage(result.usage),
            **frame.facts,
        }

    async def _keep(self, turn: Record) -> None:
        recorder = self.frame.recorder
        if recorder is None:
            return
        records, self.frame.outbox = [*self.frame.outbox, turn], []
        await recorder.record(records)

    async def _keep_while_cancelled(self, turn: Record) -> None:
        task = asyncio.ensure_future(self._keep(turn))
        done, _ = await asyncio.wait({task}, timeout=RECORD_GRACE)
        if not done:
            task.cancel()
            log.error("the record of the cancelled call %s could not be kept in time", self.frame.call_id)
        elif (error := task.exception()) is not None:
            # Whoever stops a run closes it at once, and the gateway then knows nothing of it: many calls end so, and
            # nobody is left who would read their records.
            log.log(
                logging.DEBUG if isinstance(error, RunClosed | Unauthenticated) else logging.ERROR,
                "the record of the cancelled call %s could not be kept: %s",
                self.frame.call_id,
                error,
                exc_info=None if isinstance(error, AgentEnvError) else error,
            )
