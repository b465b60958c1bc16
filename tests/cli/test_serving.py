"""`serve`, `call`, `chat`, `check`, `push` and `hub`, together as people use them."""

from __future__ import annotations

import os
import pty
import signal
import subprocess
import sys
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

pytestmark = pytest.mark.timeout(180)


def test_an_agent_is_served_called_listed_and_checked(cli: Any) -> None:
    with cli.serving("agents:counter", "--name", "agent-b", "--version", "1.0.0", "--skill", "math") as served:
        assert served["ref"] == "agent-b@1.0.0"
        assert cli("call", "agent-b", "-m", "hello").strip() == "1: hello"
        first = cli.json("call", "agent-b@^1", "-m", "a")
        again = cli.json("call", served["url"], "-m", "b", "--session", first["session_id"], "--lane", "http")
        assert again["text"] == "2: b"
        (entry,) = cli.json("hub", "list")
        assert (entry["release"]["name"], entry["liveness"]) == ("agent-b", "up")
        assert "agent-b@1.0.0" in cli("hub", "list")
        assert "math" in cli("hub", "show", "agent-b")
        assert cli("card", "validate", served["url"]).startswith("valid")
        assert cli.json("card", "show", "agent-b@1.0.0")["version"] == "1.0.0"
        report = cli.json("check", served["url"])
        assert report["ok"], report
        assert cli.cold("chat", "agent-b", stdin="one\ntwo\n\n").count(": ") >= 2


@pytest.mark.parametrize("terminal", [True, False])
def test_ctrl_c_at_the_prompt_of_a_chat_ends_it(cli: Any, terminal: bool) -> None:
    ours, theirs = pty.openpty() if terminal else os.pipe()[::-1]
    with ExitStack() as stack:
        stack.callback(os.close, ours)
        stack.callback(os.close, theirs)
        stack.enter_context(cli.serving("agents:echo", "--name", "agent-b", "--version", "1.0.0"))
        process = stack.enter_context(
            subprocess.Popen(
                [sys.executable, "-m", "agent_env.cli", "chat", "agent-b"],
                cwd=cli.folder,
                env=cli.environment,
                stdin=theirs,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                text=True,
            )
        )
        stack.callback(process.kill)
        assert process.stdout is not None
        said = ""
        os.write(ours, b"one\n")
        while said.count("> ") < 2:
            piece = process.stdout.read(1)
            assert piece, said
            said += piece
        process.send_signal(signal.SIGINT)
        _, problems = process.communicate(timeout=60)
    assert "one" in said
    assert (process.returncode, problems) == (130, "")


@pytest.mark.long
def test_a_pushed_release_is_launched_by_its_first_caller(cli: Any) -> None:
    pushed = cli.json("push", "agents:echo", "--name", "echo", "--version", "1.0.0")
    assert pushed["digest"].startswith("sha256:")
    assert cli("push", "agents:echo", "--name", "echo", "--version", "1.0.0").startswith("published")
    answer = cli.json("call", "echo@1.0.0", "-m", "hi")
    assert answer["text"] == "hi"
    (entry,) = cli.json("hub", "list")
    assert entry["liveness"] == "up"
    assert cli.json("call", "echo@1.0.0", "-m", "again")["text"] == "again"
    assert len(cli.json("hub", "list")[0]["instances"]) == 1
    stop_launched(cli)


def stop_launched(cli: Any) -> None:
    """Ends what was launched: its log is named for the launch, and its process serves from the folder of the test."""
    for entry in Path("/proc").iterdir():
        if not entry.name.isdecimal():
            continue
        try:
            command = (entry / "cmdline").read_bytes().split(b"\0")
            place = (entry / "cwd").readlink()
        except OSError:
            continue
        if b"agent_env.cli" in command and b"serve" in command and place == cli.folder:
            os.kill(int(entry.name), signal.SIGTERM)


@pytest.mark.long
def test_changed_source_behind_a_published_version_is_refused(cli: Any) -> None:
    cli("push", "agents:echo", "--name", "echo", "--version", "1.0.0")
    agents = cli.folder / "agents.py"
    agents.write_text(agents.read_text("utf-8") + "\nEXTRA = 1\n", "utf-8")
    refused = cli.json("push", "agents:echo", "--name", "echo", "--version", "1.0.0", code=1)
    assert refused["error"]["code"] == "release_conflict"
    assert "bump the version" in refused["error"]["message"]
    # A draft may change as often as it likes.
    cli("push", "agents:echo", "--name", "echo-draft")
    agents.write_text(agents.read_text("utf-8") + "\nMORE = 2\n", "utf-8")
    cli("push", "agents:echo", "--name", "echo-draft")


def test_an_unknown_name_gets_the_nearest_and_an_unknown_version_the_list(cli: Any) -> None:
    cli("push", "agents:echo", "--name", "echo", "--version", "1.0.0")
    assert "echo" in cli.json("call", "ecko", "-m", "x", code=1)["error"]["message"]
    missing = cli.json("call", "echo@^2", "-m", "x", code=1)["error"]
    assert missing["code"] == "version_not_found"
    assert "1.0.0" in missing["message"]


def test_a_yanked_release_is_found_by_its_exact_version_alone(cli: Any) -> None:
    cli("push", "agents:echo", "--name", "echo", "--version", "1.0.0")
    cli("hub", "yank", "echo@1.0.0", "--reason", "wrong answers")
    assert cli.json("hub", "show", "echo@1.0.0")["release"]["yanked"] == "wrong answers"
    assert cli.json("hub", "show", "echo@^1", code=1)["error"]["code"] == "version_not_found"


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["serve", "agents"], "module:attribute"),
        (["serve", "nothing:agent"], "there is no module 'nothing'"),
        (["serve", "agents:nobody"], "it has"),
        (["serve", "missing.py:agent"], "there is no file"),
        (["serve", "agents:echo", "--version", "one"], "1.0.0"),
        (["serve", "agents:echo", "--name", "Echo"], "echo"),
        (["serve", "agents:echo", "--host", "0.0.0.0"], "token"),
        (["serve", "agents:AGENTS_ARE_NOT_HERE"], "has no"),
        (["call", "agent", "chat", "-a", "{"], "not JSON"),
        (["call", "Agent B", "-m", "x"], "lower-case"),
    ],
)
def test_what_is_wrong_is_said_in_one_sentence_with_the_remedy(cli: Any, arguments: list[str], message: str) -> None:
    printed = " ".join(cli(*arguments, code=2).split())
    assert message in printed


def test_a_port_that_is_taken_is_named(cli: Any) -> None:
    with cli.serving("agents:echo", "--no-hub") as served:
        port = served["url"].rpartition(":")[2]
        printed = " ".join(cli("serve", "agents:echo", "--port", port, code=2).split())
        assert port in printed
        assert "choose another port" in printed


def test_an_agent_that_raises_shows_no_internals(cli: Any) -> None:
    with cli.serving("agents:broken", "--name", "broken") as served:
        failed = cli.json("call", served["url"], "-m", "x", code=1)
        assert failed["error"]["code"] == "agent_failed"
        assert "internal" not in str(failed)
