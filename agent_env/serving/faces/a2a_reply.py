"""What a call is answered with: one message, or a task with its updates."""

from __future__ import annotations

import secrets
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from typing import Any

from a2a.server.agent_execution import RequestContext
from a2a.server.events import EventQueue
from a2a.server.tasks import TaskUpdater
from a2a.types import Message, Part, Role, Task, TaskState, TaskStatus

from agent_env.errors import AgentEnvError
from agent_env.net.a2a_wire import EXTENSION, clean, encode_part, encode_value, pack
from agent_env.runtime.parts import encode_event
from agent_env.serving.faces.a2a_calls import Call
from agent_env_wrappers.contract import Event, Status, TextDelta

_FACTS = ("session_id", "call_id", "usage", "reward", "stop", "interrupt")
"""What the metadata of a reply to a plain message tells, where the client activated the extension."""


class Reply:
    """Answers one call through the SDK's event queue."""

    def __init__(self, call: Call, context: RequestContext, queue: EventQueue) -> None:
        self._call = call
        self._context = context
        self._queue = queue
        self._updates = TaskUpdater(queue, context.task_id or "", call.context_id)
        self._artifact = secrets.token_hex(8)
        self._streamed = ""

    # ── as one message ─────────────────────────────────────────────────────────────────────────────────────────

    async def say(self, result: Mapping[str, Any]) -> None:
        """Answers with a message."""
        message = self._message(self._content(result))
        message.context_id = self._call.context_id
        self._mark(message, result)
        await self._queue.enqueue_event(message)

    async def nothing(self) -> None:
        """Ends the call without an answer: there is an error to tell, or nobody to tell anything."""
        await self._queue.enqueue_event(self._message([Part(text="")]))

    # ── as a task ──────────────────────────────────────────────────────────────────────────────────────────────

    async def begin(self) -> None:
        """Opens the task, or goes on with the one that waited for this message."""
        if self._context.current_task is None:
            status = TaskStatus(state=TaskState.TASK_STATE_SUBMITTED)
            status.timestamp.FromDatetime(datetime.now(UTC))
            history = [] if self._context.message is None else [self._context.message]
            task = Task(
                id=self._context.task_id or "", context_id=self._call.context_id, status=status, history=history
            )
            await self._queue.enqueue_event(task)
        await self._updates.start_work()

    async def show(self, events: Sequence[Event]) -> None:
        """Tells what the turn did meanwhile."""
        if not self._call.plain:
            encoded = [wire for event in events if (wire := encode_event(event)) is not None]
            await self._updates.update_status(
                TaskState.TASK_STATE_WORKING, metadata=pack({"events": encoded}, exact=self._call.exact)
            )
            return
        text = "".join(event.text for event in events if isinstance(event, TextDelta) and event.channel == "answer")
        if text:
            await self._updates.add_artifact(
                [Part(text=clean(text))], artifact_id=self._artifact, name="reply", append=bool(self._streamed)
            )
            self._streamed += text
        for event in events:
            if isinstance(event, Status):
                await self._updates.start_work(self._message([Part(text=clean(event.text))]))

    async def complete(self, result: Mapping[str, Any]) -> None:
        """Ends the task with its result."""
        if not (self._call.plain and self._streamed and self._streamed == result["text"] and result["data"] is None):
            # A reply that is not what was streamed takes its place.
            await self._updates.add_artifact(
                self._content(result),
                artifact_id=self._artifact,
                name="reply" if self._call.plain else "result",
                last_chunk=True,
                extensions=[EXTENSION] if self._call.exchange.activated else None,
            )
        await self._updates.update_status(TaskState.TASK_STATE_COMPLETED, metadata=self._facts(result))

    async def ask(self, result: Mapping[str, Any]) -> None:
        """Parks the task with the agent's question."""
        asked: Mapping[str, Any] = result["interrupt"]
        state = TaskState.TASK_STATE_AUTH_REQUIRED if asked["kind"] == "auth" else TaskState.TASK_STATE_INPUT_REQUIRED
        message = self._message([Part(text=clean(asked["prompt"]))])
        self._mark(message, result)
        await self._updates.update_status(state, message)

    async def fail(self, error: AgentEnvError) -> None:
        """Ends the task with an error."""
        message = self._message([Part(text=clean(error.message))])
        message.metadata.update(pack({"error": error.to_wire()}, exact=self._call.exact))
        await self._updates.update_status(TaskState.TASK_STATE_FAILED, message)

    async def cancelled(self) -> None:
        """Ends the task as cancelled."""
        await self._updates.update_status(TaskState.TASK_STATE_CANCELED)

    # ── inside ─────────────────────────────────────────────────────────────────────────────────────────────────

    def _content(self, result: Mapping[str, Any]) -> list[Part]:
        if not self._call.plain:
            return [encode_value({"result": result}, exact=self._call.exact)]
        return [encode_part(part) for part in result["content"]]

    def _message(self, parts: Sequence[Part]) -> Message:
        return Message(message_id=secrets.token_hex(16), role=Role.ROLE_AGENT, parts=parts)

    def _mark(self, message: Message, result: Mapping[str, Any]) -> None:
        if self._call.exchange.activated:
            message.extensions.append(EXTENSION)
            message.metadata.update(self._facts(result) or {})

    def _facts(self, result: Mapping[str, Any]) -> dict[str, Any] | None:
        if not (self._call.plain and self._call.exchange.activated):
            return None
        return pack({key: result[key] for key in _FACTS})
