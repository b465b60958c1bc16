"""Releases in the database: published once, then only marked."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from sqlalchemy import RowMapping, insert, select, update
from sqlalchemy.ext.asyncio import AsyncConnection

from agent_env.errors import Forbidden, ReleaseConflict
from agent_env.hub.difference import difference, summary
from agent_env.hub.facts import Facts
from agent_env.hub.records import Release
from agent_env.hub.resolution import pick, unknown_name
from agent_env.hub.schema import feed, releases
from agent_env_cards import Reference
from agent_env_cards.digest import release_facts


async def publish(
    connection: AsyncConnection,
    facts: Facts,
    launch: Mapping[str, Any] | None,
    owner: str | None,
    now: float,
    *,
    launched: bool = False,
) -> Release:
    """Publishes once: the same digest again only adds or moves the launch, another raises `ReleaseConflict`.

    A draft is replaced, with its launch; one that was `launched` from it keeps that, edited as it may be. The owner
    stays the first one, and nobody else says how a release is launched: whoever launches it relies on that.
    """
    sequence = await lock(connection) + 1
    known = await find(connection, facts.name, facts.version)
    await _check_owner(connection, facts.name, owner, known)
    if known is not None and launch not in (None, known.launch) and known.owner != owner:
        raise _not_yours(facts.name, known.owner)
    offered = Release(
        facts.name, facts.version, facts.digest, facts.card, launch, owner=owner, published=now, sequence=sequence
    )
    if known is None:
        await connection.execute(insert(releases).values(_row(offered)))
    elif known.draft:
        if known.digest == offered.digest and launch in (None, known.launch):
            return known
        if launched and launch is None:
            offered = replace(offered, launch=known.launch)
        offered = replace(offered, owner=known.owner)
        await _update(connection, offered)
    else:
        _check_same(known, offered)
        if launch in (None, known.launch):
            return known
        offered = replace(known, launch=launch, sequence=sequence)
        await _update(connection, offered)
    await _advance(connection, sequence)
    return offered


async def mark(
    connection: AsyncConnection, hub: str, owner: str | None, name: str, version: str, **marks: Any
) -> Release:
    """Sets `yanked` or `deprecated` of a release that exists."""
    sequence = await lock(connection) + 1
    known = pick(Reference(name, version), await of_name(connection, name, hub), hub)
    await _check_owner(connection, name, owner, known)
    marked = replace(known, sequence=sequence, **marks)
    await _update(connection, marked)
    await _advance(connection, sequence)
    return marked


async def lock(connection: AsyncConnection) -> int:
    """Locks the feed, and with it all changes to releases, until the transaction ends; gives its last number."""
    sequence: int = (await connection.execute(select(feed.c.sequence).with_for_update())).scalar_one()
    return sequence


async def find(connection: AsyncConnection, name: str, version: str) -> Release | None:
    """One release."""
    query = select(releases).where(releases.c.name == name, releases.c.version == version)
    row = (await connection.execute(query)).mappings().one_or_none()
    return None if row is None else _release(row)


async def of_name(connection: AsyncConnection, name: str, hub: str) -> list[Release]:
    """All releases of a name, and its draft; raises `NameNotFound` when there is none."""
    found = (await connection.execute(select(releases).where(releases.c.name == name))).mappings().all()
    if not found:
        known = (await connection.execute(select(releases.c.name).distinct())).scalars()
        raise unknown_name(name, known, hub)
    return [_release(row) for row in found]


async def everything(connection: AsyncConnection, name: str | None) -> list[Release]:
    """All releases and drafts, of one name if given."""
    query = select(releases) if name is None else select(releases).where(releases.c.name == name)
    return [_release(row) for row in (await connection.execute(query)).mappings().all()]


async def changed(connection: AsyncConnection, since: int) -> tuple[int, list[Release]]:
    """The feed's last number, and the releases that changed after `since`, in order."""
    sequence: int = (await connection.execute(select(feed.c.sequence))).scalar_one()
    query = select(releases).where(releases.c.sequence > since).order_by(releases.c.sequence)
    return sequence, [_release(row) for row in (await connection.execute(query)).mappings().all()]


def _check_same(known: Release, offered: Release) -> None:
    ref = f"{known.name}@{known.version}"
    if known.digest != offered.digest:
        places = difference(release_facts(known.card_json), release_facts(offered.card_json))
        raise ReleaseConflict(
            f"{ref} is published already with another card (it differs at {summary(places)}); bump the version",
            published=known.digest,
            offered=offered.digest,
            diff=places,
        )
    # The source is that of a file, and a file may have several agents; the folder that it lies in may be another.
    for member, what in (
        ("kind", "another kind of launch"),
        ("source", "other source code"),
        ("target", "another agent"),
    ):
        before, after = (known.launch or {}).get(member), (offered.launch or {}).get(member)
        if before is not None and after is not None and before != after:
            raise ReleaseConflict(
                f"{ref} is published already with {what} behind the same card; bump the version",
                published=before,
                offered=after,
                diff=[{"pointer": f"/launch/{member}", "published": before, "offered": after}],
            )


async def _check_owner(connection: AsyncConnection, name: str, owner: str | None, known: Release | None) -> None:
    """A served hub knows who asks: whoever published a name first owns it, and changes what is theirs alone.

    What was published without an owner is the machine's on which the hub is, and no caller's from elsewhere.
    """
    if owner is None:
        return
    query = select(releases.c.owner).where(releases.c.name == name)
    first = (await connection.execute(query.order_by(releases.c.published, releases.c.sequence).limit(1))).one_or_none()
    owners = [] if first is None else [first.owner]
    for found in owners if known is None else [*owners, known.owner]:
        if found != owner:
            raise _not_yours(name, found)


def _not_yours(name: str, owner: str | None) -> Forbidden:
    holder = "the machine of this hub" if owner is None else repr(owner)
    return Forbidden(f"the name {name!r} belongs to {holder}; publish under another name")


async def _advance(connection: AsyncConnection, sequence: int) -> None:
    await connection.execute(update(feed).values(sequence=sequence))


async def _update(connection: AsyncConnection, release: Release) -> None:
    query = update(releases).where(releases.c.name == release.name, releases.c.version == release.version)
    await connection.execute(query.values(_row(release)))


def _row(release: Release) -> dict[str, Any]:
    values = release.to_json()
    values["card"] = json.dumps(values.pop("card_json"), ensure_ascii=False)
    values["launch"] = None if release.launch is None else json.dumps(release.launch, ensure_ascii=False)
    return values


def _release(row: RowMapping) -> Release:
    values: dict[str, Any] = dict(row)
    values["card_json"] = json.loads(values.pop("card"))
    values["launch"] = None if values["launch"] is None else json.loads(values["launch"])
    return Release(**values)
