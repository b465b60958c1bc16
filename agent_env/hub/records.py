"""What a hub tells: releases, instances, leases, and what a reference resolves to."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from functools import cached_property
from typing import Any, Literal, Self, TypeAlias

from agent_env_cards import DRAFT_VERSION, EnvironmentCard

State: TypeAlias = Literal["up", "suspect", "gone"]
"""Liveness of an instance: renewed within one TTL; not renewed, or doubted by a caller; given up."""


class _Carded:
    """A record with a card, which is parsed once."""

    card_json: Mapping[str, Any]

    @cached_property
    def card(self) -> EnvironmentCard:
        """The card, parsed."""
        return EnvironmentCard.parse(self.card_json)

    def to_json(self) -> dict[str, Any]:
        """The record as a JSON object."""
        return {key: value for key, value in self.__dict__.items() if key != "card"}

    @classmethod
    def from_json(cls, value: Mapping[str, Any]) -> Self:
        """Reads what `to_json` wrote."""
        return cls(**value)


@dataclass(frozen=True)
class Release(_Carded):
    """A published `name@version`, or a draft.

    `card_json` is the card as published, `launch` says how to start an instance (None: it cannot be launched),
    `yanked` and `deprecated` hold the reason, `sequence` the place of its last change in the hub's change feed.
    """

    name: str
    version: str
    digest: str
    card_json: Mapping[str, Any]
    launch: Mapping[str, Any] | None = None
    yanked: str | None = None
    deprecated: str | None = None
    owner: str | None = None
    published: float = 0.0
    sequence: int = 0

    @property
    def ref(self) -> str:
        """The release as a reference that pins its digest."""
        return f"{self.name}@{self.version}#{self.digest}"

    @property
    def draft(self) -> bool:
        """Tells whether this is a draft."""
        return self.version == DRAFT_VERSION


@dataclass(frozen=True)
class Instance(_Carded):
    """A running environment, known by its lease.

    `id` is public; the lease's own id, with which it is renewed and released, is its holder's secret. `card_json` is
    the card as this instance serves it, with its addresses. `load` is its sessions in use, of `capacity` (None: no
    bound). `source` is the hash of the code it runs, if it told one; `launch_id` names the launch that started it.
    """

    id: str
    name: str
    version: str
    digest: str
    url: str
    state: State
    card_json: Mapping[str, Any]
    capacity: int | None = None
    load: int = 0
    source: str | None = None
    launch_id: str | None = None
    registered: float = 0.0
    renewed: float = 0.0

    @property
    def up(self) -> bool:
        """Tells whether the lease is renewed in time."""
        return self.state == "up"

    @property
    def full(self) -> bool:
        """Tells whether all sessions are in use."""
        return self.capacity is not None and self.load >= self.capacity


@dataclass(frozen=True, slots=True)
class Lease:
    """The right to be listed, until it is not renewed any more.

    `id` is the fencing token: random, secret, made anew at every registration. Renew it every `renew_seconds`; it
    lapses `ttl_seconds` after its last renewal.
    """

    id: str
    name: str
    version: str
    url: str
    ttl_seconds: float
    renew_seconds: float

    @property
    def instance_id(self) -> str:
        """The public id of the instance that this lease is for."""
        return instance_id(self.id)

    def to_json(self) -> dict[str, Any]:
        """The lease as a JSON object."""
        return asdict(self)


def instance_id(lease_id: str) -> str:
    """The public id that belongs to a lease; it does not give the lease away."""
    return hashlib.sha256(lease_id.encode()).hexdigest()[:32]


def id_of(holder: Lease | Instance | str) -> str:
    """The id of a lease or an instance, which may be given instead of it."""
    return holder if isinstance(holder, str) else holder.id


@dataclass(frozen=True)
class Entry:
    """One line of a hub's list: a release and its instances, those that are up first."""

    release: Release
    instances: tuple[Instance, ...] = ()
    degraded: bool = False

    @property
    def card(self) -> EnvironmentCard:
        """The release's card."""
        return self.release.card

    @property
    def current(self) -> tuple[Instance, ...]:
        """The instances that a caller may be sent to: every one of a release, but only the newest start of a draft.

        Two drafts with one card may still run different code, and the newest is the one that was meant.
        """
        if not self.release.draft or not self.instances:
            return self.instances
        return (max(self.instances, key=lambda instance: (instance.up, instance.registered)),)

    @property
    def liveness(self) -> Literal["up", "suspect", "launchable", "unreachable"]:
        """What a caller can expect: an instance that is up, one that may be, one that can be started, or none."""
        if any(instance.up for instance in self.instances):
            return "up"
        if self.instances:
            return "suspect"
        return "launchable" if self.release.launch is not None else "unreachable"

    def to_json(self) -> dict[str, Any]:
        """The entry as a JSON object."""
        return {
            "release": self.release.to_json(),
            "instances": [instance.to_json() for instance in self.instances],
            "degraded": self.degraded,
            "liveness": self.liveness,
        }

    @classmethod
    def from_json(cls, value: Mapping[str, Any]) -> Self:
        """Reads what `to_json` wrote."""
        instances = tuple(Instance.from_json(entry) for entry in value["instances"])
        return cls(Release.from_json(value["release"]), instances, bool(value["degraded"]))


@dataclass(frozen=True)
class Resolution(Entry):
    """What a reference stands for now: the release, and its instances (`up`, then `suspect`).

    `degraded` tells that the hub lost sight of most instances at once and holds on to what it knew last.
    """


@dataclass(frozen=True)
class Changes:
    """Releases that were published, yanked or deprecated after a point in the change feed, in order.

    Pass `sequence` as the next `since`.
    """

    sequence: int
    releases: tuple[Release, ...] = field(default_factory=tuple)


@dataclass(frozen=True, slots=True)
class Remains:
    """What is left of an instance that is gone, or of a draft (without a `url`), `seen` last at a moment in seconds."""

    name: str
    version: str
    url: str | None
    seen: float


@dataclass(frozen=True, slots=True)
class Pruned:
    """What was removed from a hub, or would be (`dry_run`)."""

    instances: tuple[Remains, ...]
    drafts: tuple[Remains, ...]
    dry_run: bool

    def to_json(self) -> dict[str, Any]:
        """The record as a JSON object."""
        return asdict(self)

    @classmethod
    def from_json(cls, value: Mapping[str, Any]) -> Self:
        """Reads what `to_json` wrote."""
        instances, drafts = (tuple(Remains(**one) for one in value[kind]) for kind in ("instances", "drafts"))
        return cls(instances, drafts, bool(value["dry_run"]))


@dataclass(frozen=True, slots=True)
class LaunchClaim:
    """The outcome of asking to be the one who launches a release.

    `granted`: the asker launches and passes `id` on to the process. Otherwise somebody else does: `id` is theirs, and
    `error` is how their launch failed, once it did.
    """

    id: str
    granted: bool
    error: str | None = None
