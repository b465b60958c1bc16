"""The source hash: it changes with the project's code and with nothing else."""

from __future__ import annotations

import re
import sys
from pathlib import Path

import pytest

from agent_env.errors import ConfigurationError
from agent_env.launch import source_hash


@pytest.fixture
def project(tmp_path: Path) -> Path:
    files = {
        "agent.py": "import json\nfrom team import solver\nfrom team.prompts import *\n",
        "team/__init__.py": "",
        "team/solver.py": "from . import tools\nfrom .deep.inner import answer\nimport team.solver\n",
        "team/tools.py": "import os\n",
        "team/prompts.py": "TEXT = 'hi'\n",
        "team/deep/__init__.py": "from ..prompts import TEXT\n",
        "team/deep/inner.py": "def answer(): ...\n",
        "unrelated.py": "x = 1\n",
        "prompt.txt": "hello",
    }
    for name, text in files.items():
        file = tmp_path / name
        file.parent.mkdir(exist_ok=True)
        file.write_text(text)
    return tmp_path


USED = ["agent.py", "team/__init__.py", "team/solver.py", "team/tools.py", "team/prompts.py", "team/deep/inner.py"]


@pytest.mark.parametrize("name", [*USED, "team/deep/__init__.py"])
def test_each_module_that_the_agent_imports_counts(project: Path, name: str) -> None:
    before = source_hash("agent:make", project)
    assert re.fullmatch(r"sha256:[0-9a-f]{64}", before)
    file = project / name
    file.write_text(file.read_text() + "\n# edited\n")
    assert source_hash("agent:make", project) != before


def test_what_the_agent_does_not_import_does_not_count(project: Path) -> None:
    before = source_hash("agent:make", project)
    (project / "unrelated.py").write_text("x = 2\n")
    (project / "prompt.txt").write_text("bye")
    (project / "agent.pyc").write_bytes(b"\0")
    assert source_hash("agent:other", project) == before


def test_the_hash_is_the_same_in_another_place(project: Path, tmp_path_factory: pytest.TempPathFactory) -> None:
    elsewhere = tmp_path_factory.mktemp("elsewhere") / "copy"
    for file in project.rglob("*.py"):
        copy = elsewhere / file.relative_to(project)
        copy.parent.mkdir(parents=True, exist_ok=True)
        copy.write_bytes(file.read_bytes())
    assert source_hash("agent:make", elsewhere) == source_hash("agent:make", project)


def test_a_new_file_that_an_import_finds_counts(project: Path) -> None:
    (project / "agent.py").write_text("import helper\n")
    before = source_hash("agent:make", project)
    (project / "helper.py").write_text("")
    assert source_hash("agent:make", project) != before


def test_an_installed_module_is_hashed_with_its_own_package_alone(
    project: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "path", [str(project)])
    empty = tmp_path / "empty"
    empty.mkdir()
    before = source_hash("team.solver:make", empty)
    (project / "team" / "tools.py").write_text("import agent\n")
    changed = source_hash("team.solver:make", empty)
    assert changed != before
    (project / "agent.py").write_text("# edited\n")
    assert source_hash("team.solver:make", empty) == changed
    with pytest.raises(ConfigurationError, match=r"'team\.solver' is found neither in"):
        source_hash("team.solver:make", empty, installed=False)


def test_a_compiled_module_counts_by_its_bytes(project: Path) -> None:
    compiled = project / "fast.abi3.so"
    (project / "agent.py").write_text("import fast\n")
    compiled.write_bytes(b"one")
    before = source_hash("agent:make", project)
    compiled.write_bytes(b"two")
    assert source_hash("agent:make", project) != before


def test_a_module_that_is_not_there_or_does_not_parse_says_so(project: Path) -> None:
    with pytest.raises(ConfigurationError, match="'no_such_agent' is found neither"):
        source_hash("no_such_agent:make", project)
    with pytest.raises(ConfigurationError, match="found neither"):
        source_hash("../agent:make", project)
    (project / "agent.py").write_text("def make(:\n")
    with pytest.raises(ConfigurationError, match="'agent' does not parse"):
        source_hash("agent:make", project)
