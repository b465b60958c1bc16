"""What nobody needs any more in the database: leases of instances that are gone, drafts that nobody serves."""

from __future__ import annotations

from collections.abc import Sequence

from sqlalchemy import delete, func, select
from sqlalchemy.ext.asyncio import AsyncConnection

from agent_env.hub import leases as living
from agent_env.hub.liveness import BRAKE_SECONDS, GONE_SECONDS
from agent_env.hub.records import Pruned, Remains
from agent_env.hub.releases import lock
from agent_env.hub.schema import launches, leases, releases
from agent_env_cards import DRAFT_VERSION

SETTLED_SECONDS = 2 * (GONE_SECONDS + BRAKE_SECONDS)
"""How long after its last sign of life a lease counts in no judgement of the others any more; it is kept until then."""

_last = func.coalesce(leases.c.ended, leases.c.renewed)


async def prune(
    connection: AsyncConnection,
    drafts_older_than: float | None,
    owner: str | None,
    now: float,
    *,
    grace: bool,
    dry_run: bool,
) -> Pruned:
    """Deletes, or only names, what is gone; drafts only of the `owner`, where there is one."""
    await lock(connection)
    drafts: Sequence[Remains] = ()
    if drafts_older_than is not None:
        drafts = await _unserved(connection, owner, now - drafts_older_than, now, grace=grace)
    query = select(leases.c.name, leases.c.version, leases.c.url, _last.label("seen"))
    gone = (await connection.execute(query.where(_last < now - SETTLED_SECONDS).order_by(_last))).mappings().all()
    if not dry_run:
        await connection.execute(delete(leases).where(_last < now - SETTLED_SECONDS))
        for draft in drafts:
            await connection.execute(
                delete(releases).where(releases.c.name == draft.name, releases.c.version == DRAFT_VERSION)
            )
    return Pruned(tuple(Remains(**row) for row in gone), tuple(drafts), dry_run)


async def _unserved(
    connection: AsyncConnection, owner: str | None, before: float, now: float, *, grace: bool
) -> list[Remains]:
    """The drafts that no instance serves and nobody launches, last heard of before a moment."""
    running, _ = await living.alive(connection, now, grace=grace)
    busy = {instance.name for instance in running if instance.version == DRAFT_VERSION}
    starting = select(launches.c.release).where(launches.c.ended == 0, launches.c.expires > now)
    busy |= {release.rpartition("@")[0] for release in (await connection.execute(starting)).scalars()}
    of_drafts = select(leases.c.name, func.max(_last).label("seen")).where(leases.c.version == DRAFT_VERSION)
    heard: dict[str, float] = {
        row.name: row.seen for row in (await connection.execute(of_drafts.group_by(leases.c.name))).all()
    }
    query = select(releases.c.name, releases.c.published).where(releases.c.version == DRAFT_VERSION)
    if owner is not None:
        query = query.where(releases.c.owner == owner)
    found = [
        Remains(name, DRAFT_VERSION, None, max(published, heard.get(name, published)))
        for name, published in (await connection.execute(query.order_by(releases.c.name))).all()
        if name not in busy
    ]
    return [draft for draft in found if draft.seen <= before]
