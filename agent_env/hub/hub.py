"""The hub: which environments exist, where they run, and how to start one."""

from __future__ import annotations

import random
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Generator, Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from agent_env.hub.choice import Chooser
from agent_env.hub.location import Location, locate
from agent_env.hub.records import Changes, Entry, Instance, LaunchClaim, Lease, Pruned, Release, Resolution
from agent_env.net import PerLoop
from agent_env_cards import EnvironmentCard, Reference


class Hub(ABC):
    """Knows releases (a card and how to launch it) and instances (where one is running, by lease).

    The same calls work over a database and over the URL of a served hub. Every call raises `TransportError` when the
    database or the server cannot be reached.

        async with Hub.open() as hub:
            await hub.publish(card)
            resolution = await hub.resolve("agent-b@^1")
            instance = hub.choose(resolution.instances)
    """

    location: Location

    def __init__(self, location: Location, rng: random.Random | None = None) -> None:
        self.location = location
        self._chooser = Chooser(rng or random.Random())

    @staticmethod
    def open(
        target: str | Path | None = None,
        *,
        token: str | None = None,
        clock: Callable[[], float] = time.time,
        rng: random.Random | None = None,
    ) -> Opening:
        """Opens a hub: `hub = await Hub.open()`, or `async with Hub.open() as hub`, which also closes it.

        `target` is a path, a SQLAlchemy URL of a database, or the http(s) URL of a served hub; without it the
        environment variable AGENT_ENV_HUB, else a file in the user's data directory. `token` is sent to a served hub
        (default: the environment variable AGENT_ENV_HUB_TOKEN). `clock` (wall-clock seconds) and `rng` are for tests.
        Raises `ConfigurationError` for a target that is none of these or a database of a newer release.
        """
        return Opening(lambda: _make(locate(target), token, clock, rng))

    @abstractmethod
    async def start(self) -> None:
        """Connects and brings the schema up to date; every other call does so when it was not done."""

    @abstractmethod
    async def aclose(self) -> None:
        """Closes the connections; leases stay until they lapse."""

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.aclose()

    # ── releases ───────────────────────────────────────────────────────────────────────────────────────────────

    @abstractmethod
    async def publish(self, card: EnvironmentCard, launch: Mapping[str, Any] | None = None) -> Release:
        """Publishes a release, or a draft when the card's version is `0.0.0-dev`.

        The same digest again changes nothing (but adds or moves the launch specification); another digest, or another
        agent or other source code behind the same one, raises `ReleaseConflict` with `data["diff"]`. A draft is
        replaced.
        """

    @abstractmethod
    async def yank(self, name: str, version: str, reason: str) -> Release:
        """Takes a release out of every range; exact versions and digests still find it, with the reason."""

    @abstractmethod
    async def unyank(self, name: str, version: str) -> Release:
        """Takes a yank back."""

    @abstractmethod
    async def deprecate(self, name: str, version: str, reason: str) -> Release:
        """Marks a release as one not to start with; it resolves as before. The reason names the successor."""

    @abstractmethod
    async def prune(self, *, drafts_older_than: float | None = None, dry_run: bool = False) -> Pruned:
        """Removes what is left of instances that are gone, and, with an age in seconds, drafts that nobody serves.

        A lease is kept for 21 minutes after its last sign of life, while it counts in the judgement of the others.
        A draft is removed when no instance of it is up or suspect, nobody launches it, and it was neither published
        nor served for `drafts_older_than`; with an owner only by that owner. A release is never removed, yanked or
        not: its name and version are never free again. `dry_run` only tells what would be removed.
        """

    # ── instances ──────────────────────────────────────────────────────────────────────────────────────────────

    @abstractmethod
    async def register(
        self,
        card: EnvironmentCard,
        url: str,
        *,
        capacity: int | None = None,
        load: int = 0,
        source: str | None = None,
        launch: Mapping[str, Any] | None = None,
        launch_id: str | None = None,
    ) -> Lease:
        """Publishes the card if it is new and lists an instance of it at `url` until its lease lapses.

        `url` is the base URL under which the card's paths are found. Another release at the same URL ends.
        Raises as `publish` does.
        """

    @abstractmethod
    async def renew(self, lease: Lease | str, load: int | None = None) -> None:
        """Renews a lease and reports the load; raises `LeaseLost` when it lapsed, was released or was superseded.

        `data["superseded"]` tells of the last: somebody else serves at this URL now, so do not register again.
        """

    @abstractmethod
    async def release(self, lease: Lease | str) -> None:
        """Ends a lease at once; nothing happens when it has ended already."""

    @abstractmethod
    async def doubt(self, instance: Instance | str) -> None:
        """Reports that an instance could not be reached: it is `suspect` until its next renewal."""

    # ── reading ────────────────────────────────────────────────────────────────────────────────────────────────

    @abstractmethod
    async def resolve(self, ref: str | Reference) -> Resolution:
        """Finds the release that a reference stands for, and its instances.

        Without a range it is the highest release that is neither yanked nor a pre-release, and a draft only where
        there is no release at all. Raises `NameNotFound` with the closest names, `VersionNotFound` with those that
        exist.
        """

    @abstractmethod
    async def list(self, name: str | None = None) -> Sequence[Entry]:
        """Everything the hub knows, by name and then version; an entry is listed whether it can be reached or not."""

    @abstractmethod
    async def instances(self, name: str | None = None, *, launch_id: str | None = None) -> Sequence[Instance]:
        """The instances that are up or suspect, of one name or one launch if given."""

    @abstractmethod
    async def changes(self, since: int = 0) -> Changes:
        """The releases that changed after `since`, for an index that follows the hub."""

    def choose(self, instances: Sequence[Instance], key: str | None = None) -> Instance | None:
        """Picks the less loaded of two random instances; with a key, the same one as before while it is there.

        Those that are up and have room come first; a suspect one is chosen only when there is no other.
        """
        return self._chooser.choose(instances, key)

    # ── launching ──────────────────────────────────────────────────────────────────────────────────────────────

    @abstractmethod
    async def claim_launch(self, name: str, version: str, *, seconds: float, after: str | None = None) -> LaunchClaim:
        """Asks to be the one process that launches a release; a claim lapses after `seconds`.

        `after` is the id of a claim whose end the asker waited for: if that very claim failed, its error is returned
        and nothing is granted.
        """

    @abstractmethod
    async def end_launch(self, claim_id: str, error: str | None = None) -> None:
        """Ends a claim; `error` tells those who wait why the launch failed."""


class Opening:
    """A hub that is about to be opened: await it, or enter it."""

    def __init__(self, make: Callable[[], Hub]) -> None:
        self._make = make
        self._hub: Hub | None = None

    def __await__(self) -> Generator[Any, None, Hub]:
        return self._make().__aenter__().__await__()

    async def __aenter__(self) -> Hub:
        self._hub = self._make()
        return await self._hub.__aenter__()

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._hub is not None:
            await self._hub.aclose()


def _make(
    location: Location,
    token: str | None = None,
    clock: Callable[[], float] = time.time,
    rng: random.Random | None = None,
) -> Hub:
    # Each kind brings its own dependencies; a client of a served hub must not pay for a database toolkit.
    if location.remote:
        from agent_env.hub.remote import RemoteHub

        return RemoteHub(location, token=token, rng=rng)
    from agent_env.hub.local import LocalHub

    return LocalHub(location, clock=clock, rng=rng)


async def _close(hub: Hub) -> None:
    await hub.aclose()


_shared: PerLoop[Location, Hub] = PerLoop(_make, _close)


def shared_hub(target: str | Path | None = None) -> Hub:
    """The hub that everything in this process and event loop shares; it opens at its first call and is closed with
    the loop. `target` is as in `Hub.open`."""
    return _shared.get(locate(target))
