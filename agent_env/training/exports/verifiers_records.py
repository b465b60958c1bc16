"""Records of verifiers v1 as episodes to cut rows of: those that we exported, and those that verifiers made itself."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, TypeAlias

from agent_env.episodes import CallRecord, Episode, Failure, RewardRecord, Trace
from agent_env.errors import ProtocolError

Record: TypeAlias = dict[str, Any]

KEY = "agent_env"
"""Where a trace's `info` has what verifiers has no field for."""

TOLD = (
    *("call_id", "parent_call_id", "policy", "policy_version", "policy_version_end", "retry_of", "choice_of"),
    "finish_reason",
)
"""The fields of a `CallRecord` that verifiers has none for, or with another meaning."""


def from_verifiers(records: Iterable[Mapping[str, Any]]) -> Iterator[Episode]:
    """The episodes of records, with the model calls whose tokens the nodes tell, the rewards and the groups.

    What was said is not read back: `cut_rows` and `credit_rows` need only the tokens. Rewards count for the agent
    instance whose trace they are on. Raises `ProtocolError` for a record that is not whole.
    """
    return map(_episode, records)


def _episode(record: Mapping[str, Any]) -> Episode:
    try:
        data: Any = record["task"]["data"]
        run = record.get("run") or {}
        episode = Episode(
            record["id"],
            task=data[KEY] if KEY in data else data.get("prompt"),
            group=(record.get("group") or {}).get("id"),
            run=run.get("id"),
            ok=record.get("ok", False),
            env=(record.get("env") or {}).get("id") or None,
        )
        episode.failures = [Failure("program", one["type"], one["message"]) for one in record.get("errors", ())]
        policy = (run.get("work") or {}).get("policy") or {}
        for trace in record.get("traces", ()):
            played, rewards = _trace(trace, policy, episode.id)
            episode.traces.append(played)
            episode.rewards += rewards
    except (KeyError, TypeError, AttributeError, IndexError) as error:
        raise ProtocolError(
            f"the record {str(record.get('id'))!r:.80} is no episode of verifiers v1: {type(error).__name__} {error}"
        ) from error
    return episode


def _trace(trace: Mapping[str, Any], policy: Mapping[str, int], episode: str) -> tuple[Trace, list[RewardRecord]]:
    info: Mapping[str, Any] = (trace.get("info") or {}).get(KEY) or {}
    seat: str = trace["agent"]["name"]
    trainable: bool | None = info["trainable"] if info else trace["agent"].get("trainable", True)
    # The span is the live policy's, and tells nothing of one that is frozen.
    calls = list(_calls(trace, info, {} if trainable is False else policy, seat))
    played = Trace(
        info.get("agent") if info else trace["agent"]["config"].get("model"),
        seat,
        info["session"] if info else trace["id"],
        calls=calls,
        trainable=trainable,
    )
    sources: Mapping[str, str] = info.get("sources") or {}
    scores = {name: _score(score) for name, score in (trace.get("rewards") or {}).items()}
    # A metric counts for nothing, unless it is one of ours that says what a team would have got.
    scores |= {name: (value, 0.0) for name, value in (trace.get("metrics") or {}).items() if name in sources}
    key = info["instance"] if info else trace["id"]
    rewards = [
        RewardRecord(
            name,
            value,
            weight,
            sources.get(name, "env"),
            # By a call, where there is one: seats that share a session are told apart by it.
            "call" if calls else "trace",
            calls[0].call_id if calls else key,
            episode,
        )
        for name, (value, weight) in scores.items()
    ]
    return played, rewards


def _score(score: Mapping[str, float] | None) -> tuple[float | None, float]:
    return (None, 1.0) if score is None else (score["score"], score.get("weight", 1.0))


def _calls(
    trace: Mapping[str, Any], info: Mapping[str, Any], policy: Mapping[str, int], seat: str
) -> Iterator[CallRecord]:
    nodes: Sequence[Mapping[str, Any]] = trace["nodes"]
    told = {call["node"]: call for call in info.get("calls", ())}
    made = {call.get("node"): call for call in trace.get("calls", ())}
    paths: list[list[int]] = []
    for index, node in enumerate(nodes):
        parent = node.get("parent")
        tokens, mask = node.get("token_ids") or [], node.get("mask") or []
        before = [] if parent is None else paths[parent]
        paths.append([*before, *tokens])
        if not any(mask):
            continue
        first = mask.index(True)
        if not all(mask[first:]):
            raise ProtocolError(f"the node {index} of {trace['id']!r} has tokens that were not sampled amid its answer")
        call: Mapping[str, Any] = made.get(index) or {}
        ours: Mapping[str, Any] = told.get(index) or {
            "call_id": f"{trace['id']}/{index}",
            "parent_call_id": trace["id"],
            "policy_version": policy.get("start"),
            "policy_version_end": policy.get("end"),
            "finish_reason": call.get("finish_reason"),
        }
        fields: dict[str, Any] = {name: ours.get(name) for name in TOLD}
        yield CallRecord(
            seat=seat,
            model=call.get("model") or trace["agent"]["config"].get("model") or "",
            temperature=(call.get("sampling") or {}).get("temperature"),
            prompt_token_ids=[*before, *tokens[:first]],
            token_ids=list(tokens[first:]),
            logprobs=list(node.get("logprobs") or ()),
            started=(call.get("time") or {}).get("start"),
            **fields,
        )
