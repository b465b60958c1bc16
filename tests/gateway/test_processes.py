"""A gateway in a process of its own: started, killed, started again."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import anyio
import pytest

from agent_env.episodes import TurnRecord
from agent_env.errors import ConfigurationError, LaunchFailed, TransportError
from agent_env.gateway import Gateway, RunHandle, RunRecorder, SeatPolicy, launched, running
from agent_env.gateway.server import ADMIN_VARIABLE

pytestmark = pytest.mark.anyio

ADMIN = "admin-token"
Upstream = Any
"""The model server of the fixture `upstream`."""
Chat = Callable[..., Awaitable[Any]]


async def test_a_killed_gateway_loses_no_record_that_it_acknowledged(
    tmp_path: Path, upstream: Upstream, chat: Chat
) -> None:
    seats = {"a": SeatPolicy("A", (upstream.url,))}
    acknowledged: list[str] = []
    with anyio.fail_after(40):
        async with launched(tmp_path) as first:
            run = await RunHandle.open(first.url, first.admin_token, seats, run="r1")

            async def work(worker: int) -> None:
                for number in range(10_000):
                    episode = f"{worker}-{number}"
                    turn = TurnRecord("c1", "a@1.0.0", "s", episode, seat="a").to_json()
                    try:
                        seen = run.episode(episode, "a")
                        if (await chat(seen)).status != 200:
                            return
                        await RunRecorder(seen).record([turn])
                    except (TransportError, OSError):
                        return
                    acknowledged.append(episode)
                    if len(acknowledged) == 200:
                        os.kill(first.pid, signal.SIGKILL)

            await asyncio.gather(*(work(worker) for worker in range(8)))
        assert len(acknowledged) >= 200
        async with launched(tmp_path) as second:
            again = await RunHandle.open(second.url, second.admin_token, seats, run="r1", secret=run.secret)
            found = await again.collect(acknowledged)
    assert {tuple(record["kind"] for record in records) for records in found.values()} == {("model", "turn")}


async def test_a_gateway_ends_when_its_parent_does(tmp_path: Path) -> None:
    with anyio.fail_after(40):
        process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", "agent_env.gateway", "--directory", str(tmp_path), "--until-stdin-ends"),
            env={**os.environ, ADMIN_VARIABLE: ADMIN},
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
        )
        assert process.stdout is not None and process.stdin is not None
        assert await process.stdout.readline()
        process.stdin.close()
        assert await process.wait() == 0


async def test_a_gateway_without_an_admin_token_does_not_start(tmp_path: Path) -> None:
    environment = {key: value for key, value in os.environ.items() if key != ADMIN_VARIABLE}
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "agent_env.gateway", "--directory", str(tmp_path)),
        env=environment,
        stderr=asyncio.subprocess.PIPE,
    )
    with anyio.fail_after(40):
        _, said = await process.communicate()
    assert process.returncode == 2 and b"set AGENT_ENV_GATEWAY_TOKEN" in said


@pytest.mark.parametrize("place", ["file", "file/below", "/proc/nope"])
async def test_a_gateway_that_could_write_no_journal_does_not_start(
    tmp_path: Path, place: str, capfd: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "file").write_text("kept")
    gateway = Gateway(tmp_path / place, admin_token=ADMIN)
    with pytest.raises(ConfigurationError, match=r"no journals can be written in .*; name a directory"):
        async with running(gateway):
            raise AssertionError("it was served")
    with anyio.fail_after(40), pytest.raises(LaunchFailed, match="did not start"):
        async with launched(tmp_path / place):
            pass
    said = capfd.readouterr().err
    assert "no journals can be written in" in said and "Traceback" not in said
    assert (tmp_path / "file").read_text() == "kept"


async def test_a_gateway_leaves_nothing_in_its_directory_before_a_run_is_opened(tmp_path: Path) -> None:
    async with running(Gateway(tmp_path / "new" / "journals", admin_token=ADMIN)):
        assert [*(tmp_path / "new" / "journals").iterdir()] == []


async def test_a_gateway_that_cannot_start_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "no-python").write_text("#!/bin/sh\necho nonsense\n")
    (tmp_path / "no-python").chmod(0o755)
    monkeypatch.setattr(sys, "executable", str(tmp_path / "no-python"))
    with anyio.fail_after(40), pytest.raises(LaunchFailed, match="did not start"):
        async with launched(tmp_path):
            pass


async def test_a_port_that_is_taken_is_told(upstream: Upstream) -> None:
    port = int(upstream.url.split(":")[2].split("/")[0])
    with pytest.raises(ConfigurationError, match=f"port {port}"):
        async with running(upstream, port=port):
            pass


async def test_what_the_block_raises_comes_out_as_it_is(upstream: Upstream) -> None:
    with pytest.raises(ZeroDivisionError):
        async with running(upstream):
            raise ZeroDivisionError
