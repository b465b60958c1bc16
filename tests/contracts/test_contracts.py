"""Trainers that have no package to install here: what we hand over is held against a schema made of their source.

Each schema names the repository, the commit and the files that it was made of. Its files are of one commit; one of
another says why.
"""

from __future__ import annotations

import copy
import json
import re
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
from jsonschema import Draft202012Validator

from agent_env.episodes import EpisodeReader
from agent_env.training.exports.agent_lightning import to_agent_lightning
from agent_env.training.exports.areal import to_areal
from agent_env.training.exports.prime_rl import to_prime_rl
from agent_env.training.learning import credit_rows
from agent_env.training.rows import Row

HERE = Path(__file__).parent
ROOT = HERE.parents[1]
GOLDEN = ROOT / "tests" / "training" / "exports" / "golden.jsonl"
SCHEMAS = sorted(HERE.glob("*.json"))

EXPORTS: dict[str, Callable[[Sequence[Row]], list[dict[str, Any]]]] = {
    "agent_lightning": to_agent_lightning,
    "areal": to_areal,
    "prime_rl": to_prime_rl,
}


def validator(name: str) -> Draft202012Validator:
    return Draft202012Validator(json.loads((HERE / f"{name}.json").read_text("utf-8")))


@pytest.fixture(scope="module")
def rows() -> list[Row]:
    return credit_rows(EpisodeReader(GOLDEN))[0]


@pytest.mark.parametrize("path", SCHEMAS, ids=lambda path: path.stem)
def test_each_schema_is_one_and_names_repository_commit_and_file(path: Path) -> None:
    schema = json.loads(path.read_text("utf-8"))
    Draft202012Validator.check_schema(schema)
    assert schema["x-sources"]
    first = schema["x-sources"][0]
    for source in schema["x-sources"]:
        apart = {"why"} if source["commit"] != first["commit"] else set()
        assert source.keys() == {"repository", "commit", "file"} | apart
        assert source["repository"] == first["repository"] and all(source.values())
        assert re.fullmatch(r"[\w.-]+/[\w.-]+", source["repository"])
        assert re.fullmatch(r"[0-9a-f]{40}", source["commit"])
        assert source["file"].endswith(".py")


def test_there_is_a_schema_for_each_trainer_and_server_that_cannot_be_run() -> None:
    assert {path.stem for path in SCHEMAS} == {*EXPORTS, "vllm"}


@pytest.mark.parametrize("name", EXPORTS)
def test_what_is_exported_of_the_golden_tree_meets_the_contract(name: str, rows: list[Row]) -> None:
    exported = EXPORTS[name](rows)
    assert len(exported) == len(rows)
    for one in exported:
        # As it is sent: what JSON cannot hold would fail here.
        validator(name).validate(json.loads(json.dumps(one, allow_nan=False)))


def drop(*path: str | int) -> Callable[[Any], None]:
    def mutate(value: Any) -> None:
        for name in path[:-1]:
            value = value[name]
        del value[path[-1]]

    return mutate


def put(new: Any, *path: str | int) -> Callable[[Any], None]:
    def mutate(value: Any) -> None:
        for name in path[:-1]:
            value = value[name]
        value[path[-1]] = new

    return mutate


BROKEN: dict[str, list[Callable[[Any], None]]] = {
    "prime_rl": [
        *(drop(name) for name in ("token_ids", "mask", "logprobs", "temperatures", "env_name")),
        put([1, 0], "mask"),
        put([0.0], "temperatures"),
        put(0.5, "advantages"),
        put([1.0], "reward"),
        put(1.0, "advantage"),
    ],
    "areal": [
        *(drop(name) for name in ("input_ids", "loss_mask", "logprobs", "versions", "attention_mask", "rewards")),
        put([1, 2], "input_ids"),
        put([[1], [2]], "input_ids"),
        put([[2]], "loss_mask"),
        put([None], "rewards"),
        put(1.0, "rewards"),
    ],
    "agent_lightning": [
        drop("events", 0, "data", "response", "prompt_token_ids"),
        drop("events", 0, "data", "response", "choices", 0, "token_ids"),
        drop("events", 0, "data", "response", "choices", 0, "logprobs", "content", 0, "logprob"),
        drop("events", 0, "data", "server", "version"),
        drop("events", -1),
        put("error", "events", 0, "data", "status"),
        put(500, "events", 0, "data", "http_status"),
        put(None, "events", -1, "data", "value"),
        put("a/b", "rollout", "rollout_id"),
        drop("rollout", "input", "data_id"),
        put("", "rollout", "input", "data_id"),
        put("x", "rollout", "reward"),
    ],
}


@pytest.mark.parametrize(
    ("name", "mutate"),
    [(name, mutate) for name, mutations in BROKEN.items() for mutate in mutations],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_the_contract_refuses_what_the_trainer_could_not_take(
    name: str, mutate: Callable[[Any], None], rows: list[Row]
) -> None:
    broken = copy.deepcopy(EXPORTS[name](rows)[0])
    mutate(broken)
    assert not validator(name).is_valid(broken)


@pytest.mark.parametrize("path", SCHEMAS, ids=lambda path: path.stem)
def test_the_page_says_that_it_was_checked_against_the_source_and_not_run(path: Path) -> None:
    page = (ROOT / "docs" / "trainers.md").read_text("utf-8")
    sections = [section for section in page.split("\n## ") if f"tests/contracts/{path.name}" in section]
    assert len(sections) == 1
    assert "checked against the source, not run" in sections[0]
    for source in json.loads(path.read_text("utf-8"))["x-sources"]:
        assert source["repository"] in sections[0]
        assert source["commit"][:9] in sections[0]
        assert source["file"] in sections[0]
