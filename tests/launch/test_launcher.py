"""Launching releases: real processes, found through a real hub."""

from __future__ import annotations

import asyncio
import os
import platform
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import anyio
import pytest

from agent_env.errors import LaunchFailed, NameNotFound, TransportError
from agent_env.hub import Hub, Instance
from agent_env.launch import CommandLaunch, UrlLaunch, answers, find_or_launch, launch, log_directory
from agent_env.launch import launcher as launcher_module
from agent_env.net import bound_url, get_json, listen
from agent_env_cards import CARD_PATH, EnvironmentCard

pytestmark = pytest.mark.anyio

Command = Callable[..., CommandLaunch]
Pids = Callable[[], list[int]]


def lives(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True


async def until(condition: Callable[[], bool]) -> None:
    with anyio.fail_after(10):
        while not condition():  # noqa: ASYNC110 - it waits for another process
            await anyio.sleep(0.02)


async def test_a_release_without_an_instance_is_launched(
    hub: Hub, card: EnvironmentCard, command: Command, pids: Pids
) -> None:
    await hub.publish(card, command("serve").to_json())
    instance = await find_or_launch("agent-b", hub)
    served = EnvironmentCard.parse(await get_json(instance.url + CARD_PATH))
    assert served.digest() == card.digest() == instance.digest
    assert instance.up and instance.source == "sha256:same" and lives(pids()[0])
    assert (await find_or_launch("agent-b@^1", hub)).id == instance.id
    assert len(pids()) == 1


async def test_two_callers_at_once_launch_once(hub: Hub, card: EnvironmentCard, command: Command, pids: Pids) -> None:
    await hub.publish(card, command("serve").to_json())
    found: list[Instance] = []

    async def call(target: Any) -> None:
        async with Hub.open(target) as other:
            found.append(await find_or_launch("agent-b", other))

    with anyio.fail_after(40):
        async with anyio.create_task_group() as tasks:
            for _ in range(3):
                tasks.start_soon(call, hub.location.file)
    assert len({instance.id for instance in found}) == 1 and len(pids()) == 1


async def test_a_killed_instance_is_passed_over_and_another_is_launched(
    hub: Hub, card: EnvironmentCard, command: Command, pids: Pids
) -> None:
    await hub.publish(card, command("serve").to_json())
    first = await find_or_launch("agent-b", hub)
    os.kill(pids()[0], signal.SIGKILL)
    await until(lambda: not lives(pids()[0]))
    second = await find_or_launch("agent-b", hub)
    assert second.id != first.id and await answers(second.url)
    states = {instance.id: instance.state for instance in await hub.instances()}
    assert states == {first.id: "suspect", second.id: "up"}


async def test_a_process_that_ends_shows_its_last_words(
    hub: Hub, card: EnvironmentCard, command: Command, pids: Pids
) -> None:
    await hub.publish(card, command("crash").to_json())
    with pytest.raises(LaunchFailed, match="ended with exit code 1") as failed:
        await find_or_launch("agent-b", hub)
    assert failed.value.message.endswith("the model file is missing")
    assert str(log_directory(hub)) in failed.value.message


async def test_those_who_wait_learn_how_the_launch_failed(
    hub: Hub, card: EnvironmentCard, command: Command, pids: Pids
) -> None:
    await hub.publish(card, command("crash").to_json())
    failures: list[str] = []

    async def call() -> None:
        with pytest.raises(LaunchFailed) as failed:
            await find_or_launch("agent-b", hub)
        failures.append(failed.value.message)

    with anyio.fail_after(20):
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(call)
            tasks.start_soon(call)
    assert failures[0] == failures[1] and len(pids()) == 1


async def test_a_process_that_never_registers_is_killed_with_its_children(
    hub: Hub, card: EnvironmentCard, command: Command, pids: Pids
) -> None:
    release = await hub.publish(card, command("silent").to_json())
    with pytest.raises(LaunchFailed, match="was not healthy within 3 s"):
        await launch(release, hub, seconds=3)
    assert len(pids()) == 2
    await until(lambda: not any(map(lives, pids())))


async def test_a_caller_that_goes_away_takes_its_launch_along(
    hub: Hub, card: EnvironmentCard, command: Command, pids: Pids
) -> None:
    await hub.publish(card, command("silent").to_json())
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(find_or_launch, "agent-b", hub)
        await until(lambda: len(pids()) == 2)
        tasks.cancel_scope.cancel()
    await until(lambda: not any(map(lives, pids())))
    assert (await hub.claim_launch("agent-b", "1.0.0", seconds=1)).granted


@pytest.mark.parametrize(("mode", "what"), [("other-card", "card"), ("other-source", "source")])
async def test_an_instance_that_differs_from_its_release_is_refused(
    mode: str, what: str, hub: Hub, card: EnvironmentCard, command: Command, pids: Pids
) -> None:
    release = await hub.publish(card, command(mode).to_json())
    with pytest.raises(LaunchFailed, match=f"another {what} now than when it was published .* bump the version"):
        await launch(release, hub)
    await until(lambda: not lives(pids()[0]))


async def test_an_instance_without_a_card_is_refused(
    hub: Hub, card: EnvironmentCard, command: Command, pids: Pids
) -> None:
    release = await hub.publish(card, command("bad-card").to_json())
    with pytest.raises(LaunchFailed, match=r"its card is not there: .* has no valid card"):
        await launch(release, hub)
    await until(lambda: not lives(pids()[0]))


async def test_a_draft_may_differ_from_when_it_was_pushed(hub: Hub, card: EnvironmentCard, command: Command) -> None:
    draft = EnvironmentCard(name="agent-b", description="An older text.")
    await hub.publish(draft, command("other-source", version="0.0.0-dev").to_json())
    instance = await find_or_launch("agent-b", hub)
    assert (await hub.resolve("agent-b")).card.description == "Solves things."
    assert instance.version == "0.0.0-dev"


async def test_a_process_gets_the_variables_that_it_named_and_no_others(
    hub: Hub, card: EnvironmentCard, command: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    release = await hub.publish(card, command("crash", env=("AGENT_TEST_KEY",)).to_json())
    with pytest.raises(LaunchFailed, match="needs the environment variables AGENT_TEST_KEY; set them"):
        await launch(release, hub)
    monkeypatch.setenv("AGENT_TEST_KEY", "k")
    monkeypatch.setenv("AGENT_TEST_SECRET", "s")
    with pytest.raises(LaunchFailed, match="key is k secret is None"):
        await launch(release, hub)


async def test_a_release_that_cannot_be_launched_says_so(hub: Hub, card: EnvironmentCard) -> None:
    with pytest.raises(NameNotFound):
        await find_or_launch("agent-b", hub)
    release = await hub.publish(card)
    with pytest.raises(LaunchFailed, match=r"no instance that answers.*push it with `agent-env push`"):
        await find_or_launch("agent-b", hub)
    with pytest.raises(LaunchFailed, match=r"does not know how to launch agent-b@1\.0\.0"):
        await launch(release, hub)


async def test_a_command_that_is_not_there_says_so(hub: Hub, card: EnvironmentCard, tmp_path: Path) -> None:
    spec = CommandLaunch(command=("no-such-program",), directory=str(tmp_path))
    release = await hub.publish(card, spec.to_json())
    with pytest.raises(LaunchFailed, match="'no-such-program' cannot be started"):
        await launch(release, hub)


async def test_an_environment_kept_elsewhere_is_checked_and_not_started(
    hub: Hub, card: EnvironmentCard, command: Command
) -> None:
    await hub.publish(card, command("serve").to_json())
    running = await find_or_launch("agent-b", hub)
    same = await hub.publish(card.model_copy(update={"name": "agent-c"}), UrlLaunch(url=running.url).to_json())
    with pytest.raises(LaunchFailed, match="serves another card now"):
        await launch(same, hub)
    release = (await hub.resolve("agent-b")).release
    async with Hub.open(hub.location.file.parent / "other.db") as other:  # type: ignore[union-attr]
        published = await other.publish(release.card, UrlLaunch(url=running.url + "/").to_json())
        assert (await find_or_launch(published.ref, other)).url == running.url
    with listen() as nobody:
        url = f"http://127.0.0.1:{nobody.getsockname()[1]}"
    gone = await hub.publish(card.model_copy(update={"name": "agent-d"}), UrlLaunch(url=url).to_json())
    with pytest.raises(LaunchFailed, match=r"kept at .* cannot be reached"):
        await launch(gone, hub)


async def test_a_hub_elsewhere_starts_nothing_here(
    hub: Hub, card: EnvironmentCard, command: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    release = await hub.publish(card, command("crash").to_json())
    async with Hub.open(hub.location.file) as elsewhere:
        elsewhere.location = type(hub.location)("http://hub.example.com")
        with pytest.raises(
            LaunchFailed, match=r"agent-b@1\.0\.0 in the hub .* is not of this machine and may not be started here"
        ):
            await launch(release, elsewhere)
        monkeypatch.setenv(launcher_module.TRUST_VARIABLE, "http://hub.example.com")
        moved = {**command("crash").to_json(), "machine": platform.node() + "-other"}
        release = await hub.publish(card, moved)
        with pytest.raises(LaunchFailed, match="was pushed from the machine"):
            await launch(release, elsewhere)


async def test_a_server_on_loopback_starts_only_what_this_machine_pushed(
    hub: Hub, card: EnvironmentCard, command: Command, monkeypatch: pytest.MonkeyPatch, pids: Pids
) -> None:
    async with Hub.open(hub.location.file) as near:
        near.location = type(hub.location)("http://127.0.0.1:8790")
        for machine in (None, platform.node() + "-other"):
            with pytest.raises(LaunchFailed, match="is not of this machine and may not be started here"):
                await launch(await hub.publish(card, {**command("crash").to_json(), "machine": machine}), near)
        assert pids() == []
        release = await hub.publish(card, {**command("crash").to_json(), "machine": platform.node()})
        with pytest.raises(LaunchFailed, match="ended with exit code 1"):
            await launch(release, near)
        assert len(pids()) == 1


async def test_a_specification_of_a_newer_release_says_so(hub: Hub, card: EnvironmentCard) -> None:
    release = await hub.publish(card, {"kind": "teleport"})
    with pytest.raises(LaunchFailed, match="not understood"):
        await launch(release, hub)


async def test_a_failing_hub_is_not_a_failed_launch(
    hub: Hub, card: EnvironmentCard, command: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    release = await hub.publish(card, command("serve").to_json())

    async def down(*_: object, **__: object) -> None:
        raise TransportError("the hub cannot be reached")

    monkeypatch.setattr(hub, "instances", down)
    with pytest.raises(TransportError, match="the hub cannot be reached"):
        await launch(release, hub)


async def test_who_waits_too_long_for_another_launch_says_so(
    hub: Hub, card: EnvironmentCard, command: Command, pids: Pids
) -> None:
    await hub.publish(card, command("serve").to_json())
    assert (await hub.claim_launch("agent-b", "1.0.0", seconds=60)).granted
    with pytest.raises(LaunchFailed, match=r"is being launched by another process and was not healthy within 0\.3 s"):
        await find_or_launch("agent-b", hub, seconds=0.3)
    assert pids() == []


async def test_a_server_that_asks_for_a_token_answers_and_a_closed_port_does_not() -> None:
    async def refuse(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(b"HTTP/1.1 401 Unauthorized\r\nContent-Length: 0\r\n\r\n")
        await writer.drain()
        writer.close()

    listener = listen()
    url = bound_url(listener)
    async with await asyncio.start_server(refuse, sock=listener):
        assert await answers(url)
    assert not await answers(url)
