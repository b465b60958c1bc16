"""Launching what a served hub says."""

from __future__ import annotations

import logging
import platform
from collections.abc import AsyncGenerator, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import anyio
import pytest
import uvicorn

from agent_env.context import Principal
from agent_env.errors import LaunchFailed, Unauthenticated
from agent_env.hub import TOKEN_VARIABLE, Hub, locate
from agent_env.hub.app import hub_app
from agent_env.hub.local import LocalHub
from agent_env.launch import TRUST_VARIABLE, CommandLaunch, answers, find_or_launch
from agent_env.net import Tokens, bound_url, listen
from agent_env_cards import DRAFT_VERSION, EnvironmentCard

pytestmark = pytest.mark.anyio

Command = Callable[..., CommandLaunch]


@asynccontextmanager
async def served(file: Path, tokens: Tokens | None = None) -> AsyncGenerator[str, None]:
    with listen() as listener:
        server = uvicorn.Server(uvicorn.Config(hub_app(LocalHub(locate(file)), tokens), log_level="warning"))
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(server.serve, [listener])
            try:
                yield bound_url(listener)
            finally:
                server.should_exit = True


async def test_a_launched_process_registers_in_the_hub_that_it_was_launched_from(
    tmp_path: Path, card: EnvironmentCard, command: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(TOKEN_VARIABLE, "t0ken")
    tokens = Tokens({"t0ken": "publish"})
    async with served(tmp_path / "hub.db", tokens) as url, Hub.open(url) as hub:
        monkeypatch.setenv(TRUST_VARIABLE, f"http://hub.example.com {url}")
        await hub.publish(card, command("serve").to_json())
        instance = await find_or_launch("agent-b", hub)
        assert [found.id for found in await hub.instances("agent-b")] == [instance.id]
        assert await answers(instance.url)


@pytest.mark.parametrize("version", ["1.0.0", DRAFT_VERSION])
async def test_what_came_over_the_network_is_run_by_nobody_who_did_not_allow_it(
    tmp_path: Path,
    card: EnvironmentCard,
    command: Command,
    pids: Callable[[], list[int]],
    monkeypatch: pytest.MonkeyPatch,
    version: str,
) -> None:
    card = card.model_copy(update={"version": version})
    launch = {**command("crash").to_json(), "machine": platform.node()}
    file = tmp_path / "hub.db"
    async with (
        served(file, Tokens({"t0ken": Principal("bob", frozenset({"publish"}))})) as url,
        Hub.open(url, token="t0ken") as bobs,
        Hub.open(file) as owners,
    ):
        assert (await bobs.publish(card, launch)).owner == "bob"
        for hub in (bobs, owners):
            with pytest.raises(LaunchFailed, match="was published by 'bob' and may not be started here"):
                await find_or_launch(f"agent-b@{version}", hub)
        # A process that was launched once registers over the file; what it was launched by stays bob's.
        edited = card.model_copy(update={"description": "Edited."}) if version == DRAFT_VERSION else card
        await owners.release(await owners.register(edited, "http://127.0.0.1:9", launch_id="l1"))
        with pytest.raises(LaunchFailed, match="was published by 'bob'"):
            await find_or_launch(f"agent-b@{version}", owners)
        assert pids() == []
        monkeypatch.setenv(TRUST_VARIABLE, str(file))
        with pytest.raises(LaunchFailed, match="ended with exit code 1"):
            await find_or_launch(f"agent-b@{version}", owners)
        assert len(pids()) == 1


async def test_a_hub_that_does_not_listen_to_everybody_is_not_told_of_a_dead_instance(
    tmp_path: Path, card: EnvironmentCard, command: Command, caplog: pytest.LogCaptureFixture
) -> None:
    async with Hub.open(tmp_path / "hub.db") as hub:
        await hub.register(card, "http://127.0.0.1:9", launch=command("serve").to_json())
    caplog.set_level(logging.INFO, "agent_env.launch")
    async with served(tmp_path / "hub.db", Tokens({"t0ken": "publish"})) as url, Hub.open(url) as hub:
        with pytest.raises(Unauthenticated):  # launching changes the hub, so it needs a token
            await find_or_launch("agent-b", hub)
        assert [found.state for found in await hub.instances()] == ["up"]
    assert "was not told" in caplog.text
