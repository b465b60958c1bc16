"""`agent-env gateway`: a gateway that runs until it is told to stop."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import httpx
import pytest

from agent_env.cli.gateway import TOKEN_VARIABLE
from agent_env.gateway import RunHandle
from agent_env.gateway.server import ADMIN_VARIABLE

pytestmark = pytest.mark.timeout(120)


async def open_run(url: str, token: str) -> str:
    async with await RunHandle.open(url, token, {"a": None}, run="r1") as run:
        return run.run


@pytest.mark.parametrize("as_json", [True, False])
def test_a_gateway_is_served_until_it_is_told_to_stop(cli: Any, as_json: bool) -> None:
    environment = {**cli.environment, "MY_TOKEN": "s3cret"}
    words = ("gateway", "--directory", "runs", "--port", "0", "--token-env", "MY_TOKEN", *(("--json",) * as_json))
    process = subprocess.Popen(
        [sys.executable, "-m", "agent_env.cli", *words],
        cwd=cli.folder,
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        assert process.stdout is not None and process.stderr is not None
        said = ""
        while "journals" not in said and not said.endswith("}\n"):
            line = process.stdout.readline()
            assert line, "the gateway ended before it was ready"
            said += line
        url = json.loads(said)["url"] if as_json else said.split("served at ")[1].split(";")[0]
        assert asyncio.run(open_run(url, "s3cret")) == "r1"
        assert (Path(cli.folder) / "runs" / "r1.jsonl").is_file()
        # The token is out of the environment of what the process starts.
        assert "s3cret" not in said
        logged = [process.stderr.readline(), process.stderr.readline()]
        assert "the run 'r1' is open; seats: 1" in logged[0] and "the run 'r1' is closed" in logged[1]
    finally:
        process.send_signal(signal.SIGINT)
        assert process.wait(20) == 0
        assert process.stdout is not None and process.stderr is not None
        process.stdout.close()
        process.stderr.close()


async def open_long_run(url: str, token: str, length: int) -> int:
    async with httpx.AsyncClient(headers={"Authorization": f"Bearer {token}"}) as client:
        return (await client.post(f"{url}/runs", json={"run": "r" * length, "seats": {}})).status_code


def test_a_gateway_takes_no_longer_request_than_it_is_told_to(cli: Any) -> None:
    words = ("gateway", "--directory", "runs", "--port", "0", "--json", "--max-body", "2000")
    with subprocess.Popen(
        [sys.executable, "-m", "agent_env.cli", *words],
        cwd=cli.folder,
        env={**cli.environment, TOKEN_VARIABLE: "s3cret"},
        stdout=subprocess.PIPE,
        text=True,
    ) as process:
        try:
            assert process.stdout is not None
            said = ""
            while not said.endswith("}\n"):
                line = process.stdout.readline()
                assert line, "the gateway ended before it was ready"
                said += line
            url = json.loads(said)["url"]
            assert asyncio.run(open_long_run(url, "s3cret", 2000)) == 413
            assert asyncio.run(open_long_run(url, "s3cret", 1000)) != 413
        finally:
            process.send_signal(signal.SIGINT)
            assert process.wait(20) == 0
    assert "--max-body" in cli("gateway", "--max-body", "0", code=2)


def test_a_gateway_wants_its_token_out_of_a_variable(cli: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    assert TOKEN_VARIABLE == ADMIN_VARIABLE
    monkeypatch.delenv(TOKEN_VARIABLE, raising=False)
    assert f"{TOKEN_VARIABLE} must have the admin token" in " ".join(cli("gateway", code=2).split())
    said = cli("gateway", "--token-env", "s3cret-value", code=2)
    assert "s3cret" not in said and "--token-env names" in " ".join(said.split())
    assert cli.json("gateway", "--token-env", "NOT_SET", code=2)["error"]["code"] == "configuration"


def test_a_port_that_is_taken_is_told(cli: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    from agent_env.net import listen

    monkeypatch.setenv(TOKEN_VARIABLE, "s3cret")
    with listen("127.0.0.1", 0) as listener:
        port = listener.getsockname()[1]
        assert str(port) in cli("gateway", "--port", str(port), code=2)
    assert os.environ[TOKEN_VARIABLE] == "s3cret"
