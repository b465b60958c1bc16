"""Plays one turn of an agent: drives its wrapper, bounds it in time, and names whoever failed."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Generator
from contextlib import aclosing, contextmanager
from typing import Any, TypeAlias, TypeVar, cast

from agent_env.context import Frame, entered
from agent_env.errors import AgentEnvError, AgentFailed, AtCapacity, DeadlineExceeded, NotSupported, PeerFailed
from agent_env.runtime.abandoned import RETRY_SECONDS, Abandoned
from agent_env_wrappers.contract import AgentError, Done, Event, Interrupt, Turn, WrapError, Wrapper

log = logging.getLogger("agent_env.runtime")

OnEvent: TypeAlias = Callable[[Event], Awaitable[None]]

T = TypeVar("T")

_WHAT_NOW = "its session is as before the call. The log of the process that it runs in has the details"


async def play(
    wrapper: Wrapper, turn: Turn, frame: Frame, on_event: OnEvent | None, *, agent: str, abandoned: Abandoned
) -> Done | Interrupt:
    """Plays one turn in a task of its own and returns its terminal event.

    A task of its own, because an agent that swallows its cancellation must not hold its caller. Raises
    `DeadlineExceeded` when the frame's deadline passes, `PeerFailed` or `AgentFailed` when the agent raises, and
    `AtCapacity` when too many of its turns were left behind.
    """
    abandoned.check(agent)
    task = abandoned.start(_drive(wrapper, turn, frame, on_event, agent))
    if not await abandoned.wait(task, frame.seconds_left(), agent):
        raise DeadlineExceeded(
            f"{agent} did not answer before the deadline; its session is as before the call. Allow more time, or ask "
            "for less"
        )
    if task.cancelled():
        raise _cancelled_itself(agent)  # nobody here cancelled it
    return task.result()


def _cancelled_itself(agent: str) -> AgentFailed:
    return AgentFailed(f"{agent} cancelled itself; its session is as before the call", agent=agent)


class _ListenerFailed(Exception):
    """Whoever listens to the events raised; the agent is not to blame."""

    def __init__(self, error: BaseException) -> None:
        super().__init__()
        self.error = error


async def _drive(wrapper: Wrapper, turn: Turn, frame: Frame, on_event: OnEvent | None, agent: str) -> Done | Interrupt:
    last: Done | Interrupt | None = None
    beyond: Event | None = None
    try:
        with entered(frame), _blaming(agent):
            async with aclosing(cast(Any, wrapper.run(turn))) as events:
                async for event in events:
                    if last is not None:
                        beyond = event
                        break
                    if isinstance(event, Done | Interrupt):
                        last = event
                    elif on_event is not None:
                        try:
                            await on_event(event)
                        except asyncio.CancelledError:
                            raise
                        except BaseException as error:
                            raise _ListenerFailed(error) from error
    except _ListenerFailed as failed:
        raise failed.error from None
    if beyond is not None:
        raise AgentFailed(f"the wrapper of {agent} yielded {type(beyond).__name__} after the turn's end", agent=agent)
    if last is None:
        raise AgentFailed(f"the wrapper of {agent} ended its turn without a Done or an Interrupt", agent=agent)
    return last


async def attributed(work: Awaitable[T], agent: str) -> T:
    """Awaits an owner's own code; what it raises is raised as `attribute` says."""
    with _blaming(agent):
        return await work


@contextmanager
def _blaming(agent: str) -> Generator[None]:
    """Raises whatever the agent raises as `attribute` says, save the cancellation of the task that plays it.

    That includes what is no `Exception`: `sys.exit` in an agent must not end the server that plays it, and a panic of
    native code or a `CancelledError` that nobody asked for is a failure as any other.
    """
    task = asyncio.current_task()
    try:
        yield
    except _ListenerFailed:
        raise
    except asyncio.CancelledError:
        if task is None or task.cancelling():
            raise
        raise _cancelled_itself(agent) from None
    except GeneratorExit as error:
        # Python raises it where it throws the task's coroutine away, which then must end; else the agent did.
        if not _runs(task):
            raise
        raise attribute(error, agent) from error
    except BaseException as error:
        raise attribute(error, agent) from error


def _runs(task: asyncio.Task[Any] | None) -> bool:
    try:
        return task is not None and asyncio.current_task() is task
    except RuntimeError:
        return False  # no loop runs


def attribute(error: BaseException, agent: str) -> AgentEnvError:
    """Finds who is to blame for what an agent raised, and says so without telling internals."""
    cause: BaseException | None = error
    seen: set[int] = set()
    while cause is not None and id(cause) not in seen:
        seen.add(id(cause))
        if isinstance(cause, AgentEnvError):
            return PeerFailed(
                f"{agent} asked {_asked(cause)}, which failed: {cause.message}",
                error=cause.to_wire(),
                agent=agent,
            )
        if isinstance(cause, BaseExceptionGroup):
            group = cast("BaseExceptionGroup[BaseException]", cause)
            cause = group.exceptions[0]
            continue
        cause = cause.__cause__
    if isinstance(error, AgentError) and error.kind == "limit" and error.retryable:
        log.warning("%s has no room: %s", agent, error)
        return AtCapacity(str(error), agent=agent, retry_after=RETRY_SECONDS)
    if isinstance(error, AgentError):
        # With a cause it is somebody's bug, and only the log has the traceback.
        bug = error.__cause__ is not None
        log.log(logging.ERROR if bug else logging.INFO, "%s failed: %s", agent, error, exc_info=error)
        told = f"{agent} failed: {error}; {_WHAT_NOW}" if bug else str(error)
        return AgentFailed(told, kind=error.kind, retry=error.retryable or None, agent=agent)
    if isinstance(error, WrapError):
        return NotSupported(str(error), agent=agent)
    log.error("%s raised", agent, exc_info=error)
    return AgentFailed(
        f"{agent} raised {type(error).__name__}; {_WHAT_NOW}",
        kind="agent",
        agent=agent,
    )


def _asked(error: AgentEnvError) -> str:
    """Whom an agent asked that raised this: by name, unless the message begins with it."""
    who = error.data.get("agent")
    if isinstance(who, str) and who:
        return "another agent" if error.message.startswith(who) else who
    return "its model" if "model_call" in error.data else "another agent, or its model"
