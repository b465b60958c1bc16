"""Claims in the database: of several callers that want the same release launched, one does it."""

from __future__ import annotations

import secrets

from sqlalchemy import delete, insert, select, update
from sqlalchemy.ext.asyncio import AsyncConnection

from agent_env.hub.records import LaunchClaim
from agent_env.hub.schema import feed, launches


async def claim(
    connection: AsyncConnection, release: str, seconds: float, after: str | None, now: float
) -> LaunchClaim:
    """Grants the claim unless somebody holds it, or unless the claim `after`, which the asker waited for, failed."""
    # There may be no row of this release to lock, so all that claim take turns at the one row there is.
    await connection.execute(select(feed.c.id).with_for_update())
    held = (await connection.execute(select(launches).where(launches.c.release == release))).one_or_none()
    if held is not None:
        if not held.ended and held.expires > now:
            return LaunchClaim(held.id, granted=False)
        if held.ended and held.error is not None and held.id == after:
            return LaunchClaim(held.id, granted=False, error=held.error)
        await connection.execute(delete(launches).where(launches.c.release == release))
    granted = LaunchClaim(secrets.token_hex(16), granted=True)
    await connection.execute(
        insert(launches).values(release=release, id=granted.id, expires=now + seconds, ended=0, error=None)
    )
    return granted


async def end(connection: AsyncConnection, claim_id: str, error: str | None) -> None:
    """Ends a claim, with the reason if the launch failed."""
    await connection.execute(update(launches).where(launches.c.id == claim_id).values(ended=1, error=error))
