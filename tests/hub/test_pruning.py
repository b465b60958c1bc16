"""Pruning: what is gone is removed, what is there or was published stays; one body over a file and over a URL."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from agent_env.context import Principal
from agent_env.errors import Forbidden, InvalidArguments, LeaseLost, Unauthenticated
from agent_env.hub import Hub
from agent_env.hub.app import PUBLISH_SCOPE
from agent_env.net import Tokens, post_json
from agent_env_cards import DRAFT_VERSION, EnvironmentCard

pytestmark = pytest.mark.anyio

MakeCard = Callable[..., EnvironmentCard]
URL = "http://127.0.0.1:8001"
DAY = 24 * 3600.0


async def names(hub: Hub) -> list[str]:
    return [f"{entry.release.name}@{entry.release.version}" for entry in await hub.list()]


async def test_leases_of_instances_that_are_gone_are_forgotten(hub: Hub, make_card: MakeCard, clock: Any) -> None:
    dead = await hub.register(make_card(), URL)
    ended = await hub.register(make_card("agent-c"), "http://127.0.0.1:8002")
    await hub.release(ended)
    clock.advance(1300)
    alive = await hub.register(make_card("agent-d"), "http://127.0.0.1:8003")
    pruned = await hub.prune()
    assert sorted((one.name, one.url) for one in pruned.instances) == [
        ("agent-b", URL),
        ("agent-c", "http://127.0.0.1:8002"),
    ]
    assert (pruned.drafts, pruned.dry_run) == ((), False)
    for lease in (dead, ended):
        with pytest.raises(LeaseLost, match="does not know this lease"):
            await hub.renew(lease)
    await hub.renew(alive)
    assert (await hub.prune()).instances == ()


async def test_a_lease_that_still_counts_for_the_others_is_kept(hub: Hub, make_card: MakeCard, clock: Any) -> None:
    leases = [await hub.register(make_card(), f"http://127.0.0.1:{port}") for port in range(8002, 8007)]
    old = await hub.register(make_card(), URL)
    await hub.register(make_card("agent-c"), URL)
    clock.advance(60)
    assert len(await hub.instances("agent-b")) == 5  # suspected to be the hub's loss, not theirs
    pruned = await hub.prune(drafts_older_than=0)
    assert (pruned.instances, pruned.drafts) == ((), ())
    assert len(await hub.instances("agent-b")) == 5
    await hub.renew(leases[0])
    with pytest.raises(LeaseLost) as lost:
        await hub.renew(old)
    assert lost.value.data == {"superseded": True}


async def test_drafts_that_nobody_serves_go_and_all_else_stays(hub: Hub, make_card: MakeCard, clock: Any) -> None:
    def draft(name: str) -> EnvironmentCard:
        return make_card(name, DRAFT_VERSION)

    await hub.publish(draft("abandoned"))
    await hub.publish(draft("pushed"), {"kind": "url"})
    await hub.register(draft("stopped"), "http://127.0.0.1:1")
    await hub.publish(draft("starting"), {"kind": "url"})
    await hub.publish(make_card("released"))
    await hub.publish(make_card("yanked"))
    await hub.yank("yanked", "1.0.0", "wrong")
    clock.advance(31)
    up = await hub.register(draft("up"), "http://127.0.0.1:2")
    await hub.register(draft("suspect"), "http://127.0.0.1:3")
    clock.advance(15)
    await hub.renew(up)
    assert (await hub.claim_launch("starting", DRAFT_VERSION, seconds=60)).granted
    everything = await names(hub)
    assert (await hub.prune()).drafts == ()
    assert await names(hub) == everything
    told = await hub.prune(drafts_older_than=0, dry_run=True)
    assert told.dry_run and await names(hub) == everything
    pruned = await hub.prune(drafts_older_than=0)
    assert pruned.drafts == told.drafts
    assert [(one.name, one.version, one.url) for one in pruned.drafts] == [
        (name, DRAFT_VERSION, None) for name in ("abandoned", "pushed", "stopped")
    ]
    assert await names(hub) == [
        "released@1.0.0",
        f"starting@{DRAFT_VERSION}",
        f"suspect@{DRAFT_VERSION}",
        f"up@{DRAFT_VERSION}",
        "yanked@1.0.0",
    ]
    # A draft comes back with its next start.
    await hub.register(draft("stopped"), "http://127.0.0.1:1")
    assert (await hub.resolve("stopped")).instances


async def test_a_draft_is_as_old_as_its_last_sign_of_life(hub: Hub, make_card: MakeCard, clock: Any) -> None:
    await hub.publish(make_card("old", DRAFT_VERSION))
    served = await hub.register(make_card("served", DRAFT_VERSION), URL)
    for _ in range(7 * 24):
        clock.advance(3600)
        served = await hub.register(make_card("served", DRAFT_VERSION), URL)
    await hub.publish(make_card("new", DRAFT_VERSION))
    heard = clock.now
    clock.advance(60)
    pruned = await hub.prune(drafts_older_than=7 * DAY)
    assert [one.name for one in pruned.drafts] == ["old"]
    (new, last) = (await hub.prune(drafts_older_than=60)).drafts
    assert [(one.name, one.seen) for one in (new, last)] == [("new", heard), ("served", heard)]
    assert last.name == served.name


async def test_over_a_url_pruning_needs_the_scope_and_takes_only_what_is_ones_own(
    served: Any, file: Any, make_card: MakeCard, clock: Any
) -> None:
    tokens = Tokens(
        {name: Principal(name, frozenset({PUBLISH_SCOPE})) for name in ("alice", "bob")} | {"reader": ["chat"]}
    )
    async with (
        served(tokens) as url,
        Hub.open(url) as nobody,
        Hub.open(url, token="reader") as reader,
        Hub.open(url, token="alice") as alice,
        Hub.open(url, token="bob") as bob,
        Hub.open(file, clock=clock) as us,
    ):
        await alice.publish(make_card("agent-a", DRAFT_VERSION))
        await bob.publish(make_card("agent-b", DRAFT_VERSION))
        await us.publish(make_card("agent-u", DRAFT_VERSION))
        for dry_run in (True, False):
            with pytest.raises(Unauthenticated):
                await nobody.prune(drafts_older_than=0, dry_run=dry_run)
            with pytest.raises(Forbidden):
                await reader.prune(drafts_older_than=0, dry_run=dry_run)
        assert [one.name for one in (await alice.prune(drafts_older_than=0)).drafts] == ["agent-a"]
        assert [one.name for one in (await us.prune(drafts_older_than=0)).drafts] == ["agent-b", "agent-u"]


@pytest.mark.parametrize("age", [-1, "7d", "1e999"])
async def test_an_age_that_is_none_is_refused(served: Any, age: Any) -> None:
    async with served() as url:
        with pytest.raises(InvalidArguments, match="/drafts_older_than: "):
            await post_json(f"{url}/v1/prune", {"drafts_older_than": age})
