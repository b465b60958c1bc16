"""The public names: what is promised, where it comes from, and what importing it costs."""

from __future__ import annotations

import subprocess
import sys

import pytest

import agent_env

HEAVY = ("mcp", "a2a", "fastapi", "starlette", "uvicorn", "torch", "aiohttp", "sqlalchemy", "matplotlib", "openai")


def loaded_after(code: str) -> set[str]:
    """The heavy packages that are loaded after a fresh interpreter ran the code."""
    probe = f"{code}\nimport sys; print('loaded', *[name for name in {HEAVY!r} if name in sys.modules])"
    done = subprocess.run([sys.executable, "-c", probe], check=True, capture_output=True, text=True, timeout=60)
    return set(done.stdout.splitlines()[-1].split()[1:])


@pytest.mark.parametrize("name", sorted(set(agent_env.__all__) - {"__version__"}))
def test_every_promised_name_is_there_and_knows_where_it_lives(name: str) -> None:
    assert getattr(agent_env, name).__module__.startswith("agent_env")


def test_a_name_that_is_not_promised_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="has no attribute 'nonsense'"):
        _ = agent_env.nonsense  # type: ignore[attr-defined]


def test_the_names_can_be_listed_without_importing_them() -> None:
    assert set(agent_env.__all__) <= set(dir(agent_env))


def test_importing_the_package_imports_nothing_heavy() -> None:
    assert loaded_after("import agent_env, agent_env_cards, agent_env_wrappers.contract") == set()


def test_the_client_imports_no_server_and_no_sdk() -> None:
    loaded = loaded_after("from agent_env import Environment")
    assert loaded & {"mcp", "a2a", "fastapi", "uvicorn", "torch", "matplotlib", "openai"} == set()


@pytest.mark.parametrize("arguments", ["--help", "serve --help", "hub --help", "card show --help", "doctor --help"])
def test_help_answers_without_importing_what_commands_need(arguments: str) -> None:
    code = f"import sys; sys.argv = ['agent-env', *{arguments.split()!r}]\nfrom agent_env.cli import main\n"
    code += "try: main()\nexcept SystemExit as stop: assert not stop.code"
    assert loaded_after(code) == set()


def test_an_environment_in_process_imports_no_sdk() -> None:
    loaded = loaded_after("from agent_env import AgentEnvironment\nAgentEnvironment(len, name='counter')")
    assert loaded & {"mcp", "a2a", "fastapi", "torch", "matplotlib", "openai"} == set()
