"""verifiers v1: episodes as its `Episode` records, with a trace an agent instance and its message graph.

What verifiers has no field for - who called whom, which policy and version answered - is in `info["agent_env"]` of each
trace.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from collections.abc import Set as AbstractSet
from pathlib import Path
from typing import Any

from agent_env.episodes import CallRecord, EdgeRecord, Episode, MessageNode, Trace, message_graph
from agent_env.episodes.attempts import unheard_calls, with_requests
from agent_env.episodes.lines import LineReader, replacing
from agent_env.episodes.records import finite
from agent_env.errors import ProtocolError
from agent_env.training.exports.verifiers_messages import messages_of
from agent_env.training.exports.verifiers_records import KEY, TOLD, Record, from_verifiers
from agent_env.training.propagation import DIFFERENCE
from agent_env.training.rows import versions_of
from agent_env.training.units import Instance, instances_of

_ENDPOINTS = {
    "chat": "/chat/completions",
    "completions": "/completions",
    "responses": "/responses",
    "messages": "/messages",
}


def to_verifiers(episodes: Iterable[Episode]) -> Iterator[Record]:
    """The record of each episode, which `verifiers.v1.episode.WireEpisode.model_validate` takes.

    A trace is one agent instance; its rewards are all that count for it, the team's too, so that their weighted sum is
    what `team` propagation gives. What nobody scored is None, and what a team would have got without an agent is a
    metric. Failed episodes are records too. Raises `ProtocolError` for messages that verifiers has no form of.
    """
    return map(_episode, episodes)


def write(episodes: Iterable[Episode], path: Path) -> int:
    """Writes one record a line, as verifiers does in `traces.jsonl`; says how many.

    Logprobs of an answer that are not all finite are left out, as such an answer is in no row. Raises `ProtocolError` for
    an episode with any other number that JSON has no form of, such as an infinite task.
    """
    written = 0
    with replacing(path) as file:
        for record in to_verifiers(episodes):
            try:
                line = json.dumps(record, separators=(",", ":"), allow_nan=False)
            except ValueError as error:
                raise ProtocolError(f"the episode {record['id']!r} has no form in JSON: {error}") from error
            file.write(line.encode() + b"\n")
            written += 1
    return written


def read(path: str | Path) -> Iterator[Episode]:
    """The episodes of a file that `write` or verifiers wrote, as `from_verifiers` makes them."""
    return from_verifiers(record for _, record in LineReader(path))


def _episode(episode: Episode) -> Record:
    instances = instances_of(episode)
    retried = {name for trace in episode.traces for name in unheard_calls(trace.calls)}
    # A policy that is frozen is as old as it is: `PolicySpan` is of those that are trained, and counts their drift.
    live = [call for instance in instances if not instance.frozen for call in instance.calls]
    versions = [version for call in live for version in versions_of(call)]
    run: Record | None = None
    if episode.run is not None:
        run = {"type": "eval", "id": episode.run}
        if versions:
            policy = {"start": min(versions), "end": max(versions)}
            run = {
                "type": "train",
                "id": episode.run,
                "work": {"type": "train", "step": min(versions), "policy": policy},
            }
    task = _task(episode)
    record: Record = {
        "id": episode.id,
        "env": {"id": episode.env or ""},
        "task": task,
        "group": None if episode.group is None else {"id": episode.group},
        "run": run,
        "ok": episode.ok,
        "is_timeout": any(failure.boundary == "deadline" for failure in episode.failures),
        "errors": [{"type": failure.code, "message": failure.message} for failure in episode.failures],
        "traces": [_trace(instance, episode, task, retried) for instance in instances],
    }
    return {name: value for name, value in record.items() if value is not None}


def _task(episode: Episode) -> Record:
    prompt = {"prompt": episode.task} if isinstance(episode.task, str) else {}
    return {"type": "Task", "data": {**prompt, KEY: episode.task}}


def _trace(instance: Instance, episode: Episode, task: Record, retried: AbstractSet[str]) -> Record:
    trace = instance.trace
    # Which attempt at a call the agent went on with is found here as it is for rows, whose tokens these nodes hold.
    heard = [call for call in instance.calls if call.call_id not in retried]
    part = Trace(trace.agent, instance.seat, trace.session, instance.turns, heard, trace.trainable)
    nodes, places = _nodes(message_graph(part))
    failed = [turn for turn in instance.turns if turn.status != "ok"]
    started = min((turn.started for turn in instance.turns if turn.started is not None), default=episode.started or 0.0)
    ended = max(
        (turn.started + (turn.seconds or 0.0) for turn in instance.turns if turn.started is not None), default=started
    )
    rewards, metrics, sources = _scores(instance)
    models = Counter(call.policy or call.model for call in instance.calls)
    return {
        "id": f"{episode.id}/{instance.key}",
        "task": task,
        "agent": {
            "name": instance.seat,
            "config": {"model": models.most_common(1)[0][0]} if models else {},
            "trainable": not instance.frozen,
        },
        "nodes": nodes,
        "calls": [_call(call, places.get(call.call_id)) for call in with_requests(instance.calls)],
        "rewards": rewards,
        "metrics": metrics,
        "info": {KEY: _info(instance, episode, places, sources)},
        "is_completed": True,
        "ok": not failed,
        "stop_condition": part.stop_condition,
        "errors": [{"type": turn.status, "message": _said(turn.error, turn.status)} for turn in failed],
        "timing": {"start": started, "agent": {"start": started, "end": ended}},
    }


def _nodes(graph: list[MessageNode]) -> tuple[list[Record], dict[str, int]]:
    """The nodes of verifiers, and the one that ends the answer of each call."""
    nodes: list[Record] = []
    last: list[int] = []
    places: dict[str, int] = {}
    for node in graph:
        parent = None if node.parent is None else last[node.parent]
        said = messages_of(node)
        for number, message in enumerate(said):
            one: Record = {"parent": parent, "message": message, "sampled": node.sampled}
            if number == len(said) - 1:
                # Logprobs that JSON has no form of are left out: the answer is in no row, with them or without.
                logprobs = node.logprobs if all(map(finite, node.logprobs)) else []
                one |= {"token_ids": node.token_ids, "mask": node.mask, "logprobs": logprobs}
            nodes.append(one)
            parent = len(nodes) - 1
        last.append(len(nodes) - 1)
        if node.call_id is not None:
            places[node.call_id] = last[-1]
    return nodes, places


def _call(call: CallRecord, node: int | None) -> Record:
    request: Any = call.request if isinstance(call.request, dict) else {}
    started = call.started or 0.0
    record: Record = {
        "node": node,
        "model": call.model,
        "sampling": _sampling(call, request),
        "endpoint": _ENDPOINTS.get(call.api),
        "finish_reason": call.finish_reason if call.finish_reason in ("stop", "length", "tool_calls") else None,
        "usage": _usage(call.usage),
        "time": {"start": started, "end": started + (call.seconds or 0.0)},
    }
    if call.status != "ok":
        record["error"] = {
            "type": call.status,
            "message": _said(call.error, call.status),
            "status_code": call.http_status,
        }
    return {name: value for name, value in record.items() if value is not None}


def _sampling(call: CallRecord, request: Mapping[str, Any]) -> Record:
    sampling = {name: request[name] for name in ("top_p", "max_tokens") if request.get(name) is not None}
    # What the model was asked for, which is not always what the agent asked for.
    return sampling if call.temperature is None else {"temperature": call.temperature, **sampling}


def _usage(usage: Mapping[str, Any] | None) -> Record | None:
    if not usage or not isinstance(usage.get("prompt_tokens"), int):
        return None
    # verifiers counts what a cache gave apart from the rest of the prompt.
    cached = (usage.get("prompt_tokens_details") or {}).get("cached_tokens")
    told = {
        "prompt_tokens": usage["prompt_tokens"] - (cached or 0),
        "completion_tokens": usage.get("completion_tokens") or 0,
        "cached_input_tokens": cached,
    }
    return {name: value for name, value in told.items() if value is not None}


def _scores(instance: Instance) -> tuple[Record, Record, dict[str, str]]:
    """What counts for an instance by name, what does not, and the source of each.

    Where two are of one name, the later is named with whom it was given to.
    """
    rewards: Record = {}
    metrics: Record = {}
    sources: dict[str, str] = {}
    for reward in (*instance.shared, *instance.rewards):
        name, number = reward.name, 1
        while name in sources:
            name = f"{reward.target}/{reward.name}" if number == 1 else f"{reward.target}/{reward.name}/{number}"
            number += 1
        sources[name] = reward.source
        if reward.source == DIFFERENCE:
            metrics[name] = reward.value
        else:
            rewards[name] = None if reward.value is None else {"score": reward.value, "weight": reward.weight}
    return rewards, metrics, sources


def _info(instance: Instance, episode: Episode, places: Mapping[str, int], sources: Mapping[str, str]) -> Record:
    mine = {turn.call_id for turn in instance.turns}
    return {
        "instance": instance.key,
        "agent": instance.trace.agent,
        "session": instance.trace.session,
        "trainable": False if instance.frozen else instance.trace.trainable or None,
        "parent_call": instance.parent_call,
        "edges": [_edge(edge) for edge in episode.edges if edge.caller_call_id in mine],
        "calls": [_told(call, places[call.call_id]) for call in instance.calls if call.call_id in places],
        "sources": sources,
    }


def _edge(edge: EdgeRecord) -> Record:
    return {"callee": edge.callee, "seat": edge.callee_seat, "call": edge.callee_call_id, "status": edge.status}


def _told(call: CallRecord, node: int) -> Record:
    """What a call's node does not tell: `from_verifiers` makes a record of the two."""
    return {"node": node, **{name: getattr(call, name) for name in TOLD}}


def _said(error: Any, otherwise: str) -> str:
    return str(error["message"]) if isinstance(error, dict) and "message" in error else otherwise
