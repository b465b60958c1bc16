"""From episodes to rows: the token sequences that a policy learns from.

A lineage is one agent instance's conversation with one policy. Model calls of a lineage whose prompts continue each
other exactly, token by token, share one row; any other begins a row of its own. The loss mask is 1 on the tokens that
the agent's own policy sampled and nowhere else: what the user, a tool or another agent said is context. Every sampled
token is under the mask of exactly one row.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, fields, replace
from typing import Any, Literal, TypeAlias

from agent_env.episodes import CallRecord, Episode
from agent_env.episodes.attempts import Unheard, unheard_calls
from agent_env.episodes.records import finite
from agent_env.episodes.tokens import are_token_ids
from agent_env.errors import ConfigurationError
from agent_env.training.lineages import Thread, thread_calls
from agent_env.training.propagation import Propagation, propagation_of, without
from agent_env.training.seat_choice import callers, chosen_seats, tell_idle
from agent_env.training.units import Instance, Unit, instances_of, origin_of

Ambiguous: TypeAlias = Literal["apart", "drop"]


@dataclass(frozen=True, slots=True)
class Span:
    """The tokens `start` to `end` (exclusive) of a row that one call sampled, and how: by which policy version, at
    which temperature (None where it was the server's own), and why it ended."""

    call_id: str
    start: int
    end: int
    version: int | None = None
    temperature: float | None = None
    finish_reason: str | None = None


@dataclass(slots=True)
class Row:
    """One training sequence: `token_ids`, `loss_mask` and `logprobs` have one entry a token.

    `logprobs` are the sampling policy's, 0.0 off the mask. `prompt_len` is where the mask first is 1. `group` is the
    problem and the seat: rows of one group are attempts of one seat at one problem. `reward` is None when nobody
    scored it. `weight` is the row's share in all tokens that its seat sampled in its episode, so the weights of an
    (episode, seat) add up to 1. `versions` are the policy versions that sampled it, oldest and newest; `spans` tell
    each call's. `instance` is the agent instance within the episode. `quarantined` rows have a call whose parent could
    not be told and stand apart. `truncated` says that the last call was cut off by its length.
    """

    episode: str
    seat: str
    agent: str | None
    policy: str
    token_ids: list[int]
    loss_mask: list[int]
    logprobs: list[float]
    prompt_len: int
    group: str = ""
    reward: float | None = None
    advantage: float = 0.0
    weight: float = 1.0
    versions: tuple[int, int] | None = None
    calls: list[str] = field(default_factory=list[str])
    row_id: str = ""
    instance: str = ""
    spans: list[Span] = field(default_factory=list[Span])
    quarantined: bool = False
    truncated: bool = False
    metadata: dict[str, Any] = field(default_factory=dict[str, Any])

    @property
    def version_ids(self) -> list[int]:
        """The policy version of each token; -1 off the mask, and where the version is not known."""
        versions = [-1] * len(self.token_ids)
        for span in self.spans:
            if span.version is not None:
                versions[span.start : span.end] = [span.version] * (span.end - span.start)
        return versions

    @property
    def temperatures(self) -> list[float]:
        """The temperature of each token: that at which it was sampled, and 1.0 off the mask, where it is not known, and
        of one that was sampled greedily, which comes from no distribution and has its logprob at 1."""
        temperatures = [1.0] * len(self.token_ids)
        for span in self.spans:
            if span.temperature is not None and span.temperature > 0:
                temperatures[span.start : span.end] = [span.temperature] * (span.end - span.start)
        return temperatures

    @property
    def sampled(self) -> int:
        """How many tokens are under the mask."""
        return sum(self.loss_mask)


@dataclass(slots=True)
class RowReport:
    """What became of the model calls.

    `merged` calls continued a row instead of beginning one; `forked` rows began in a lineage that had one already;
    `quarantined` rows have a call with more than one possible parent. `dropped` counts the calls of which no row was
    made, by reason, `dropped_of` the same by policy, and `dropped_tokens` what these had sampled. `seats` counts the
    delivered tokens by seat: an agent that has learned to say nothing shows there. `called` counts the model calls that
    there are by seat, whether rows were asked of it or not, and `frozen` those of seats that never learn.
    """

    calls: int = 0
    rows: int = 0
    merged: int = 0
    forked: int = 0
    quarantined: int = 0
    captured_tokens: int = 0
    delivered_tokens: int = 0
    dropped: Counter[str] = field(default_factory=Counter[str])
    dropped_of: dict[str, Counter[str]] = field(default_factory=dict[str, Counter[str]])
    dropped_tokens: Counter[str] = field(default_factory=Counter[str])
    seats: Counter[str] = field(default_factory=Counter[str])
    called: Counter[str] = field(default_factory=Counter[str])
    frozen: Counter[str] = field(default_factory=Counter[str])

    @property
    def merge_ratio(self) -> float | None:
        """The part of the calls that continued a row instead of beginning one; None without calls."""
        used = self.rows + self.merged
        return self.merged / used if used else None

    @property
    def delivered_ratio(self) -> float | None:
        """The part of the captured sampled tokens that rows deliver; None without tokens."""
        return self.delivered_tokens / self.captured_tokens if self.captured_tokens else None

    def reasons(self, seats: str = "a seat to train") -> str:
        """Why model calls made no row, the most frequent reason first; `seats` says whose calls were looked for."""
        if not self.dropped:
            others = f", but of {callers(self.called, self.frozen)}" if self.called else ""
            return f"no model call of {seats} was recorded{others}"
        return ", ".join(f"{why} ({count} call{'s' * (count > 1)})" for why, count in self.dropped.most_common())

    def drop(self, call: CallRecord, reason: str) -> None:
        """Counts a call of which no row is made."""
        self.dropped[reason] += 1
        self.dropped_of.setdefault(policy_of(call), Counter())[reason] += 1
        self.dropped_tokens[reason] += len(call.token_ids or ())

    def add(self, more: RowReport) -> None:
        """Adds what became of further model calls."""
        for each in fields(self):
            total, added = getattr(self, each.name), getattr(more, each.name)
            if each.name == "dropped_of":
                for policy, reasons in added.items():
                    total.setdefault(policy, Counter()).update(reasons)
            elif isinstance(total, Counter):
                total.update(added)  # pyright: ignore[reportUnknownMemberType] - both are of one field
            else:
                setattr(self, each.name, total + added)


def policy_of(call: CallRecord) -> str:
    """Who sampled the answer of a call: the policy that a gateway asked, or else the model that the agent did."""
    return call.policy or call.model


def cut_rows(
    episodes: Iterable[Episode],
    *,
    seats: Iterable[str] | None = None,
    propagation: str | Propagation = "team",
    refused: Mapping[str, str] | None = None,
    ambiguous: Ambiguous = "apart",
) -> tuple[list[Row], RowReport]:
    """Cuts the rows of episodes, of all seats or of those given; frozen traces make none.

    A call makes no row when it failed, was retried or may have been, or its server gave no token ids or logprobs or told
    what is none, and when its episode is not ok, came twice, is among those `refused` (reasons by id), or has nothing
    scored for it; the report says how many and why. A call that continues no one call for certain gets a row apart, or
    none with `ambiguous="drop"`. A warning tells of seats that were given and have no call to learn from.
    """
    asked = chosen_seats(seats)
    rows, _, report = cut(episodes, seats=asked, propagation=propagation, refused=refused, ambiguous=ambiguous)
    tell_idle(asked, report.called, report.frozen)
    return rows, report


def cut(
    episodes: Iterable[Episode],
    *,
    seats: Iterable[str] | None = None,
    propagation: str | Propagation = "team",
    refused: Mapping[str, str] | None = None,
    ambiguous: Ambiguous = "apart",
) -> tuple[list[Row], list[Unit], RowReport]:
    """Cuts rows as `cut_rows` does, without a warning, and also gives the units to credit: first one a row in the order
    of the rows, then those of instances of which no row was made but which were scored."""
    if ambiguous not in ("apart", "drop"):
        raise ConfigurationError(f'ambiguous is "apart" or "drop", not {ambiguous!r}')
    asked = chosen_seats(seats)
    cutter = _Cutter(None if asked is None else set(asked), propagation_of(propagation), refused or {}, ambiguous)
    for episode in episodes:
        cutter.take(episode)
    cutter.report.rows = len(cutter.rows)
    return cutter.rows, cutter.units + cutter.others, cutter.report


class _Cutter:
    def __init__(
        self, seats: set[str] | None, propagation: Propagation, refused: Mapping[str, str], ambiguous: Ambiguous
    ) -> None:
        self._seats = seats
        self._propagate = propagation
        self._refused = refused
        self._ambiguous = ambiguous
        self._taken: set[str] = set()
        self.rows: list[Row] = []
        self.units: list[Unit] = []
        self.others: list[Unit] = []
        self.report = RowReport()

    def take(self, episode: Episode) -> None:
        """Cuts one episode."""
        reason = self._refused.get(episode.id) or (None if episode.ok else "episode not ok")
        if reason is None and episode.id in self._taken:
            reason = "episode came twice"
        elif reason is None:
            self._taken.add(episode.id)
        instances = instances_of(episode)
        unheard: dict[str, Unheard] = {}
        for trace in episode.traces:
            unheard |= unheard_calls(trace.calls)
        origin = origin_of(episode)
        begun = len(self.rows)
        top: dict[str, float | None] = {}
        for instance in instances:
            reward = None if reason else self._propagate(instance)
            why = reason or _unscored(reward)
            if instance.calls:
                self.report.called[instance.seat] += len(instance.calls)
                if instance.frozen:
                    self.report.frozen[instance.seat] += len(instance.calls)
            learns = not instance.frozen and (self._seats is None or instance.seat in self._seats)
            found = self._cut(instance, origin, reward, why, unheard) if learns else 0
            if reward is None or why:
                continue
            root = instance.root
            if root.key not in top:
                above = reward if root is instance else self._propagate(root)
                top[root.key] = above if above is not None and finite(above) else None
            unit = _unit(instance, origin, reward, top[root.key], learns)
            if found:
                self.units += [
                    replace(unit, prompt=tuple(row.token_ids[: row.prompt_len])) for row in self.rows[-found:]
                ]
            else:
                self.others.append(unit)
        _weigh(self.rows[begun:])

    def _cut(
        self,
        instance: Instance,
        origin: str,
        reward: float | None,
        reason: str | None,
        unheard: Mapping[str, Unheard],
    ) -> int:
        """Makes the rows of an instance and says how many."""
        lineages: dict[str, list[CallRecord]] = {}
        for call in instance.calls:
            self.report.calls += 1
            self.report.captured_tokens += len(call.token_ids or ())
            unfit = reason or unheard.get(call.call_id) or _unfit(call)
            if unfit is None:
                lineages.setdefault(policy_of(call), []).append(call)
            else:
                self.report.drop(call, unfit)
        made = 0
        for policy, calls in lineages.items():
            threads = self._delivered(thread_calls(calls))
            self.report.forked += max(0, len(threads) - 1)
            for thread in threads:
                row = _row(instance, policy, thread)
                row.group = f"{origin}/{instance.seat}"
                row.reward = reward
                self.rows.append(row)
                self.report.merged += len(thread.calls) - 1
                self.report.quarantined += thread.ambiguous
                self.report.delivered_tokens += row.sampled
                self.report.seats[instance.seat] += row.sampled
            made += len(threads)
        return made

    def _delivered(self, threads: list[Thread]) -> list[Thread]:
        if self._ambiguous == "apart":
            return threads
        for thread in threads:
            if thread.ambiguous:
                for call in thread.calls:
                    self.report.drop(call, "ambiguous parent")
        return [thread for thread in threads if not thread.ambiguous]


def _unit(instance: Instance, origin: str, reward: float, root_reward: float | None, learns: bool) -> Unit:
    return Unit(
        instance.episode.id,
        instance.seat,
        reward,
        origin,
        instance=instance.key,
        parent_call=instance.parent_call,
        root_seat=instance.root.seat,
        root_instance=instance.root.key,
        root_reward=root_reward,
        without=without(instance),
        env=instance.episode.env,
        learns=learns,
    )


def _unscored(reward: float | None) -> str | None:
    if reward is None:
        return "not scored"
    return None if finite(reward) else "reward not finite"


def _unfit(call: CallRecord) -> str | None:
    if call.status != "ok":
        return "call failed"
    if _malformed(call, "prompt_token_ids", "token_ids"):
        return "malformed token ids"
    if not call.prompt_token_ids or not call.token_ids:
        return "no token ids"
    if not are_token_ids(call.prompt_token_ids) or not are_token_ids(call.token_ids):
        return "malformed token ids"
    if _malformed(call, "logprobs"):
        return "malformed logprobs"
    if call.logprobs is None or len(call.logprobs) != len(call.token_ids):
        return "no logprobs"
    # One that is not a number, or minus infinite, makes the sum so.
    return None if finite(sum(call.logprobs)) else "logprobs not finite"


def _malformed(call: CallRecord, *fields: str) -> bool:
    """Whether the gateway left one of these fields out for what its server told there."""
    return any((call.missing or {}).get(name) == "malformed" for name in fields)


def _row(instance: Instance, policy: str, thread: Thread) -> Row:
    tokens: list[int] = []
    mask: list[int] = []
    logprobs: list[float] = []
    spans: list[Span] = []
    for call in thread.calls:
        assert call.prompt_token_ids is not None and call.token_ids is not None and call.logprobs is not None
        added = call.prompt_token_ids[len(tokens) :]
        tokens += added
        mask += [0] * len(added)
        logprobs += [0.0] * len(added)
        start = len(tokens)
        tokens += call.token_ids
        mask += [1] * len(call.token_ids)
        logprobs += call.logprobs
        version = call.policy_version if isinstance(call.policy_version, int) else None
        spans.append(Span(call.call_id, start, len(tokens), version, call.temperature, call.finish_reason))
    versions = [version for call in thread.calls for version in versions_of(call)]
    return Row(
        instance.episode.id,
        instance.seat,
        instance.trace.agent,
        policy,
        tokens,
        mask,
        logprobs,
        spans[0].start,
        versions=(min(versions), max(versions)) if versions else None,
        calls=[call.call_id for call in thread.calls],
        row_id=f"{instance.episode.id}/{instance.seat}/{thread.calls[0].call_id}",
        instance=instance.key,
        spans=spans,
        quarantined=thread.ambiguous,
        truncated=thread.calls[-1].finish_reason == "length",
    )


def versions_of(call: CallRecord) -> Iterator[int]:
    """The versions of its policy that a call tells of: when it began, and when it ended."""
    for version in (call.policy_version, call.policy_version_end):
        if isinstance(version, int):
            yield version


def _weigh(rows: list[Row]) -> None:
    """Gives the rows of one episode their share in the tokens of their seat: a fork splits a weight, never adds one."""
    tokens: Counter[str] = Counter()
    for row in rows:
        tokens[row.seat] += row.sampled
    for row in rows:
        row.weight = row.sampled / tokens[row.seat]
