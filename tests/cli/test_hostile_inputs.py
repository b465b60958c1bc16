"""Bad input to every command of runs and episodes: one sentence that names the value, status 2, and nothing left."""

from __future__ import annotations

import json
import sqlite3
import sys
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from typer.testing import CliRunner

from agent_env.cli import diagnosis
from agent_env.cli.application import app
from agent_env.cli.gateway import TOKEN_VARIABLE
from agent_env.episodes import Episode, EpisodeStore, EpisodeWriter
from agent_env.training.checkpoints import Run

pytestmark = pytest.mark.timeout(120)

GAME = """
from agent_env.training import Scenario, Seat

async def play(team, task):
    raise LookupError("no board " + "x" * 5000)

def player(message: str) -> str:
    return message

game = Scenario(play, lambda episode: {}, {"p": Seat(player, policy="p")}, "game", ["a"], ["a b"])
"""

TRAIN = ("train", "playing:game", "--tiny", "--run", "new", "--updates", "1")
OPTIONS: dict[str, Any] = {
    "scenario": "playing:game", "folder": ".", "policies": {}, "tasks": None, "tiny": True, "lora": False,
    "group_size": 2, "tasks_per_update": 2, "credit": "per_seat", "propagation": "team", "lr": None, "seed": 0,
}  # fmt: skip


class Case(NamedTuple):
    """A command, and the value that its refusal must name."""

    arguments: tuple[str, ...]
    named: str


CASES = [
    *(Case((*TRAIN, "--lr", value), value) for value in ("nan", "inf", "-inf", "0", "-1", "x", "")),
    *(Case((*TRAIN, "--seconds", value), value) for value in ("nan", "inf", "0", "-3", "soon")),
    *(Case((*TRAIN, "--credit", value), repr(value)) for value in ("nope", "", "per_seat ", "PER_SEAT")),
    *(Case((*TRAIN, "--average", value), repr(value)) for value in ("nope", "", "Units", "unit")),
    *(Case((*TRAIN, "--propagation", value), repr(value)) for value in ("nope", "")),
    *(Case((*TRAIN, "--device", value), repr(value)) for value in ("nope", "cuda:99", "", "cpu:x")),
    *(Case((*TRAIN, "--seed", value), value) for value in ("-1", "99999999999999999999999", "1.5")),
    *(
        Case((*TRAIN, option, value), value)
        for option in ("--updates", "--group-size", "--tasks-per-update", "--concurrency", "--checkpoint-every")
        for value in ("0", "-1", "many")
    ),
    Case((*TRAIN, "--group-size", "9999999999"), "9999999999"),
    *(
        Case((*TRAIN, "--run", name), repr(name))
        for name in ("../../x", "..", ".", ".hidden", "a/b", "/tmp/x", " a", "")
    ),
    Case((*TRAIN, "--run", "x" * 300), "x" * 200),
    Case((*TRAIN, "--runs", "file.txt"), "'file.txt'"),
    Case((*TRAIN, "--runs", "file.txt/deeper"), "'file.txt/deeper'"),
    *(Case((*TRAIN, "--tasks", name), name) for name in ("latin.jsonl", "nan.jsonl", "deep.jsonl", "none.jsonl", ".")),
    Case((*TRAIN, "--policy", "p=file.txt"), "file.txt"),
    Case((*TRAIN, "--policy", "p=nowhere"), "nowhere"),
    Case((*TRAIN, "--policy", "p=tiny_broken"), "tiny_broken"),
    Case((*TRAIN, "--policy", "p=tiny_empty"), "tiny_empty"),
    Case(("train", "playing"), "'playing'"),
    Case(("train", "nothing:game"), "'nothing'"),
    Case(("train", "nothing.py:game"), "'nothing.py'"),
    *(
        Case((*command, "--runs", runs, name), f"{shown}")
        for command in (("train", "--resume"), ("runs", "plot"))
        for runs, name, shown in (
            ("runs", "../../x", "'../../x'"),
            ("runs", "nothing", "'nothing'"),
            ("runs", "", "'.'"),
            ("runs", "empty", "empty"),
            ("damaged", "text", "damaged/text/run.json"),
            ("damaged", "list", "[1]"),
            ("damaged", "bytes", "damaged/bytes/run.json"),
            ("damaged", "when", "'yesterday'"),
            ("runs", "x" * 5000, "x" * 100),
        )
    ),
    *(
        Case(("train", "--resume", name, "--runs", "damaged"), shown)
        for name, shown in (("number", "'many'"), ("unfit", "'few'"), ("unmade", "'unmade'"), ("spot", "checkpoints/000001"))
    ),
    *(
        Case(("runs", "plot", name, "--runs", "curves"), shown)
        for name, shown in (
            ("without", "line 2"), ("text", "line 1"), ("words", "'high'"), ("unnumbered", "'one'"), ("nan", "nan"),
            ("seats", "[1]"),
        )
    ),
    Case(("runs", "list", "--runs", "curves"), "curves/without/curve.jsonl"),
    Case(("runs", "list", "--runs", "damaged"), "damaged/text/run.json"),
    Case(("runs", "plot", "good", "--png", "curve.gif"), "'curve.gif'"),
    Case(("runs", "plot", "good", "--png", "file.txt/curve.png"), "file.txt"),
    Case(("runs", "plot", "good", "--window", "0"), "0"),
    *(
        Case(("episodes", verb, source), source)
        for verb in ("list", "show", "export")
        for source in ("nowhere.db", "nowhere", "runs/empty", "file.txt", "latin.jsonl", "broken.jsonl", "blob.db")
    ),
    *(Case(("episodes", "list", "good.db", "--limit", value), value) for value in ("-1", "x")),
    Case(("episodes", "list", "good.db", "--limit", "99999999999999999999"), "99999999999999999999"),
    Case(("episodes", "export", "good.db", "--limit", "99999999999999999999"), "99999999999999999999"),
    Case(("episodes", "show", "good.db", "nobody"), "'nobody'"),
    Case(("episodes", "export", "good.db", "out", "--to", "smoke"), "'smoke'"),
    Case(("episodes", "export", "good.db", "runs"), "runs"),
    Case(("episodes", "export", "good.db", "file.txt/out.jsonl"), "file.txt"),
    Case(("episodes", "export", "blob.db", "out.jsonl"), "blob.db"),
    *(Case(("gateway", "--port", value), value) for value in ("99999", "-1", "http")),
    Case(("gateway", "--directory", "file.txt"), "file.txt"),
    Case(("gateway", "--directory", "file.txt/deeper", "--port", "0"), "file.txt/deeper"),
    Case(("gateway", "--host", "no.such.host.invalid", "--port", "0"), "no.such.host.invalid"),
    Case(("gateway", "--host", "", "--port", "0"), "''"),
    *(Case(("gateway", "--token-env", value), "--token-env") for value in ("", "A=B", "no variable")),
]  # fmt: skip


def prepare(folder: Path) -> None:
    (folder / "playing.py").write_text(GAME, "utf-8")
    (folder / "file.txt").write_text("not what you want\n")
    (folder / "latin.jsonl").write_bytes('{"task": "Grüße"}\n'.encode("latin-1"))
    (folder / "nan.jsonl").write_text('"a"\nNaN\n')
    (folder / "deep.jsonl").write_text("[" * 100_000 + "\n")
    (folder / "broken.jsonl").write_text('{"id": "e"\n{}\n')
    for name, config in {"tiny_broken": '{"model_type": "agent-env-tiny"}', "tiny_empty": "\udc80"}.items():
        (folder / name).mkdir()
        (folder / name / "config.json").write_text(config, "utf-8", "surrogateescape")
    (folder / "runs" / "empty").mkdir(parents=True)
    with Run.create(folder / "runs", name="good") as run:
        run.record({"update": 1, "reward": {"team": 0.5}})
    about = {
        "text": b"{", "list": b"[1]", "bytes": b"\xff\xfe", "when": b'{"created": "yesterday"}',
        "number": json.dumps({"options": OPTIONS, "updates": "many"}).encode(),
        "unfit": json.dumps({"options": {**OPTIONS, "group_size": "few"}, "updates": 3}).encode(),
        "unmade": b'{"updates": 3}',
        "spot": json.dumps({"options": OPTIONS, "updates": 3}).encode(),
    }  # fmt: skip
    for name, content in about.items():
        (folder / "damaged" / name / "checkpoints" / "000001").mkdir(parents=True)
        (folder / "damaged" / name / "run.json").write_bytes(content)
        (folder / "damaged" / name / "checkpoints" / "000001" / "checkpoint.json").write_text('{"update": 1}')
    curves = {
        "without": '{"update": 1, "reward": {}}\n{"update": 2}\n', "text": "x\n", "nan": '{"update":1,"reward":{"a":NaN}}\n',
        "words": '{"update": 1, "reward": {"a": "high"}}\n', "unnumbered": '{"update": "one", "reward": {}}\n',
        "seats": '{"update": 1, "reward": [1]}\n',
    }  # fmt: skip
    for name, curve in curves.items():
        Run.create(folder / "curves", name=name).close()
        (folder / "curves" / name / "curve.jsonl").write_text(curve)
    for path in ("good.db", "blob.db"):
        with EpisodeStore(folder / path) as store:
            store.append([Episode("e1", task="t")])
    with sqlite3.connect(folder / "blob.db") as database:
        (table,) = {name for (name,) in database.execute("select name from sqlite_master where type = 'table'")} & {
            "episodes"
        }
        columns = [row[1] for row in database.execute(f"pragma table_info({table})")]
        for column in set(columns) & {"body", "summary"}:
            database.execute(f"update {table} set {column} = ?", (b"\x00\xff\xfe",))
    database.close()
    with EpisodeWriter(folder / "good.jsonl") as writer:
        writer.append([Episode("e1")])


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("hostile")
    prepare(folder)
    return folder


@pytest.mark.parametrize("case", CASES, ids=lambda case: " ".join(case.arguments)[:90])
def test_bad_input_is_one_sentence_that_names_the_value(
    case: Case, world: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(world)
    monkeypatch.setenv("COLUMNS", "2000")
    monkeypatch.setenv(TOKEN_VARIABLE, "s3cret")
    monkeypatch.setattr(sys, "path", list(sys.path))
    monkeypatch.delitem(sys.modules, "playing", raising=False)
    before = sorted(path.relative_to(world) for path in world.rglob("*") if "__pycache__" not in path.parts)
    done = CliRunner().invoke(app, case.arguments)
    assert isinstance(done.exception, SystemExit), repr(done.exception)
    assert done.exit_code == 2 and "Traceback" not in done.output, done.output
    assert case.named in done.stderr, done.stderr
    sentences = [line for line in done.stderr.splitlines() if line.strip(" │╭╮╰╯─")]
    usage = any(line.startswith("Usage:") for line in sentences) or "Usage:" in done.stderr
    assert usage or case.arguments[:2] == ("runs", "list") or len(sentences) == 1, done.stderr
    after = sorted(path.relative_to(world) for path in world.rglob("*") if "__pycache__" not in path.parts)
    assert [path for path in after if path not in before and path.suffix not in {".lock", ".db-shm", ".db-wal"}] == []


def test_an_error_is_json_where_json_is_asked_for(world: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(world)
    for arguments in (("train", "playing:game", "--lr", "nan"), ("runs", "plot", "x"), ("episodes", "list", "blob.db")):
        done = CliRunner().invoke(app, [*arguments, "--json"])
        assert done.exit_code == 2 and json.loads(done.stdout)["error"]["code"]


def test_what_is_damaged_hides_no_other_run(world: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(world)
    with Run.create(world / "curves", name="sound") as run:
        run.record({"update": 1, "reward": {"": 0.5}})
    done = CliRunner().invoke(app, ["runs", "list", "--runs", "curves", "--json"])
    assert [run["run"] for run in json.loads(done.stdout)] == ["sound"] and done.exit_code == 2
    assert json.loads(done.stdout)[0]["reward"] == {"team": 0.5}


def test_agents_that_fail_are_told_in_one_sentence_with_their_cause(
    world: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(world)
    monkeypatch.setattr(sys, "path", list(sys.path))
    monkeypatch.delitem(sys.modules, "playing", raising=False)
    done = CliRunner().invoke(app, [*TRAIN, "--runs", "failing"])
    assert done.exit_code == 1 and "Traceback" not in done.output, done.output
    said = " ".join(done.stderr.split())
    assert "The first one failed because the scenario itself raised" in said and "no board" in said, said


def test_lines_on_standard_output_are_counted_on_standard_error(world: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(world)
    for arguments, told in (
        ([], "1 episode is on standard output"),
        (["--failed"], "0 episodes are on standard output"),
    ):
        done = CliRunner().invoke(app, ["episodes", "export", "good.db", *arguments])
        assert done.exit_code == 0 and done.stderr.strip() == told
        assert len(done.stdout.splitlines()) == int(told[0])


def test_the_doctor_knows_every_extra_that_training_has(monkeypatch: pytest.MonkeyPatch) -> None:
    found = {finding.subject: finding for finding in diagnosis.training()}
    assert {"torch", "transformers", "peft"} <= set(found["models of Hugging Face"].note.replace(",", "").split())
    assert found["views of PettingZoo"].state == "ok"
    monkeypatch.setattr(diagnosis, "_installed", {"torch": "2.13"}.get)
    found = {finding.subject: finding for finding in diagnosis.training()}
    assert [found[name].state for name in ("training", "models of Hugging Face")] == ["ok", "absent"]
    assert found["models of Hugging Face"].note == "transformers, peft not installed; run: pip install 'agent-env[hf]'"
    assert "agent-env[pettingzoo]" in found["views of PettingZoo"].note
