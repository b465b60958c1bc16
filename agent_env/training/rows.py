"""From episodes to rows: the token sequences that a policy learns from.

A lineage is one agent instance's conversation. Model calls of a lineage whose prompts continue each other exactly,
token by token, share one row; any other begins a row of its own. The loss mask is 1 on the tokens that the agent's own
policy sampled and nowhere else: what the user, a tool or another agent said is context. Every sampled token is under
the mask of exactly one row.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Hashable, Iterable
from dataclasses import dataclass, field

from agent_env.episodes import CallRecord, Episode, Trace


@dataclass(slots=True)
class Row:
    """One training sequence: `token_ids`, `loss_mask` and `logprobs` have one entry a token.

    `logprobs` are the sampling policy's, 0.0 off the mask. `prompt_len` is where the mask first is 1. `group` is
    what the row's reward may be compared within. `reward` is None when nobody scored it. `versions` are the policy
    versions that sampled it, oldest and newest.
    """

    episode: str
    seat: str
    agent: str | None
    policy: str
    token_ids: list[int]
    loss_mask: list[int]
    logprobs: list[float]
    prompt_len: int
    group: Hashable
    reward: float | None = None
    advantage: float = 0.0
    weight: float = 1.0
    versions: tuple[int, int] | None = None
    calls: list[str] = field(default_factory=list[str])


@dataclass(slots=True)
class RowReport:
    """What became of the model calls: `dropped` counts the calls of which no row was made, by reason."""

    calls: int = 0
    rows: int = 0
    merged: int = 0
    captured_tokens: int = 0
    delivered_tokens: int = 0
    dropped: Counter[str] = field(default_factory=Counter[str])

    @property
    def merge_ratio(self) -> float | None:
        """The part of the calls that continued a row instead of beginning one; None without calls."""
        used = self.rows + self.merged
        return self.merged / used if used else None


def cut_rows(episodes: Iterable[Episode], *, seats: Iterable[str] | None = None) -> tuple[list[Row], RowReport]:
    """Cuts the rows of episodes, of all seats or of those given.

    A call makes no row when it failed, when its server gave no token ids or logprobs, or when its episode is not ok
    or its seat not scored; the report says how many and why.
    """
    wanted = None if seats is None else set(seats)
    rows: list[Row] = []
    report = RowReport()
    for episode in episodes:
        for trace in episode.traces:
            calls = [call for call in trace.calls if wanted is None or call.seat in wanted]
            if calls:
                rows += _cut(episode, trace, calls, report)
    report.rows = len(rows)
    return rows, report


def _cut(episode: Episode, trace: Trace, calls: list[CallRecord], report: RowReport) -> list[Row]:
    rows: list[Row] = []
    # The sequence that ends a row, by lineage; a sequence that was continued already is gone from here, so a second
    # call that continues it begins a row, and the tokens before it stay under the first row's mask alone.
    ends: dict[tuple[str, tuple[int, ...]], Row] = {}
    for call in sorted(calls, key=lambda call: call.started or 0.0):
        report.calls += 1
        report.captured_tokens += len(call.token_ids or ())
        reason = _unfit(episode, call)
        if reason is not None:
            report.dropped[reason] += 1
            continue
        assert call.prompt_token_ids is not None and call.token_ids is not None and call.logprobs is not None
        lineage = f"{call.seat}/{call.model}/{trace.session or call.parent_call_id}"
        row = _continued(ends, lineage, call.prompt_token_ids)
        if row is None:
            row = _begin(episode, trace, call)
            rows.append(row)
        else:
            report.merged += 1
            added = call.prompt_token_ids[len(row.token_ids) :]
            row.token_ids += added
            row.loss_mask += [0] * len(added)
            row.logprobs += [0.0] * len(added)
        row.token_ids += call.token_ids
        row.loss_mask += [1] * len(call.token_ids)
        row.logprobs += call.logprobs
        row.calls.append(call.call_id)
        if isinstance(call.policy_version, int):
            oldest, newest = row.versions or (call.policy_version, call.policy_version)
            row.versions = min(oldest, call.policy_version), max(newest, call.policy_version)
        report.delivered_tokens += len(call.token_ids)
        ends[lineage, tuple(row.token_ids)] = row
    return rows


def _unfit(episode: Episode, call: CallRecord) -> str | None:
    if not episode.ok:
        return "episode not ok"
    if call.status != "ok":
        return "call failed"
    if not call.prompt_token_ids or not call.token_ids:
        return "no token ids"
    if call.logprobs is None or len(call.logprobs) != len(call.token_ids):
        return "no logprobs"
    if episode.reward(call.seat) is None:
        return "not scored"
    return None


def _continued(ends: dict[tuple[str, tuple[int, ...]], Row], lineage: str, prompt: list[int]) -> Row | None:
    """Takes out the row whose sequence is the longest that the prompt continues."""
    lengths = sorted({len(ids) for name, ids in ends if name == lineage and len(ids) <= len(prompt)}, reverse=True)
    for length in lengths:
        row = ends.pop((lineage, tuple(prompt[:length])), None)
        if row is not None:
            return row
    return None


def _begin(episode: Episode, trace: Trace, call: CallRecord) -> Row:
    prompt = list(call.prompt_token_ids or ())
    return Row(
        episode.id,
        call.seat,
        trace.agent,
        call.model,
        prompt,
        [0] * len(prompt),
        [0.0] * len(prompt),
        len(prompt),
        (call.seat, tuple(prompt)),
        episode.reward(call.seat),
    )
