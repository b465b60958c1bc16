"""The JSON Schema files: made from the models, and of the same opinion as the models."""

from __future__ import annotations

import json
import subprocess
import sys
from importlib.resources import files
from pathlib import Path
from typing import Any

import pytest
from jsonschema import Draft202012Validator
from jsonschema.exceptions import ValidationError

from agent_env_cards import Need, validate_card
from agent_env_cards.conformance import cases
from agent_env_cards.schema import MODELS, made_text, make_schema, read_schema, schema_text
from agent_env_cards.schema.__main__ import main


@pytest.mark.parametrize("name", MODELS)
def test_the_file_is_what_the_models_say(name: str) -> None:
    assert schema_text(name) == made_text(name), "run: python -m agent_env_cards.schema --write"
    assert read_schema(name) == make_schema(name)


@pytest.mark.parametrize("name", MODELS)
def test_the_schema_is_one(name: str) -> None:
    schema = read_schema(name)
    Draft202012Validator.check_schema(schema)
    assert schema["$id"] == f"urn:agent-env:schema:{name}:v1"
    assert '"title"' not in schema_text(name)


def test_there_is_a_file_for_each_model_and_no_other() -> None:
    names = {file.name for file in (files("agent_env_cards") / "schema").iterdir() if file.name.endswith(".json")}
    assert names == {f"{name}.schema.json" for name in MODELS}


def wrong(error: ValidationError) -> list[str]:
    """Where values are wrong; an optional member is wrong where its value is, not where its choice with null is."""
    inner = [one for one in error.context or () if one.validator != "type" or one.schema.get("type") != "null"]
    missing = error.message.split("'")[1:2] if error.validator == "required" else []
    here = "".join(f"/{token}" for token in [*error.absolute_path, *missing])
    return [place for one in inner for place in wrong(one)] or [here]


@pytest.mark.clause("EC-03")
@pytest.mark.parametrize("case", [*cases("invalid"), *cases("valid")], ids=lambda case: case.name)
def test_the_schema_finds_the_wrong_types_that_the_models_find(case: Any) -> None:
    validator = Draft202012Validator(read_schema("environment-card"))
    found = {place for error in validator.iter_errors(case.card) for place in wrong(error)}
    expected = {problem.pointer for problem in validate_card(case.card) if problem.clause in ("EC-01", "EC-03")}
    # A list that is too short is one problem of the list to a JSON Schema, and one of the absent element to a model.
    assert {place.removesuffix("/1") if "range" in place else place for place in expected} == found


def test_a_need_alone_has_a_schema() -> None:
    validator = Draft202012Validator(read_schema("need"))
    assert list(validator.iter_errors(Need("s", skills=["a"], strict=True).to_dict())) == []
    assert [wrong(error) for error in validator.iter_errors({"seat": 1})] == [["/seat"]]


def test_the_command_writes_what_it_checks(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--check"]) == 0
    assert main(["--check"], folder=tmp_path) == 1
    assert "run: python -m agent_env_cards.schema --write" in capsys.readouterr().err
    assert main(["--write"], folder=tmp_path) == 0
    assert main(["--check"], folder=tmp_path) == 0
    (tmp_path / "need.schema.json").write_text(json.dumps({}), encoding="utf-8")
    assert main(["--check"], folder=tmp_path) == 1
    with pytest.raises(SystemExit):
        main([])


def test_the_command_runs_from_a_shell() -> None:
    command = [sys.executable, "-m", "agent_env_cards.schema", "--check"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=50, check=False)
    assert (done.returncode, done.stderr) == (0, "")
