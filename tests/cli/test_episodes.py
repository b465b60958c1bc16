"""`agent-env episodes`: what is listed, shown and exported, of every kind of file."""

from __future__ import annotations

import json
import os
import pty
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from agent_env.cli import output
from agent_env.cli.application import app
from agent_env.cli.formats import FORMATS, listed, row_writer_of, writer_of
from agent_env.episodes import (
    CallRecord,
    EdgeRecord,
    Episode,
    EpisodeStore,
    EpisodeWriter,
    TurnRecord,
    open_episodes,
)
from agent_env.errors import TransportError


def played(number: int) -> Episode:
    name = f"ep{number}"
    episode = Episode(name, f"task {number}", "even" if number % 2 == 0 else "odd", "r1", 1.0, 0.25)
    episode.add(
        [
            EdgeRecord("d1", "guide@1.0.0", name, callee_seat="guide", callee_call_id="t1", protocol="http"),
            TurnRecord("t1", "guide@1.0.0", "s1", name, seat="guide", request="where?", reply="left", seconds=0.125),
            CallRecord("k1", "t1", "guide", "tiny", name, prompt_token_ids=[1, 2], token_ids=[3], seconds=0.0625),
        ]
    )
    episode.score("arrived", 1.0)
    episode.score("brief", None, seat="guide", source="judge")
    return episode


def failed() -> Episode:
    episode = Episode("broken", run="r2")
    episode.fail(TransportError("the agent is gone"))
    return episode


EPISODES = [*(played(number) for number in range(3)), failed()]


@dataclass
class Command:
    """Runs the command in this process: it starts none, and needs nothing but files."""

    runner: CliRunner

    def __call__(self, *arguments: str, code: int = 0) -> str:
        done = self.runner.invoke(app, ["episodes", *arguments])
        assert done.exit_code == code, done.output
        assert done.exception is None or isinstance(done.exception, SystemExit)
        return done.output if code else done.stdout

    def json(self, *arguments: str, code: int = 0) -> Any:
        done = self.runner.invoke(app, ["episodes", *arguments, "--json"])
        assert done.exit_code == code, done.output
        return json.loads(done.stdout)


@pytest.fixture
def cli(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Command:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(output.console, "width", 140)
    return Command(CliRunner())


@pytest.fixture(params=["episodes.db", "episodes.jsonl", "folder"])
def source(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    name = request.param
    if name == "folder":
        (tmp_path / "run").mkdir()
        name = "run/episodes.db"
    with (EpisodeStore if name.endswith("db") else EpisodeWriter)(tmp_path / name) as store:
        store.append(EPISODES)
    return "run" if request.param == "folder" else str(request.param)


def test_episodes_are_listed_with_their_ends_and_what_they_were_worth(cli: Command, source: str) -> None:
    printed = cli("list", source)
    assert [line.split("│")[1].strip() for line in printed.splitlines() if "│" in line] == [
        *("ep0", "ep1", "ep2", "broken")
    ]
    for expected in ("failed: transport", "task 1", "guide", "2+1", "arrived=1 guide.brief=—", "250 ms"):
        assert expected in printed
    assert [summary["id"] for summary in cli.json("list", source, "--limit", "2")] == ["ep2", "broken"]
    (last,) = cli.json("list", source, "--failed")
    assert last["errors"] == [{"boundary": "transport", "type": "transport_error", "message": "the agent is gone"}]
    assert "sampled_tokens" not in last and "seconds" not in last


def test_a_list_says_what_episodes_failed_of_and_that_there_are_more(
    cli: Command, source: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(output.console, "width", 78)  # a row is a few lines, and no cell is folded
    wordy = Episode("wordy", task="t" * 24, run="r" * 24)
    wordy.add([TurnRecord("t", "guide@1.0.0", "s", "wordy", seat="guide-of-the-whole-of-the-team")])
    wordy.fail(ValueError("the dice\nfell off the table, and nobody has found them since"), boundary="program")
    wordy.fail(KeyError(), boundary="reward")
    path = Path(source) / "episodes.db" if source == "run" else Path(source)
    with (EpisodeStore if path.suffix == ".db" else EpisodeWriter)(path) as store:
        store.append([wordy])
    assert "failed: transport_error: the agent is gone" in cli("list", source)
    first = cli("list", source, "--failed", "--limit", "1")
    assert "state failed: program ValueError: the dice fell off t…, and 1 more" in first, first
    assert first.splitlines()[-1] == "1 of 2 episodes; --limit 0 for all"
    for options in (["--limit", "2"], ["--limit", "0"], []):
        assert "--limit" not in cli("list", source, "--failed", *options)


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        (["--run", "r1", "--group", "even"], ["ep0", "ep2"]),
        (["--seat", "guide", "--limit", "1"], ["ep2"]),
        (["--ok", "--limit", "0"], ["ep0", "ep1", "ep2"]),
        (["--run", "r2", "--ok"], []),
    ],
)
def test_a_list_is_of_what_is_asked_for(cli: Command, tmp_path: Path, options: list[str], expected: list[str]) -> None:
    with EpisodeStore(tmp_path / "e.db") as store:
        store.append(EPISODES)
    assert [summary["id"] for summary in cli.json("list", "e.db", *options)] == expected


def test_where_nothing_is_found_that_is_said(cli: Command, tmp_path: Path) -> None:
    with EpisodeStore(tmp_path / "e.db"):
        pass
    assert cli("list", "e.db") == "e.db has no episodes\n"
    assert cli("list", "e.db", "--failed", "--run", "r9") == "e.db has no failed episodes with run 'r9'\n"
    assert "'e.db' has no episodes" in cli("show", "e.db", code=2)
    with EpisodeStore(tmp_path / "e.db") as store:
        store.append(EPISODES)
    assert "has no episode 'x'; `agent-env episodes list e.db`" in cli("show", "e.db", "x", code=2)
    assert (
        cli("list", "e.db", "--seat", "gide")
        == "e.db has no episodes with seat 'gide'; the seats that played: 'guide'\n"
    )
    assert cli("list", "e.db", "--seat", "gide", "--run", "r9") == "e.db has no episodes with run 'r9', seat 'gide'\n"
    wire = cli.json("list", "missing.db", code=2)
    assert wire["error"]["code"] == "configuration" and "missing.db" in wire["error"]["message"]


def test_an_episode_is_shown_as_its_calls_with_timings_tokens_and_rewards(cli: Command, source: str) -> None:
    printed = cli("show", source, "ep1")
    for expected in (
        "ep1 ok 250.0 ms 2+1 tokens reward 1 task 1",
        "└── tiny 2+1 tokens 62.5 ms",
        "guide@1.0.0 as guide over http 125.0 ms  where? -> left",
        "arrived = 1 x 1, team, by env",
        "brief = not scored x 1, seat guide, by judge",
    ):
        assert expected in printed
    assert Episode.from_json(cli.json("show", source, "ep1")) == EPISODES[1]
    assert "transport: transport_error the agent is gone" in cli("show", source)


def test_an_episode_is_shown_by_a_beginning_of_its_id_that_no_other_has(cli: Command, source: str) -> None:
    assert Episode.from_json(cli.json("show", source, "br")) == EPISODES[3]
    refused = cli.json("show", source, "ep", code=2)["error"]["message"]
    assert refused.startswith("the ids of 3 episodes begin with 'ep': ep0, ep1, ep2; say more")
    assert f"has no episode 'p0'; `agent-env episodes list {source}`" in cli("show", source, "p0", code=2)


def test_an_id_that_another_one_begins_with_is_meant_itself_and_few_of_many_are_named(
    cli: Command, tmp_path: Path
) -> None:
    with EpisodeStore(tmp_path / "e.db") as store:
        store.append([Episode("a"), *(Episode(f"a{number:02}") for number in range(12))])
    assert cli.json("show", "e.db", "a")["id"] == "a"
    refused = cli.json("show", "e.db", "a0", code=2)["error"]["message"]
    assert "of 10 episodes begin with 'a0': a00, a01," in refused and "a07 and 2 more; say" in refused


def test_what_is_exported_is_what_was_stored(cli: Command, source: str, tmp_path: Path) -> None:
    assert cli("export", source, "out.jsonl", "--ok") == "3 episodes are in out.jsonl\n"
    assert list(open_episodes(tmp_path / "out.jsonl").find()) == EPISODES[:3]
    done = cli.json("export", source, "new/out.db")
    assert done == {"episodes": 4, "format": "db", "path": "new/out.db"}
    # What is in a database stays there: exports of several files are put together in one.
    assert cli.json("export", source, "new/out.db", "--limit", "1")["episodes"] == 1
    with open_episodes(tmp_path / "new/out.db") as store:
        assert sorted(episode.id for episode in store.find()) == ["broken", "ep0", "ep1", "ep2"]
    lines = cli("export", source, "--seat", "guide", "--limit", "2").splitlines()
    assert [Episode.from_json(json.loads(line)) for line in lines] == EPISODES[:2]
    assert cli("export", source, "lines.txt", "--to", "jsonl", "--group", "odd") == "1 episode is in lines.txt\n"


def test_an_export_that_makes_no_sense_is_refused(cli: Command, tmp_path: Path) -> None:
    with EpisodeWriter(tmp_path / "e.jsonl") as store:
        store.append(EPISODES)
    before = (tmp_path / "e.jsonl").read_bytes()
    assert "is what is exported" in cli("export", "e.jsonl", "./e.jsonl", "--ok", code=2)
    assert (tmp_path / "e.jsonl").read_bytes() == before
    cli("export", "e.jsonl", "e.db")
    kept = (tmp_path / "e.db").read_bytes()
    refused = " ".join(cli("export", "e.jsonl", "e.db", "--to", "verifiers", code=2).split())
    assert "is a database, which verifiers would replace" in refused
    assert (tmp_path / "e.db").read_bytes() == kept
    refused = " ".join(cli("export", "e.jsonl", "out", "--to", "smoke", code=2).split())
    assert "there is no format 'smoke'; --to takes jsonl, db" in refused
    assert "only lines go to standard output" in cli("export", "e.jsonl", "--to", "db", code=2)
    assert "only lines go" in cli.json("export", "e.jsonl", code=2)["error"]["message"]
    assert sorted(path.name for path in tmp_path.iterdir() if path.suffix in ("", ".jsonl")) == ["e.jsonl"]


GOLDEN = str(Path(__file__).parents[1] / "training" / "exports" / "golden.jsonl")


@pytest.mark.parametrize(
    ("chosen", "why"),
    [
        (
            ["--seat", "lefft"],
            "no episodes with seat 'lefft'; the seats that played: 'judge', 'left', 'manager', 'right', ",
        ),
        (["--seat", "left", "--run", "r9"], "has no episodes with run 'r9', seat 'left'"),
        (["--seat", "judge"], "no model call of a seat to train was recorded, but of 'judge' (1, frozen), 'manager' ("),
    ],
)
def test_an_export_of_rows_of_a_seat_that_has_none_names_those_that_have(
    cli: Command, chosen: list[str], why: str
) -> None:
    refused = cli.json("export", GOLDEN, "out.jsonl", "--to", "verl", *chosen, code=2)["error"]["message"]
    assert why in refused and (GOLDEN in refused or "none of the 1 episodes" in refused)


def test_an_export_of_rows_says_how_many_of_which_policies_and_what_makes_none(cli: Command, tmp_path: Path) -> None:
    printed = cli("export", GOLDEN, "out.jsonl", "--to", "verl", "--policy", "boss", "--policy", "hand")
    rows = [[cell.strip() for cell in line.split("│")[1:-1]] for line in printed.splitlines() if "│" in line]
    assert rows == [
        ["boss", "manager (3)", "3", "14", "episode not ok (1)"],
        ["hand", "worker (3)", "3", "6", "retried (1), call failed (1)"],
    ]
    assert printed.endswith("6 rows of 2 episodes are in out.jsonl\n")
    assert cli("export", GOLDEN, "out.jsonl", "--to", "areal", "--seat", "left", "--limit", "1").endswith(
        "1 row of 1 episode is in out.jsonl\n"
    )
    told = cli.json("export", GOLDEN, "out.jsonl", "--to", "verl", "--policy", "hand")
    assert told == {
        "episodes": 2,
        "rows": 3,
        "policies": {
            "hand": {"rows": 3, "tokens": 6, "seats": {"worker": 3}, "dropped": {"retried": 1, "call failed": 1}}
        },
        "format": "verl",
        "path": "out.jsonl",
    }
    assert len((tmp_path / "out.jsonl").read_text().splitlines()) == 3


def test_a_file_of_rows_is_of_one_policy_unless_several_are_named(cli: Command, tmp_path: Path) -> None:
    refused = " ".join(cli("export", GOLDEN, "out.jsonl", "--to", "verl", code=2).split())
    assert "rows of 3 policies, and a trainer has one: 'boss', 3 as manager; 'hand', 3 as worker" in refused
    assert "choose one (--policy boss, or" in refused and not (tmp_path / "out.jsonl").exists()
    refused = " ".join(cli("export", GOLDEN, "out.jsonl", "--policy", "boss", code=2).split())
    assert "jsonl holds whole episodes, and --policy chooses rows; write them --to verl, trl-async" in refused


def test_the_line_that_a_killed_writer_left_is_told(tmp_path: Path) -> None:
    with EpisodeWriter(tmp_path / "e.jsonl") as store:
        store.append(EPISODES)
    with (tmp_path / "e.jsonl").open("ab") as file:
        file.write(b'{"kind":"ep')
    run = subprocess.run(
        [sys.executable, "-m", "agent_env.cli", "episodes", "list", "e.jsonl", "--json"],
        cwd=tmp_path,
        check=True,
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert len(json.loads(run.stdout)) == 4
    assert "the last line is unfinished (11 bytes)" in run.stderr


def test_an_export_on_a_terminal_shows_how_far_it_is(tmp_path: Path) -> None:
    with EpisodeStore(tmp_path / "e.db") as store:
        store.append(EPISODES)
    ours, theirs = pty.openpty()
    try:
        run = subprocess.run(
            [sys.executable, "-m", "agent_env.cli", "episodes", "export", "e.db", "out.jsonl"],
            cwd=tmp_path,
            check=True,
            stdout=subprocess.PIPE,
            stderr=theirs,
            env=os.environ | {"TERM": "xterm", "COLUMNS": "100"},
            text=True,
            timeout=60,
        )
        os.close(theirs)
        shown = os.read(ours, 65536).decode()
    finally:
        os.close(ours)
    assert run.stdout == "4 episodes are in out.jsonl\n"
    assert "exporting" in shown and "4/4" in shown


def test_the_writer_of_every_format_is_there() -> None:
    for name in FORMATS:
        assert callable((row_writer_of if FORMATS[name].rows else writer_of)(name))
        assert f"{name}: {FORMATS[name].what}" in listed()
