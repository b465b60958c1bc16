"""Runs with verifiers installed: our episodes as its `Episode`s, and what verifiers itself says of them.

python verifiers_episodes.py GOLDEN.jsonl EXPORTED.jsonl
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

from verifiers.v1.episode import WireEpisode
from verifiers.v1.trace import AgentInfo, Error, Reward, Trace

from agent_env.episodes import EpisodeReader
from agent_env.training.exports.verifiers import from_verifiers, to_verifiers
from agent_env.training.learning import credit_rows

golden, exported = Path(sys.argv[1]), Path(sys.argv[2])
episodes = list(EpisodeReader(golden))
rows, _, report = credit_rows(episodes)
records = [json.loads(line) for line in exported.read_text("utf-8").splitlines()]
assert records == list(to_verifiers(episodes))
read = [WireEpisode.model_validate(record) for record in records]

# The names that an episode on disk has in common with verifiers are those of its own models (docs/episodes.md), and
# what verifiers has a name for has no other one.
OWN = {
    WireEpisode: {"kind", "started", "seconds", "seed", "info", "edges", "rewards"},
    Trace: {"turns"},
    AgentInfo: {"release"},
    Error: {"boundary", "call_id"},
    Reward: {"kind", "name", "value", "source", "target", "target_id", "episode"},
}
SHARED = {
    WireEpisode: {"id", "ok", "env", "task", "group", "run", "errors", "traces"},
    Trace: {"id", "agent", "calls"},
    AgentInfo: {"name", "trainable"},
    Error: {"type", "message"},
    Reward: {"weight"},
}
named: dict[type, set[str]] = {kind: set() for kind in SHARED}
for told in (episode.to_json() for episode in episodes):
    named[WireEpisode] |= set(told)
    for trace in told["traces"]:
        named[Trace] |= set(trace)
        named[AgentInfo] |= set(trace["agent"])
    for error in told["errors"]:
        named[Error] |= set(error)
    for reward in told["rewards"]:
        named[Reward] |= set(reward)
for kind, theirs in SHARED.items():
    assert theirs <= set(kind.model_fields), kind
    assert OWN[kind].isdisjoint(kind.model_fields), kind
    assert named[kind] == theirs | OWN[kind], kind

# Our `value` of a reward is its `score`; its own `value` is that times the weight.
worker = read[0].by_agent["worker"][0]
short = next(reward for reward in episodes[0].rewards if reward.weight != 1.0 and reward.value is not None)
assert worker.rewards[short.name].score == short.value != worker.rewards[short.name].value
assert worker.rewards[short.name].value == short.value * short.weight

# What verifiers writes again holds the same rows, credit and all.
written = [episode.to_record(float_decimals=None) for episode in read]
again, _, _ = credit_rows(from_verifiers(written))
assert again == rows

# Its branches are our rows. Which of two branches trains a sampled node that they share is its trainer's choice; that
# each sampled token is trained once, after the same tokens, is not.
seen: dict[str, object] = {}
for episode, ours in zip(read, episodes, strict=True):
    assert (episode.id, episode.ok, episode.group.id, episode.run.id) == (ours.id, ours.ok, ours.group, ours.run)
    branches, answers, rewards = [], [], {}
    for trace in episode.traces:
        if not (episode.ok and trace.agent.trainable and any(node.token_ids for node in trace.nodes)):
            continue
        rewards[trace.agent.name, trace.info["agent_env"]["instance"]] = round(trace.reward, 9)
        known = set()
        for branch in trace.branches:
            branches.append((trace.agent.name, branch.token_ids))
            assert len(branch.token_ids) == len(branch.sampled_mask) == len(branch.logprobs)
            at = 0
            for node in branch.nodes:
                end = at + len(node.token_ids)
                if any(node.mask) and id(node) not in known:
                    start = at + node.mask.index(True)
                    known.add(id(node))
                    answers.append((trace.agent.name, branch.token_ids[:end], start, branch.logprobs[start:end]))
                at = end
    mine = [row for row in rows if row.episode == ours.id]
    spans = [(row, span) for row in mine for span in row.spans]
    assert sorted(branches) == sorted((row.seat, row.token_ids) for row in mine)
    assert sorted(answers) == sorted(
        (row.seat, row.token_ids[: span.end], span.start, row.logprobs[span.start : span.end]) for row, span in spans
    )
    assert rewards == {(row.seat, row.instance): round(row.reward, 9) for row in mine}

fan, fail, late, duel, _ = read
seen["agents"] = {name: len(traces) for name, traces in fan.by_agent.items()}
seen["frozen"] = [trace.agent.name for trace in fan.traces if not trace.agent.trainable]
manager = fan.by_agent["manager"][0]
seen["branches"] = manager.num_branches
seen["turns"] = manager.num_turns
seen["truncated"] = manager.is_truncated
seen["roles"] = [node.message.role for node in manager.nodes]
seen["unscored"] = [name for name, reward in manager.rewards.items() if reward is None]
seen["failed_traces"] = [trace.stop_condition for trace in fail.traces if not trace.ok]
seen["errors"] = [error.type for error in late.errors]
seen["timeout"] = late.is_timeout
# The judge in the first is frozen, of version 0, and no part of the span.
seen["spans"] = [[one.run.work.policy.start, one.run.work.policy.end] for one in (fan, duel)]
seen["tokens"] = [duel.num_input_tokens, duel.num_output_tokens]
print(json.dumps(seen))
