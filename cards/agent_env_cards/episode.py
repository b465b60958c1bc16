"""How an episode goes: what is observed and done, when it ends, how it is rewarded, and how sessions are kept."""

from __future__ import annotations

from agent_env_cards.fact import Count, Fact, Flag, JsonObject, Number


class EpisodeCard(Fact):
    """How an episode goes.

    `observation` and `action` are JSON Schemas of what `step` returns and takes. With `seedable`, a reset with the
    same seed starts the same episode. `turn_limit` is the number of steps after which an episode is truncated.
    """

    observation: JsonObject | None = None
    action: JsonObject | None = None
    seedable: Flag = False
    turn_limit: Count | None = None


class RewardCard(Fact):
    """A reward that the environment can give; `range` is its lowest and highest value, null where unbounded."""

    name: str
    description: str = ""
    range: tuple[Number | None, Number | None] | None = None


class SessionCard(Fact):
    """How an instance keeps its sessions.

    `capacity` is how many it keeps at once, `idle_timeout` the seconds after which an unused one may be dropped;
    None is no bound. `fork` tells whether a session can be copied. `state` is "value", "handle" or "none".
    """

    capacity: Count | None = None
    idle_timeout: Number | None = None
    fork: Flag = False
    state: str = "value"
