"""Runs calls behind the A2A SDK: decides between a message and a task, and lets tasks be cancelled."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from a2a.server.agent_execution import AgentExecutor, RequestContext
from a2a.server.context import ServerCallContext
from a2a.server.events import EventQueue
from a2a.server.tasks import TaskUpdater

from agent_env.errors import AgentEnvError
from agent_env.runtime.environment import Runtime
from agent_env.runtime.verbs import perform
from agent_env.serving.faces.a2a_calls import Call
from agent_env.serving.faces.a2a_conversations import Conversations
from agent_env.serving.faces.a2a_errors import failed_inside
from agent_env.serving.faces.a2a_feed import Feed
from agent_env.serving.faces.a2a_reply import Reply

log = logging.getLogger("agent_env.serving")

MESSAGE_SECONDS: Final = 2.0
"""A call that ends within this time, and that nobody streams or polls, is answered by one message; else by a task."""

_CALL: Final = "agent_env.call"


def attach(call: Call, context: ServerCallContext) -> None:
    """Gives a call to the executor, through the context that the SDK hands on."""
    context.state[_CALL] = call


@dataclass(slots=True)
class _Running:
    work: asyncio.Task[Mapping[str, Any]]
    answered: asyncio.Event = field(default_factory=asyncio.Event)


class TurnExecutor(AgentExecutor):
    """Performs each call in a task of its own."""

    def __init__(self, runtime: Runtime, conversations: Conversations, *, message_seconds: float) -> None:
        self._runtime = runtime
        self._conversations = conversations
        self._message_seconds = message_seconds
        self._running: dict[str, _Running] = {}

    async def execute(self, context: RequestContext, event_queue: EventQueue) -> None:
        """Performs one call and answers it."""
        call: Call = context.call_context.state[_CALL]
        loop = asyncio.get_running_loop()
        feed = Feed()
        work = loop.create_task(self._perform(call, feed))
        work.add_done_callback(lambda _: feed.end())
        running = self._running[context.task_id or ""] = _Running(work)
        leaving = loop.create_task(_cancel_when_gone(call, work))
        reply = Reply(call, context, event_queue)
        try:
            if not call.as_task and context.current_task is None:
                await asyncio.wait({work}, timeout=self._message_seconds)
                if work.done() and await self._say(call, work, reply):
                    return
            if not call.attached:
                leaving.cancel()
            await self._work(call, work, feed, reply, context.task_id or "")
        except asyncio.CancelledError:
            # The server ends. The runtime bounds how long a cancelled turn may take.
            work.cancel()
            await asyncio.wait({work})
            raise
        finally:
            leaving.cancel()
            if not work.cancelled() and work.done():
                work.exception()
            self._running.pop(context.task_id or "", None)
            running.answered.set()

    async def cancel(self, context: RequestContext, event_queue: EventQueue) -> None:
        """Cancels the turn of a task and returns when the task says so; a task that waits just ends."""
        task_id, context_id = context.task_id or "", context.context_id or ""
        running = self._running.get(task_id)
        if running is None:
            self._conversations.go_on(context.call_context.user.user_name, context_id)
            await TaskUpdater(event_queue, task_id, context_id).cancel()
        else:
            running.work.cancel()
            await running.answered.wait()

    async def _perform(self, call: Call, feed: Feed) -> Mapping[str, Any]:
        wanted = call.plain or call.as_task
        try:
            result = await perform(
                self._runtime,
                call.verb,
                call.arguments,
                call.caller,
                feed.put if wanted else None,
                open_as=call.open_as,
            )
        except AgentEnvError:
            raise
        except Exception:
            log.exception("a call of %r failed inside the server", call.verb)
            raise failed_inside() from None
        if call.open_as is not None:
            self._conversations.keep(call.caller.principal.id, call.open_as)
        return result

    async def _say(self, call: Call, work: asyncio.Task[Mapping[str, Any]], reply: Reply) -> bool:
        """Answers what has ended by a message; tells whether it could."""
        if work.cancelled():
            await reply.nothing()
        elif (error := work.exception()) is not None:
            call.error = _ours(error)
            await reply.nothing()
        elif call.plain and work.result()["interrupt"] is not None:
            return False
        else:
            await reply.say(work.result())
        return True

    async def _work(
        self, call: Call, work: asyncio.Task[Mapping[str, Any]], feed: Feed, reply: Reply, task_id: str
    ) -> None:
        principal = call.caller.principal.id
        self._conversations.go_on(principal, call.context_id)
        await reply.begin()
        async for events in feed.batches():
            await reply.show(events)
        if work.cancelled():
            await reply.cancelled()
        elif (error := work.exception()) is not None:
            await reply.fail(_ours(error))
        elif call.plain and work.result()["interrupt"] is not None:
            self._conversations.wait(principal, call.context_id, task_id)
            await reply.ask(work.result())
        else:
            await reply.complete(work.result())


async def _cancel_when_gone(call: Call, work: asyncio.Task[Mapping[str, Any]]) -> None:
    await call.exchange.gone.wait()
    work.cancel()


def _ours(error: BaseException) -> AgentEnvError:
    assert isinstance(error, AgentEnvError)
    return error
