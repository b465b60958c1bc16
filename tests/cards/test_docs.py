"""The examples in the docstrings and on the page of the protocol do what they say."""

from __future__ import annotations

import doctest
import importlib
import pkgutil
import re
from pathlib import Path

import pytest

import agent_env_cards
from agent_env_cards import EnvironmentCard
from agent_env_cards.schema import read_schema

README = Path(__file__).parents[2] / "cards" / "README.md"
MODULES = [
    module.name
    for module in pkgutil.walk_packages(agent_env_cards.__path__, "agent_env_cards.")
    if "compatibility" not in module.name and not module.name.endswith("__main__")
]


@pytest.mark.parametrize("name", MODULES)
def test_the_examples_of_a_module_run(name: str) -> None:
    assert doctest.testmod(importlib.import_module(name)).failed == 0


def test_the_examples_of_the_page_run() -> None:
    blocks = re.findall(r"^```python\n(.*?)^```$", README.read_text(encoding="utf-8"), re.DOTALL | re.MULTILINE)
    assert blocks
    for block in blocks:
        exec(compile(block, str(README), "exec"), {})  # noqa: S102


def test_the_page_names_every_member_of_a_card() -> None:
    text = README.read_text(encoding="utf-8")
    members = {str(field.serialization_alias) for field in EnvironmentCard.model_fields.values()}
    assert {member for member in members if f"`{member}`" not in text} - {"capabilities"} == set()
    assert set(read_schema("environment-card")["$defs"]["EnvironmentCard"]["properties"]) == members
