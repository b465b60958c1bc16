"""A call from one environment to another: its place in the tree, its share of the budget, and the edge it leaves."""

from __future__ import annotations

import asyncio
import random
import secrets
import time
from collections.abc import Mapping
from typing import Any, cast

from agent_env.client.lanes.contract import Lane, OnEvent, Outgoing
from agent_env.context import Budget, CallContext, Frame, Run, current_frame
from agent_env.errors import AgentEnvError, AgentFailed, AtCapacity, PeerFailed

EDGES = frozenset({"call_tool", "step"})
"""The verbs by which one agent speaks to another; each such call is an edge of the episode."""

_DEEPEST = 100
"""How many agents, each called by the one before, an error is followed through."""

RETRIES = 2
"""How often a call that was refused at capacity, before any work was done, is made again."""


async def call(
    lane: Lane,
    verb: str,
    arguments: Mapping[str, Any],
    *,
    seconds: float | None,
    callee: str,
    seat: str | None,
    trusted: bool,
    on_event: OnEvent | None = None,
) -> Mapping[str, Any]:
    """Performs a verb on a lane, as a child of the turn that is running, if one is.

    `trusted` tells that the address came from the hub or from an owner who seated it. From the turn of an agent the run
    (with its tokens) is sent only there, since an agent may be talked into calling anybody; the program that plays the
    episode knows whom it calls.
    """
    frame = current_frame()
    if frame is None:
        return await _perform(lane, verb, arguments, Outgoing(CallContext().within(seconds)), on_event)
    if verb not in EDGES:
        context = frame.child((await _nothing(frame)), seconds)
        try:
            return await _perform(lane, verb, arguments, Outgoing(context, None, frame.recorder), on_event)
        except AgentEnvError as caught:
            _name(caught, callee)
            raise
    run = _run(frame, seat) if trusted or frame.agent is None else None
    grant = await frame.budget.take()
    outgoing = Outgoing(frame.child(grant, seconds), run, frame.recorder)
    started, clock = time.time(), time.perf_counter()
    result: Mapping[str, Any] | None = None
    error: AgentEnvError | None = None
    status = "cancelled"
    left: int | None = None
    callee_call: Any = None
    try:
        result = await _perform(lane, verb, arguments, outgoing, on_event)
        status = "ok"
        left, callee_call = _fact(result, "calls_left"), _fact(result, "call_id")
        return result
    except AgentEnvError as caught:
        _name(caught, callee)
        if run is None and frame.run is not None and _may_want_a_model(caught):
            caught.message += _without_a_model(frame.run, callee, seat)
            caught.args = (caught.message,)
        error, status = caught, caught.code
        left, callee_call = caught.data.get("calls_left"), caught.data.get("call_id")
        raise
    finally:
        frame.budget.give_back(grant, left=left)
        frame.outbox.append(
            {
                "kind": "edge",
                "edge_id": secrets.token_hex(8),
                "trace_id": frame.trace_id,
                "episode": frame.episode,
                "caller": frame.agent,
                "caller_seat": frame.seat if frame.agent is not None else None,
                "caller_call_id": frame.call_id or None,
                "callee": callee,
                "callee_seat": seat,
                "callee_call_id": callee_call if isinstance(callee_call, str) else None,
                "protocol": lane.name,
                "request": _said(verb, arguments),
                "reply": None if result is None else _answered(result),
                "status": status,
                "error": None if error is None else error.to_wire(),
                "started": started,
                "seconds": time.perf_counter() - clock,
            }
        )


async def _perform(
    lane: Lane, verb: str, arguments: Mapping[str, Any], outgoing: Outgoing, on_event: OnEvent | None
) -> Mapping[str, Any]:
    """Performs a verb; an environment that is full is asked again when it said so, as often as `RETRIES`."""
    for _ in range(RETRIES):
        try:
            return await lane.perform(verb, arguments, outgoing, on_event)
        except AtCapacity as full:
            wait, left = full.retry_after, outgoing.context.seconds_left()
            if wait is None or (left is not None and left <= 1.25 * wait):
                raise
        # Not all of those who were turned away at once come back at once.
        await asyncio.sleep(wait * random.uniform(1.0, 1.25))
    return await lane.perform(verb, arguments, outgoing, on_event)


def _run(frame: Frame, seat: str | None) -> Run | None:
    """The run as the callee sees it; a callee without a seat of its own gets none."""
    if frame.run is None or seat is None or seat not in frame.run.routes:
        return None
    return frame.run.at(seat)


def _name(error: AgentEnvError, callee: str) -> None:
    """Adds who failed, where the error does not tell. In a copy: that of the callee's record is the callee's."""
    error.data = {"agent": callee, **error.data}


def _may_want_a_model(error: AgentEnvError) -> bool:
    """Whether what failed first, below all agents that failed for it, is an agent that may have missed its model."""
    wire: Any = error.to_wire()
    for _ in range(_DEEPEST):  # the data of an error may have itself in it
        if not isinstance(wire, Mapping):
            return False
        told = cast("Mapping[str, Any]", wire)
        data = told.get("data")
        facts = cast("Mapping[str, Any]", data) if isinstance(data, Mapping) else {}
        if told.get("code") != PeerFailed.code:
            return told.get("code") == AgentFailed.code and facts.get("kind") in ("agent", "framework", "model")
        wire = facts.get("error")
    return False


def _without_a_model(run: Run, callee: str, seat: str | None) -> str:
    """Why a callee had no model of the run, and what to do."""
    if seat is None:
        why = f"{callee} was called without a seat"
    elif seat not in run.routes:
        why = f"{callee} was called in the seat {seat!r}, which the run does not have"
    else:
        why = f"{callee} was called at an address that nobody seated, which is told of no run"
    return (
        f". {why}, so no policy plays it: if it wants a model, give it a seat, and call it as a peer, which its caller's "
        "owner names in peers={seat: …}, or as Environment(…, seat=…)"
    )


async def _nothing(frame: Frame) -> Any:
    # Verbs that make no turn spend nothing, and may make no calls either.
    return await Budget(None if frame.budget.left is None else 1).take()


def _fact(result: Mapping[str, Any], name: str) -> Any:
    """A fact about the call: beside a tool's answer, and in the `info` of a step."""
    return result[name] if name in result else result.get("info", {}).get(name)


def _said(verb: str, arguments: Mapping[str, Any]) -> Any:
    said: Any = arguments.get("arguments") if verb == "call_tool" else arguments.get("action")
    if isinstance(said, Mapping) and set(said) == {"message"}:
        return said["message"]
    return said


def _answered(result: Mapping[str, Any]) -> Any:
    if "observation" in result:
        return result["observation"]
    return result["text"] if result.get("data") is None else result["data"]
