"""What importing the package costs and gives."""

from __future__ import annotations

import subprocess
import sys

import pytest

import agent_env_cards


def test_importing_the_package_imports_no_jose_library_and_no_layer_above() -> None:
    code = (
        "import sys, agent_env_cards\n"
        "heavy = {'jwt', 'cryptography', 'jsonschema', 'a2a', 'mcp', 'agent_env', 'agent_env_wrappers', 'fastapi'}\n"
        "print(sorted(heavy & set(sys.modules)))\n"
        "agent_env_cards.sign_card\n"
        "print('jwt' in sys.modules)\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=50, check=True)
    assert done.stdout.split("\n")[:2] == ["[]", "True"]


def test_every_public_name_is_there() -> None:
    assert len(set(agent_env_cards.__all__)) == len(agent_env_cards.__all__)
    for name in agent_env_cards.__all__:
        assert getattr(agent_env_cards, name) is not None


def test_another_name_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="no attribute 'EnvironmentCrad'"):
        _ = agent_env_cards.EnvironmentCrad
