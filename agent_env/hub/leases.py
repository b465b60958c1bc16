"""Leases in the database: made at registration, renewed, ended; what they say about liveness."""

from __future__ import annotations

import json
import secrets
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from sqlalchemy import ColumnElement, RowMapping, delete, func, insert, select, update
from sqlalchemy.ext.asyncio import AsyncConnection

from agent_env.errors import Forbidden, LeaseLost
from agent_env.hub.facts import Facts
from agent_env.hub.liveness import (
    BRAKE_SECONDS,
    GONE_SECONDS,
    REMEMBER_SECONDS,
    RENEW_SECONDS,
    TTL_SECONDS,
    Judgement,
    Pulse,
    judge,
)
from agent_env.hub.records import Instance, Lease, instance_id
from agent_env.hub.schema import leases, releases

_TIMES = (leases.c.registered, leases.c.renewed, leases.c.doubted, leases.c.ended, leases.c.fell_silent)


@dataclass(frozen=True, slots=True)
class Registration:
    """What an instance says of itself beyond its card."""

    url: str
    capacity: int | None
    load: int
    source: str | None
    launch_id: str | None


async def register(
    connection: AsyncConnection, facts: Facts, given: Registration, owner: str | None, now: float
) -> Lease:
    """Makes a lease; another release that was listed at the same URL ends, since it cannot be there any more.

    Raises `Forbidden` when that is somebody else's than the `owner`'s; None may do everything.
    """
    await connection.execute(
        delete(leases).where(func.coalesce(leases.c.ended, leases.c.renewed) < now - REMEMBER_SECONDS)
    )
    there = (leases.c.url == given.url) & (leases.c.ended.is_(None))
    others = (leases.c.digest != facts.digest) | (leases.c.name != facts.name) | (leases.c.version != facts.version)
    theirs = await _supersedable(connection, there & others, given.url, owner, now)
    await connection.execute(update(leases).where(leases.c.id.in_(theirs)).values(ended=now, superseded=1))
    lease = Lease(secrets.token_urlsafe(24), facts.name, facts.version, given.url, TTL_SECONDS, RENEW_SECONDS)
    values = {
        "id": lease.instance_id,
        "name": facts.name,
        "version": facts.version,
        "digest": facts.digest,
        "url": given.url,
        "card": json.dumps(facts.card, ensure_ascii=False),
        "capacity": given.capacity,
        "load": given.load,
        "source": given.source,
        "launch_id": given.launch_id,
        "registered": now,
        "renewed": now,
        "superseded": 0,
    }
    await connection.execute(insert(leases).values(values))
    return lease


async def _supersedable(
    connection: AsyncConnection, where: ColumnElement[bool], url: str, owner: str | None, now: float
) -> list[str]:
    """The leases among these that an owner may end; one that lapsed is in nobody's way, and left as it is."""
    release = (releases.c.name == leases.c.name) & (releases.c.version == leases.c.version)
    query = select(leases.c.id, leases.c.renewed, releases.c.owner).select_from(leases.outerjoin(releases, release))
    ours: list[str] = []
    for row in (await connection.execute(query.where(where))).all():
        if owner is None or row.owner == owner:
            ours.append(row.id)
        elif row.renewed > now - GONE_SECONDS:
            raise Forbidden(
                f"another release is listed at {url!r}, and it is not yours to replace; register at a URL of your own, "
                f"or wait until its lease has lapsed"
            )
    return ours


async def renew(connection: AsyncConnection, lease_id: str, load: int | None, now: float, *, grace: bool) -> None:
    """Renews a lease; raises `LeaseLost`."""
    changes: dict[str, Any] = {"renewed": now, "doubted": None} | ({} if load is None else {"load": load})
    mine = (leases.c.id == instance_id(lease_id)) & leases.c.ended.is_(None)
    fresh = await connection.execute(
        update(leases).where(mine, leases.c.renewed > now - GONE_SECONDS).values(**changes)
    )
    if fresh.rowcount:
        return
    row = (
        (await connection.execute(select(leases).where(leases.c.id == instance_id(lease_id)))).mappings().one_or_none()
    )
    if row is None:
        raise LeaseLost("the hub does not know this lease; register again")
    if row["ended"] is not None:
        why = "another release was registered at the same URL" if row["superseded"] else "it was released"
        raise LeaseLost(f"the lease of {row['url']} has ended: {why}", superseded=True if row["superseded"] else None)
    # After a long silence only a look at all the others tells a lost instance from a hub that was away.
    _, (state,) = await _judge(connection, [row], now, grace=grace)
    if state == "gone":
        raise LeaseLost(f"the lease of {row['url']} lapsed {now - row['renewed']:.0f} s ago; register again")
    await connection.execute(update(leases).where(mine).values(fell_silent=row["renewed"], **changes))


async def end(connection: AsyncConnection, lease_id: str, now: float) -> None:
    """Ends a lease that has not ended."""
    query = update(leases).where(leases.c.id == instance_id(lease_id), leases.c.ended.is_(None))
    await connection.execute(query.values(ended=now))


async def doubt(connection: AsyncConnection, instance: str, now: float) -> None:
    """Notes that a caller could not reach an instance."""
    await connection.execute(update(leases).where(leases.c.id == instance).values(doubted=now))


async def alive(
    connection: AsyncConnection,
    now: float,
    *,
    grace: bool,
    name: str | None = None,
    launch_id: str | None = None,
) -> tuple[list[Instance], bool]:
    """The instances that are up or suspect, and whether a mass loss is suspected.

    Those that are up come first, then the newest. Two leases for one release at one URL are one instance.
    """
    query = select(leases).where(leases.c.ended.is_(None), leases.c.renewed > now - GONE_SECONDS - BRAKE_SECONDS)
    if name is not None:
        query = query.where(leases.c.name == name)
    if launch_id is not None:
        query = query.where(leases.c.launch_id == launch_id)
    rows = (await connection.execute(query.order_by(leases.c.registered.desc()))).mappings().all()
    judgement, states = await _judge(connection, rows, now, grace=grace)
    found: dict[tuple[str, str], Instance] = {}
    for row, state in zip(rows, states, strict=True):
        if state != "gone":
            instance = _instance(row, state)
            same = found.get((instance.digest, instance.url))
            if same is None or (instance.up and not same.up):
                found[instance.digest, instance.url] = instance
    return sorted(found.values(), key=lambda instance: not instance.up), judgement.degraded


async def _judge(
    connection: AsyncConnection, rows: Sequence[RowMapping], now: float, *, grace: bool
) -> tuple[Judgement, list[str]]:
    """Judges all leases of the hub, and tells the states of these rows."""
    horizon = now - 2 * (GONE_SECONDS + BRAKE_SECONDS)
    others = (await connection.execute(select(*_TIMES, leases.c.id).where(leases.c.renewed > horizon))).mappings().all()
    judgement = judge([_pulse(row) for row in others], now, grace=grace)
    states = {row["id"]: state for row, state in zip(others, judgement.states, strict=True)}
    return judgement, [states.get(row["id"], "gone") for row in rows]


def _pulse(row: RowMapping) -> Pulse:
    return Pulse(row["registered"], row["renewed"], row["doubted"], row["ended"], row["fell_silent"])


def _instance(row: RowMapping, state: Any) -> Instance:
    return Instance(
        id=row["id"],
        name=row["name"],
        version=row["version"],
        digest=row["digest"],
        url=row["url"],
        state=state,
        card_json=json.loads(row["card"]),
        capacity=row["capacity"],
        load=row["load"],
        source=row["source"],
        launch_id=row["launch_id"],
        registered=row["registered"],
        renewed=row["renewed"],
    )
