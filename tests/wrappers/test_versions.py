"""What is installed, and what to install."""

from __future__ import annotations

from importlib.metadata import version

import pytest

from agent_env_wrappers.contract import WrapError
from agent_env_wrappers.versions import installed


def test_a_distribution_is_named_with_its_version() -> None:
    assert installed("pytest", install="pytest", least=(8,)) == f"pytest {version('pytest')}"


def test_a_missing_distribution_is_named_with_the_command_that_installs_it() -> None:
    with pytest.raises(WrapError, match=r"no-such-thing is not installed: pip install 'agent-env\[thing\]'"):
        installed("no-such-thing", install="agent-env[thing]", least=(1,))


def test_a_distribution_that_is_too_old_is_named_with_the_least_version() -> None:
    with pytest.raises(WrapError, match=r"is too old, 999\.1 is the least"):
        installed("pytest", install="pytest", least=(999, 1))
