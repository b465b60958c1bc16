"""`chat` over A2A with an agent that knows nothing of environments, in A2A's own messages and tasks."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Mapping, MutableMapping
from contextlib import aclosing
from dataclasses import dataclass
from typing import Any, Final

from a2a.client.client import ClientCallContext
from a2a.types import (
    Message,
    Part,
    SendMessageRequest,
    StreamResponse,
    Task,
    TaskArtifactUpdateEvent,
    TaskState,
    TaskStatusUpdateEvent,
)

from agent_env.client.lanes.a2a_failures import failed_task
from agent_env.client.lanes.a2a_peer import AFTERWARDS_SECONDS, Peer
from agent_env.client.lanes.contract import OnEvent, Outgoing
from agent_env.errors import AgentEnvError, InvalidArguments, NotSupported, ProtocolError, UnknownTool
from agent_env.net.a2a_wire import decode_part, encode_part, encode_value, text_of
from agent_env.runtime.chat import NAME as CHAT
from agent_env.runtime.parts import decode_parts
from agent_env.runtime.parts import encode_part as encode_ours
from agent_env.runtime.results import ToolResult
from agent_env_wrappers.contract import Status, TextDelta

POLL_SECONDS: Final = (0.1, 1.0)
"""How often a task is asked for: first and at last."""

_QUESTIONS: Final = {TaskState.TASK_STATE_INPUT_REQUIRED: "question", TaskState.TASK_STATE_AUTH_REQUIRED: "auth"}
_FAILURES: Final = {
    TaskState.TASK_STATE_FAILED: "failed",
    TaskState.TASK_STATE_REJECTED: "rejected the task",
    TaskState.TASK_STATE_CANCELED: "cancelled the task",
}


@dataclass(frozen=True, slots=True)
class Asked:
    """The task by which an agent asked something, and the artifacts that it had then: they are no part of the answer."""

    task_id: str = ""
    artifacts: frozenset[str] = frozenset()


async def perform(
    peer: Peer,
    verb: str,
    arguments: Mapping[str, Any],
    outgoing: Outgoing,
    on_event: OnEvent | None,
    asked: MutableMapping[str, Asked],
) -> Mapping[str, Any]:
    """Performs a verb; see `Lane.perform`. Raises `NotSupported` for one that A2A does not have.

    `asked` has the sessions whose agent waits for an answer.
    """
    session_id = str(arguments.get("session_id") or "")
    match verb:
        case "list_tools":
            return {"tools": [_chat_tool(peer)]}
        case "release":
            # A context has no end in A2A, but a task that nobody will answer has.
            question = asked.pop(session_id, None)
            if question is not None:
                await peer.cancel(question.task_id, peer.call_context(outgoing))
            return {"released": True, "session_id": session_id}
        case "call_tool" if arguments.get("name") == CHAT:
            parts = _parts(arguments.get("arguments") or {})
            answered = asked.pop(session_id, Asked())
            request = peer.request(parts, outgoing, context_id=session_id, task_id=answered.task_id)
            exchange = _Exchange(peer, peer.call_context(outgoing), on_event, answered.artifacts)
            result = await exchange.say(request, asked)
            # An agent that is in no tree of calls spends nothing of the caller's budget.
            return {**result.to_json(), "calls_left": outgoing.context.calls}
        case "call_tool":
            name = arguments.get("name")
            raise UnknownTool(f"{peer.where} is an A2A agent and has no tool {name!r}; it has {CHAT!r}", known=[CHAT])
        case _:
            raise NotSupported(
                f"{peer.where} is an A2A agent, not an environment, and has no {verb!r}; chat with it, or serve the "
                "agent behind it with agent_env to have every verb"
            )


def _chat_tool(peer: Peer) -> dict[str, Any]:
    message = {"type": "string", "description": "What you say to the agent."}
    return {
        "name": CHAT,
        "description": peer.card.description or f"Talk to {peer.card.name}.",
        "inputSchema": {"type": "object", "properties": {"message": message}, "required": ["message"]},
    }


def _parts(fields: Mapping[str, Any]) -> list[Part]:
    """The A2A parts of chat's arguments; raises `InvalidArguments`."""
    match dict(fields):
        case {"message": str(text), **rest} if not rest:
            return [encode_part({"type": "text", "text": text})]
        case {"parts": parts, **rest} if not rest:
            return [encode_part(encode_ours(part)) for part in decode_parts(parts)]
        case {"answer": str(text), **rest} if not rest:
            return [encode_part({"type": "text", "text": text})]
        case {"answer": answer, **rest} if not rest:
            return [encode_value(answer)]
        case _:
            raise InvalidArguments(
                f"chat takes a 'message' that is a string, or 'parts', or an 'answer'; it got {sorted(fields)}",
                problems=[{"pointer": "/message", "message": "a string is required"}],
            )


class _Exchange:
    """One message and what comes back."""

    def __init__(self, peer: Peer, context: ClientCallContext, on_event: OnEvent | None, known: frozenset[str]) -> None:
        self._peer = peer
        self._context = context
        self._on_event = on_event
        self._known_artifacts = known
        self._task: Task | None = None
        self._reader: asyncio.Task[None] | None = None
        self._answers: asyncio.Queue[StreamResponse | None] = asyncio.Queue()

    async def say(self, request: SendMessageRequest, asked: MutableMapping[str, Asked]) -> ToolResult:
        """Sends the message and returns the agent's answer, however A2A wraps it."""
        # A task of its own, since a call that is cancelled must still learn the id of the task that it started.
        reader = self._reader = asyncio.get_running_loop().create_task(self._read(request))
        try:
            message = await self._follow()
            if message is not None:
                result = _answered(_contents([message.parts]), message.context_id, message.message_id)
            else:
                result = self._result(await self._ended(), asked)
        except asyncio.CancelledError:
            self._peer.afterwards(self._give_up(reader))
            raise
        except Exception:
            reader.cancel()
            raise
        self._peer.afterwards(_end(reader))
        return result

    async def _read(self, request: SendMessageRequest) -> None:
        """Sends the message and queues what comes back; None is the end."""
        try:
            # A stream tells the task's id at once.
            async with aclosing(self._peer.send(request, self._context, streaming=True)) as answers:
                async for answer in answers:
                    self._answers.put_nowait(answer)
        finally:
            self._answers.put_nowait(None)

    async def _follow(self) -> Message | None:
        """Follows the answer while it comes; None if it is the task that `_task` holds."""
        while (answer := await self._next()) is not None:
            match answer.WhichOneof("payload"):
                case "message":
                    return answer.message
                case "task":
                    # A task that goes on is shown as it was first: that it waits for input is no answer yet.
                    self._task = answer.task
                case "artifact_update":
                    await self._heard(answer.artifact_update)
                case "status_update":
                    task = await self._changed(answer.status_update)
                    if _rests(task):
                        return None
                case _:
                    pass
        if self._task is None:
            raise ProtocolError(f"{self._peer.where} ended its answer without a message or a task")
        return None

    async def _next(self) -> StreamResponse | None:
        answer = await self._answers.get()
        if answer is None and self._reader is not None:
            await self._reader  # raises what it ended with
        return answer

    async def _give_up(self, reader: asyncio.Task[None]) -> None:
        """Cancels the task on the other side; the answer may have it still to tell which one that is."""
        try:
            async with asyncio.timeout(AFTERWARDS_SECONDS):
                while self._task is None and (answer := await self._next()) is not None:
                    if answer.HasField("task"):
                        self._task = answer.task
            if self._task is not None and not _rests(self._task):
                await self._peer.cancel(self._task.id, self._context)
        except (AgentEnvError, TimeoutError):
            pass  # there is no task, and nobody waits for the answer any more
        finally:
            reader.cancel()

    async def _heard(self, update: TaskArtifactUpdateEvent) -> None:
        task = self._known(update)
        known = next((entry for entry in task.artifacts if entry.artifact_id == update.artifact.artifact_id), None)
        if known is None:
            task.artifacts.append(update.artifact)
        elif update.append:
            known.parts.extend(update.artifact.parts)
        else:
            known.CopyFrom(update.artifact)
        if self._on_event is not None:
            for part in update.artifact.parts:
                if part.WhichOneof("content") == "text" and part.text:
                    await self._on_event(TextDelta(part.text))

    async def _changed(self, update: TaskStatusUpdateEvent) -> Task:
        task = self._known(update)
        task.status.CopyFrom(update.status)
        said = text_of(update.status.message)
        if self._on_event is not None and said and update.status.state == TaskState.TASK_STATE_WORKING:
            await self._on_event(Status(said))
        return task

    def _known(self, update: TaskArtifactUpdateEvent | TaskStatusUpdateEvent) -> Task:
        """The task of an update; servers that go on with a task need not send it again."""
        if self._task is None:
            self._task = Task(id=update.task_id, context_id=update.context_id)
        return self._task

    async def _ended(self) -> Task:
        """The task when it has ended or waits for input; asks for it until then."""
        assert self._task is not None
        pause, most = POLL_SECONDS
        while not _rests(self._task):
            await asyncio.sleep(pause)
            pause = min(most, pause * 1.5)
            self._task = await self._peer.task(self._task.id, self._context)
        return self._task

    def _result(self, task: Task, asked: MutableMapping[str, Asked]) -> ToolResult:
        state = task.status.state
        if state in _FAILURES:
            raise failed_task(task.status.message, self._peer.where, _FAILURES[state])
        if state in _QUESTIONS:
            asked[task.context_id] = Asked(task.id, frozenset(entry.artifact_id for entry in task.artifacts))
            prompt = text_of(task.status.message)
            question = {"id": task.id, "kind": _QUESTIONS[state], "prompt": prompt, "schema": None}
            contents = _contents([task.status.message.parts])
            return _answered(contents, task.context_id, task.id, interrupt=question)
        artifacts = [entry for entry in task.artifacts if entry.artifact_id not in self._known_artifacts]
        contents = _contents([artifact.parts for artifact in artifacts], pieces=True)
        if not contents:
            contents = _contents([task.status.message.parts])
        return _answered(contents, task.context_id, task.id)


async def _end(reader: asyncio.Task[None]) -> None:
    """Lets an answer come to its end, so that its connection can be used again; one that has none is cut off."""
    done, _ = await asyncio.wait({reader}, timeout=AFTERWARDS_SECONDS)
    if done and not reader.cancelled():
        reader.exception()  # what breaks after the answer is no news
    reader.cancel()


def _rests(task: Task) -> bool:
    state = task.status.state
    return state == TaskState.TASK_STATE_COMPLETED or state in _FAILURES or state in _QUESTIONS


def _contents(groups: Iterable[Iterable[Part]], *, pieces: bool = False) -> list[dict[str, Any]]:
    """The parts of an answer; the texts of one artifact are pieces of one text."""
    contents: list[dict[str, Any]] = []
    for group in groups:
        joined = False
        for part in map(decode_part, group):
            if pieces and joined and part["type"] == "text":
                contents[-1]["text"] += part["text"]
            else:
                contents.append(part)
            joined = part["type"] == "text"
    return contents


def _answered(
    contents: list[dict[str, Any]], context_id: str, call_id: str, *, interrupt: Mapping[str, Any] | None = None
) -> ToolResult:
    return ToolResult(
        contents or [{"type": "text", "text": ""}],
        "\n".join(part["text"] for part in contents if part["type"] == "text"),
        next((part["data"] for part in contents if part["type"] == "data"), None),
        session_id=context_id,
        stop="end_turn" if interrupt is None else "input_required",
        interrupt=interrupt,
        call_id=call_id,
    )
