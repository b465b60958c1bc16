"""What people see: tables that fit their terminal, help without noise, a sentence where there is nothing."""

from __future__ import annotations

import os
import re
import sqlite3
import subprocess
import sys
import time
from typing import Any

import pytest
from rich.text import Text

from agent_env.cli import output

pytestmark = pytest.mark.timeout(180)

COMMANDS = (
    "", "serve", "push", "call", "chat", "check", "match", "doctor", "card", "card show", "card validate", "card sign",
    "card verify", "hub", "hub serve", "hub list", "hub show", "hub yank", "hub prune", "episodes", "episodes list",
    "episodes show",
)  # fmt: skip


def test_help_fits_80_columns_and_names_no_type_where_there_is_no_value() -> None:
    program = (
        "import sys\n"
        "from agent_env.cli.application import app\n"
        "for command in sys.argv[1:]:\n"
        "    app([*command.split(), '--help'], prog_name='agent-env', standalone_mode=False)\n"
    )
    shown = subprocess.run(
        [sys.executable, "-c", program, *COMMANDS],
        check=True,
        env=os.environ | {"COLUMNS": "80"},
        capture_output=True,
        text=True,
        timeout=60,
    ).stdout
    assert shown.count("Usage:") == len(COMMANDS)
    assert "--dry-run" in shown and "--json" in shown
    for noise in ("<bool>", "<list", "--no-insecure", "--no-json", "None"):
        assert noise not in shown
    assert max(map(len, shown.splitlines())) <= 80


ROWS = [
    ("solver@1.1.0", "fits", "0.50", Text("launchable", "green"), "offers math.algebra, which is a part of math"),
    ("a-much-longer-name@0.0.0-dev", "fail", "0.00", "up", "does not offer math"),
]
COLUMNS = ("candidate", "degree", "skills", "reachable", "why")


def printed(width: int, monkeypatch: pytest.MonkeyPatch, **options: Any) -> str:
    monkeypatch.setattr(output.console, "width", width)
    with output.console.capture() as capture:
        output.print_table(COLUMNS, ROWS, **options)
    return capture.get()


@pytest.mark.parametrize("width", [30, 40, 60, 80, 100, 120])
def test_no_line_is_wider_than_the_terminal_and_no_short_word_is_broken(
    width: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    shown = printed(width, monkeypatch, title="The title")
    assert max(map(len, shown.splitlines())) <= width
    for word in ("title", "solver@1.1.0", "fits", "0.50", "launchable", "a-much-longer-name", "math.algebra", "offer"):
        assert word in shown
    assert ("│" in shown) == (width >= 100)


def test_a_row_in_a_narrow_terminal_has_its_name_first_and_leaves_out_what_is_empty(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(output.console, "width", 40)
    with output.console.capture() as capture:
        output.print_table(("release", "state", "where", "notes"), [("a" * 12, "up", "http://h:1\nhttp://h:2", "")])
    assert capture.get() == "aaaaaaaaaaaa\n  state up · where http://h:1, http://h:2\n".replace(" · ", "\n  ")


@pytest.mark.parametrize(
    ("command", "code"),
    [(["hub", "list"], 0), (["match", "--skill", "math"], 1)],
)
def test_an_empty_hub_says_how_to_fill_it(cli: Any, command: list[str], code: int) -> None:
    shown = cli(*command, code=code)
    assert f"the hub {cli.hub} is empty; publish an agent with `agent-env push module:agent`" in shown
    assert "━" not in shown


def test_where_there_is_nothing_a_sentence_says_so(cli: Any) -> None:
    cli("push", "agents:echo", "--name", "echo", "--version", "1.0.0")
    assert "has no 'ecko'; `agent-env hub list`" in cli("hub", "list", "ecko")
    assert "echo@1.0.0 needs nobody" in cli("match", "echo")
    assert "its first caller launches one" in cli("hub", "show", "echo")
    (cli.folder / "episodes.jsonl").touch()
    assert cli("episodes", "list", "episodes.jsonl").strip() == "episodes.jsonl has no episodes"
    assert cli("episodes", "list", "episodes.jsonl", "--failed").strip() == "episodes.jsonl has no failed episodes"


def test_dead_instances_and_drafts_are_pruned(cli: Any) -> None:
    cli("push", "agents:echo", "--name", "echo", "--version", "1.0.0")
    cli("push", "agents:echo", "--name", "trial")
    with cli.serving("agents:echo", "--name", "brief", "--version", "1.0.0"):
        pass
    assert cli("hub", "prune").splitlines() == [
        "there is nothing to remove",
        "drafts are kept; --drafts removes those that nobody serves",
    ]
    with sqlite3.connect(cli.hub) as database:  # half an hour later
        database.execute("UPDATE leases SET registered = registered - 1800, renewed = renewed - 1800, ended = ?",
                         (time.time() - 1800,))  # fmt: skip
    told = cli("hub", "prune", "--drafts", "--dry-run")
    assert re.fullmatch(
        r"the draft trial, last heard of \d+s ago\n1 ended instance of brief@1\.0\.0\n"
        r"would remove 1 draft and 1 ended instance\n",
        told,
    ), told
    refused = cli("hub", "prune", "--older-than", "0s", code=2)
    assert "--older-than narrows what --drafts removes; give --drafts too" in refused
    assert cli.json("hub", "prune", "--drafts", "--older-than", "1d", "--dry-run")["drafts"] == []
    pruned = cli.json("hub", "prune", "--drafts", "--older-than", "0s")
    assert [draft["name"] for draft in pruned["drafts"]] == ["trial"]
    assert [instance["name"] for instance in pruned["instances"]] == ["brief"]
    assert [entry["release"]["name"] for entry in cli.json("hub", "list")] == ["brief", "echo"]
    assert "such as 7d, not 'soon'" in cli("hub", "prune", "--drafts", "--older-than", "soon", code=2)
