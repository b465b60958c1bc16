"""What a list of episodes tells about each, without the conversations."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import ClassVar

from agent_env.episodes.episode import Episode, Failure
from agent_env.episodes.records import Json, RewardRecord, items, read, shown, written
from agent_env.errors import ProtocolError


@dataclass(slots=True)
class EpisodeSummary:
    """The outline of an episode: how it ended, what it was worth, and how much there is of it.

    `traces`, `edges` and `calls` are counts; `seats` are the names of those that played, sorted. `prompt_tokens` and
    `sampled_tokens` add up the model calls with recorded token ids, and are None when none has them.
    """

    kind: ClassVar[str] = "summary"

    id: str
    task: Json = None
    group: str | None = None
    run: str | None = None
    started: float | None = None
    seconds: float | None = None
    ok: bool = True
    env: str | None = None
    seed: int | None = None
    traces: int = 0
    edges: int = 0
    calls: int = 0
    prompt_tokens: int | None = None
    sampled_tokens: int | None = None
    seats: list[str] = field(default_factory=list[str])
    rewards: list[RewardRecord] = field(default_factory=list[RewardRecord])
    failures: list[Failure] = field(default_factory=list[Failure])

    @classmethod
    def of(cls, episode: Episode) -> EpisodeSummary:
        """The outline of an episode."""
        calls = [call for trace in episode.traces for call in trace.calls]
        told = [call for call in calls if call.token_ids is not None]
        return cls(
            *(episode.id, episode.task, episode.group, episode.run, episode.started, episode.seconds, episode.ok),
            env=episode.env,
            seed=episode.seed,
            traces=len(episode.traces),
            edges=len(episode.edges),
            calls=len(calls),
            prompt_tokens=sum(len(call.prompt_token_ids or ()) for call in told) if told else None,
            sampled_tokens=sum(len(call.token_ids or ()) for call in told) if told else None,
            seats=episode.seats(),
            rewards=list(episode.rewards),
            failures=list(episode.failures),
        )

    def to_json(self) -> dict[str, Json]:
        """The outline as JSON; `from_json` is its exact inverse."""
        value = written(self)
        del value["failures"]
        value["errors"] = [failure.to_json() for failure in self.failures]
        value["rewards"] = [reward.to_json() for reward in self.rewards]
        return value

    @classmethod
    def from_json(cls, value: Mapping[str, Json]) -> EpisodeSummary:
        """Reads what `to_json` wrote; raises `ProtocolError`."""
        if not isinstance(value, Mapping) or value.get("kind") != cls.kind:  # pyright: ignore[reportUnnecessaryIsInstance]
            raise ProtocolError(f"a summary is a JSON object of the kind {cls.kind!r}, not {shown(value)}")
        summary = read(cls, value)
        summary.failures = [Failure.from_json(failure) for failure in items(value, "errors", of=cls.kind)]
        summary.rewards = [RewardRecord.from_json(reward) for reward in items(value, "rewards", of=cls.kind)]
        return summary
