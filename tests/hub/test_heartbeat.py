"""Instances that stay listed as long as they serve."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any

import anyio
import pytest

from agent_env.errors import ReleaseConflict, TransportError
from agent_env.hub import LAUNCH_VARIABLE, Heartbeat, Hub
from agent_env_cards import EnvironmentCard

pytestmark = pytest.mark.anyio

MakeCard = Callable[..., EnvironmentCard]
URL = "http://127.0.0.1:8001"


async def until(condition: Callable[[], Any]) -> None:
    with anyio.fail_after(5):
        while not await condition():  # noqa: ASYNC110 - it waits for the heartbeat's own task
            await anyio.sleep(0.005)


async def test_an_instance_is_listed_exactly_while_it_beats(hub: Hub, make_card: MakeCard, clock: Any) -> None:
    load = 3
    async with Heartbeat(hub, make_card(), URL, capacity=9, load=lambda: load, seconds=0.01) as beat:
        (instance,) = await hub.instances("agent-b")
        assert (instance.load, instance.capacity) == (3, 9)
        assert beat.lease is not None and beat.lease.instance_id == instance.id
        load = 7

        async def renewed() -> bool:
            return [found.load for found in await hub.instances()] == [7]

        await until(renewed)
    assert await hub.instances() == [] and beat.lease is None


async def test_a_lost_lease_is_registered_anew(hub: Hub, make_card: MakeCard, clock: Any) -> None:
    async with Heartbeat(hub, make_card(), URL, seconds=0.01) as beat:
        first = beat.lease
        assert first is not None
        await hub.release(first)

        async def again() -> bool:
            return [found.id for found in await hub.instances()] not in ([], [first.instance_id])

        await until(again)


async def test_an_instance_gives_way_to_another_release_at_its_url(hub: Hub, make_card: MakeCard, caplog: Any) -> None:
    async with Heartbeat(hub, make_card(), URL, seconds=0.01) as beat:
        await hub.register(make_card(version="1.1.0"), URL)

        async def given_up() -> bool:
            return beat.lease is None

        await until(given_up)
        assert [found.version for found in await hub.instances()] == ["1.1.0"]
    assert [found.version for found in await hub.instances()] == ["1.1.0"]
    assert "another release is served at" in caplog.text


async def test_a_hub_that_is_down_for_a_while_is_tried_again(
    hub: Hub, make_card: MakeCard, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    beats = 0
    renew = hub.renew

    async def flaky(*given: Any) -> None:
        nonlocal beats
        beats += 1
        if beats < 4:
            raise TransportError("the hub is away")
        await renew(*given)

    monkeypatch.setattr(hub, "renew", flaky)
    with caplog.at_level(logging.WARNING):
        async with Heartbeat(hub, make_card(), URL, load=lambda: beats, seconds=0.01):

            async def renewed() -> bool:
                return [found.load > 3 for found in await hub.instances()] == [True]

            await until(renewed)
    assert caplog.text.count("the hub is away") == 1


async def test_a_hub_that_is_away_in_the_end_is_only_told_of(
    hub: Hub, make_card: MakeCard, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    async def away(*_: object) -> None:
        raise TransportError("the hub is away")

    async with Heartbeat(hub, make_card(), URL):
        monkeypatch.setattr(hub, "release", away)
    assert "stays listed in the hub until its lease lapses: the hub is away" in caplog.text


async def test_a_card_that_the_hub_refuses_does_not_start(hub: Hub, make_card: MakeCard) -> None:
    await hub.publish(make_card())
    with pytest.raises(ReleaseConflict):
        async with Heartbeat(hub, make_card(description="Edited."), URL):
            raise AssertionError("it must not start")


async def test_an_error_of_the_server_passes_through(hub: Hub, make_card: MakeCard) -> None:
    with pytest.raises(ZeroDivisionError):
        async with Heartbeat(hub, make_card(), URL):
            raise ZeroDivisionError
    assert await hub.instances() == []


async def test_a_launched_process_registers_under_its_launch(
    hub: Hub, make_card: MakeCard, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(LAUNCH_VARIABLE, "the-launch")
    async with Heartbeat(hub, make_card(), URL):
        assert [found.url for found in await hub.instances(launch_id="the-launch")] == [URL]
