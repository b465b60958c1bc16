"""`agent-env hub serve --tokens`, and what those see who come with another token."""

from __future__ import annotations

import signal
from typing import Any

import pytest

from agent_env.cli import diagnosis

pytestmark = pytest.mark.timeout(120)


@pytest.mark.parametrize("text", ["", "# nobody yet\n"])
def test_a_hub_is_not_served_with_a_token_file_that_has_no_token(cli: Any, text: str) -> None:
    (cli.folder / "tokens").write_text(text, "utf-8")
    assert "has no token in it" in cli("hub", "serve", "--port", "0", "--tokens", "tokens", code=2)
    assert not cli.hub.exists()


def test_the_form_of_a_token_file_is_in_the_help(cli: Any) -> None:
    told = " ".join(cli("hub", "serve", "--help").replace("│", " ").split())
    assert "a token, its scopes with commas between them, and an id: s3cret publish ann." in told


def test_a_token_that_the_hub_does_not_know_is_found_before_anything_is_served(
    cli: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    (cli.folder / "tokens").write_text("s3cret-of-ann publish ann\n", "utf-8")
    process = cli.warm.start(
        *("agent_env.cli", "hub", "serve", "--port", "0", "--tokens", "tokens"),
        cwd=cli.folder,
        env=cli.environment,
    )
    try:
        told = ""
        while "served at" not in told:
            line = process.stdout.readline()
            assert line, "the hub ended before it was ready"
            told += line
        cli.hub = told.split()[-1]
        monkeypatch.setenv("AGENT_ENV_HUB", cli.hub)
        monkeypatch.setenv("AGENT_ENV_HUB_TOKEN", "s3cret-of-anne")
        (finding,) = diagnosis.hub()
        assert finding.state == "wrong"
        for said in (
            finding.note,
            cli("hub", "list", code=2),
            cli("push", "agents:echo", code=2),
            cli("serve", "agents:echo", code=2),
        ):
            assert f"the hub {cli.hub} refused: " in said and "set AGENT_ENV_HUB_TOKEN to such a token" in said
        monkeypatch.setenv("AGENT_ENV_HUB_TOKEN", "s3cret-of-ann")
        cli("push", "agents:echo")
        assert [(found.state, found.note) for found in diagnosis.hub()] == [("ok", f"{cli.hub}, 1 releases")]
    finally:
        process.send_signal(signal.SIGINT)
        assert process.wait(20) == 0
        process.stdout.close()
