"""A hub over a database, shared by every process that opens it."""

from __future__ import annotations

import copy
import random
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any, Self

from agent_env.errors import InvalidArguments
from agent_env.hub import launches, leases, pruning, releases
from agent_env.hub.database import Database
from agent_env.hub.facts import Facts
from agent_env.hub.hub import Hub
from agent_env.hub.liveness import TTL_SECONDS
from agent_env.hub.location import Location
from agent_env.hub.records import (
    Changes,
    Entry,
    Instance,
    LaunchClaim,
    Lease,
    Pruned,
    Release,
    Resolution,
    id_of,
)
from agent_env.hub.resolution import pick, precedence
from agent_env_cards import DRAFT_VERSION, CardError, EnvironmentCard, Reference, parse_ref


class LocalHub(Hub):
    """A hub over a database; every call is one transaction.

    `steady` is for the one process that others reach the hub through: after its start, or a jump of the clock, no
    instance is given up for one TTL, since all of them may just have had nobody to renew with.
    """

    def __init__(
        self,
        location: Location,
        *,
        clock: Callable[[], float] = time.time,
        rng: random.Random | None = None,
        steady: bool = False,
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        super().__init__(location, rng)
        self._database = Database(location)
        self._clock = clock
        self._owner: str | None = None
        self._grace = _Grace(clock, monotonic) if steady else None

    def on_behalf_of(self, owner: str) -> Self:
        """The same hub, used by somebody: names belong to whoever published them first."""
        view = copy.copy(self)
        view._owner = owner
        return view

    async def start(self) -> None:
        await self._database.start()

    async def aclose(self) -> None:
        await self._database.aclose()

    async def publish(self, card: EnvironmentCard, launch: Mapping[str, Any] | None = None) -> Release:
        facts = Facts.of(card)
        async with self._database.write() as connection:
            return await releases.publish(connection, facts, launch, self._owner, self._clock())

    async def yank(self, name: str, version: str, reason: str) -> Release:
        return await self._mark(name, version, yanked=reason)

    async def unyank(self, name: str, version: str) -> Release:
        return await self._mark(name, version, yanked=None)

    async def deprecate(self, name: str, version: str, reason: str) -> Release:
        return await self._mark(name, version, deprecated=reason)

    async def prune(self, *, drafts_older_than: float | None = None, dry_run: bool = False) -> Pruned:
        async with self._database.write() as connection:
            return await pruning.prune(
                connection, drafts_older_than, self._owner, self._clock(), grace=self._in_grace(), dry_run=dry_run
            )

    async def _mark(self, name: str, version: str, **marks: Any) -> Release:
        _reference(f"{name}@{version}")
        if version == DRAFT_VERSION:
            raise InvalidArguments(f"{name}@{version} is a draft; it changes with the next one and needs no mark")
        async with self._database.write() as connection:
            return await releases.mark(connection, str(self.location), self._owner, name, version, **marks)

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
        if not url.startswith(("http://", "https://")):
            raise InvalidArguments(f"an instance is registered under its http or https URL, not {url!r}")
        facts = Facts.of(card)
        given = leases.Registration(url.rstrip("/"), capacity, load, source, launch_id)
        async with self._database.write() as connection:
            now = self._clock()
            launched = launch_id is not None
            await releases.publish(connection, facts, launch, self._owner, now, launched=launched)
            return await leases.register(connection, facts, given, self._owner, now)

    async def renew(self, lease: Lease | str, load: int | None = None) -> None:
        async with self._database.write() as connection:
            await leases.renew(connection, id_of(lease), load, self._clock(), grace=self._in_grace())

    async def release(self, lease: Lease | str) -> None:
        async with self._database.write() as connection:
            await leases.end(connection, id_of(lease), self._clock())

    async def doubt(self, instance: Instance | str) -> None:
        async with self._database.write() as connection:
            await leases.doubt(connection, id_of(instance), self._clock())

    async def resolve(self, ref: str | Reference) -> Resolution:
        reference = _reference(ref)
        async with self._database.read() as connection:
            known = await releases.of_name(connection, reference.name, str(self.location))
            running, degraded = await leases.alive(
                connection, self._clock(), grace=self._in_grace(), name=reference.name
            )
        release = pick(reference, [_newest(release, running, reference) for release in known], str(self.location))
        return Resolution(release, _of(release, running), degraded)

    async def list(self, name: str | None = None) -> Sequence[Entry]:
        async with self._database.read() as connection:
            known = await releases.everything(connection, name)
            running, degraded = await leases.alive(connection, self._clock(), grace=self._in_grace(), name=name)
        by_release: dict[tuple[str, str], list[Instance]] = {}
        for instance in running:
            by_release.setdefault((instance.name, instance.version), []).append(instance)
        known.sort(key=lambda release: (release.name, precedence(release)))
        return [
            Entry(release, tuple(by_release.get((release.name, release.version), ())), degraded) for release in known
        ]

    async def instances(self, name: str | None = None, *, launch_id: str | None = None) -> Sequence[Instance]:
        async with self._database.read() as connection:
            running, _ = await leases.alive(
                connection, self._clock(), grace=self._in_grace(), name=name, launch_id=launch_id
            )
        return running

    async def changes(self, since: int = 0) -> Changes:
        async with self._database.read() as connection:
            sequence, changed = await releases.changed(connection, since)
        return Changes(sequence, tuple(changed))

    async def claim_launch(self, name: str, version: str, *, seconds: float, after: str | None = None) -> LaunchClaim:
        async with self._database.write() as connection:
            return await launches.claim(connection, f"{name}@{version}", seconds, after, self._clock())

    async def end_launch(self, claim_id: str, error: str | None = None) -> None:
        async with self._database.write() as connection:
            await launches.end(connection, claim_id, error)

    def _in_grace(self) -> bool:
        return self._grace is not None and self._grace.holds()


class _Grace:
    """Tells whether the hub has been awake for less than one TTL."""

    def __init__(self, clock: Callable[[], float], monotonic: Callable[[], float]) -> None:
        self._clock = clock
        self._monotonic = monotonic
        self._offset = clock() - monotonic()
        self._until = clock() + TTL_SECONDS

    def holds(self) -> bool:
        now = self._clock()
        offset = now - self._monotonic()
        if abs(offset - self._offset) > TTL_SECONDS:
            # The wall clock was set, or the machine slept: nobody renewed in the time that seems to have passed.
            self._until = now + TTL_SECONDS
        self._offset = offset
        return now < self._until


def _reference(ref: str | Reference) -> Reference:
    try:
        return parse_ref(ref) if isinstance(ref, str) else ref
    except CardError as error:
        raise InvalidArguments(error.message, problems=[problem.to_dict() for problem in error.problems]) from error


def _newest(release: Release, running: Sequence[Instance], reference: Reference) -> Release:
    """A draft as its newest instance has it: that one may be older than the last draft, whose instance has ended."""
    if not release.draft:
        return release
    drafts = [
        instance
        for instance in running
        if instance.version == release.version and reference.digest in (None, instance.digest)
    ]
    if not drafts:
        return release
    newest = max(drafts, key=lambda instance: (instance.up, instance.registered))
    if newest.digest == release.digest:
        return release
    return replace(release, digest=newest.digest, card_json=newest.card_json, published=newest.registered)


def _of(release: Release, running: Sequence[Instance]) -> tuple[Instance, ...]:
    found = tuple(
        instance for instance in running if instance.version == release.version and instance.digest == release.digest
    )
    return Entry(release, found).current
