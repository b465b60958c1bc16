"""The shape of the repository: small files, arrows that point down, no grab-bags."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
MAX_LINES = 500
GRAB_BAGS = {"utils", "helpers", "manager", "base", "common", "misc"}


def sources(*suffixes: str) -> list[Path]:
    listed = subprocess.run(
        ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"],
        cwd=ROOT,
        check=True,
        capture_output=True,
        text=True,
        timeout=30,
    ).stdout
    paths = [ROOT / name for name in listed.split("\0") if name]
    return [path for path in paths if path.suffix in suffixes and path.exists()]


def test_no_python_file_is_longer_than_500_lines() -> None:
    lengths = {path.relative_to(ROOT): len(path.read_text("utf-8").splitlines()) for path in sources(".py")}
    assert lengths
    assert {str(path): lines for path, lines in lengths.items() if lines > MAX_LINES} == {}


def test_no_module_is_a_grab_bag() -> None:
    assert [str(path) for path in sources(".py") if path.stem.lstrip("_") in GRAB_BAGS] == []


@pytest.mark.parametrize("package", ["cards/agent_env_cards", "wrappers/agent_env_wrappers"])
def test_the_leaves_import_neither_each_other_nor_the_product(package: str) -> None:
    allowed = package.rpartition("/")[2]
    found: list[str] = []
    for path in (ROOT / package).rglob("*.py"):
        for name in re.findall(r"^\s*(?:from|import) (agent_env\w*)", path.read_text("utf-8"), re.MULTILINE):
            if name != allowed:
                found.append(f"{path.relative_to(ROOT)}: {name}")
    assert found == []


def test_agents_md_is_a_map_of_at_most_80_lines() -> None:
    assert len((ROOT / "AGENTS.md").read_text("utf-8").splitlines()) <= 80


def test_the_readme_has_at_most_140_lines_and_code_by_line_15() -> None:
    lines = (ROOT / "README.md").read_text("utf-8").splitlines()
    assert len(lines) <= 140
    assert any(line.startswith("```") for line in lines[:15])


def test_no_file_names_a_path_of_one_machine() -> None:
    pattern = re.compile(r"(?<![\w.])/(?:work|root|home|opt)/[a-z.]")
    kinds = (".py", ".md", ".toml", ".txt", ".json", ".yml", ".yaml")
    found = [
        f"{path.relative_to(ROOT)}:{number}"
        for path in sources(*kinds)
        if path != Path(__file__)
        for number, line in enumerate(path.read_text("utf-8").splitlines(), start=1)
        if pattern.search(line)
    ]
    assert found == []


def test_every_example_with_a_program_is_run_by_make_demo_all() -> None:
    recipe = (ROOT / "Makefile").read_text("utf-8").partition("\ndemo-all:")[2].partition("\n\n")[0]
    run = re.findall(r"^\t\S+/python \$\(EXAMPLES\)/(\w+)/train\.py$", recipe, re.MULTILINE)
    examples = ROOT / "examples" / "multiagent"
    folders = {path.relative_to(examples).parts[0] for path in sources(".py") if path.is_relative_to(examples)}
    assert sorted(run) == sorted(folders) and len(folders) > 1
    assert all((examples / folder / "train.py").exists() for folder in folders)
