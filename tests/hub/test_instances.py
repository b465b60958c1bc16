"""Leases and liveness: one body over a file and over a URL, with a clock that does not sleep."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from agent_env.errors import InvalidArguments, LeaseLost, ReleaseConflict
from agent_env.hub import Hub
from agent_env_cards import EnvironmentCard

pytestmark = pytest.mark.anyio

MakeCard = Callable[..., EnvironmentCard]
URL = "http://127.0.0.1:8001"


async def test_a_registered_instance_is_up_and_its_release_is_published(
    hub: Hub, make_card: MakeCard, clock: Any
) -> None:
    lease = await hub.register(make_card(), URL + "/", capacity=8, load=2, source="sha256:aa", launch_id="l1")
    resolution = await hub.resolve("agent-b@1.0.0")
    (instance,) = resolution.instances
    assert (instance.url, instance.state, instance.capacity, instance.load) == (URL, "up", 8, 2)
    assert (instance.source, instance.launch_id, instance.digest) == ("sha256:aa", "l1", make_card().digest())
    assert instance.card.name == "agent-b"
    assert instance.registered == instance.renewed == clock.now
    assert instance.id == lease.instance_id
    assert (lease.ttl_seconds, lease.renew_seconds) == (10.0, 3.0)
    assert (await hub.list())[0].liveness == "up"


async def test_a_lease_is_nobodys_but_its_holders(hub: Hub, make_card: MakeCard) -> None:
    lease = await hub.register(make_card(), URL)
    (instance,) = await hub.instances("agent-b")
    assert lease.id not in str(instance.to_json())
    with pytest.raises(LeaseLost):
        await hub.renew(instance.id)
    await hub.release(instance.id)
    assert len(await hub.instances()) == 1


async def test_silence_makes_an_instance_suspect_and_then_gone(hub: Hub, make_card: MakeCard, clock: Any) -> None:
    lease = await hub.register(make_card(), URL)
    clock.advance(9.9)
    assert [instance.state for instance in await hub.instances()] == ["up"]
    clock.advance(0.1)
    assert [instance.state for instance in await hub.instances()] == ["suspect"]
    assert (await hub.list())[0].liveness == "suspect"
    await hub.renew(lease, 5)
    (instance,) = await hub.instances()
    assert (instance.state, instance.load) == ("up", 5)
    clock.advance(30)
    assert await hub.instances() == []
    assert [entry.liveness for entry in await hub.list()] == ["unreachable"]
    assert (await hub.resolve("agent-b")).instances == ()


async def test_a_zombie_does_not_come_back_by_renewing(hub: Hub, make_card: MakeCard, clock: Any) -> None:
    lease = await hub.register(make_card(), URL)
    clock.advance(31)
    with pytest.raises(LeaseLost, match="lapsed 31 s ago; register again"):
        await hub.renew(lease)
    again = await hub.register(make_card(), URL)
    assert again.id != lease.id
    with pytest.raises(LeaseLost):
        await hub.renew(lease)
    await hub.renew(again)


async def test_a_released_lease_is_gone_at_once(hub: Hub, make_card: MakeCard) -> None:
    lease = await hub.register(make_card(), URL)
    await hub.release(lease)
    await hub.release(lease)
    assert await hub.instances() == []
    with pytest.raises(LeaseLost, match="it was released") as lost:
        await hub.renew(lease)
    assert "superseded" not in lost.value.data
    with pytest.raises(LeaseLost, match="does not know this lease"):
        await hub.renew("never-given")


async def test_another_release_at_the_same_url_takes_its_place(hub: Hub, make_card: MakeCard) -> None:
    old = await hub.register(make_card(version="0.0.0-dev"), URL)
    new = await hub.register(make_card(version="0.0.0-dev", description="Edited."), URL)
    (instance,) = await hub.instances("agent-b")
    assert instance.id == new.instance_id
    with pytest.raises(LeaseLost) as lost:
        await hub.renew(old)
    assert lost.value.data == {"superseded": True}


async def test_replicas_behind_one_url_are_one_instance(hub: Hub, make_card: MakeCard, clock: Any) -> None:
    first = await hub.register(make_card(), URL)
    second = await hub.register(make_card(), URL)
    assert len(await hub.instances()) == 1
    await hub.renew(first)
    await hub.release(second)
    assert [instance.id for instance in await hub.instances()] == [first.instance_id]


async def test_a_doubted_instance_is_suspect_until_it_renews(hub: Hub, make_card: MakeCard, clock: Any) -> None:
    lease = await hub.register(make_card(), URL)
    (instance,) = await hub.instances()
    clock.advance(1)
    await hub.doubt(instance)
    assert [found.state for found in await hub.instances()] == ["suspect"]
    clock.advance(1)
    await hub.renew(lease)
    assert [found.state for found in await hub.instances()] == ["up"]


async def test_instances_that_are_up_come_first(hub: Hub, make_card: MakeCard, clock: Any) -> None:
    first = await hub.register(make_card(), "http://127.0.0.1:1")
    await hub.register(make_card(), "http://127.0.0.1:2")
    clock.advance(9)
    await hub.renew(first)
    clock.advance(2)
    assert [(found.url[-1], found.state) for found in (await hub.resolve("agent-b")).instances] == [
        ("1", "up"),
        ("2", "suspect"),
    ]


async def test_instances_of_other_releases_and_launches_are_left_out(hub: Hub, make_card: MakeCard) -> None:
    await hub.register(make_card(version="1.0.0"), "http://127.0.0.1:1", launch_id="one")
    await hub.register(make_card(version="1.1.0"), "http://127.0.0.1:2", launch_id="two")
    await hub.register(make_card(name="judge"), "http://127.0.0.1:3")
    assert [found.url for found in (await hub.resolve("agent-b")).instances] == ["http://127.0.0.1:2"]
    assert [found.version for found in await hub.instances("agent-b", launch_id="one")] == ["1.0.0"]
    assert await hub.instances(launch_id="three") == []


async def test_the_newest_draft_that_runs_is_the_draft(hub: Hub, make_card: MakeCard, clock: Any) -> None:
    older, newer = (make_card(version="0.0.0-dev", description=text) for text in ("old", "new"))
    await hub.register(older, "http://127.0.0.1:1")
    clock.advance(1)
    lease = await hub.register(newer, "http://127.0.0.1:2")
    resolution = await hub.resolve("agent-b")
    assert (resolution.card.description, [found.url[-1] for found in resolution.instances]) == ("new", ["2"])
    pinned = await hub.resolve(f"agent-b@0.0.0-dev#{older.digest()}")
    assert [found.url[-1] for found in pinned.instances] == ["1"]
    await hub.release(lease)
    resolution = await hub.resolve("agent-b")
    assert (resolution.card.description, [found.url[-1] for found in resolution.instances]) == ("old", ["1"])
    assert resolution.release.digest == older.digest()


async def test_a_draft_that_was_launched_can_be_launched_again(hub: Hub, make_card: MakeCard) -> None:
    await hub.publish(make_card(version="0.0.0-dev"), {"kind": "url", "url": "http://127.0.0.1:1"})
    lease = await hub.register(make_card(version="0.0.0-dev", description="Edited."), URL, launch_id="one")
    assert (await hub.resolve("agent-b")).release.launch is not None
    await hub.release(lease)
    release = (await hub.resolve("agent-b")).release
    assert release.card.description == "Edited." and release.launch is not None
    await hub.register(make_card(version="0.0.0-dev", description="Another program."), URL)
    assert (await hub.resolve("agent-b")).release.launch is None


async def test_an_instance_of_a_changed_release_is_refused(hub: Hub, make_card: MakeCard) -> None:
    await hub.publish(make_card())
    with pytest.raises(ReleaseConflict, match="bump the version"):
        await hub.register(make_card(description="Edited."), URL)
    assert await hub.instances() == []


async def test_an_instance_is_registered_under_an_http_url(hub: Hub, make_card: MakeCard) -> None:
    with pytest.raises(InvalidArguments, match="not 'localhost:8000'"):
        await hub.register(make_card(), "localhost:8000")


async def test_a_mass_loss_is_suspected_before_it_is_believed(hub: Hub, make_card: MakeCard, clock: Any) -> None:
    leases = [await hub.register(make_card(), f"http://127.0.0.1:{port}") for port in (1, 2, 3)]
    clock.advance(60)
    resolution = await hub.resolve("agent-b")
    assert resolution.degraded and [found.state for found in resolution.instances] == ["suspect"] * 3
    await hub.renew(leases[0])
    assert [found.state for found in await hub.instances()] == ["up", "suspect", "suspect"]
    clock.advance(600)
    assert await hub.instances() == []
    assert not (await hub.resolve("agent-b")).degraded


async def test_a_few_losses_among_many_are_believed(hub: Hub, make_card: MakeCard, clock: Any) -> None:
    leases = [await hub.register(make_card(), f"http://127.0.0.1:{port}") for port in range(1, 8)]
    for _ in range(4):
        clock.advance(9)
        for lease in leases[3:]:
            await hub.renew(lease)
    resolution = await hub.resolve("agent-b")
    assert not resolution.degraded and len(resolution.instances) == 4


async def test_ended_leases_are_forgotten_after_a_day(hub: Hub, make_card: MakeCard, clock: Any) -> None:
    lease = await hub.register(make_card(), URL)
    clock.advance(24 * 3600 + 1)
    await hub.register(make_card(), "http://127.0.0.1:2")
    with pytest.raises(LeaseLost, match="does not know"):
        await hub.renew(lease)


async def test_one_of_several_callers_launches(hub: Hub, clock: Any) -> None:
    first = await hub.claim_launch("agent-b", "1.0.0", seconds=30)
    second = await hub.claim_launch("agent-b", "1.0.0", seconds=30)
    other = await hub.claim_launch("agent-b", "1.1.0", seconds=30)
    assert (first.granted, second.granted, other.granted) == (True, False, True)
    assert second.id == first.id and second.error is None
    await hub.end_launch(first.id, "it crashed")
    waited = await hub.claim_launch("agent-b", "1.0.0", seconds=30, after=first.id)
    assert (waited.granted, waited.error) == (False, "it crashed")
    fresh = await hub.claim_launch("agent-b", "1.0.0", seconds=30)
    assert fresh.granted and fresh.id != first.id
    clock.advance(31)
    assert (await hub.claim_launch("agent-b", "1.0.0", seconds=30, after=fresh.id)).granted
