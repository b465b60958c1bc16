"""`serve --peer-auth`: tokens of peers, by the names of environment variables."""

from __future__ import annotations

from typing import Any

import pytest

pytestmark = pytest.mark.timeout(120)

TEAM = """
from agent_env import AgentEnvironment, Need

async def manager(message, peers):
    return "asked: " + await peers["worker"](message)

team = AgentEnvironment(manager, name="team", needs=[Need("worker", skills=["math"])])
"""


def test_a_peers_token_comes_out_of_a_variable(cli: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    (cli.folder / "team.py").write_text(TEAM, "utf-8")
    (cli.folder / "tokens").write_text("s3cret-of-echo chat\n", "utf-8")
    monkeypatch.setenv("ECHO_TOKEN", "s3cret-of-echo")
    asked = ("agents:echo", "--name", "echo", "--version", "1.0.0", "--skill", "math", "--tokens", "tokens")
    with cli.serving(*asked), cli.serving("team:team", "--peer-auth", "echo=ECHO_TOKEN") as served:
        assert cli("call", served["url"], "-m", "hi").strip() == "asked: hi"


def test_a_token_on_the_command_line_is_refused_and_not_printed(cli: Any) -> None:
    for words in ("echo=s3cret-of-echo!", "s3cret-of-echo!", "=ECHO_TOKEN"):
        said = " ".join(cli("serve", "agents:echo", "--peer-auth", words, code=2).split())
        assert "PEER=VARIABLE" in said and "s3cret" not in said


def test_a_variable_that_is_not_set_is_named(cli: Any) -> None:
    assert "$NO_SUCH_TOKEN" in cli("serve", "agents:echo", "--peer-auth", "echo=NO_SUCH_TOKEN", code=2)


def test_an_environment_with_tokens_of_its_own_takes_no_others_in_silence(cli: Any) -> None:
    (cli.folder / "team.py").write_text(TEAM, "utf-8")
    (cli.folder / "tokens").write_text("s3cret chat\n", "utf-8")
    assert "drop the options" in " ".join(cli("serve", "team:team", "--tokens", "tokens", code=2).split())
