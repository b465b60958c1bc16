"""Staleness: how many updates old the policies were that played an episode, and what becomes of old ones.

An episode is as old as the oldest call in its whole tree, of any policy that learns: one worker that answered with
last week's weights makes the tree one that today's team would not have played.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Literal, TypeAlias

from agent_env.episodes import Episode
from agent_env.errors import ConfigurationError

Stale: TypeAlias = Literal["drop", "keep"]


@dataclass(slots=True)
class StalenessReport:
    """How old the episodes were: `ages` counts them by age in updates, `unlabelled` those with a call that told no
    version; `stale` were older than the bound."""

    ages: Counter[int] = field(default_factory=Counter[int])
    unlabelled: int = 0
    stale: int = 0

    @property
    def oldest(self) -> int | None:
        """The age of the oldest episode; None when none told."""
        return max(self.ages, default=None)


def staleness(episode: Episode, versions: Mapping[str, int]) -> int | None:
    """The largest distance between a call's policy version and the present one of its seat, over the whole tree.

    `versions` are those of the seats that learn; calls of other seats have no age. A version newer than the present
    one (a trainer that went back to a checkpoint) is as foreign as an old one. None when a call does not tell its
    version.
    """
    age = 0
    for trace in episode.traces:
        for call in trace.calls:
            if call.seat not in versions or call.status != "ok":
                continue
            ended = call.policy_version if call.policy_version_end is None else call.policy_version_end
            for version in (call.policy_version, ended):
                if not isinstance(version, int) or isinstance(version, bool):
                    return None
                age = max(age, abs(versions[call.seat] - version))
    return age


def find_stale(
    episodes: Iterable[Episode], versions: Mapping[str, int], *, bound: int | None, stale: Stale = "drop"
) -> tuple[dict[str, str], StalenessReport]:
    """Names the episodes that are not to be learned from, with the reason ("stale" or "no policy version").

    Without a bound, or with `stale="keep"`, none is named and the report alone tells. Episodes that are not ok are
    passed over. Raises `ConfigurationError` for a bound below 0 or another word than "drop" or "keep".
    """
    if stale not in ("drop", "keep"):
        raise ConfigurationError(f'stale is "drop" or "keep", not {stale!r}')
    if bound is not None and bound < 0:
        raise ConfigurationError(f"max_staleness is a number of updates, 0 or more, not {bound!r}")
    report = StalenessReport()
    refused: dict[str, str] = {}
    for episode in episodes:
        if not episode.ok:
            continue
        age = staleness(episode, versions)
        if age is None:
            report.unlabelled += 1
            reason = "no policy version"
        else:
            report.ages[age] += 1
            if bound is None or age <= bound:
                continue
            report.stale += 1
            reason = "stale"
        if bound is not None and stale == "drop":
            refused[episode.id] = reason
    return refused, report
