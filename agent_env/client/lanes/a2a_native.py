"""The verbs over A2A with an environment: one message of our extension a call, answered by a message or a task."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterable, Mapping
from contextlib import aclosing
from typing import Any, Final, cast

from a2a.types import Part, StreamResponse, Task, TaskState

from agent_env.client.lanes.a2a_failures import failed_task
from agent_env.client.lanes.a2a_peer import Peer
from agent_env.client.lanes.contract import OnEvent, Outgoing
from agent_env.errors import InvalidArguments, ProtocolError, from_wire
from agent_env.net.a2a_wire import EXTENSION, EXTENSION_HEADERS, decode_value, encode_value, unpack
from agent_env.runtime.parts import decode_event

POLL_SECONDS: Final = 0.25
"""How often a task is asked for when its stream ended before it did."""

ENDED: Final = frozenset(
    {
        TaskState.TASK_STATE_COMPLETED,
        TaskState.TASK_STATE_FAILED,
        TaskState.TASK_STATE_REJECTED,
        TaskState.TASK_STATE_CANCELED,
    }
)


async def perform(
    peer: Peer, verb: str, arguments: Mapping[str, Any], outgoing: Outgoing, on_event: OnEvent | None
) -> Mapping[str, Any]:
    """Performs a verb; see `Lane.perform`. Cancelling it closes the connection, which cancels the call."""
    session_id = arguments.get("session_id")
    context_id = session_id if isinstance(session_id, str) else ""
    call = {"verb": verb, "arguments": arguments, "attached": True}
    request = peer.request([encode_value(call, exact=True)], outgoing, context_id=context_id)
    headers = {EXTENSION_HEADERS[0]: EXTENSION}
    if context_id.isascii() and context_id.isprintable() and context_id:
        headers["Session-Id"] = context_id  # for routers; what counts is the argument
    context = peer.call_context(outgoing, headers)
    async with aclosing(peer.send(request, context, streaming=on_event is not None)) as answers:
        answer = await _read(peer, answers, on_event)
    while isinstance(answer, Task) and answer.status.state not in ENDED:
        # A stream that fell too far behind is cut off; the task goes on.
        await asyncio.sleep(POLL_SECONDS)
        answer = await peer.task(answer.id, context)
    return _result(peer, answer) if isinstance(answer, Task) else answer


async def _read(
    peer: Peer, answers: AsyncIterator[StreamResponse], on_event: OnEvent | None
) -> Mapping[str, Any] | Task:
    """Reads an answer to its end, so that the connection can be used again: a result, or the task as it stands."""
    task = Task()
    async for answer in answers:
        match answer.WhichOneof("payload"):
            case "message":
                return _value(peer, answer.message.parts)
            case "task":
                task = answer.task
            case "artifact_update":
                task.artifacts.append(answer.artifact_update.artifact)
            case "status_update":
                update = answer.status_update
                task.status.CopyFrom(update.status)
                if on_event is not None:
                    for event in unpack(update.metadata).get("events", ()):
                        await on_event(decode_event(event))
            case _:
                continue
    if not task.id:
        raise ProtocolError(f"{peer.where} ended its answer without a message or a task")
    return task


def _result(peer: Peer, task: Task) -> Mapping[str, Any]:
    """The result of a task that has ended; raises what it failed with."""
    if task.status.state == TaskState.TASK_STATE_COMPLETED:
        return _value(peer, (part for artifact in task.artifacts for part in artifact.parts))
    if task.status.state == TaskState.TASK_STATE_CANCELED:
        raise from_wire({"code": "cancelled", "message": "the call was cancelled"})
    raise failed_task(task.status.message, peer.where, "failed")


def _value(peer: Peer, parts: Iterable[Part]) -> Mapping[str, Any]:
    for part in parts:
        try:
            value, _ = decode_value(part)
        except InvalidArguments as error:
            raise ProtocolError(f"{peer.where} answered a verb with what is no JSON") from error
        if isinstance(value, Mapping) and isinstance(value.get("result"), Mapping):
            return cast("Mapping[str, Any]", value["result"])
    raise ProtocolError(f"{peer.where} answered a verb with what is no result of one")
